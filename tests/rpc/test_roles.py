"""A connection with the role `agent` has no power over settings, questions and the sessions of others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sandboxd.policy.violation import DenialEvent, ViolationKind, ViolationSource
from sandboxd.rpc.dispatch import METHODS
from sandboxd.rpc.peer import AGENT
from sandboxd.runtime import session as session_module
from sandboxd.runtime import sessions
from support.daemon import RunningDaemon, successive_daemons
from support.fake_runtime import FakeMachine
from support.rpc import RawClient

ROLE = {"role": "agent"}
WIDENING = {"sandbox": {"network": {"allowedDomains": ["wide.test"]}, "filesystem": {"allowWrite": ["/srv"]}}}


@pytest.fixture
async def agent(running: RunningDaemon) -> Any:
    async with running.client() as connected:
        assert (await connected.result("hello", ROLE))["role"] == "agent"
        yield connected


async def slug(client: RawClient, method: str, params: Any = None) -> str:
    return str((await client.error(method, params or {}))["data"]["slug"])


async def opened(client: RawClient, running: RunningDaemon, **more: Any) -> str:
    return str((await client.result("session.open", {"cwd": str(running.around.project), **more}))["session_id"])


@pytest.mark.parametrize("method", sorted(name for name, one in METHODS.items() if one.access not in AGENT))
async def test_what_changes_something_for_others_is_refused(agent: RawClient, method: str) -> None:
    assert await slug(agent, method) == "not_permitted"


async def test_the_role_is_kept(agent: RawClient) -> None:
    assert await slug(agent, "hello", {"role": "full"}) == "not_permitted"
    again = await agent.result("hello")
    assert again["role"] == "agent" and "settings.update" not in again["methods"] and "wrap" in again["methods"]
    assert await slug(agent, "settings.update", {"changes": []}) == "not_permitted"


async def test_a_full_connection_stays_full(client: RawClient) -> None:
    assert (await client.result("hello"))["role"] == "full"
    assert (await client.result("hello", {"role": "full"}))["role"] == "full"
    await client.result("settings.reload")


async def test_sessions_of_others_are_out_of_reach(agent: RawClient, client: RawClient, running: RunningDaemon) -> None:
    theirs, own = await opened(client, running), await opened(agent, running)
    project = str(running.around.project)
    for method, params in (
        ("session.close", {}),
        ("wrap", {"argv": ["x"]}),
        ("should_sandbox", {"command": "x"}),
        ("violation.list", {}),
        ("violation.subscribe", {}),
        ("violation.clear", {}),
        ("violation.annotate", {"command_id": "c", "stderr": ""}),
        ("permission.list", {}),
        ("permission.request", {"kind": "network", "host": "a.test", "port": 1}),
        ("settings.get", {}),
        ("settings.subscribe", {}),
        ("settings.locked", {}),
        ("policy.effective", {}),
        ("policy.describe", {}),
        ("policy.explain", {"kind": "path", "target": "/"}),
    ):
        assert await slug(agent, method, {"session_id": theirs, **params}) == "not_permitted", method
    await agent.result("wrap", {"session_id": own, "argv": ["x"]})
    assert [one["session_id"] for one in (await agent.result("session.list"))["sessions"]] == [own]
    assert [one["session_id"] for one in (await agent.result("status"))["sessions"]] == [own]
    assert {theirs, own} <= {one["session_id"] for one in (await client.result("session.list"))["sessions"]}
    await agent.result("wrap", {"cwd": project, "argv": ["x"]})
    await agent.result("session.close", {"session_id": own})


async def test_violations_of_others_are_not_shown(
    agent: RawClient, client: RawClient, running: RunningDaemon, machine: FakeMachine
) -> None:
    project = str(running.around.project)
    for one, path in ((client, "/theirs"), (agent, "/mine")):
        await one.result("wrap", {"cwd": project, "argv": ["x"], "command_id": "same"})
        refused = DenialEvent(ViolationKind.WRITE, "openat", path, ViolationSource.SECCOMP)
        machine.backend.launches[-1].start()
        machine.backend.launches[-1].observer.refused(refused)
    seen = [one["target"] for one in (await agent.result("violation.list"))["violations"]]
    assert seen == ["/mine"]
    text = (await agent.result("violation.annotate", {"command_id": "same", "stderr": ""}))["stderr"]
    assert "/mine" in text and "/theirs" not in text
    assert (await agent.result("violation.clear"))["cleared"] == 1
    assert [one["target"] for one in (await client.result("violation.list"))["violations"]] == ["/theirs"]


async def test_settings_of_its_sessions_and_calls_only_tighten(
    agent: RawClient, client: RawClient, running: RunningDaemon
) -> None:
    async def allowed(one: RawClient) -> bool:
        session_id = await opened(one, running, settings=WIDENING)
        said = await one.result("policy.explain", {"kind": "host", "target": "wide.test", "session_id": session_id})
        return bool(said["behavior"] == "allow")

    assert await allowed(client) and not await allowed(agent)
    assert await slug(agent, "session.open", {"cwd": str(running.around.project), "detach": True}) == "not_permitted"
    tight = await opened(agent, running, settings={"sandbox": {"network": {"deniedDomains": ["a.test"]}}})
    said = await agent.result("policy.explain", {"kind": "host", "target": "a.test", "session_id": tight})
    assert said["reason"]["rule"] == "a.test"


MANY = {"permissions": {"deny": [f"Bash(x{number}:*)" for number in range(5_000)]}}


async def test_settings_of_a_call_are_bounded(agent: RawClient, running: RunningDaemon) -> None:
    """Every connection waits while a policy is made of them."""
    project = {"cwd": str(running.around.project)}
    assert await slug(agent, "session.open", {**project, "settings": MANY}) == "settings_too_large"
    wrapping = {**project, "argv": ["x"]}
    assert await slug(agent, "wrap", {**wrapping, "overrides": {"settings": MANY}}) == "settings_too_large"
    paths = ["/x"] * 1_001
    for name in ("allow_domains", "allow_write", "allow_read"):
        assert await slug(agent, "wrap", {**wrapping, "overrides": {name: paths}}) == "invalid_params"
    few = {"permissions": {"deny": MANY["permissions"]["deny"][:1_000]}}
    await agent.result("wrap", {**wrapping, "overrides": {"settings": few, "allow_domains": paths[:1_000]}})


@pytest.mark.parametrize("directory", ["/etc", "/usr", "/", "~", "~/..", "~/.claude"])
async def test_an_agent_makes_a_project_of_no_wide_directory(
    agent: RawClient, client: RawClient, running: RunningDaemon, directory: str
) -> None:
    home = running.around.home
    (home / ".claude").mkdir(exist_ok=True)
    link = running.around.project / "link"
    link.symlink_to(directory.replace("~", str(home)))
    for cwd in (directory.replace("~", str(home)), str(link)):
        assert await slug(agent, "session.open", {"cwd": cwd}) == "not_permitted"
        assert await slug(agent, "wrap", {"cwd": cwd, "argv": ["x"]}) == "not_permitted"
        query = {"kind": "path", "path": "/srv/x", "cwd": cwd}
        assert await slug(agent, "permission.request", query) == "not_permitted"
        await client.result("session.open", {"cwd": cwd})


async def test_a_role_is_taken_also_where_the_rest_of_hello_is_refused(client: RawClient) -> None:
    assert await slug(client, "hello", {"protocol": 0, **ROLE}) == "wrong_version"
    assert await slug(client, "settings.reload") == "not_permitted"


HELLO = {"jsonrpc": "2.0", "id": 1, "method": "hello"}
RESTRICTING = {
    "a list": {**HELLO, "params": ["agent"]},
    "an empty list": {**HELLO, "params": []},
    "a text": {**HELLO, "params": "agent"},
    "a number": {**HELLO, "params": 5},
    "a list for the role": {**HELLO, "params": {"role": ["agent"]}},
    "an object for the role": {**HELLO, "params": {"role": {"name": "agent"}}},
    "a number for the role": {**HELLO, "params": {"role": 1}},
    "another case": {**HELLO, "params": {"role": "Agent"}},
    "white space": {**HELLO, "params": {"role": "agent "}},
    "an unknown role": {**HELLO, "params": {"role": "reader"}},
    "a role and an unknown key": {**HELLO, "params": {"role": "agent", "x": 1}},
    "full and an unknown key": {**HELLO, "params": {"role": "full", "Role": "agent"}},
    "another name of the key": {**HELLO, "params": {"roles": ["agent"]}},
    "a role and a protocol that is none": {**HELLO, "params": {"role": "agent", "protocol": "1"}},
    "beside the parameters": {**HELLO, "role": "agent"},
    "an unknown member": {**HELLO, "params": {"role": "agent"}, "x": 1},
    "no version": {"id": 1, "method": "hello", "params": ROLE},
    "an id that is none": {**HELLO, "id": [1], "params": ROLE},
    "another case of the method": {**HELLO, "method": "Hello", "params": ROLE},
    "white space around the method": {**HELLO, "method": " hello", "params": ROLE},
    "a notification": {"jsonrpc": "2.0", "method": "hello", "params": ROLE},
    "a bad notification": {"jsonrpc": "2.0", "method": "hello", "params": ["agent"]},
    "a batch": [{**HELLO, "params": ROLE}],
    "a bad call in a batch": [{**HELLO, "method": "status"}, {**HELLO, "params": ["agent"]}],
    "a batch in a batch": [[{**HELLO, "params": ROLE}]],
    "a batch that is too long": [{**HELLO, "params": ROLE}] * 300,
    "two roles in a batch": [{**HELLO, "params": ROLE}, {**HELLO, "params": {"role": "full"}}],
    "the key twice": '{"jsonrpc":"2.0","id":1,"method":"hello","params":{"role":"agent","role":"full"}}',
    "the parameters twice": '{"jsonrpc":"2.0","id":1,"method":"hello","params":{"role":"agent"},"params":{}}',
    "the method twice": '{"jsonrpc":"2.0","id":1,"method":"hello","method":"status","params":{"role":"agent"}}',
    "no end": '{"jsonrpc":"2.0","id":1,"method":"hello","params":{"role":"agent"}',
    "a comma too many": '{"jsonrpc":"2.0","id":1,"method":"hello","params":{"role":"agent",}}',
    "no UTF-8": b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{"role":"agent\xff"}}',
    "padding": {**HELLO, "params": {"role": "agent", "x": "x" * 100_000}},
}
KEEPING = {
    "nothing": HELLO,
    "no parameters": {**HELLO, "params": {}},
    "null": {**HELLO, "params": {"role": None}},
    "full": {**HELLO, "params": {"role": "full", "client": "x", "version": "1", "protocol": 1}},
    "another method": {**HELLO, "method": "policy.explain", "params": {"kind": "path", "target": "/hello/role"}},
    "another bad method": {**HELLO, "method": "status", "params": ["agent"]},
    "a batch": [HELLO, {**HELLO, "params": {"role": "full"}}],
    "a text that is no JSON": "{",
}


async def reload_behind(client: RawClient, message: Any) -> Any:
    """The answer to a change of settings that is sent right behind a message."""
    text = message if isinstance(message, (str, bytes)) else json.dumps(message)
    reload = {"jsonrpc": "2.0", "id": "reload", "method": "settings.reload", "params": {}}
    client.send_bytes((text if isinstance(text, bytes) else text.encode()) + b"\n")
    client.send(reload)
    while not isinstance(answer := await client.receive(), dict) or answer.get("id") != "reload":
        assert answer is not None
    return answer


@pytest.mark.parametrize("message", RESTRICTING.values(), ids=RESTRICTING)
async def test_a_hello_that_is_not_understood_restricts(client: RawClient, message: Any) -> None:
    answer = await reload_behind(client, message)
    assert answer["error"]["data"]["slug"] == "not_permitted"
    assert (await client.result("hello"))["role"] == "agent"
    assert await slug(client, "hello", {"role": "full"}) == "not_permitted"


@pytest.mark.parametrize("message", KEEPING.values(), ids=KEEPING)
async def test_a_hello_that_is_understood_keeps_powers(client: RawClient, message: Any) -> None:
    assert "result" in await reload_behind(client, message)
    assert (await client.result("hello"))["role"] == "full"


async def test_a_restart_does_not_give_powers_back() -> None:
    async with successive_daemons() as daemons, daemons.client() as agent:
        await agent.result("hello", ROLE)
        await daemons.restart()
        assert await slug(agent, "settings.reload") == "not_permitted"
        assert (await agent.result("hello"))["role"] == "agent"


async def test_who_asked_may_not_answer(running: RunningDaemon) -> None:
    """Neither the process that asked nor one that it has started; another one may."""
    query = {"kind": "path", "path": "/srv/x", "write": True, "cwd": str(running.around.project)}
    async with (
        running.client() as asker,
        running.client() as same_process,
        running.client_in_a_child() as child,
        running.client_in_a_child() as sibling,
    ):
        for one in (same_process, child, sibling):
            await one.result("permission.subscribe")
        asking = asyncio.create_task(asker.result("permission.request", query))
        answer = {"request_id": await open_question(same_process), "behavior": "allow"}
        for one in (same_process, child):
            assert await slug(one, "sandbox_permission_response", answer) == "not_permitted"
        asking.cancel()
    async with running.client_in_a_child() as asker, running.client_in_a_child() as sibling:
        await sibling.result("permission.subscribe")
        asking = asyncio.create_task(asker.result("permission.request", query))
        answer = {"request_id": await open_question(sibling), "behavior": "allow"}
        await sibling.result("sandbox_permission_response", answer)
        assert (await asking)["behavior"] == "allow"


async def test_nobody_answers_for_an_asker_that_has_ended(running: RunningDaemon) -> None:
    """Its connection lives on in another process, and its children are recognised no more."""
    async with (
        running.client_in_a_child() as asker,
        running.client_in_a_child() as sibling,
        running.client_in_a_child() as again,
    ):
        await sibling.result("permission.subscribe")
        query = {"kind": "path", "path": "/srv/x", "write": True, "session_id": await opened(sibling, running)}
        asking = asyncio.create_task(asker.result("permission.request", query))
        answer = {"request_id": await open_question(sibling), "behavior": "allow"}
        (process,) = running.daemon.permissions.prompts.askers(answer["request_id"])
        os.kill(process[0], signal.SIGKILL)
        while Path(f"/proc/{process[0]}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            await sibling.result("hello")
        assert await slug(sibling, "sandbox_permission_response", answer) == "not_permitted"
        deny = {**answer, "behavior": "deny"}
        assert await slug(sibling, "sandbox_permission_response", deny) == "not_permitted"
        joining = asyncio.create_task(again.result("permission.request", query))
        while len(running.daemon.permissions.prompts.askers(answer["request_id"])) < 2:
            await sibling.result("hello")
        assert await slug(sibling, "sandbox_permission_response", answer) == "not_permitted"
        asker.writer.transport.abort()  # now the other one alone waits
        asking.cancel()
        while (request_id := await open_question(sibling)) == answer["request_id"]:
            pass
        answer["request_id"] = request_id  # it is asked anew, for who is left
        await sibling.result("sandbox_permission_response", answer)
        assert (await joining)["behavior"] == "allow"


async def open_question(client: RawClient) -> str:
    while not (found := await client.result("permission.list"))["open"]:
        pass
    return str(found["open"][0]["request_id"])


async def test_sessions_are_bounded(
    client: RawClient, running: RunningDaemon, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_OF_CONNECTION", 5)
    monkeypatch.setattr(sessions, "MOST_DETACHED", 3)
    monkeypatch.setattr(sessions, "MOST_IMPLICIT", 2)
    project = running.around.project
    own = [await opened(client, running, detach=True) for _ in range(3)]
    assert await slug(client, "session.open", {"cwd": str(project), "detach": True}) == "sessions_too_many"
    own += [await opened(client, running) for _ in range(2)]
    assert await slug(client, "session.open", {"cwd": str(project)}) == "sessions_too_many"
    for one in own:
        await client.result("session.close", {"session_id": one})
    monkeypatch.setattr(session_module, "MOST_UNCLAIMED", 3)
    busy = {"session_id": await opened(client, running), "argv": ["x"]}
    for _ in range(3):
        await client.result("wrap", busy)
    assert await slug(client, "wrap", busy) == "wraps_too_many"
    machine.backend.launches[-1].start()
    await client.result("wrap", busy)
    for number in range(12):  # an idle implicit session makes way
        (project / str(number)).mkdir()
        await client.result("wrap", {"cwd": str(project / str(number)), "argv": ["x"]})
        machine.backend.launches[-1].start()
        machine.backend.launches[-1].end(0)
