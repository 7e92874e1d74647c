"""`session.open`, `session.close`, `session.list`: one agent in one project, for as long as its connection."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import pytest

from support.daemon import RunningDaemon
from support.fake_runtime import FakeMachine
from support.rpc import RawClient
from support.waiting import wait_until_async


async def open_session(client: RawClient, running: RunningDaemon, **more: Any) -> str:
    result = await client.result("session.open", {"cwd": str(running.around.project), **more})
    return str(result["session_id"])


async def test_a_session_is_listed_with_what_it_was_opened_with(client: RawClient, running: RunningDaemon) -> None:
    result = await client.result(
        "session.open", {"cwd": f"{running.around.project}/./", "name": "agent", "permission_mode": "none"}
    )
    assert result["policy_generation"] >= 1
    (listed,) = (await client.result("session.list"))["sessions"]
    assert listed["session_id"] == result["session_id"]
    assert listed["cwd"] == str(running.around.project)
    assert (listed["name"], listed["permission_mode"]) == ("agent", "none")
    assert (listed["detached"], listed["implicit"], listed["commands"], listed["violations"]) == (False, False, 0, 0)


async def test_a_closed_session_is_unknown(client: RawClient, running: RunningDaemon) -> None:
    session = await open_session(client, running)
    assert await client.result("session.close", {"session_id": session}) == {"commands_ended": 0}
    assert await client.result("session.list") == {"sessions": []}
    for method, params in (("session.close", {}), ("wrap", {"command": "true"}), ("should_sandbox", {"command": "x"})):
        error = await client.error(method, {"session_id": session, **params})
        assert error["data"]["slug"] == "session_unknown", method


async def test_sessions_end_with_their_connection(
    running: RunningDaemon, client: RawClient, machine: FakeMachine
) -> None:
    async with running.client() as other:
        await open_session(other, running, name="mine")
        await open_session(other, running, name="detached", detach=True)
        await other.result("wrap", {"argv": ["true"], "cwd": str(running.around.project)})
        assert len((await client.result("session.list"))["sessions"]) == 3
    machine.backend.launches[0].start()  # by the holder of the argv
    machine.backend.launches[0].end()
    sessions = running.daemon.sessions
    await wait_until_async(lambda: len(sessions.all()) == 1, "the others end")
    (left,) = (await client.result("session.list"))["sessions"]
    assert left["name"] == "detached"


async def test_a_session_of_a_client_that_has_gone_is_closed(running: RunningDaemon) -> None:
    for _ in range(20):
        async with running.client() as leaving:
            leaving.request("session.open", {"cwd": str(running.around.project)})
            await leaving.writer.drain()
    async with running.client() as last:
        await last.result("status")  # those that came before had their turn before
        await wait_until_async(lambda: not running.daemon.sessions.all(), "no session is left")
        assert await last.result("session.list") == {"sessions": []}


async def test_commands_end_with_their_session(client: RawClient, running: RunningDaemon, machine: FakeMachine) -> None:
    session = await open_session(client, running)
    wrapped = await client.result("wrap", {"command": "sleep 1", "session_id": session})
    (launch,) = machine.backend.launches
    launch.start()
    assert (await client.result("session.list"))["sessions"][0]["commands"] == 1
    assert await client.result("session.close", {"session_id": session}) == {"commands_ended": 1}
    assert launch.log == ["terminate"]
    outcome = await client.result("wrap.outcome", {"wrap_id": wrapped["wrap_id"]})
    assert (outcome["started"], outcome["exited"], outcome["status"]) == (True, True, 143)


async def test_its_temporary_directory_goes_with_it(
    client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    session = await open_session(client, running)
    await client.result("wrap", {"command": "true", "session_id": session})
    temporary = machine.planner.asked[0][1].session_tmp
    Path(temporary, "left").write_text("x")
    assert os.stat(temporary).st_mode & 0o777 == 0o700
    await client.result("session.close", {"session_id": session})
    assert not os.path.exists(temporary)


@pytest.mark.parametrize(
    ("params", "slug"),
    [
        ({"cwd": "relative"}, "cwd_relative"),
        ({"cwd": ""}, "cwd_relative"),
        ({"cwd": "/no/such/directory"}, "cwd_missing"),
        ({"cwd": "/etc/passwd"}, "cwd_missing"),
        ({"cwd": "/nul\0byte"}, "cwd_missing"),
        ({"cwd": "/" + "x" * 5000}, "cwd_missing"),
        ({}, "invalid_params"),
        ({"cwd": "/", "permission_mode": "yolo"}, "invalid_params"),
        ({"cwd": "/", "detach": 1}, "invalid_params"),
        ({"cwd": "/", "settings": []}, "invalid_params"),
        ({"cwd": "/", "settings": {"sandbox": {"enabled": "yes"}}}, "settings_wrong_type"),
        ({"cwd": "/", "settings": {"sandbox": {"network": {"deniedDomains": ["https://x.test/"]}}}}, None),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_cannot_be_opened_is_refused_and_leaves_nothing(
    client: RawClient, running: RunningDaemon, params: dict[str, Any], slug: str | None
) -> None:
    error = await client.error("session.open", params)
    assert slug is None or error["data"]["slug"] == slug
    assert error["message"]
    assert error["data"]["hint"]
    assert running.daemon.sessions.all() == []


async def test_settings_of_a_session_hold_in_it_and_nowhere_else(client: RawClient, running: RunningDaemon) -> None:
    own = {"sandbox": {"enabled": True, "network": {"allowedDomains": ["ok.test"]}}}
    session = await open_session(client, running, settings=own)

    async def allowed(**params: Any) -> str:
        answer = await client.result("policy.explain", {"kind": "host", "target": "ok.test:443", **params})
        return str(answer["behavior"])

    assert await allowed(session_id=session) == "allow"
    assert await allowed(cwd=str(running.around.project)) == "ask"
    assert await allowed() == "ask"
    values = await client.result("settings.get", {"session_id": session, "key": "sandbox.network.allowedDomains"})
    assert values["values"][0]["value"] == ["ok.test"]
    assert values["values"][0]["origins"][0]["source"] == "cli"


async def test_many_sessions_at_once(client: RawClient, running: RunningDaemon) -> None:
    opened = await asyncio.gather(*(_open_alone(running) for _ in range(100)))
    assert len(set(opened)) == 100


async def _open_alone(running: RunningDaemon) -> str:
    async with running.client() as client:
        return await open_session(client, running)


async def test_what_is_kept_of_an_ended_session_holds_on_to_no_project(
    running: RunningDaemon, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcomes of ended commands are kept; the settings of their projects are not read for ever after."""
    monkeypatch.setattr("sandboxd.daemon.policies.PROJECTS_KEPT", 1)
    policies = running.daemon.policies
    wraps = []
    for number in range(5):
        directory = running.around.home / f"p{number}"
        directory.mkdir()
        async with running.client() as client:
            wraps.append((await client.result("wrap", {"command": "x", "cwd": str(directory)}))["wrap_id"])
            machine.backend.launches[-1].start()
            machine.backend.launches[-1].end(number)
    async with running.client() as client:
        await wait_until_async(lambda: not running.daemon.sessions.all(), "the sessions have ended")
        gc.collect()
        assert len(policies.locations()) <= 1 + 1, policies.locations()  # the daemon's own, and the one that is kept
        for number, wrap_id in enumerate(wraps):
            assert (await client.result("wrap.outcome", {"wrap_id": wrap_id}))["status"] == number
