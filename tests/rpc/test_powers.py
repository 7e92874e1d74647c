"""A row for each method and notification: what a connection with the role `agent` may do, and that nothing of another
connection is given to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from sandboxd.policy.violation import DenialEvent, ViolationKind, ViolationSource
from sandboxd.rpc.dispatch import METHODS
from sandboxd.rpc.peer import AGENT
from sandboxd_client.wire.messages.methods import NOTIFICATIONS
from support.daemon import RunningDaemon, successive_daemons
from support.fake_runtime import FakeMachine
from support.rpc import RawClient

MARK = "m4rk"
"""Is in every name, path, command and host of the other connection."""


@dataclass(frozen=True)
class Row:
    """`own` are parameters of a call about nothing of another connection; None: the method is not for agents. `theirs`
    are those that name something of another one, and `refusal` the slug of the answer."""

    own: Mapping[str, Any] | None
    theirs: Mapping[str, Any] | None = None
    refusal: str = "not_permitted"


FULL = Row(None)
NAMED = {"session_id": "SESSION"}
ROWS = {
    "hello": Row({"role": "agent"}),
    "status": Row({}),
    "check": Row({}),
    "metrics": Row({}),
    "restart": FULL,
    "shutdown": FULL,
    "session.open": Row({"cwd": "PROJECT"}),
    "session.update": FULL,
    "session.join": FULL,
    "command.list": Row({}, NAMED),
    "command.kill": Row({"command_id": "OWN-RUNNING"}, {"command_id": "RUNNING"}, "command_unknown"),
    "session.close": Row({"session_id": "OWN"}, NAMED),
    "session.list": Row({}),
    "should_sandbox": Row({"command": "x"}, {"command": "x", **NAMED}),
    "wrap": Row({"cwd": "PROJECT", "argv": ["x"]}, {"argv": ["x"], **NAMED}),
    "wrap.outcome": Row({"wrap_id": "OWN-WRAP"}, {"wrap_id": "WRAP", "learn": True}, "wrap_unknown"),
    "permission.subscribe": FULL,
    "sandbox_permission_response": FULL,
    "permission.request": Row(
        {"kind": "network", "host": "agents.test", "port": 1, "session_id": "QUIET"},
        {"kind": "network", "host": "agents.test", "port": 1, **NAMED},
    ),
    "permission.list": Row({}, NAMED),
    "permission.revoke": FULL,
    "violation.list": Row({}, NAMED),
    "violation.subscribe": Row({"session_id": "OWN"}, NAMED),
    "violation.clear": Row({}, NAMED),
    "violation.suggest": Row({"violation_id": "OWN-BLOCKED"}, {"violation_id": "BLOCKED"}, "violation_unknown"),
    "violation.annotate": Row(
        {"command_id": f"{MARK}-id", "stderr": "x"}, {"command_id": f"{MARK}-id", "stderr": "x", **NAMED}
    ),
    "violation.strip": Row({"text": "x"}),
    "credential.set": FULL,
    "credential.remove": FULL,
    "credential.list": Row({}),
    "settings.get": Row({}, NAMED),
    "settings.update": FULL,
    "settings.exclude_command": FULL,
    "settings.trust": FULL,
    "settings.reload": FULL,
    "settings.locked": Row({}, NAMED),
    "settings.subscribe": Row({}, NAMED),
    "settings.lint": Row({}),
    "settings.schema": Row({}),
    "policy.close_ports": FULL,
    "policy.explain": Row({"kind": "host", "target": "a.test"}, {"kind": "path", "target": "/", **NAMED}),
    "policy.effective": Row({}, NAMED),
    "policy.describe": Row({}, NAMED),
}
HEARD: dict[str, bool] = {
    "settings_changed": True,
    "sandbox_permission_request": False,
    "sandbox_permission_resolved": False,
    "sandbox_violation": True,
    "sandbox_violations_cleared": True,
}
"""Whether a connection with the role agent hears of it, for its own sessions."""


@dataclass
class World:
    """Two connections: a full one with a session, a command, a violation, a grant and an open question, and a
    restricted one with a session and a command."""

    running: RunningDaemon
    machine: FakeMachine
    full: RawClient
    agent: RawClient
    names: dict[str, Any]

    def filled(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self.names.get(value, value) if isinstance(value, str) else value for key, value in params.items()}

    async def refuse(self, client: RawClient, session_id: str, target: str, **more: Any) -> str:
        """Have something blocked in a command of a session."""
        wrapped = await client.result("wrap", {"session_id": session_id, "argv": ["x"], **more})
        launch = self.machine.backend.launches[-1]
        launch.start()
        launch.observer.refused(DenialEvent(ViolationKind.WRITE, "openat", target, ViolationSource.SECCOMP))
        launch.end(0)
        return str(wrapped["wrap_id"])


@pytest.fixture
async def world(running: RunningDaemon, machine: FakeMachine) -> AsyncIterator[World]:
    project = str(running.around.project)
    directory = running.around.project / f"{MARK}-directory"
    directory.mkdir()
    async with AsyncExitStack() as stack:
        full, agent, person, waiting = [await stack.enter_async_context(running.client()) for _ in range(4)]
        asker, answering = [await stack.enter_async_context(running.client_in_a_child()) for _ in range(2)]
        for one in (person, answering):
            await one.result("permission.subscribe")
        about = {"cwd": str(directory), "name": f"{MARK}-name", "detach": True}
        theirs = (await full.result("session.open", about))["session_id"]
        world = World(running, machine, full, agent, {"SESSION": theirs, "PROJECT": project})
        more = {"command_id": f"{MARK}-id", "command_text": f"{MARK}-text"}
        world.names["WRAP"] = await world.refuse(full, theirs, f"/{MARK}-target", **more)
        query = {"session_id": theirs, "kind": "path", "path": f"/srv/{MARK}-granted", "write": True}
        asking = asyncio.create_task(asker.result("permission.request", query))
        while not (found := await person.result("permission.list"))["open"]:
            pass
        answer = {"request_id": found["open"][0]["request_id"], "behavior": "allow", "scope": "session"}
        await answering.result("sandbox_permission_response", answer)
        assert (await asking)["behavior"] == "allow"
        query = {"session_id": theirs, "kind": "network", "host": f"{MARK}.test", "port": 443, "command": f"{MARK} x"}
        waiting.request("permission.request", query)
        while not (await person.result("permission.list"))["open"]:
            pass
        await agent.result("hello", {"role": "agent"})
        world.names["OWN"] = (await agent.result("session.open", {"cwd": project}))["session_id"]
        quiet = {"cwd": project, "permission_mode": "none"}
        world.names["QUIET"] = (await agent.result("session.open", quiet))["session_id"]
        for client, session, name in ((full, theirs, "RUNNING"), (agent, world.names["OWN"], "OWN-RUNNING")):
            text = MARK if client is full else "x"
            wrapped = await client.result("wrap", {"session_id": session, "command": text})
            machine.backend.launches[-1].start()
            world.names[name] = wrapped["wrap_id"]
        world.names["OWN-WRAP"] = await world.refuse(agent, world.names["OWN"], "/agents-target")
        for session, name in ((theirs, "BLOCKED"), (world.names["OWN"], "OWN-BLOCKED")):
            (found,) = (await full.result("violation.list", {"session_id": session}))["violations"]
            world.names[name] = found["id"]
        yield world


def test_every_method_and_notification_has_a_row() -> None:
    assert set(ROWS) == set(METHODS) and set(HEARD) == set(NOTIFICATIONS)
    assert {name for name, row in ROWS.items() if row.own is None} == {
        name for name, one in METHODS.items() if one.access not in AGENT
    }
    with_session = {name for name, one in METHODS.items() if "session_id" in one.params.__dataclass_fields__}
    named = {name for name, row in ROWS.items() if row.theirs is not None or row.own is None}
    assert with_session <= named, "a method that takes a session needs a row about the session of another"


@pytest.mark.parametrize("method", ROWS)
async def test_an_agent_is_given_nothing_of_others(world: World, method: str) -> None:
    row = ROWS[method]
    if row.own is None:
        error = await world.agent.error(method, {})
        assert error["data"]["slug"] == "not_permitted" and MARK not in json.dumps(error)
        return
    params = world.filled(row.own)
    answer = json.dumps(await world.agent.result(method, params)).replace(f'"{MARK}-id"', "")
    assert MARK not in answer and world.names["SESSION"] not in answer and world.names["WRAP"] not in answer
    if method == "violation.clear":
        assert (await world.full.result("violation.list", {"session_id": world.names["SESSION"]}))["violations"]


@pytest.mark.parametrize("method", [name for name, row in ROWS.items() if row.theirs is not None])
async def test_what_is_of_others_is_refused_to_an_agent(world: World, method: str) -> None:
    row = ROWS[method]
    assert row.theirs is not None
    params = world.filled(row.theirs)
    error = await world.agent.error(method, params)
    assert error["data"]["slug"] == row.refusal
    assert MARK not in json.dumps(error)
    if method != "permission.request":  # it would wait for a person
        await world.full.result(method, params)


async def test_a_full_connection_sees_all_of_it(world: World) -> None:
    """The twin: what is kept from an agent is there."""
    methods = ("session.list", "status", "permission.list", "violation.list", "command.list")
    seen = [await world.full.result(method) for method in methods]
    assert all(MARK in json.dumps(one) for one in seen)
    outcome = await world.full.result("wrap.outcome", {"wrap_id": world.names["OWN-WRAP"]})
    assert outcome["violations"][0]["target"] == "/agents-target"


async def test_two_agents_know_nothing_of_each_other(world: World) -> None:
    async with world.running.client() as other:
        await other.result("hello", {"role": "agent"})
        error = await other.error("wrap.outcome", {"wrap_id": world.names["OWN-WRAP"]})
        unknown = await other.error("wrap.outcome", {"wrap_id": "w-0"})
        assert error["data"]["slug"] == unknown["data"]["slug"] == "wrap_unknown"
        assert (await other.result("session.list"))["sessions"] == []


async def test_an_outcome_can_be_read_after_its_session(world: World) -> None:
    await world.agent.result("session.close", {"session_id": world.names["OWN"]})
    assert (await world.agent.result("wrap.outcome", {"wrap_id": world.names["OWN-WRAP"]}))["exited"]


async def test_an_outcome_stays_with_its_agent_over_a_restart() -> None:
    async with successive_daemons() as daemons, daemons.client() as agent, daemons.client() as other:
        for one in (agent, other):
            await one.result("hello", {"role": "agent"})
        project = str(daemons.around.project)
        session_id = (await agent.result("session.open", {"cwd": project}))["session_id"]
        kept = (await agent.result("wrap", {"session_id": session_id, "argv": ["x"]}))["wrap_id"]
        await daemons.restart()
        assert not (await agent.result("wrap.outcome", {"wrap_id": kept}))["started"]
        assert (await other.error("wrap.outcome", {"wrap_id": kept}))["data"]["slug"] == "wrap_unknown"


async def heard(client: RawClient) -> list[Any]:
    """The notifications until now."""
    number, found = client.request("hello"), []
    while (message := await client.receive()).get("id") != number:
        found.append(message)
    return found


async def all_happens(world: World, session_id: str, name: str) -> None:
    """A violation in a session, its violations cleared, and a question that begins and ends."""
    await world.refuse(world.full, session_id, f"/{name}-new")
    await world.full.result("violation.clear", {"session_id": session_id})
    async with world.running.client() as asking:
        query = {"session_id": world.names["SESSION"], "kind": "network", "host": f"{name}2.test", "port": 443}
        asking.request("permission.request", query)
        while not any(one["host"] == f"{name}2.test" for one in (await world.full.result("permission.list"))["open"]):
            pass


async def test_an_agent_hears_of_its_own_sessions_only(world: World) -> None:
    for method, row in ROWS.items():
        if method.endswith(".subscribe"):
            if row.own is not None:
                await world.agent.result(method, world.filled(row.own))
            if row.theirs is not None:
                await world.agent.error(method, world.filled(row.theirs))
    await all_happens(world, world.names["SESSION"], MARK)
    await all_happens(world, world.names["OWN"], "agents")
    changed = {"sandbox": {"network": {"deniedDomains": ["a.test"]}}}
    world.running.around.write(world.running.around.user_settings, changed)
    await world.full.result("settings.reload")
    told = await heard(world.agent)
    assert MARK not in json.dumps(told) and world.names["SESSION"] not in json.dumps(told)
    assert {one["method"] for one in told} == {name for name, hears in HEARD.items() if hears}


async def test_subscriptions_end_with_the_powers(world: World) -> None:
    async with world.running.client() as former, world.running.client() as still_full:
        for one in (former, still_full):
            for method in ("permission.subscribe", "violation.subscribe", "settings.subscribe"):
                await one.result(method)
        await former.result("hello", {"role": "agent"})
        await all_happens(world, world.names["SESSION"], MARK)
        assert await heard(former) == []
        assert len(await heard(still_full)) >= 3
