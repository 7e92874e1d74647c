"""`should_sandbox`: the answer, the rule behind it, and who asks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.daemon import RunningDaemon, running_daemon
from support.fake_runtime import FakeMachine
from support.pages import decision_table
from support.rpc import RawClient

SETTINGS: dict[str, dict[str, Any]] = {
    "sandbox": {"enabled": True, "excludedCommands": ["docker"]},
    "permissions": {"deny": ["Bash(rm:*)"], "ask": ["Bash(git push:*)"]},
}


@pytest.fixture
async def running(machine: FakeMachine) -> AsyncIterator[RunningDaemon]:
    async with running_daemon(settings=SETTINGS, assemble=machine.assemble) as started:
        yield started


@pytest.mark.parametrize(
    ("command", "more", "sandboxed", "behavior", "reason"),
    [
        ("ls", {}, True, "allow", "sandboxed"),
        ("docker ps", {}, False, None, "excluded"),
        ("rm -rf x", {}, True, "deny", "rule"),
        ("git push origin", {}, True, "ask", "rule"),
        ("ls", {"dangerously_disable_sandbox": True}, False, "ask", "sandboxOverride"),
        ("", {}, False, None, "noCommand"),
    ],
)
async def test_decisions(
    client: RawClient, command: str, more: dict[str, Any], sandboxed: bool, behavior: str | None, reason: str
) -> None:
    result = await client.result("should_sandbox", {"command": command, **more})
    assert result["sandboxed"] is sandboxed
    assert behavior is None or result["behavior"] == behavior
    assert result["reason"]["type"] == reason
    assert result["reason"]["text"]


SWITCHES: dict[str, tuple[dict[str, Any], str]] = {
    "defaults": ({}, "prompt"),
    "`autoAllowBashIfSandboxed: false`": ({"autoAllowBashIfSandboxed": False}, "prompt"),
    "`allowUnsandboxedCommands: false`": ({"allowUnsandboxedCommands": False}, "prompt"),
    "mode `open`": ({}, "open"),
    "mode `plan`": ({}, "plan"),
    "mode `none`": ({}, "none"),
    "`enabled: false`": ({"enabled": False}, "prompt"),
}


@pytest.mark.parametrize("situation", SWITCHES)
async def test_every_cell_of_the_decision_table(machine: FakeMachine, situation: str) -> None:
    switches, mode = SWITCHES[situation]
    settings = {**SETTINGS, "sandbox": {**SETTINGS["sandbox"], **switches}}
    async with running_daemon(settings=settings, assemble=machine.assemble) as running, running.client() as client:
        params = {"cwd": str(running.around.project), "permission_mode": mode}
        session = (await client.result("session.open", params))["session_id"]
        for command, answers in decision_table().items():
            machine.backend.unavailable = "no user namespaces" if command.endswith("without sandbox") else ""
            asked = {
                "command": "" if command.startswith("nothing") else command.split("`")[1],
                "dangerouslyDisableSandbox": command.endswith("with a wish"),
                "session_id": session,
                "is_sandbox": True,
            }
            found = await client.result("should_sandbox", asked)
            where = "" if found["behavior"] == "deny" else "inside, " if found["sandboxed"] else "outside, "
            assert f"{where}{found['behavior']}" == answers[situation], command
            assert (found["question"] is None) is (found["behavior"] != "ask")
            rules = [one["rule"] for one in found["suggestions"]]
            if found["question"] == "sandbox_override":
                assert rules[:1] in ([asked["command"]], [f"{asked['command']}:*"], []), "an exclusion"
            elif found["question"] is not None and found["reason"]["type"] == "sandboxed":
                assert rules in ([f"Bash({asked['command']})"] * 2, [])
            else:
                assert rules == []


async def test_the_rules_of_an_always_come_with_the_decision(machine: FakeMachine) -> None:
    settings = {"sandbox": {"autoAllowBashIfSandboxed": False}, "permissions": {"ask": ["Bash(git push:*)"]}}
    async with running_daemon(settings=settings, assemble=machine.assemble) as running, running.client() as client:
        for command, wish, rules in (
            ("make all", False, [("allow", "Bash(make all)"), ("deny", "Bash(make all)")]),
            ("gh pr list", True, [("allow", "gh pr list"), ("allow", "gh pr:*"), ("allow", "gh:*")]),
            ("git push x", False, []),
            ("gh x; gh y", True, []),
        ):
            asked = {"command": command, "dangerously_disable_sandbox": wish, "cwd": str(running.around.project)}
            found = (await client.result("should_sandbox", asked))["suggestions"]
            assert [(one["behavior"], one["rule"]) for one in found] == rules


async def test_the_rule_and_its_place(client: RawClient, running: RunningDaemon) -> None:
    reason = (await client.result("should_sandbox", {"command": "rm x"}))["reason"]
    assert "rm" in reason["rule"]
    assert reason["origin"]["file"] == str(running.around.user_settings)
    assert reason["origin"]["line"] == 1


async def test_a_session_without_permission_runs_nothing(client: RawClient, running: RunningDaemon) -> None:
    params = {"cwd": str(running.around.project), "permission_mode": "none"}
    session = (await client.result("session.open", params))["session_id"]
    result = await client.result("should_sandbox", {"command": "ls", "session_id": session})
    assert (result["behavior"], result["reason"]["type"]) == ("deny", "permissionMode")


async def test_a_host_without_sandbox_never_gets_a_plain_yes(client: RawClient, machine: FakeMachine) -> None:
    machine.backend.unavailable = "user namespaces are denied"
    result = await client.result("should_sandbox", {"command": "ls"})
    assert result["behavior"] == "deny"
    assert result["reason"]["type"] == "sandboxUnavailable"
    assert "user namespaces are denied" in result["reason"]["text"]


@pytest.mark.parametrize(
    ("closed", "behavior", "sandboxed", "fate"),
    [(True, "deny", True, "refused"), (False, "ask", False, "the user is asked to run it without")],
)
async def test_every_fallback_is_in_the_log(closed: bool, behavior: str, sandboxed: bool, fate: str) -> None:
    """Every fallback is in the log."""
    machine = FakeMachine()
    machine.backend.unavailable = "user namespaces are denied"
    settings = {"sandbox": {"enabled": True, "failIfUnavailable": closed}}
    async with running_daemon(settings=settings, assemble=machine.assemble) as running, running.client() as client:
        result = await client.result("should_sandbox", {"command": "ls"})
        assert (result["behavior"], result["sandboxed"]) == (behavior, sandboxed)
        said = [record for record in running.around.log.records if record["level"] == "warning"]
        assert [record.get("fate") for record in said] == [fate]
        error = await client.error("wrap", {"command": "ls", "cwd": str(running.around.project)})
        assert error["data"]["slug"] == "sandbox_unavailable"


async def test_the_wish_to_run_outside_belongs_to_one_call(client: RawClient, running: RunningDaemon) -> None:
    session = (await client.result("session.open", {"cwd": str(running.around.project)}))["session_id"]
    params = {"command": "ls", "session_id": session}
    outside = await client.result("should_sandbox", {**params, "dangerously_disable_sandbox": True})
    assert outside["sandboxed"] is False
    assert (await client.result("should_sandbox", params))["sandboxed"] is True


@pytest.mark.parametrize(
    ("command", "slug"),
    [
        ({"command": "rm del"}, "command_denied"),
        ({"argv": ["rm", "del"]}, "command_denied"),
        ({"argv": ["sh", "-c", "ls; /bin/rm del"]}, "command_denied"),
        ({"command": f"'rm' del; : {'x' * 9000}"}, "command_denied"),
        ({"command": "ls"}, None),
        ({"command": "git push"}, None),
    ],
)
async def test_an_explicit_denial_binds_wrap(
    client: RawClient, running: RunningDaemon, command: Any, slug: Any
) -> None:
    params = {**command, "cwd": str(running.around.project)}
    if slug is None:
        assert (await client.result("wrap", params))["argv"]
        return
    error = await client.error("wrap", params)
    assert error["data"]["slug"] == slug and error["code"] == -32003
    assert f"Bash(rm:*) in {running.around.user_settings}:1" in error["message"]


async def test_the_mode_none_binds_wrap(client: RawClient, running: RunningDaemon) -> None:
    for mode, slug in (("none", "mode_none"), ("prompt", None)):
        params = {"cwd": str(running.around.project), "permission_mode": mode}
        session = (await client.result("session.open", params))["session_id"]
        answer = await client.call("wrap", {"command": "ls", "session_id": session})
        assert answer.get("error", {}).get("data", {}).get("slug") == slug


async def test_the_mode_plan_writes_temporary_files_only(client: RawClient, running: RunningDaemon) -> None:
    project = str(running.around.project)
    wide = {"sandbox": {"filesystem": {"allowWrite": [str(running.around.base)]}, "allowPty": True}}
    params = {"cwd": project, "permission_mode": "plan", "settings": wide}
    session = (await client.result("session.open", params))["session_id"]
    policy = (await client.result("policy.effective", {"session_id": session}))["policy"]
    assert policy["files"]["allow_write"] == [] and policy["platform"]["allow_pty"] is False
    assert policy["network"]["strict_allowlist"] is True
    assert [rule["text"] for rule in policy["files"]["deny_write"]] == ["the permission mode plan"]
    outside = {"command": "ls", "session_id": session, "dangerously_disable_sandbox": True}
    kept = await client.result("should_sandbox", outside)
    assert (kept["sandboxed"], kept["behavior"]) == (True, "allow") and "mode of the session is plan" in kept["reason"][
        "text"
    ]


@pytest.mark.parametrize("name", ["dangerously_disable_sandbox", "dangerouslyDisableSandbox"])
async def test_parameters_may_be_in_camel_case(client: RawClient, running: RunningDaemon, name: str) -> None:
    project = str(running.around.project)
    session = (await client.result("session.open", {"cwd": project, "permissionMode": "prompt"}))["session_id"]
    result = await client.result("should_sandbox", {"command": "ls", name: True, "sessionId": session})
    assert (result["sandboxed"], result["question"]) == (False, "sandbox_override")
    error = await client.error("should_sandbox", {"command": "ls", "session_id": session, "sessionId": session})
    assert error["data"]["slug"] == "invalid_params"


async def test_is_sandbox_is_of_the_callers_environment(machine: FakeMachine) -> None:
    async with running_daemon(assemble=machine.assemble) as running, running.client() as client:
        params = {"cwd": str(running.around.project), "permission_mode": "open"}
        session = (await client.result("session.open", params))["session_id"]
        asked = {"session_id": session}
        root = os.geteuid() == 0
        for given, allowed in ((True, True), (False, not root), (None, not root or bool(os.environ.get("IS_SANDBOX")))):
            more = {} if given is None else {"is_sandbox": given}
            result = await client.result("should_sandbox", {"command": "ls", **asked, **more})
            assert (result["behavior"] == "allow") is allowed
            explained = await client.result("policy.explain", {"kind": "command", "target": "ls", **asked, **more})
            assert (explained["behavior"] == "allow") is allowed
            query = {"kind": "command", "command": "ls", **more}
            assert (await client.result("permission.request", {**asked, **query}))["behavior"] == (
                "allow" if allowed else "deny"
            )
