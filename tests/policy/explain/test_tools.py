"""The tools whose calls are known in a command line."""

from __future__ import annotations

import pytest

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.explain.tools import TOOLS, tool_of, with_tool

CALLS = {
    "pip": ["pip install x", "/usr/bin/pip3.11 download x", "python3 -m pip install x", "uv add x", "pipx run x"],
    "npm": ["npm ci", "npm", "cd web && pnpm install", "bash -c 'yarn add x'", "npx x"],
    "cargo": ["cargo build --release", "env A=1 cargo fetch"],
    "go": ["go mod download", "go get ./..."],
    "maven": ["mvn -q package", "./mvnw verify"],
    "apt": ["sudo apt-get update", "apt install x"],
    "git": ["git fetch", "git pull origin main"],
    "": ["npm run build", "npm test", "cargo run", "go test ./...", "git clone https://x.test/y", "epip install"],
}  # fmt: skip


@pytest.mark.parametrize(("tool", "text"), [(tool, text) for tool, texts in CALLS.items() for text in texts])
def test_a_call_that_fetches_is_known(tool: str, text: str) -> None:
    assert tool_of(text) == tool


def test_every_tool_has_a_call() -> None:
    assert {*TOOLS, ""} == set(CALLS)


def test_only_a_host_on_no_list_gets_the_advice() -> None:
    hint = "add it with: sandboxd allow domain x.test"
    open_one = Decision(Behavior.DENY, Reason.HOST_NOT_LISTED, "", hint=hint)
    advised = with_tool(open_one, "pip install x").hint
    assert advised == "the hosts of pip: sandboxd allow tool pip; this one alone: sandboxd allow domain x.test"
    for decision, text in (
        (open_one, "curl x"),
        (Decision(Behavior.DENY, Reason.HOST_DENIED, "", hint=hint), "pip install x"),
        (Decision(Behavior.DENY, Reason.HOST_NOT_LISTED, "", hint="ask the administrator"), "pip install x"),
    ):
        assert with_tool(decision, text) is decision
