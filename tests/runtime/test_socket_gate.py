"""A connect to a Unix socket in a running command: decided by the policy of that moment, answered once, recorded."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sandboxd.backends.base import ConnectAttempt
from sandboxd.plan.filesystem.attribution import Attribution
from sandboxd.plan.host_facts import FoundSocket, SocketFile, SocketsAtStart
from sandboxd.plan.planner import Planner
from sandboxd.plan.request import ShellText
from sandboxd.policy.decision import Decision, Reason
from sandboxd.policy.model import NetworkPolicy, Policy, SocketRule
from sandboxd.runtime.socket_gate import SocketConnects, SocketGate, SocketsInside
from sandboxd.settings.origins import Origin, Source
from support.daemon import RunningDaemon, running_daemon
from support.fake_host import FakeHost, place
from support.fake_runtime import FakeMachine
from support.waiting import wait_until_async

ORIGIN = Origin(Source.USER, "sandbox.network.allowUnixSockets", "/u.json", 4, 7)


def attempt(path: str, family: int = socket.AF_UNIX) -> ConnectAttempt:
    return ConnectAttempt(family, path, 0, 7, "prog")


class Seen:
    """The sockets of a host: `there` are found at the start, `bound` were bound inside. `looked` is where they were
    looked for."""

    def __init__(self) -> None:
        self.there: list[FoundSocket] = []
        self.bound: set[SocketFile] = set()
        self.complete = True
        self.looked: list[tuple[str, str]] = []
        self.fault: OSError | None = None

    def find(self, places: Sequence[tuple[str, str]]) -> SocketsAtStart:
        self.looked = list(places)
        return SocketsAtStart(tuple(self.there), complete=self.complete)

    async def is_bound(self, file: SocketFile) -> bool:
        if self.fault is not None:
            raise self.fault
        return file in self.bound


def file(number: int) -> SocketFile:
    return SocketFile((8, 1), number, 1000 + number)


async def gate(host: FakeHost, *listed: str, seen: Seen | None = None, known: bool = True) -> SocketGate:
    planner = Planner(host)
    plan = await planner.plan(Policy(), place(), ShellText("true"))
    network = NetworkPolicy(allow_unix_sockets=tuple(SocketRule(path, ORIGIN) for path in listed))
    where = place()
    own = (where.runtime_dir, where.temporary_base)
    seen = seen or Seen()

    async def attribution() -> Attribution | None:
        return plan.attribution if known else None

    inside = SocketsInside(seen.find, where.session_tmp, seen.is_bound)
    return SocketGate(lambda: network, planner.resolve, attribution, own, inside)


async def test_a_listed_link_counts_unless_commands_can_change_it() -> None:
    host = FakeHost({"/srv/agent": "-> /srv/deep/agent.1", "/srv/deep/agent.1": "", "/srv/other.sock": ""})
    host.put("/home/u/work/server.sock", "-> /srv/other.sock")
    made = await gate(host, "/srv/agent", "/home/u/work/server.sock")
    assert (await made.decide("/srv/deep/agent.1")).allowed
    assert (await made.decide("/srv/other.sock")).reason is Reason.SOCKET_REDIRECTED


async def test_no_link_is_followed_where_its_writers_are_unknown() -> None:
    host = FakeHost({"/srv/agent": "-> /srv/deep/agent.1", "/srv/deep/agent.1": "", "/srv/plain": ""})
    made = await gate(host, "/srv/agent", "/srv/plain", known=False)
    made.at_start = SocketsAtStart((FoundSocket("/srv/deep/agent.1", file(1)), FoundSocket("/srv/plain", file(2))))
    assert (await made.decide("/srv/deep/agent.1", file(1))).reason is Reason.SOCKET_REDIRECTED
    assert (await made.decide("/srv/plain", file(2))).allowed


async def test_the_daemon_s_own_by_whatever_name() -> None:
    host = FakeHost({"/run/user/1000": "-> /mnt/run", "/mnt/run/sandboxd/": "", "/mnt/run/x.sock": ""})
    made = await gate(host, "/mnt", "/run/user/1000/sandboxd")
    for path in ("/mnt/run/sandboxd/sandboxd.sock", "/run/user/1000/sandboxd/bridge.sock"):
        assert (await made.decide(path)).reason is Reason.SOCKET_OWN
    assert (await made.decide("/mnt/run/x.sock")).allowed


async def test_what_the_command_made_in_its_tmp_is_its_own() -> None:
    seen = Seen()
    made = await gate(FakeHost({}), seen=seen)
    seen.bound = {file(1)}
    assert (await made.decide("/tmp/pipe.sock", file(1))).reason is Reason.SESSION_TMP
    assert (await made.decide("/tmp/pipe.sock", file(2))).reason is Reason.SOCKET_BROUGHT
    assert (await made.decide("/home/u/work/x", file(1))).reason is Reason.SESSION_TMP
    assert (await made.decide("/home/u/work/x", file(2))).reason is Reason.SOCKET_NOT_LISTED
    assert (await made.decide("/run/docker.sock")).reason is Reason.SOCKET_CONTROL


WORK = "/home/u/work"


async def test_where_it_can_write_the_socket_counts_and_not_its_path() -> None:
    """What was there at the start, under any listed name; what was bound inside; nothing else, and nothing of which it
    is not known which socket it is. Elsewhere the path is enough."""
    seen = Seen()
    host = FakeHost({f"{WORK}/s/": "", f"{WORK}/alone": "socket", "/srv/s/": "", "/home/u/lib/work/": ""})
    made = await gate(host, f"{WORK}/s", f"{WORK}/alone", "/srv/s", "/home/u", seen=seen)
    seen.there = [FoundSocket(f"{WORK}/s/a", file(1)), FoundSocket("/tmp/t", file(2))]
    await made.look()
    session = (place().session_tmp, "/tmp")
    assert set(seen.looked) == {session, (WORK, WORK), (f"{WORK}/s", f"{WORK}/s"), (f"{WORK}/alone", f"{WORK}/alone")}
    seen.bound = {file(3)}
    for path in (f"{WORK}/s/a", f"{WORK}/s/b/c", f"{WORK}/alone", f"{WORK}/x", "/tmp/t"):
        for number, is_open in ((1, True), (2, True), (3, True), (4, False)):
            assert (await made.decide(path, file(number))).allowed is is_open, (path, number)
        assert (await made.decide(path, replace(file(1), made_ns=0))).reason is Reason.SOCKET_BROUGHT
        assert (await made.decide(path, None)).reason is Reason.SOCKET_BROUGHT
    assert (await made.decide("/srv/s/x", file(4))).reason is Reason.SOCKET_ALLOWED
    assert (await made.decide("/srv/s/x", None)).reason is Reason.SOCKET_ALLOWED
    assert (await made.decide("/srv/t/x", file(1))).reason is Reason.SOCKET_NOT_LISTED


async def test_what_was_not_bound_where_it_is_found_was_moved() -> None:
    """By an earlier command. A name that leads there counts, unless by a link that the command can change."""
    seen = Seen()
    host = FakeHost({f"{WORK}/s/": "", "/home/link": "-> /home/u", f"{WORK}/l": "-> s", f"{WORK}/o/": ""})
    made = await gate(host, f"{WORK}/s", seen=seen)
    names = {
        f"{WORK}/s/a": True, "": True, "a": True, "/proc/self/fd/3/a": True, "/home/link/work/s/a": True,
        f"{WORK}/o/a": False, f"{WORK}/s/b": False, f"{WORK}/l/a": False, "/srv/a": False,
    }  # fmt: skip
    for name, stays in names.items():
        seen.there = [FoundSocket(f"{WORK}/s/a", file(1), name), FoundSocket("/tmp/a", file(2), "/elsewhere")]
        await made.look()
        assert (await made.decide(f"{WORK}/s/a", file(1))).allowed is stays, name
        assert (await made.decide("/tmp/a", file(2))).allowed


async def test_what_stood_where_it_is_not_allowed_any_more_is_not() -> None:
    seen = Seen()
    made = await gate(FakeHost({f"{WORK}/s/": ""}), f"{WORK}/s", seen=seen)
    seen.there = [FoundSocket(f"{WORK}/s/a", file(1)), FoundSocket(f"{WORK}/before/a", file(2))]
    await made.look()
    assert (await made.decide(f"{WORK}/s/a", file(1))).allowed
    assert (await made.decide(f"{WORK}/s/a", file(2))).reason is Reason.SOCKET_BROUGHT


async def test_a_refusal_says_what_could_not_be_seen() -> None:
    seen = Seen()
    made = await gate(FakeHost({f"{WORK}/s/": ""}), f"{WORK}/s", seen=seen)
    assert "after the command had started" in (await made.decide(f"{WORK}/s/a", file(1))).text
    seen.complete = False
    await made.look()
    assert "more to look through" in (await made.decide(f"{WORK}/s/a", file(1))).text
    seen.fault = FileNotFoundError(2, "No such file or directory")
    decision = await made.decide(f"{WORK}/s/a", file(1))
    assert decision.reason is Reason.SOCKET_BROUGHT and "cannot be seen" in decision.text


async def test_after_a_restart_what_was_writable_before_counts() -> None:
    """The mounts of a command stay; the rules may be others by now, or not known."""
    for known in (True, False):
        seen = Seen()
        made = await gate(FakeHost({"/srv/s/": ""}), "/srv/s", seen=seen, known=known)
        made.resume(SocketsAtStart((FoundSocket("/srv/s/a", file(1)),), ("/srv",)))
        assert (await made.decide("/srv/s/a", file(1))).allowed
        assert (await made.decide("/srv/s/a", file(2))).reason is Reason.SOCKET_BROUGHT
        made.resume(None)
        assert (await made.decide("/srv/s/a", file(1))).reason is Reason.SOCKET_BROUGHT


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


async def answered(observer: Any, path: str, family: int = socket.AF_UNIX) -> list[int]:
    answers: list[int] = []
    observer.connecting(attempt(path, family), answers.append)
    await wait_until_async(lambda: bool(answers), "it is answered")
    return answers


async def test_a_policy_change_counts_for_the_next_connect(machine: FakeMachine) -> None:
    plan = await Planner(FakeHost({})).plan(Policy(), place(), ShellText("true"))
    machine.planner.attribution = plan.attribution
    async with running_daemon(assemble=machine.assemble) as running:
        around = running.around
        async with running.client() as client:
            opened = await client.result("session.open", {"cwd": str(around.project)})
            await client.result("wrap", {"session_id": opened["session_id"], "argv": ["x"], "command_id": "c"})
            observer = machine.backend.launches[-1].observer
            machine.backend.launches[-1].start()
            assert await answered(observer, "/srv/s.sock") == [errno.EACCES]
            assert await answered(observer, "192.0.2.1", socket.AF_INET) == [0]
            around.write(around.user_settings, {"sandbox": {"network": {"allowUnixSockets": ["/srv/s.sock"]}}})
            running.daemon.policies.reload()
            assert await answered(observer, "/srv/s.sock") == [0]
            [seen] = (await client.result("violation.list", {"command_id": "c"}))["violations"]
            assert (seen["kind"], seen["target"], seen["outcome"]) == ("unix-socket", "/srv/s.sock", "socketNotListed")
            assert "sandboxd allow socket /srv/s.sock" in seen["hint"] and seen["process"] == "prog"
            own = str(around.directory / "sandboxd.sock")
            assert await answered(observer, own) == [errno.EACCES]


async def test_connects_that_wait_are_bounded_and_end_with_the_command(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_daemon(assemble=machine.assemble) as running:
        await _flood(running, machine, monkeypatch)


async def _flood(running: RunningDaemon, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    never = asyncio.Event()

    async def resolve(path: str) -> Any:
        await never.wait()

    monkeypatch.setattr(machine.planner, "resolve", resolve)
    async with running.client() as client:
        await client.result("wrap", {"cwd": str(running.around.project), "argv": ["x"]})
        handle = machine.backend.launches[-1]
        handle.start()
        answers: list[int] = []
        for number in range(200):
            handle.observer.connecting(attempt(f"/srv/{number}"), answers.append)
        assert set(answers) == {errno.EAGAIN} and 100 < len(answers) < 200
        await asyncio.sleep(0)
        handle.end()
        await wait_until_async(lambda: len(answers) == 200, "each is answered")
        assert answers.count(errno.EACCES) == 200 - answers.count(errno.EAGAIN)


async def test_without_anybody_who_decides_none_is_reachable() -> None:
    refused: list[Decision] = []
    answers: list[int] = []
    connects = SocketConnects("w", None, lambda attempt, decision: refused.append(decision))
    connects.decide(attempt("/srv/s.sock"), answers.append)
    await connects.settled(5)
    assert answers == [errno.EACCES]
    assert [one.reason for one in refused] == [Reason.SOCKET_NOT_LISTED]


async def test_a_fault_in_a_decision_is_a_refusal() -> None:
    async def fault(attempt: ConnectAttempt) -> Decision:
        raise ZeroDivisionError

    answers: list[int] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    connects = SocketConnects("w", fault, lambda attempt, decision: None)
    connects.decide(attempt("/srv/s.sock"), answers.append)
    await connects.settled(5)
    assert answers == [errno.EACCES]


async def test_patience_with_connects_that_wait_ends() -> None:
    never = asyncio.Event()
    answers: list[int] = []

    async def decide(attempt: ConnectAttempt) -> Decision:
        await never.wait()
        raise AssertionError

    connects = SocketConnects("w", decide, lambda attempt, decision: None)
    connects.decide(attempt("/srv/s.sock"), answers.append)
    await connects.settled(0)
    assert answers == []
    connects.close()
    await connects.settled(5)
    assert answers == [errno.EACCES]
