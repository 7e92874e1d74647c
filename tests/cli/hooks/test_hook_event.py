"""`sandboxd hook run`: the answer to an event of an agent, for every decision and every failure."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import CommandLine
from sandboxd.cli.hooks.dialects import DIALECTS, Dialect
from sandboxd_client import RpcError
from sandboxd_client.testing import FakeDaemon

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
AGENTS = pytest.mark.parametrize("dialect", DIALECTS, ids=list(BY_NAME))
ODD = """echo "a 'b' $HOME `x` \\ !1 é \U0001f600"
cat <<'END'
it's
END
"""


def event(dialect: Dialect, cwd: Path, command: object = "echo hi", **fields: Any) -> dict[str, Any]:
    given = {"command": command, "description": "d"}
    return {
        "hook_event_name": dialect.events[0],
        "session_id": "s",
        "cwd": str(cwd),
        "permission_mode": "default",
        "tool_name": dialect.tool,
        "tool_input": given,
        "tool_use_id": "toolu_1",
        **fields,
    }


def answer(cli: CommandLine, dialect: Dialect, document: object) -> Any:
    text = document if isinstance(document, str) else json.dumps(document)
    done = cli.run("hook", "run", dialect.name, input=text)
    assert done.returncode == 0 and not done.stderr, done
    return json.loads(done.stdout)


def behavior(dialect: Dialect, said: dict[str, Any]) -> str | None:
    if dialect.answers == "cursor":
        return said.get("permission")
    if dialect.name == "gemini":
        return said.get("decision") or ("allow" if "hookSpecificOutput" in said else None)
    found: str | None = said.get("hookSpecificOutput", {}).get("permissionDecision")
    return found


def line(dialect: Dialect, said: dict[str, Any]) -> str | None:
    output = said if dialect.answers == "cursor" else said.get("hookSpecificOutput", {})
    replaced = (
        said.get("updated_input")
        if output is said
        else output.get("tool_input" if dialect.name == "gemini" else "updatedInput")
    )
    return None if replaced is None else str(replaced["command"])


def decide(fake: FakeDaemon, sandboxed: bool, behavior: str) -> None:
    reason = {"type": "rule", "text": "the reason"}
    fake.answer("should_sandbox", {"sandboxed": sandboxed, "behavior": behavior, "reason": reason, "hint": "do this"})


ROWS = {
    # sandboxed, behavior: what claude, codex, gemini, cursor and opencode are told, and whether the command is replaced
    (True, "allow"): ("allow", "allow", "allow", "allow", "allow", True),
    (True, "ask"): ("ask", "deny", "deny", "deny", "deny", True),
    (True, "deny"): ("deny", "deny", "deny", "deny", "deny", False),
    (False, "ask"): ("ask", "deny", "deny", "deny", "deny", False),
    (False, "deny"): ("deny", "deny", "deny", "deny", "deny", False),
    (False, "allow"): (None, None, "allow", None, None, True),  # excluded: the agent's own rules decide
}


@AGENTS
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_decision_has_its_answer(
    cli: CommandLine, fake: FakeDaemon, tmp_path: Path, dialect: Dialect, row: tuple[bool, str]
) -> None:
    decide(fake, *row)
    *told, replaced = ROWS[row]
    said = answer(cli, dialect, event(dialect, tmp_path))
    wanted = dict(zip(BY_NAME, told, strict=True))[dialect.name]
    assert behavior(dialect, said) == wanted
    found = line(dialect, said)
    inside = wanted in ("allow", "ask") or (wanted is None and dialect.name != "codex")
    assert (found is not None) is (replaced and inside)
    if wanted in ("ask", "deny"):
        assert "the reason" in json.dumps(said) and "do this" in json.dumps(said)
    if found is not None:
        words = shlex.split(found)
        assert words[words.index("run") :][:3] == ["run", "--session", "session-of-agent"]
        assert ("--decide" in words) is (not row[0]) and words[-2:] == ["-c", "echo hi"]
    query = fake.wait_for_call("should_sandbox").params
    assert (query["command"], query["cwd"], query["session_id"]) == ("echo hi", str(tmp_path), "session-of-agent")


@pytest.mark.parametrize("command", ["true", ODD, "echo " + "x" * 100_000, "\n", "-c", "a\tb\x01"], ids=range(6))
def test_the_line_runs_exactly_the_command(cli: CommandLine, fake: FakeDaemon, tmp_path: Path, command: str) -> None:
    said = answer(cli, BY_NAME["claude"], event(BY_NAME["claude"], tmp_path, command))
    assert said["hookSpecificOutput"]["updatedInput"]["description"] == "d"
    text = line(BY_NAME["claude"], said)
    assert text is not None
    subprocess.run(["/bin/bash"], input=text, text=True, env=cli.env, cwd=tmp_path, capture_output=True, check=False)
    wrapped = fake.wait_for_call("wrap").params
    assert wrapped["command"] == command and wrapped["session_id"] == "session-of-agent"
    assert wrapped["command_id"] == "toolu_1"


@AGENTS
@pytest.mark.parametrize(
    "document",
    ["", "{", "[]", "null", "\ud7ff", {"command": ""}, {"command": 3}, {"other": 1}, None],
    ids=range(9),
)
def test_an_event_that_is_not_understood_is_denied(
    cli: CommandLine, tmp_path: Path, dialect: Dialect, document: object
) -> None:
    if not isinstance(document, str):
        document = event(dialect, tmp_path, tool_input=document)
    assert behavior(dialect, answer(cli, dialect, document)) == "deny"


def test_other_tools_are_left_alone(cli: CommandLine, fake: FakeDaemon, tmp_path: Path) -> None:
    for dialect in DIALECTS:
        assert answer(cli, dialect, event(dialect, tmp_path, tool_name="Write")) == {}
    assert fake.calls == []


@AGENTS
def test_a_model_names_no_directory_of_a_session(
    cli: CommandLine, fake: FakeDaemon, tmp_path: Path, dialect: Dialect
) -> None:
    """Its commands may write there."""
    document = event(dialect, tmp_path)
    document["tool_input"]["dir_path"] = "/"
    answer(cli, dialect, document)
    assert fake.wait_for_call("session.join").params["cwd"] == str(tmp_path)
    assert fake.wait_for_call("should_sandbox").params["cwd"] == "/"


@AGENTS
def test_an_error_of_the_daemon_is_a_denial(
    cli: CommandLine, fake: FakeDaemon, tmp_path: Path, dialect: Dialect
) -> None:
    fake.answer("session.join", RpcError("agent_unknown", "no agent is there", hint="name it"))
    said = answer(cli, dialect, event(dialect, tmp_path))
    assert behavior(dialect, said) == "deny" and "no agent is there; hint: name it" in json.dumps(said)


def test_a_daemon_that_does_not_answer_is_a_denial(cli: CommandLine, fake: FakeDaemon, tmp_path: Path) -> None:
    fake.answer("should_sandbox", lambda params: time.sleep(5))
    said = answer(cli, BY_NAME["claude"], event(BY_NAME["claude"], tmp_path))
    assert behavior(BY_NAME["claude"], said) == "deny" and "in time" in json.dumps(said)


def test_without_a_daemon_that_starts_it_is_a_denial(cli: CommandLine, tmp_path: Path) -> None:
    cli.env |= {"SANDBOXD_SOCKET": "/dev/null/s.sock", "HOME": str(tmp_path / "home")}
    said = answer(cli, BY_NAME["claude"], event(BY_NAME["claude"], tmp_path))
    assert behavior(BY_NAME["claude"], said) == "deny"


def test_a_program_that_is_gone_refuses_the_call(cli: CommandLine, tmp_path: Path) -> None:
    for dialect in DIALECTS:
        text = dialect.line([str(tmp_path / "gone")])
        assert subprocess.run(["/bin/sh", "-c", text], capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize("mode", ["bypassPermissions", "dontAsk"])
def test_nothing_goes_outside_where_nobody_is_asked(
    cli: CommandLine, fake: FakeDaemon, tmp_path: Path, mode: str
) -> None:
    decide(fake, False, "ask")
    document = event(BY_NAME["claude"], tmp_path, permission_mode=mode)
    document["tool_input"]["dangerouslyDisableSandbox"] = True
    assert behavior(BY_NAME["claude"], answer(cli, BY_NAME["claude"], document)) == "deny"
    assert fake.wait_for_call("should_sandbox").params["dangerously_disable_sandbox"] is True


@AGENTS
def test_what_was_blocked_is_told_to_the_model(
    cli: CommandLine, fake: FakeDaemon, tmp_path: Path, dialect: Dialect
) -> None:
    document = event(dialect, tmp_path, hook_event_name=dialect.events[-1])
    assert answer(cli, dialect, document) == {}
    fake.answer("violation.annotate", {"stderr": "<sandbox_violations>x\n", "violations": 1})
    said = answer(cli, dialect, document)
    groups = {"hookSpecificOutput": {"hookEventName": dialect.events[-1], "additionalContext": "<sandbox_violations>x"}}
    assert said == (groups if dialect.form == "groups" else {"additional_context": "<sandbox_violations>x"})
    assert fake.wait_for_call("violation.annotate").params["command_id"] == "toolu_1"
    fake.answer("violation.annotate", RpcError("session_unknown", "gone"))
    assert answer(cli, dialect, document) == {}


def test_both_events_of_a_call_name_it_alike(cli: CommandLine, fake: FakeDaemon, tmp_path: Path) -> None:
    dialect = BY_NAME["gemini"]
    before = event(dialect, tmp_path, tool_use_id=None)
    ran = line(dialect, answer(cli, dialect, before))
    assert ran is not None
    name = shlex.split(ran)[-3]
    for number, command in enumerate(("echo hi", ran)):
        after = {**before, "hook_event_name": "AfterTool", "tool_input": {"command": command}}
        answer(cli, dialect, after)
        found = [one.params for one in fake.calls if one.method == "violation.annotate"]
        assert len(found) == number + 1 and found[-1]["command_id"] == name
