"""`policy.explain`, `policy.effective`, `policy.describe`: what is in force, rule by rule."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.daemon import RunningDaemon, running_daemon
from support.fake_runtime import FakeMachine
from support.rpc import RawClient

SETTINGS = {
    "sandbox": {
        "enabled": True,
        "network": {"allowedDomains": ["ok.test", "*.in.test:8080"], "deniedDomains": ["bad.test"]},
        "filesystem": {"denyRead": ["~/.ssh"], "allowWrite": ["~/out"]},
    }
}


@pytest.fixture
async def running(machine: FakeMachine) -> AsyncIterator[RunningDaemon]:
    async with running_daemon(settings=SETTINGS, assemble=machine.assemble) as started:
        yield started


@pytest.mark.parametrize(
    ("target", "behavior", "reason", "rule"),
    [
        ("ok.test", "allow", "hostAllowed", "ok.test"),
        ("OK.test.:443", "allow", "hostAllowed", "ok.test"),
        ("a.in.test:8080", "allow", "hostAllowed", "*.in.test:8080"),
        ("a.in.test:443", "ask", "hostNotListed", None),
        ("bad.test", "deny", "hostDenied", "bad.test"),
        ("127.0.0.1:80", "deny", "localAddress", None),
        ("[::1]:80", "deny", "localAddress", None),
        ("::1", "deny", "localAddress", None),
        ("localhost", "deny", "localAddress", None),
        ("not a host", "deny", "hostInvalid", None),
    ],
)
async def test_hosts(client: RawClient, target: str, behavior: str, reason: str, rule: str | None) -> None:
    result = await client.result("policy.explain", {"kind": "host", "target": target})
    assert (result["behavior"], result["reason"]["type"], result["reason"]["rule"]) == (behavior, reason, rule)
    assert result["reason"]["text"]
    assert (result["reason"]["origin"] is None) == (rule is None)


@pytest.mark.parametrize("target", ["sub/x", "./sub/x", "{project}/sub/x", "~/project/sub/x"])
async def test_paths_are_under_the_working_directory(client: RawClient, running: RunningDaemon, target: str) -> None:
    target = target.format(project=running.around.project)
    params = {"kind": "path", "target": target, "write": True, "cwd": str(running.around.project)}
    result = await client.result("policy.explain", params)
    assert (result["subject"], result["behavior"]) == (f"{running.around.project}/sub/x", "allow")


async def test_paths_in_a_session(client: RawClient, running: RunningDaemon) -> None:
    session = (await client.result("session.open", {"cwd": str(running.around.project)}))["session_id"]
    params = {"kind": "path", "target": "/etc/passwd", "session_id": session}
    assert (await client.result("policy.explain", params))["behavior"] == "allow"
    assert (await client.result("policy.explain", {**params, "write": True}))["behavior"] == "deny"


async def test_a_path_needs_a_working_directory(client: RawClient) -> None:
    error = await client.error("policy.explain", {"kind": "path", "target": "x"})
    assert "cwd" in error["data"]["hint"]


async def test_commands(client: RawClient) -> None:
    result = await client.result("policy.explain", {"kind": "command", "target": "ls"})
    assert (result["behavior"], result["sandboxed"]) == ("allow", True)


@pytest.mark.parametrize("params", [{"kind": "port", "target": "1"}, {"kind": "host"}, {"target": "x"}])
async def test_what_is_no_question(client: RawClient, params: dict[str, str]) -> None:
    assert (await client.error("policy.explain", params))["data"]["slug"] == "invalid_params"


async def test_the_effective_policy_names_every_rule_and_its_place(client: RawClient, running: RunningDaemon) -> None:
    result = await client.result("policy.effective")
    policy = result["policy"]
    assert result["generation"] == policy["generation"] == running.daemon.policies.generation
    assert [rule["pattern"] for rule in policy["network"]["allowed"]] == ["ok.test", "*.in.test:8080"]
    (rule,) = policy["files"]["deny_read"]
    assert rule["path"] == str(running.around.home / ".ssh")
    assert rule["text"] == "~/.ssh"
    assert rule["origin"] == {
        "source": "user",
        "key": "sandbox.filesystem.denyRead",
        "file": str(running.around.user_settings),
        "line": 1,
        "column": rule["origin"]["column"],
    }
    assert str(running.around.user_settings) in policy["files"]["settings_files"]


async def test_the_description_is_text_and_facts(client: RawClient, running: RunningDaemon) -> None:
    result = await client.result("policy.describe", {"cwd": str(running.around.project)})
    assert "ok.test" in result["text"]
    assert isinstance(result["facts"], dict)
    assert result["generation"] == running.daemon.policies.generation
