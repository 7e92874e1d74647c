"""`should_sandbox`: the answer, the rule behind it, and who asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.daemon import RunningDaemon, running_daemon
from support.fake_runtime import FakeMachine
from support.rpc import RawClient

SETTINGS = {
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


async def test_a_host_without_sandbox_never_gets_a_plain_yes(
    client: RawClient, machine: FakeMachine
) -> None:
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
