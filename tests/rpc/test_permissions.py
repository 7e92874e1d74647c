"""Questions to people, from a real daemon with real proxies to a loopback origin: only a yes opens a connection.

The sandbox's part is played by listening sockets on loopback, handed to the daemon as a sandbox hands over its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends.base import Listeners
from support.daemon import RunningDaemon, running_daemon
from support.fake_runtime import FakeHandle, FakeMachine
from support.origin import Origin, serve_origin
from support.proxies import Wire, exchange, finish
from support.rpc import RawClient
from support.waiting import wait_until_async

ASKED, RESOLVED = "sandbox_permission_request", "sandbox_permission_resolved"


@pytest.fixture
def origin() -> Iterator[Origin]:
    with serve_origin() as serving:
        yield serving


@pytest.fixture
async def running(machine: FakeMachine) -> AsyncIterator[RunningDaemon]:
    names = {name: "127.0.0.1" for name in ("ask.test", "other.test", "denied.test")}
    settings = {"sandbox": {"network": {"deniedDomains": ["denied.test"]}}}
    async with running_daemon(settings=settings, resolve=names, assemble=machine.assemble) as started:
        yield started


@pytest.fixture
async def client(running: RunningDaemon) -> AsyncIterator[RawClient]:
    """The program that asks: another process than the one that answers, and none that it has started."""
    async with running.client_in_a_child() as connected:
        yield connected


@dataclass(slots=True)
class Person:
    """A subscriber."""

    client: RawClient
    open: list[Any] = field(default_factory=list)
    heard: list[Any] = field(default_factory=list)
    answers: dict[int, Any] = field(default_factory=dict)

    async def _next(self) -> None:
        message = await self.client.receive()
        assert message is not None, "the daemon hung up"
        if "id" in message:
            self.answers[message["id"]] = message
        else:
            self.heard.append(message)

    async def told(self, method: str) -> Any:
        """The parameters of the next notification of this method."""
        while True:
            for index, message in enumerate(self.heard):
                if message["method"] == method:
                    return self.heard.pop(index)["params"]
            await self._next()

    async def call(self, method: str, params: Any = None) -> Any:
        number = self.client.request(method, params)
        while number not in self.answers:
            await self._next()
        return self.answers.pop(number)

    async def answer(self, question: Any, behavior: str, **more: Any) -> Any:
        """The result, or the slug of the error."""
        params = {"request_id": question["request_id"], "behavior": behavior, **more}
        reply = await self.call("sandbox_permission_response", params)
        return reply.get("result") or reply["error"]["data"]["slug"]


@contextlib.asynccontextmanager
async def somebody(running: RunningDaemon) -> AsyncIterator[Person]:
    async with running.client() as client:
        person = Person(client)
        person.open = (await person.call("permission.subscribe"))["result"]["open"]
        yield person


@pytest.fixture
async def person(running: RunningDaemon) -> AsyncIterator[Person]:
    async with somebody(running) as subscribed:
        yield subscribed


@dataclass(slots=True)
class Sandboxed:
    """A command that has handed its listening socket over."""

    handle: FakeHandle
    wrap_id: str
    port: int

    async def connect(self) -> Wire:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def get(self, url: str) -> bytes:
        request = f"GET {url} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        return await exchange(await self.connect(), request.encode())

    async def tunnel(self, authority: str) -> tuple[bytes, Wire]:
        reader, writer = await self.connect()
        writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        return await reader.readuntil(b"\r\n\r\n"), (reader, writer)


async def start(client: RawClient, machine: FakeMachine, session_id: str, **more: Any) -> Sandboxed:
    wrapped = await client.result("wrap", {"session_id": session_id, "argv": ["curl", "x"], **more})
    handle = machine.backend.launches[-1]
    listener = socket.create_server(("127.0.0.1", 0))
    handle.observer.claimed(1)
    handle.observer.listening(Listeners(http=listener))
    handle.observer.started()
    return Sandboxed(handle, wrapped["wrap_id"], listener.getsockname()[1])


@pytest.fixture
async def session_id(client: RawClient, running: RunningDaemon) -> str:
    opened = await client.result("session.open", {"cwd": str(running.around.project)})
    return str(opened["session_id"])


@pytest.fixture
async def command(client: RawClient, machine: FakeMachine, session_id: str) -> Sandboxed:
    return await start(client, machine, session_id, command_id="c-1")


def local_settings(running: RunningDaemon) -> Path:
    return Path(running.daemon.policies.project(str(running.around.project)).locations.local_file)


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def denied(answer: bytes, reason: str) -> bool:
    return status(answer) == 403 and f"reason={reason}".encode() in answer


# yes, and how far it reaches


async def test_nothing_leaves_before_the_answer(
    person: Person, command: Sandboxed, origin: Origin, session_id: str, running: RunningDaemon
) -> None:
    waiting = asyncio.create_task(command.get(origin.url("ask.test")))
    question = await person.told(ASKED)
    assert (question["kind"], question["host"], question["port"]) == ("network", "ask.test", origin.port)
    assert (question["command"], question["command_id"]) == ("curl x", "c-1")
    assert (question["session_id"], question["project"]) == (session_id, str(running.around.project))
    assert question["scopes"] == ["once", "command", "session", "always"]
    assert {s["rule"] for s in question["suggestions"]} == {f"ask.test:{origin.port}"}
    assert not waiting.done() and origin.connections == []
    result = await person.answer(question, "allow")
    assert (result["behavior"], result["scope"]) == ("allow", "once")
    answer = await waiting
    assert status(answer) == 200 and origin.body in answer
    outcome = await person.told(RESOLVED)
    assert (outcome["request_id"], outcome["behavior"], outcome["outcome"]) == (
        question["request_id"], "allow", "answered",
    )  # fmt: skip
    assert outcome["by"].startswith("pid ")


async def test_fifty_requests_at_once_are_one_question(
    person: Person, command: Sandboxed, origin: Origin, running: RunningDaemon
) -> None:
    waiting = [asyncio.create_task(command.get(origin.url("ask.test"))) for _ in range(50)]
    question = await person.told(ASKED)
    open_questions = running.daemon.permissions.prompts._open.values()
    await wait_until_async(lambda: sum(one.waiting.total() for one in open_questions) == 50, "all fifty are waiting")
    assert origin.connections == []
    await person.answer(question, "allow")
    assert [status(answer) for answer in await asyncio.gather(*waiting)] == [200] * 50
    await person.told(RESOLVED)
    assert person.heard == []


def asking_tasks() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("http ")]


@pytest.mark.parametrize(
    ("scope", "same_command", "other_command"),
    [("once", False, False), ("command", True, False), ("session", True, True), ("always", True, True)],
)
async def test_scopes(
    client: RawClient, machine: FakeMachine, person: Person, command: Sandboxed, origin: Origin, session_id: str,
    running: RunningDaemon, scope: str, same_command: bool, other_command: bool,
) -> None:  # fmt: skip
    """How long an approval lasts is said in the answer."""
    first = asyncio.create_task(command.get(origin.url("ask.test")))
    await person.answer(await person.told(ASKED), "allow", scope=scope)
    assert status(await first) == 200
    other = await start(client, machine, session_id)
    for asker, free in ((command, same_command), (other, other_command)):
        again = asyncio.create_task(asker.get(origin.url("ask.test")))
        if not free:
            await person.answer(await person.told(ASKED), "allow")
        assert status(await again) == 200
    # neither is another port of the host
    port = asyncio.create_task(command.get("http://ask.test:9/"))
    assert (await person.answer(await person.told(ASKED), "deny"))["behavior"] == "deny"
    assert denied(await port, "promptDenied")
    local = local_settings(running)
    rules = json.loads(local.read_text())["sandbox"]["network"]["allowedDomains"] if local.exists() else []
    assert rules == ([f"ask.test:{origin.port}"] if scope == "always" else [])


async def test_a_yes_for_one_command_is_none_for_another(
    client: RawClient, machine: FakeMachine, person: Person, command: Sandboxed, origin: Origin, session_id: str
) -> None:
    first = asyncio.create_task(command.get(origin.url("ask.test")))
    question = await person.told(ASKED)
    other = await start(client, machine, session_id, command_id="c-2")
    second = asyncio.create_task(other.get(origin.url("ask.test")))
    await wait_until_async(lambda: len(asking_tasks()) >= 2, "both are waiting")
    await person.answer(question, "allow", scope="command")
    assert status(await first) == 200
    again = await person.told(ASKED)
    assert again["command_id"] == "c-2" and not second.done()
    await person.answer(again, "deny")
    assert denied(await second, "promptDenied")


async def test_a_grant_ends_and_cuts_what_stands_on_it(
    client: RawClient, person: Person, command: Sandboxed, origin: Origin, session_id: str
) -> None:
    """Grants expire, revoke closes, the list says who gave them."""
    authority = f"ask.test:{origin.port}"
    opening = asyncio.create_task(command.tunnel(authority))
    await person.answer(await person.told(ASKED), "allow", scope="session")
    head, (reader, writer) = await opening
    assert status(head) == 200
    [grant] = (await client.result("permission.list", {"session_id": session_id}))["grants"]
    assert (grant["subject"], grant["scope"], grant["expires_at"]) == (authority, "session", None)
    assert grant["by"].startswith("pid ")
    await client.result("permission.revoke", {"session_id": session_id, "grant_id": grant["grant_id"]})
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    await finish(writer)

    opening = asyncio.create_task(command.tunnel(authority))
    await person.answer(await person.told(ASKED), "allow", scope="session", ttl_s=0.05)
    head, (reader, writer) = await opening
    assert status(head) == 200
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    await finish(writer)
    assert (await client.result("permission.list"))["grants"] == []


# no, in every form


async def test_a_no_is_remembered_for_the_session(
    client: RawClient, person: Person, command: Sandboxed, origin: Origin, session_id: str
) -> None:
    waiting = asyncio.create_task(command.get(origin.url("ask.test")))
    await person.answer(await person.told(ASKED), "deny")
    assert denied(await waiting, "promptDenied")
    assert denied(await command.get(origin.url("ask.test")), "promptDenied")
    await person.told(RESOLVED)
    assert person.heard == [] and origin.connections == []


async def test_deny_always_writes_a_rule(person: Person, command: Sandboxed, origin: Origin) -> None:
    waiting = asyncio.create_task(command.get(origin.url("ask.test")))
    await person.answer(await person.told(ASKED), "deny", scope="always")
    answer = await waiting
    assert denied(answer, "hostDenied") and b"settings.local.json" in answer


async def test_nobody_to_ask_is_no(command: Sandboxed, origin: Origin) -> None:
    answer = await command.get(origin.url("ask.test"))
    assert denied(answer, "hostNotListed") and b"no client answers prompts" in answer
    assert origin.connections == []


async def test_nobody_in_time_is_no(running: RunningDaemon, person: Person, command: Sandboxed, origin: Origin) -> None:
    running.daemon.permissions.prompts.timeout_s = 0.05
    answer = await command.get(origin.url("ask.test"))
    assert denied(answer, "promptUnanswered") and b"in time" in answer
    question = await person.told(ASKED)
    assert (await person.told(RESOLVED))["outcome"] == "timed_out"
    assert await person.answer(question, "allow") == "question_closed"  # late
    assert origin.connections == []


async def test_the_last_subscriber_gone_is_no(running: RunningDaemon, command: Sandboxed, origin: Origin) -> None:
    async with somebody(running) as first:
        async with somebody(running) as second:
            waiting = asyncio.create_task(command.get(origin.url("ask.test")))
            await first.told(ASKED)
            await second.told(ASKED)
        await wait_until_async(lambda: running.daemon.permissions.prompts.subscribers == 1, "one has gone")
        assert not waiting.done()
    answer = await waiting
    assert denied(answer, "hostNotListed") and origin.connections == []


async def test_the_first_answer_counts_and_everybody_hears_it(
    running: RunningDaemon, person: Person, command: Sandboxed, origin: Origin
) -> None:
    async with somebody(running) as other:
        waiting = asyncio.create_task(command.get(origin.url("ask.test")))
        question = await person.told(ASKED)
        assert (await other.told(ASKED))["request_id"] == question["request_id"]
        assert (await person.answer(question, "deny"))["behavior"] == "deny"
        assert await other.answer(question, "allow") == "question_closed"
        assert await person.answer(question, "allow") == "question_closed"
        assert (await other.told(RESOLVED))["behavior"] == (await person.told(RESOLVED))["behavior"] == "deny"
        assert denied(await waiting, "promptDenied") and origin.connections == []


async def test_answers_that_do_not_count(client: RawClient, person: Person, command: Sandboxed, origin: Origin) -> None:
    waiting = asyncio.create_task(command.get(origin.url("ask.test")))
    question = await person.told(ASKED)
    answer = {"request_id": question["request_id"], "behavior": "allow"}
    error = await client.error("sandbox_permission_response", answer)  # not subscribed
    assert error["data"]["slug"] == "not_permitted"
    assert await person.answer({"request_id": "q-0"}, "allow") == "question_unknown"
    assert await person.answer(question, "yes") == "invalid_params"
    assert await person.answer(question, "allow", scope="forever") == "invalid_params"
    for ttl in (0, -1, 1e12):
        assert await person.answer(question, "allow", scope="session", ttl_s=ttl) == "scope_invalid"
    assert await person.answer(question, "allow", scope="always", ttl_s=60) == "scope_invalid"
    assert not waiting.done() and origin.connections == []
    await person.answer(question, "deny")
    assert denied(await waiting, "promptDenied")


async def test_always_that_cannot_be_written_leaves_the_question_open(
    running: RunningDaemon, person: Person, command: Sandboxed, origin: Origin
) -> None:
    local = local_settings(running)
    local.parent.mkdir(parents=True, exist_ok=True)
    local.write_text("{ broken")
    waiting = asyncio.create_task(command.get(origin.url("ask.test")))
    question = await person.told(ASKED)
    assert str(await person.answer(question, "allow", scope="always")).startswith("settings_")
    assert not waiting.done() and origin.connections == []
    assert local.read_text() == "{ broken"
    await person.answer(question, "deny")
    assert denied(await waiting, "promptDenied")


async def test_a_denied_host_and_this_machine_are_never_asked_about(
    person: Person, command: Sandboxed, origin: Origin
) -> None:
    for host in ("denied.test", "127.0.0.1", "localhost", "169.254.169.254"):
        assert status(await command.get(origin.url(host))) == 403
    assert person.heard == [] and origin.connections == []


@pytest.mark.parametrize("mode", ["none", "plan"])
async def test_a_session_that_asks_nobody(
    client: RawClient, machine: FakeMachine, person: Person, running: RunningDaemon, origin: Origin, mode: str
) -> None:
    """Whether people are asked is the session's own choice."""
    opened = await client.result("session.open", {"cwd": str(running.around.project), "permission_mode": mode})
    if mode == "plan":
        command = await start(client, machine, opened["session_id"])
        assert denied(await command.get(origin.url("ask.test")), "hostNotListed")
    query = {"kind": "network", "session_id": opened["session_id"], "host": "ask.test", "port": 1}
    assert (await client.result("permission.request", query))["behavior"] == "deny"
    assert person.heard == [] and origin.connections == []


@pytest.mark.parametrize(
    "network", [{"onUnlisted": "deny"}, {"strictAllowlist": True}], ids=["onUnlisted", "strictAllowlist"]
)
async def test_settings_that_ask_nobody(
    running: RunningDaemon, person: Person, command: Sandboxed, origin: Origin, network: dict[str, Any]
) -> None:
    running.around.write(running.around.user_settings, {"sandbox": {"network": network}})
    running.daemon.policies.reload()
    assert denied(await command.get(origin.url("ask.test")), "hostNotListed")
    assert person.heard == [] and origin.connections == []


async def test_where_only_managed_domains_count_nobody_can_open_one(
    running: RunningDaemon, person: Person, command: Sandboxed, origin: Origin
) -> None:
    running.around.write(running.around.managed_settings, {"sandbox": {"network": {"allowManagedDomainsOnly": True}}})
    running.daemon.policies.reload()
    assert denied(await command.get(origin.url("ask.test")), "hostNotListed")
    assert person.heard == []


# who waits goes away


async def test_the_question_ends_with_the_connection(person: Person, command: Sandboxed, origin: Origin) -> None:
    _, writer = await command.connect()
    writer.write(f"CONNECT ask.test:{origin.port} HTTP/1.1\r\n\r\n".encode())
    question = await person.told(ASKED)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    writer.transport.abort()
    outcome = await person.told(RESOLVED)
    assert (outcome["behavior"], outcome["outcome"]) == ("deny", "withdrawn")
    assert await person.answer(question, "allow", scope="session") == "question_closed"
    assert origin.connections == []


async def test_the_question_ends_with_the_command(person: Person, command: Sandboxed, origin: Origin) -> None:
    waiting = asyncio.create_task(command.get(origin.url("ask.test")))
    await person.told(ASKED)
    command.handle.end()
    assert (await person.told(RESOLVED))["outcome"] == "withdrawn"
    with contextlib.suppress(ConnectionResetError):
        assert await waiting == b""
    assert origin.connections == []


async def test_the_question_ends_with_the_session(
    client: RawClient, person: Person, command: Sandboxed, origin: Origin, session_id: str
) -> None:
    waiting = asyncio.create_task(command.get(origin.url("ask.test")))
    await person.told(ASKED)
    await client.result("session.close", {"session_id": session_id})
    assert (await person.told(RESOLVED))["outcome"] == "session_ended"
    with contextlib.suppress(ConnectionResetError):
        await waiting
    assert origin.connections == []


# too many


async def test_a_flood_of_hosts_is_cut_off(person: Person, command: Sandboxed) -> None:
    """A command that asks about everything does not fill people's screens."""
    waiting = [asyncio.create_task(command.get(f"http://h{number}.test:1/")) for number in range(40)]
    await wait_until_async(lambda: sum(task.done() for task in waiting) == 24, "all but 16 were refused")
    assert all(denied(task.result(), "promptUnanswered") for task in waiting if task.done())
    asked = [await person.told(ASKED) for _ in range(16)]
    assert len({question["host"] for question in asked}) == 16
    for question in asked:
        await person.answer(question, "deny")
    assert all(status(answer) == 403 for answer in await asyncio.gather(*waiting))


# what people see


async def test_text_from_inside_is_neutralised(
    client: RawClient, machine: FakeMachine, person: Person, origin: Origin, session_id: str
) -> None:
    """A command cannot draw on the screen of the user who is asked."""
    nasty = "x\x1b]52;c;aGk=\x07\u202e\U000e0041\nAllow? yes"
    command = await start(client, machine, session_id, command_text=nasty, command_id="c\x1b[2J")
    waiting = asyncio.create_task(command.get(origin.url("ask.test")))
    question = await person.told(ASKED)
    assert question["command"] == "x\\x1b]52;c;aGk=\\x07\\u202e\\U000e0041\\x0aAllow? yes"
    assert all(str(value).isprintable() for value in question.values())
    await person.answer(question, "deny")
    await waiting
    path = {"kind": "path", "session_id": session_id, "path": "/etc/\x1bc\u202e", "write": True}
    asking = asyncio.create_task(client.result("permission.request", path))
    question = await person.told(ASKED)
    assert question["path"] == "/etc/\\x1bc\\u202e"
    await person.answer(question, "deny")
    assert (await asking)["behavior"] == "deny"


async def test_people_are_told_what_a_yes_really_means(client: RawClient, person: Person, session_id: str) -> None:
    """Allowing a host means that a program may send anything there."""
    for host, word in (("a.pastebin.com", "sent there"), ("8.8.8.8", "address"), ("xn--bcher-kva.test", "scripts")):
        query = {"kind": "network", "session_id": session_id, "host": host, "port": 443}
        asking = asyncio.create_task(client.result("permission.request", query))
        question = await person.told(ASKED)
        assert word in " ".join(question["warnings"])
        await person.answer(question, "deny")
        assert (await asking)["behavior"] == "deny"


# what programs ask for


async def ask(client: RawClient, person: Person, query: Any, behavior: str, **more: Any) -> tuple[Any, Any]:
    asking = asyncio.create_task(client.result("permission.request", query))
    question = await person.told(ASKED)
    await person.answer(question, behavior, **more)
    return question, await asking


async def test_no_command_runs_outside_without_a_person(
    client: RawClient, running: RunningDaemon, session_id: str
) -> None:
    query = {"kind": "sandbox_override", "session_id": session_id, "command": "docker ps"}
    running.around.write(
        running.around.user_settings,
        {"sandbox": {"enabled": False, "excludedCommands": ["docker"]}, "permissions": {"allow": ["Bash(docker:*)"]}},
    )
    running.daemon.policies.reload()
    assert (await client.result("permission.request", query))["behavior"] == "deny"
    async with somebody(running) as person:
        question, result = await ask(client, person, query, "allow")
        assert (question["command"], question["scopes"]) == ("docker ps", ["once", "session", "always"])
        assert (result["behavior"], result["scope"]) == ("allow", "once")
        question, result = await ask(client, person, query, "deny")
        assert result["behavior"] == "deny"


async def test_an_override_of_a_line_has_no_pattern(client: RawClient, person: Person, session_id: str) -> None:
    query = {"kind": "sandbox_override", "session_id": session_id, "command": "docker ps; ls > x"}
    asking = asyncio.create_task(client.result("permission.request", query))
    question = await person.told(ASKED)
    assert (question["scopes"], question["suggestions"]) == (["once", "session"], [])
    for scope in ("command", "always"):
        assert await person.answer(question, "allow", scope=scope) == "scope_invalid"
    assert await person.answer(question, "deny", scope="always") == "scope_invalid"
    await person.answer(question, "deny")
    assert (await asking)["behavior"] == "deny"


async def test_an_override_for_the_session_is_for_the_same_line(
    client: RawClient, running: RunningDaemon, session_id: str
) -> None:
    query = {"kind": "sandbox_override", "session_id": session_id, "command": "docker rm x"}
    async with somebody(running) as person:
        _, first = await ask(client, person, query, "allow", scope="session")
        assert first["scope"] == "session"
        second = await client.result("permission.request", query)
        assert (second["behavior"], second["by"]) == ("allow", first["by"])
        assert not [one for one in person.heard if one["method"] == ASKED]
        _, other = await ask(client, person, {**query, "command": "docker rm y"}, "deny")
        assert other["behavior"] == "deny"
        elsewhere = {**query, "cwd": str(running.around.home)}
        assert (await ask(client, person, elsewhere, "deny"))[1]["behavior"] == "deny"
        (grant,) = (await person.call("permission.list"))["result"]["grants"]
        await person.call("permission.revoke", {"session_id": session_id, "grant_id": grant["grant_id"]})
        assert (await ask(client, person, query, "deny"))[1]["behavior"] == "deny"


@pytest.mark.parametrize("which", [None, "docker rm:*", "docker:*", "ls"])
async def test_always_writes_an_exclusion_made_from_the_command(
    client: RawClient, running: RunningDaemon, person: Person, session_id: str, which: str | None
) -> None:
    query = {"kind": "sandbox_override", "session_id": session_id, "command": "docker rm x"}
    asking = asyncio.create_task(client.result("permission.request", query))
    question = await person.told(ASKED)
    patterns = [(s["kind"], s["pattern"], s["wide"]) for s in question["suggestions"]]
    assert patterns == [
        ("exclude", "docker rm x", False), ("exclude", "docker rm:*", True), ("exclude", "docker:*", True),
    ]  # fmt: skip
    answer = {"scope": "always"} | ({} if which is None else {"pattern": which})
    if which == "ls":
        assert await person.answer(question, "allow", **answer) == "scope_invalid"
        await person.answer(question, "deny")
        await asking
        return
    if which is not None:
        assert await person.answer(question, "allow", **answer) == "confirmation_needed"
    result = await person.answer(question, "allow", **answer, confirm=True)
    assert result["scope"] == "always" and (await asking)["behavior"] == "allow"
    written = json.loads(local_settings(running).read_text())
    assert written == {"sandbox": {"excludedCommands": [which or "docker rm x"]}}


async def test_a_question_about_a_command_that_a_rule_asks_about(
    client: RawClient, running: RunningDaemon, session_id: str
) -> None:
    rules = {"permissions": {"ask": ["Bash(git push:*)"], "deny": ["Bash(rm:*)"]}}
    running.around.write(running.around.user_settings, rules)
    running.daemon.policies.reload()
    query = {"kind": "command", "session_id": session_id, "command": "git push"}
    assert (await client.result("permission.request", query))["outcome"] == "no_subscriber"
    async with somebody(running) as person:
        question, result = await ask(client, person, query, "allow")
        assert (question["kind"], question["scopes"], question["warnings"]) == ("command", ["once", "session"], [])
        assert "Bash(git push:*)" in question["text"]
        assert (result["behavior"], result["outcome"], result["env"]) == ("allow", "answered", {})
        allowed = await client.result("permission.request", {**query, "command": "ls"})
        assert (allowed["behavior"], allowed["by"]) == ("allow", "policy")
        refused = await client.result("permission.request", {**query, "command": "rm x"})
        assert (refused["behavior"], refused["by"]) == ("deny", "policy")
        assert not [one for one in person.heard if one["method"] == ASKED]


async def test_always_for_a_command_of_the_strict_mode_is_a_rule(
    client: RawClient, running: RunningDaemon, session_id: str
) -> None:
    running.around.write(running.around.user_settings, {"sandbox": {"autoAllowBashIfSandboxed": False}})
    running.daemon.policies.reload()
    query = {"kind": "command", "session_id": session_id, "command": "make all"}
    async with somebody(running) as person:
        question, _ = await ask(client, person, query, "allow", scope="always")
        assert [s["rule"] for s in question["suggestions"]] == ["Bash(make all)"] * 2
        assert json.loads(local_settings(running).read_text()) == {"permissions": {"allow": ["Bash(make all)"]}}
        again = await client.result("permission.request", query)
        assert (again["behavior"], again["by"]) == ("allow", "policy")


async def test_the_program_that_asks_may_not_answer_about_its_command(
    client: RawClient, running: RunningDaemon, session_id: str
) -> None:
    running.around.write(running.around.user_settings, {"sandbox": {"autoAllowBashIfSandboxed": False}})
    running.daemon.policies.reload()
    for kind in ("command", "sandbox_override"):
        query = {"kind": kind, "session_id": session_id, "command": "make"}
        async with somebody(running) as person:
            mine = {**query, "session_id": None, "cwd": str(running.around.project)}
            asking = person.client.request("permission.request", {k: v for k, v in mine.items() if v is not None})
            question = await person.told(ASKED)
            assert await person.answer(question, "allow", scope="session") == "not_permitted"
            assert asking not in person.answers


async def test_where_no_command_may_leave_the_sandbox_nobody_is_asked(
    client: RawClient, running: RunningDaemon, person: Person, session_id: str
) -> None:
    """Where no command may leave the sandbox there is no question."""
    running.around.write(running.around.user_settings, {"sandbox": {"allowUnsandboxedCommands": False}})
    running.daemon.policies.reload()
    query = {"kind": "sandbox_override", "session_id": session_id, "command": "docker ps"}
    result = await client.result("permission.request", query)
    assert (result["behavior"], result["by"]) == ("deny", "policy") and "allowUnsandboxedCommands" in result["text"]
    assert person.heard == []


async def test_a_path_is_opened_for_the_next_commands(
    client: RawClient, machine: FakeMachine, person: Person, session_id: str
) -> None:
    query = {"kind": "path", "session_id": session_id, "path": "/var/cache/x", "write": True, "reason": "the cache"}
    question, result = await ask(client, person, query, "allow")
    assert (question["path"], question["write"]) == ("/var/cache/x", True)
    assert question["text"] == "the program says: the cache"
    assert (result["behavior"], result["scope"]) == ("allow", "once")

    async def writable() -> list[str]:
        await client.result("wrap", {"session_id": session_id, "argv": ["true"]})
        return [rule.path for rule in machine.planner.asked[-1][0].files.allow_write]

    assert "/var/cache/x" in await writable()
    assert "/var/cache/x" not in await writable()  # it was for one
    await ask(client, person, query, "allow", scope="session")
    assert "/var/cache/x" in await writable() and "/var/cache/x" in await writable()


async def test_a_grant_widens_where_an_agents_own_overrides_do_not(
    client: RawClient, machine: FakeMachine, person: Person, running: RunningDaemon
) -> None:
    await client.result("hello", {"role": "agent"})
    session = await client.result("session.open", {"cwd": str(running.around.project)})
    query = {"kind": "path", "session_id": session["session_id"], "path": "/var/cache/x", "write": True}
    await ask(client, person, query, "allow", scope="session")
    params = {"session_id": session["session_id"], "argv": ["true"], "overrides": {"allow_write": ["/var/own"]}}
    await client.result("wrap", params)
    writable = [rule.path for rule in machine.planner.asked[-1][0].files.allow_write]
    assert "/var/cache/x" in writable and "/var/own" not in writable


@pytest.mark.parametrize(
    ("query", "slug"),
    [
        ({"kind": "network"}, "question_invalid"),
        ({"kind": "network", "host": "a b", "port": 1}, "host_invalid"),
        ({"kind": "network", "host": "ok.test", "port": 70000}, "question_invalid"),
        ({"kind": "path"}, "question_invalid"),
        ({"kind": "path", "path": "rel"}, "question_invalid"),
        ({"kind": "path", "path": "/home/*", "write": True}, "question_invalid"),
        ({"kind": "path", "path": "/" + "x" * 2000}, "question_invalid"),
        ({"kind": "sandbox_override", "command": " "}, "question_invalid"),
        ({"kind": "sandbox_override", "command": "x" * 20000}, "question_invalid"),
        ({"kind": "other"}, "invalid_params"),
    ],
)
async def test_questions_that_make_no_sense(
    client: RawClient, person: Person, session_id: str, query: dict[str, Any], slug: str
) -> None:
    error = await client.error("permission.request", {"session_id": session_id, **query})
    assert error["data"]["slug"] == slug
    assert person.heard == []


async def test_what_the_policy_decides_is_not_asked(client: RawClient, person: Person, session_id: str) -> None:
    for host, port in (("denied.test", 443), ("127.0.0.1", 80)):
        query = {"kind": "network", "session_id": session_id, "host": host, "port": port}
        result = await client.result("permission.request", query)
        assert (result["behavior"], result["by"]) == ("deny", "policy")
    inside = {"kind": "path", "session_id": session_id, "path": "/etc/hostname"}
    assert (await client.result("permission.request", inside))["by"] == "policy"
    error = await client.error("permission.request", {"kind": "network", "host": "ok.test", "port": 1})
    assert error["data"]["slug"] == "question_invalid"
    assert person.heard == []


async def test_who_subscribes_later_sees_what_is_open(
    running: RunningDaemon, person: Person, command: Sandboxed, origin: Origin
) -> None:
    waiting = asyncio.create_task(command.get(origin.url("ask.test")))
    question = await person.told(ASKED)
    async with somebody(running) as late:
        assert late.open == [question]
        assert (await late.call("permission.list"))["result"]["open"] == [question]
        await late.answer(question, "allow")
    assert status(await waiting) == 200


@pytest.mark.parametrize("path", ["~/.ssh", "~/.config/autostart", "/etc/cron.d/x", "/srv/data"])
async def test_always_for_a_wide_path_needs_a_second_word(
    running: RunningDaemon, person: Person, client_of_a_child: RawClient, path: str
) -> None:
    path = path.replace("~", str(running.around.home))
    query = {"kind": "path", "path": path, "write": True, "cwd": str(running.around.project)}
    client_of_a_child.request("permission.request", query)
    question = await person.told(ASKED)
    assert question["wide"] is (path != "/srv/data")
    if question["wide"]:
        assert await person.answer(question, "allow", scope="always") == "confirmation_needed"
        assert not local_settings(running).exists()
        assert (await person.answer(question, "allow", scope="always", confirm=True))["behavior"] == "allow"
    else:
        assert (await person.answer(question, "allow", scope="always"))["behavior"] == "allow"
    assert path in local_settings(running).read_text()


async def test_a_path_that_became_a_link_needs_a_confirmation(
    running: RunningDaemon, person: Person, client_of_a_child: RawClient
) -> None:
    """It was an ordinary one when it was asked about."""
    path = running.around.home / "data"
    query = {"kind": "path", "path": str(path), "write": True, "cwd": str(running.around.project)}
    client_of_a_child.request("permission.request", query)
    question = await person.told(ASKED)
    path.symlink_to("/etc")
    assert not question["wide"]
    assert await person.answer(question, "allow", scope="always") == "confirmation_needed"
    path.unlink()
    path.mkdir()
    assert (await person.answer(question, "allow", scope="always"))["behavior"] == "allow"


@pytest.fixture
async def client_of_a_child(running: RunningDaemon) -> AsyncIterator[RawClient]:
    async with running.client_in_a_child() as connected:
        yield connected


async def test_the_names_of_the_original_are_negotiated(
    running: RunningDaemon, client: RawClient, session_id: str
) -> None:
    query = {"kind": "network", "session_id": session_id, "host": "ask.test", "port": 443, "command_id": "c-9"}
    async with somebody(running) as plain, running.client() as connection:
        person = Person(connection)
        await person.call("permission.subscribe", {"originalNames": True})
        asking = asyncio.create_task(client.result("permission.request", query))
        question, other = await person.told(ASKED), await plain.told(ASKED)
        assert (question["requestId"], question["toolUseId"], question["host"]) == (
            question["request_id"], "c-9", "ask.test",
        )  # fmt: skip
        async with running.client() as later:
            (known,) = (await later.result("permission.subscribe", {"original_names": True}))["open"]
            assert known == question
        assert "requestId" not in other and other == {k: v for k, v in question.items() if k in other}
        reply = await person.call("sandbox_permission_response", {"requestId": question["requestId"]})
        assert reply["error"]["data"]["slug"] == "invalid_params"
        for wrong in ({"host": "other.test"}, {"toolUseId": "c-8"}):
            more = {"requestId": question["requestId"], "decision": "allow", **wrong}
            reply = await person.call("sandbox_permission_response", more)
            assert reply["error"]["data"]["slug"] == "invalid_params"
        answer = {
            "requestId": question["requestId"], "toolUseId": "c-9", "host": "ask.test", "decision": "allow",
        }  # fmt: skip
        assert (await person.call("sandbox_permission_response", answer))["result"]["behavior"] == "allow"
        resolved = await person.told(RESOLVED)
        assert (resolved["decision"], resolved["requestId"]) == ("allow", question["request_id"])
        assert (await asking)["behavior"] == "allow"


async def test_a_watcher_is_told_and_no_question_waits_for_it(
    running: RunningDaemon, client: RawClient, session_id: str
) -> None:
    query = {"kind": "network", "session_id": session_id, "host": "ask.test", "port": 443}
    async with running.client() as connection:
        watcher = Person(connection)
        await watcher.call("permission.subscribe", {"watch": True})
        assert (await client.result("permission.request", query))["outcome"] == "no_subscriber"
        async with somebody(running) as person:
            asking = asyncio.create_task(client.result("permission.request", query))
            question = await person.told(ASKED)
            assert (await watcher.told(ASKED))["request_id"] == question["request_id"]
            assert await watcher.answer(question, "allow") == "not_permitted"
            await person.answer(question, "allow")
            assert (await watcher.told(RESOLVED))["behavior"] == "allow"
            assert (await asking)["behavior"] == "allow"


async def test_a_question_waits_for_a_user_whom_a_program_told(
    running: RunningDaemon, client: RawClient, session_id: str, tmp_path: Path
) -> None:
    told, writable = tmp_path / "told", running.around.project / "notify"
    writable.write_text("#!/bin/sh\n")
    writable.chmod(0o755)
    query = {"kind": "network", "session_id": session_id, "host": "ask.test", "port": 443}
    for source, program in ((running.around.user_settings, [str(writable)]), (None, ["tee", str(told)])):
        file = source or running.around.project / ".claude" / "settings.json"  # a project runs no programs
        running.around.write(file, {"sandbox": {"prompts": {"notify": [program]}}})
        await client.result("settings.reload")
        assert (await client.result("permission.request", query))["outcome"] == "no_subscriber"
    running.around.write(running.around.user_settings, {"sandbox": {"prompts": {"notify": [["tee", str(told)]]}}})
    await client.result("settings.reload")
    asking = asyncio.create_task(client.result("permission.request", query))
    await wait_until_async(lambda: told.exists() and told.read_text().endswith("\n"))
    assert json.loads(told.read_text())["text"] == "May a command reach ask.test:443?"
    async with somebody(running) as person:
        (question,) = person.open
        assert (await person.answer(question, "allow"))["behavior"] == "allow"
    assert (await asking)["by"] is not None
