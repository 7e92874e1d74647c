"""The bridge against helpers that keep to the protocol and against those that do not."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandboxd.backends.base import AnswerConnect, ConnectAttempt, Listeners
from sandboxd.backends.linux.bwrap import launch_processes
from sandboxd.backends.linux.helper import bridge as bridge_module
from sandboxd.backends.linux.helper.bridge import Bridge, ExpectedLaunch
from sandboxd.backends.linux.helper.bridge_protocol import (
    HARMLESS,
    OFF,
    OPTIONS,
    TEXT_SIZE,
    TICKET_SIZE,
    Descriptors,
    Event,
    ExecFailed,
    Exited,
    Failed,
    Started,
    encode_event,
    encode_ticket,
)
from sandboxd.backends.linux.helper.launch_configuration import Flags, LaunchConfiguration
from sandboxd.backends.linux.helper.notifications import (
    AGAIN,
    Connecting,
    Lost,
    RefusedCall,
    ReportedAccess,
    encode_answer,
)
from sandboxd.backends.linux.seccomp.syscall_table import MACHINES, SYSCALLS
from sandboxd.errors import CallerError
from sandboxd.policy.violation import DenialEvent, ViolationKind, ViolationSource
from support.processes import is_alive
from support.waiting import wait_until_async

TICKET = "a" * 32
CONFIGURATION = LaunchConfiguration(arguments=(b"true",), filter=b"", flags=Flags.UNFILTERED)


@dataclass
class Recorder:
    """An observer that keeps what it is told."""

    heard: list[object] = field(default_factory=list)
    asked: list[tuple[ConnectAttempt, AnswerConnect]] = field(default_factory=list)
    listeners: Listeners | None = None

    def claimed(self, pid: int) -> None:
        self.heard.append("claimed")

    def listening(self, listeners: Listeners) -> None:
        self.listeners = listeners
        self.heard.append("listening")

    def starting(self, inside: object = None) -> None: ...

    def listens(self) -> None: ...

    def started(self) -> None:
        self.heard.append("started")

    def failed(self, reason: str, *, outdated: bool = False) -> None:
        self.heard.append(("failed", reason))

    def lost(self, count: int) -> None:
        self.heard.append(("lost", count))

    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        self.asked.append((attempt, answer))

    def refused(self, refusal: DenialEvent) -> None:
        self.heard.append(("refused", refusal))

    def ended(self, status: int | None) -> None:
        self.heard.append(("ended", status))

    @property
    def is_over(self) -> bool:
        return any(isinstance(item, tuple) and item[0] == "ended" for item in self.heard)


@dataclass
class Prepared:
    """A preparation with nothing to do."""

    heard: list[object] = field(default_factory=list)

    def born(self, pid: int, bubblewrap: int) -> None:
        self.heard.append(("born", pid, bubblewrap))

    def complete(self, pid: int, bubblewrap: int, listeners: Listeners) -> Awaitable[None] | None:
        self.heard.append("completed")
        return None

    def abandon(self) -> None:
        self.heard.append("abandoned")


@dataclass
class PeerProcess:
    pid: int


@dataclass
class Setting:
    bridge: Bridge
    peer: PeerProcess
    logged: list[str]


@pytest.fixture
def victim() -> Iterator[PeerProcess]:
    """A process that stands for bubblewrap: killed when the bridge loses its trust."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield PeerProcess(process.pid)
        process.kill()


@pytest.fixture
async def setting(tmp_path: Path, victim: PeerProcess) -> AsyncIterator[Setting]:
    logged: list[str] = []
    bridge = Bridge(str(tmp_path / "bridge.sock"), lambda peer: victim, lambda event, **values: logged.append(event))
    bridge.open()
    yield Setting(bridge, victim, logged)
    bridge.close()


PUPPET = """
import array, json, os, socket, sys
peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
peer.connect(sys.argv[1])
for line in sys.stdin:
    order = json.loads(line)
    if "pipe" in order:
        reading, writing = os.pipe()
        socket.send_fds(peer, [bytes.fromhex(order["pipe"])], [reading] * order["times"])
        print("sent", flush=True)
    elif "write" in order:
        os.write(writing, bytes.fromhex(order["write"]))
        print("written", flush=True)
    elif "send" in order:
        data = bytes.fromhex(order["send"])
        made = [socket.create_server(("127.0.0.1", 0)) for _ in range(order["sockets"])]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno() for s in made]))] if made else []
        peer.sendmsg([data], rights)
        for one in made:
            one.close()
        print("sent", flush=True)
    elif "close" in order:
        peer.close()
        print("closed", flush=True)
    elif "descriptors" in order:
        data, descriptors, _, _ = socket.recv_fds(peer, 1, 1)
        print((data + b" " + open(descriptors[0], "rb").read()).hex(), flush=True)
    else:
        data = b""
        try:
            while len(data) < order["receive"] and (piece := peer.recv(order["receive"] - len(data))):
                data += piece
        except ConnectionResetError:
            pass
        print(data.hex(), flush=True)
"""


class Helper:
    """A helper in a process of its own, doing what it is told: the bridge looks at who speaks, and may kill it."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PUPPET, setting.bridge.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def send(self, data: bytes, sockets: int = 0) -> None:
        await asyncio.to_thread(self._ask, {"send": data.hex(), "sockets": sockets})

    async def send_with_pipe(self, data: bytes, times: int = 1) -> None:
        await asyncio.to_thread(self._ask, {"pipe": data.hex(), "times": times})

    async def write(self, data: bytes) -> None:
        """To that pipe, both ends of which it holds, as bubblewrap does."""
        await asyncio.to_thread(self._ask, {"write": data.hex()})

    async def close_connection(self) -> None:
        await asyncio.to_thread(self._ask, {"close": 1})

    async def receive(self, size: int) -> bytes:
        """Up to `size` bytes; fewer when the bridge hung up."""
        return bytes.fromhex(await asyncio.to_thread(self._ask, {"receive": size}))

    async def receive_file(self) -> bytes:
        return bytes.fromhex(await asyncio.to_thread(self._ask, {"descriptors": 1}))

    def _ask(self, order: dict[str, object]) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it has been killed
            return ""
        return self._process.stdout.readline()

    def end_bubblewrap(self) -> None:
        """It ends when its child does."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._setting.peer.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


async def claim(setting: Setting) -> tuple[Helper, Recorder]:
    recorder = Recorder()
    setting.bridge.expect(TICKET, ExpectedLaunch(CONFIGURATION, None, recorder))
    helper = Helper(setting)
    await helper.send(encode_ticket(TICKET))
    message = CONFIGURATION.encode()
    assert await helper.receive(len(message)) == message
    return helper, recorder


async def hang_up_and_see(helper: Helper, recorder: Recorder) -> list[object]:
    helper.hang_up()
    helper.end_bubblewrap()
    await wait_until_async(lambda: recorder.is_over, "the bridge has seen the end")
    if recorder.listeners is not None:
        for listener in (recorder.listeners.http, recorder.listeners.socks, *recorder.listeners.others):
            if listener is not None:
                listener.close()
        os.close(recorder.listeners.namespace)
    return recorder.heard


async def test_a_whole_launch(setting: Setting) -> None:
    helper, recorder = await claim(setting)
    await helper.send(encode_event(Descriptors(2)), 3)
    await helper.send(encode_event(Started()))
    await helper.send(encode_event(Exited(7, 0)))
    await wait_until_async(lambda: "started" in recorder.heard, "the command has started")
    assert is_alive(setting.peer.pid)
    heard = await hang_up_and_see(helper, recorder)
    assert heard == ["claimed", "listening", "started", ("ended", 7)]


async def test_the_end_is_told_when_process_1_is_gone_and_not_before(setting: Setting) -> None:
    """Its connection closes earlier, while others of its namespace may still run."""
    helper, recorder = await claim(setting)
    await helper.send(encode_event(Descriptors(2)), 3)
    await helper.send(encode_event(Started()) + encode_event(Exited(0, 0)))
    await helper.close_connection()
    await wait_until_async(lambda: setting.bridge.is_disconnected(TICKET), "the bridge has seen the connection close")
    assert is_alive(helper.pid)
    assert not recorder.is_over
    assert (await hang_up_and_see(helper, recorder))[-1] == ("ended", 0)


async def test_the_ticket_byte_by_byte(setting: Setting) -> None:
    recorder = Recorder()
    setting.bridge.expect(TICKET, ExpectedLaunch(CONFIGURATION, None, recorder))
    helper = Helper(setting)
    for byte in encode_ticket(TICKET):
        await helper.send(bytes([byte]))
    await wait_until_async(lambda: recorder.heard == ["claimed"], "the ticket has been claimed")
    await hang_up_and_see(helper, recorder)


async def test_a_ticket_works_once_and_a_forgotten_one_never(setting: Setting) -> None:
    helper, recorder = await claim(setting)
    forgotten = Recorder()
    setting.bridge.expect("b" * 32, ExpectedLaunch(CONFIGURATION, None, forgotten)).cancel()
    for ticket in (TICKET, "b" * 32, "c" * 32):
        other = Helper(setting)
        await other.send(encode_ticket(ticket))
        assert await other.receive(1) == b""
        other.hang_up()
    assert setting.logged == ["bridge_ticket_unknown"] * 3
    assert forgotten.heard == []
    assert await hang_up_and_see(helper, recorder) == ["claimed", ("ended", None)]


async def test_options_by_descriptor_come_before_the_configuration(setting: Setting) -> None:
    recorder = Recorder()
    setting.bridge.expect(TICKET, ExpectedLaunch(CONFIGURATION, b"--dev\0/dev\0", recorder))
    helper = Helper(setting)
    await helper.send(encode_ticket(TICKET))
    await wait_until_async(lambda: recorder.heard == ["claimed"], "the ticket has been claimed")
    assert await helper.receive_file() == OPTIONS + b" --dev\0/dev\0"
    await hang_up_and_see(helper, recorder)


@pytest.mark.parametrize(
    ("events", "sockets"),
    [
        ([Started()], 0),
        ([Exited(0, 0)], 0),
        ([Descriptors(2)], 0),
        ([Descriptors(2)], 2),
        ([Descriptors(2)], 5),
        ([Descriptors(0)], 1),
        ([Descriptors(1)], 2),
        ([Descriptors(2), Descriptors(2)], 3),
    ],
)
async def test_a_helper_that_breaks_the_protocol_ends_with_its_sandbox(
    setting: Setting, events: list[Event], sockets: int
) -> None:
    helper, recorder = await claim(setting)
    data = b"".join(encode_event(event) for event in events)
    await helper.send(data, sockets)
    await wait_until_async(lambda: recorder.is_over, "the bridge has given it up")
    await wait_until_async(lambda: not is_alive(setting.peer.pid), "what stands for bubblewrap is dead")
    heard = await hang_up_and_see(helper, recorder)
    assert "started" not in heard
    assert [item[0] for item in heard if isinstance(item, tuple)] == ["failed", "ended"]


@pytest.mark.parametrize("opening", [b"\0" * TICKET_SIZE, b"GET / HTTP/1.1\r\n\r\n" * 10, b"\xff" * TICKET_SIZE])
async def test_a_stranger_is_hung_up_on_and_nobody_is_killed(setting: Setting, opening: bytes) -> None:
    other = Helper(setting)
    await other.send(opening)
    assert await other.receive(1) == b""
    other.hang_up()
    assert is_alive(setting.peer.pid)


@pytest.mark.parametrize("later", [False, True])
async def test_a_fault_of_ours_ends_the_launch_at_once(setting: Setting, later: bool) -> None:
    """No wait for the helper's time limit, and the command does not start."""

    async def fault() -> None:
        raise ZeroDivisionError

    class Faulty(Prepared):
        def complete(self, pid: int, bubblewrap: int, listeners: Listeners) -> Awaitable[None] | None:
            if later:
                return fault()
            raise ZeroDivisionError

    recorder, preparation = Recorder(), Faulty()
    setting.bridge.expect(TICKET, ExpectedLaunch(CONFIGURATION, None, recorder, preparation))
    helper = Helper(setting)
    await helper.send(encode_ticket(TICKET))
    await helper.receive(len(CONFIGURATION.encode()))
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    await helper.send(encode_event(Descriptors(2)), 3)
    await wait_until_async(lambda: "failed" in str(recorder.heard), "it is told")
    if later:
        assert (await helper.receive(1 + 2 * TEXT_SIZE)).startswith(OFF + b"a fault of sandboxd")
    assert await helper.receive(1) == b""
    assert await hang_up_and_see(helper, recorder)
    assert len(setting.logged) == 1
    assert preparation.heard == ["abandoned"]


async def test_the_birth_of_process_1_is_told_by_bubblewrap(setting: Setting) -> None:
    """In its own words, in pieces, by a pipe that comes with the ticket."""
    recorder, preparation = Recorder(), Prepared()
    setting.bridge.expect(TICKET, ExpectedLaunch(CONFIGURATION, None, recorder, preparation))
    helper = Helper(setting)
    setting.peer.pid = helper.pid
    await helper.send_with_pipe(encode_ticket(TICKET))
    await helper.receive(len(CONFIGURATION.encode()))
    for piece in (b'{\n    "child-pid": 4', b'2,\n    "net-namespace": 4026532281', b"\n}\n"):
        assert preparation.heard == []
        await helper.write(piece)
    await wait_until_async(lambda: bool(preparation.heard), "it is told")
    helper.hang_up()
    await wait_until_async(lambda: recorder.is_over, "the end is told")
    assert preparation.heard == [("born", 42, helper.pid), "abandoned"]


async def test_what_is_no_birth_is_only_no_early_start(setting: Setting) -> None:
    recorder, preparation = Recorder(), Prepared()
    setting.bridge.expect(TICKET, ExpectedLaunch(CONFIGURATION, None, recorder, preparation))
    helper = Helper(setting)
    await helper.send_with_pipe(encode_ticket(TICKET))
    await helper.write(b"hello}\n")
    await wait_until_async(lambda: setting.logged == ["bridge_link_failed"], "it is in the log")
    assert len(await helper.receive(len(CONFIGURATION.encode()))) == len(CONFIGURATION.encode())
    assert preparation.heard == [] and "failed" not in str(recorder.heard)
    helper.hang_up()


async def test_more_than_one_pipe_is_a_fault(setting: Setting) -> None:
    recorder = Recorder()
    setting.bridge.expect(TICKET, ExpectedLaunch(CONFIGURATION, None, recorder, Prepared()))
    helper = Helper(setting)
    await helper.send_with_pipe(encode_ticket(TICKET), times=2)
    await wait_until_async(lambda: "failed" in str(recorder.heard), "it is told")
    helper.hang_up()


async def test_who_is_refused_can_still_tell_of_a_birth(setting: Setting) -> None:
    """bubblewrap holds both ends of its pipe: a failure to write would end it, and leave what it has forked waiting."""
    helper = Helper(setting)
    await helper.send_with_pipe(encode_ticket("f" * 32))
    assert await helper.receive(1) == b""
    await helper.write(b'{ "child-pid": 2 }\n')
    helper.hang_up()


async def test_a_cut_off_frame_is_a_fault(setting: Setting) -> None:
    helper, recorder = await claim(setting)
    await helper.send(encode_event(Failed("x" * 100))[:20])
    heard = await hang_up_and_see(helper, recorder)
    assert heard[-1] == ("ended", None)
    assert setting.logged == ["bridge_link_failed"]


async def test_what_the_helper_says_is_passed_on(setting: Setting) -> None:
    helper, recorder = await claim(setting)
    await helper.send(encode_event(Failed("cannot listen in the sandbox")))
    assert await hang_up_and_see(helper, recorder) == [
        "claimed",
        ("failed", "cannot listen in the sandbox"),
        ("ended", None),
    ]


async def test_a_command_that_cannot_be_executed(setting: Setting) -> None:
    helper, recorder = await claim(setting)
    await helper.send(encode_event(Descriptors(2)), 3)
    await helper.send(encode_event(ExecFailed(127, 2)) + encode_event(Exited(127, 0)))
    heard = await hang_up_and_see(helper, recorder)
    assert heard[2] == ("failed", "the command could not be run: No such file or directory (status 127)")
    assert heard[3] == ("ended", 127)


async def test_a_peer_that_is_refused_is_hung_up_on(tmp_path: Path) -> None:
    def refuse(peer: socket.socket) -> PeerProcess:
        raise CallerError("peer_other_user", "not yours")

    logged: list[str] = []
    bridge = Bridge(str(tmp_path / "bridge.sock"), refuse, lambda event, **values: logged.append(event))
    bridge.open()
    try:
        recorder = Recorder()
        bridge.expect(TICKET, ExpectedLaunch(CONFIGURATION, None, recorder))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.connect(bridge.path)
            other.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(other, 1) == b""
        assert logged == ["bridge_peer_refused"]
        assert recorder.heard == []
    finally:
        bridge.close()


async def connect(bridge: Bridge) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.connect(bridge.path)
    peer.setblocking(False)
    return peer


async def is_hung_up_on(peer: socket.socket) -> bool:
    return await asyncio.get_running_loop().sock_recv(peer, 1) == b""


async def test_refused_tickets_of_peers_that_stay_take_few_descriptors(setting: Setting) -> None:
    """Their end is awaited for the last ones alone; a good ticket is taken meanwhile and afterwards."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        with await connect(setting.bridge) as peer:
            peer.send(encode_ticket("f" * 32))
            assert await is_hung_up_on(peer)
    assert is_alive(setting.peer.pid)
    assert len(os.listdir("/proc/self/fd")) - before <= bridge_module._MOST_REFUSED
    helper, recorder = await claim(setting)
    assert await hang_up_and_see(helper, recorder) == ["claimed", ("ended", None)]


async def test_a_peer_without_a_ticket_is_hung_up_on(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has named it stays."""
    monkeypatch.setattr(bridge_module, "_TICKET_WITHIN_S", 0.01)
    helper, recorder = await claim(setting)
    before = len(os.listdir("/proc/self/fd"))
    for opening in (b"", encode_ticket("f" * 32)[:5]):
        with await connect(setting.bridge) as peer:
            peer.send(opening)
            assert await is_hung_up_on(peer)
    assert setting.logged == ["bridge_stranger_ended"] * 2
    assert len(os.listdir("/proc/self/fd")) == before
    assert recorder.heard == ["claimed"]
    await hang_up_and_see(helper, recorder)


async def test_one_look_for_orphans_is_for_all_refused_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(peer: socket.socket) -> PeerProcess:
        raise CallerError("peer_other_user", "not yours")

    looks: list[int] = []

    def look() -> tuple[int, ...]:
        looks.append(1)
        return (7,)

    monkeypatch.setattr(launch_processes, "end_orphans", look)
    monkeypatch.setattr(launch_processes, "_ORPHANS_AFTER_S", 0.0)
    logged: list[str] = []
    bridge = Bridge(str(tmp_path / "bridge.sock"), refuse, lambda event, **values: logged.append(event))
    bridge.open()
    try:
        peers = [await connect(bridge) for _ in range(50)]  # all are accepted in one turn of the loop
        for peer in peers:
            assert await is_hung_up_on(peer)
            peer.close()
        await wait_until_async(lambda: len(looks) == 2, "those that came after the first have their look, too")
        bridge.orphans.ask()
    finally:
        bridge.close()
    assert len(looks) == 3, "what was asked for is done before the end"
    assert Counter(logged) == {"bridge_peer_refused": 50, "bridge_straggler_ended": 3}


async def test_the_socket_is_private_and_goes_with_the_bridge(setting: Setting) -> None:
    assert os.stat(setting.bridge.path).st_mode & 0o777 == 0o600
    setting.bridge.close()
    assert not os.path.exists(setting.bridge.path)


async def test_a_long_configuration_is_sent_as_the_helper_reads_it(setting: Setting) -> None:
    long = LaunchConfiguration(arguments=(b"x" * 3_000_000,), filter=b"", flags=Flags.UNFILTERED)
    recorder = Recorder()
    setting.bridge.expect(TICKET, ExpectedLaunch(long, None, recorder))
    helper = Helper(setting)
    await helper.send(encode_ticket(TICKET))
    message = long.encode()
    assert await helper.receive(len(message)) == message
    await hang_up_and_see(helper, recorder)


async def running(setting: Setting) -> tuple[Helper, Recorder]:
    helper, recorder = await claim(setting)
    await helper.send(encode_event(Descriptors(2)), 3)
    await helper.send(encode_event(Started()))
    return helper, recorder


async def test_refused_calls_are_told_with_the_name_of_the_call(setting: Setting) -> None:
    helper, recorder = await running(setting)
    number = SYSCALLS["mkdirat"][MACHINES[os.uname().machine].column]
    assert number is not None
    await helper.send(encode_event(RefusedCall(ReportedAccess.WRITE, number, 30, 2, "mkdir", "/etc/x", 3, is_cut=True)))
    await helper.send(encode_event(Lost(40)))
    expected = DenialEvent(ViolationKind.WRITE, "mkdirat", "/etc/x…", ViolationSource.SECCOMP, "mkdir", 3)
    assert (await hang_up_and_see(helper, recorder))[3:5] == [("refused", expected), ("lost", 40)]


async def test_a_connect_is_asked_about_and_answered_once(setting: Setting) -> None:
    helper, recorder = await running(setting)
    await helper.send(encode_event(Connecting(7, socket.AF_INET6, "::1", 443, 2, "curl")))
    await helper.send(encode_event(Connecting(8, socket.AF_UNIX, "/run/x", 0, 2, "ssh")))
    await wait_until_async(lambda: len(recorder.asked) == 2, "both have been asked")
    (first, answer_first), (second, answer_second) = recorder.asked
    assert first == ConnectAttempt(socket.AF_INET6, "::1", 443, 2, "curl")
    assert second == ConnectAttempt(socket.AF_UNIX, "/run/x", 0, 2, "ssh")
    answer_second(errno.EACCES)
    answer_second(0)
    answer_first(0)
    assert await helper.receive(18) == encode_answer(8, errno.EACCES) + encode_answer(7, 0)
    await hang_up_and_see(helper, recorder)
    answer_first(0)  # too late, and no harm


async def test_few_events_of_a_helper_are_heard_in_one_turn(setting: Setting) -> None:
    helper, recorder = await running(setting)
    turn, heard = [0], list[int]()
    recorder.refused = lambda refusal: heard.append(turn[0])  # type: ignore[method-assign]

    async def count() -> None:
        while True:
            turn[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    await helper.send(encode_event(RefusedCall(ReportedAccess.WRITE, 1, 30, 2, "mkdir", "/etc/x" * 10)) * 500)
    await wait_until_async(lambda: len(heard) == 500, "all are heard")
    counting.cancel()
    assert max(Counter(heard).values()) < 100
    await hang_up_and_see(helper, recorder)


async def test_a_helper_that_reads_no_answer_ends_with_its_sandbox(setting: Setting) -> None:
    helper, recorder = await running(setting)
    question = encode_event(Connecting(7, socket.AF_INET6, "::1", 443, 2, "curl"))
    while not recorder.is_over:
        with contextlib.suppress(OSError):
            await helper.send(question * 500)
        for _, answer in recorder.asked:
            answer(0)
        recorder.asked.clear()
    assert ("failed", "its helper failed: the helper does not read the answers to its questions") in recorder.heard
    await hang_up_and_see(helper, recorder)


async def test_a_ticket_is_not_judged_before_launches_are_resumed(setting: Setting) -> None:
    early = Helper(setting)
    await early.send(encode_ticket(TICKET)[:20])
    await wait_until_async(lambda: bool(setting.bridge._strangers), "it has been accepted")
    await setting.bridge.prepared(1)
    setting.bridge.resume(setting.bridge.hand_over())
    await early.send(encode_ticket(TICKET)[20:])
    late = Helper(setting)
    await late.send(encode_ticket("unknown"))
    for _ in range(20):
        await asyncio.sleep(0)
    recorder = Recorder()
    setting.bridge.expect(TICKET, ExpectedLaunch(CONFIGURATION, None, recorder))
    setting.bridge.go_on()
    assert await early.receive(len(CONFIGURATION.encode())) == CONFIGURATION.encode()
    assert await late.receive(1) == b""
    late.hang_up()
    await hang_up_and_see(early, recorder)


async def test_a_malformed_report_ends_the_sandbox(setting: Setting) -> None:
    helper, recorder = await running(setting)
    await helper.send(struct.pack("<II", 7, 3) + b"xyz")
    await wait_until_async(lambda: recorder.is_over, "the bridge has given it up")
    await wait_until_async(lambda: not is_alive(setting.peer.pid), "what stands for bubblewrap is dead")
    assert "failed" in [item[0] for item in await hang_up_and_see(helper, recorder) if isinstance(item, tuple)]


async def test_another_daemon_hears_of_the_connects_that_wait(setting: Setting) -> None:
    helper, recorder = await running(setting)
    await helper.send(encode_event(Connecting(7, socket.AF_INET, "192.0.2.1", 443, 2, "curl")))
    await wait_until_async(lambda: len(recorder.asked) == 1, "it has been asked")
    await setting.bridge.prepared(1)
    _, link = setting.bridge.take(TICKET)
    assert link is not None
    recorder.asked[0][1](errno.EACCES)  # no receiver is left
    setting.bridge.resume(setting.bridge.hand_over())
    another = Recorder(listeners=recorder.listeners)
    setting.bridge.resume_link(TICKET, link, another, None)
    assert await helper.receive(1) == AGAIN
    await helper.send(encode_event(Connecting(7, socket.AF_INET, "192.0.2.1", 443, 2, "curl")))
    await wait_until_async(lambda: len(another.asked) == 1, "it has been asked again")
    another.asked[0][1](0)
    assert await helper.receive(9) == encode_answer(7, 0)
    await hang_up_and_see(helper, another)


STAYING = LaunchConfiguration(arguments=(b"true",), filter=b"", flags=Flags.UNFILTERED | Flags.STAY)


@pytest.fixture
def stored() -> Iterator[list[int]]:
    """Descriptors that a service manager keeps."""
    kept: list[int] = []
    yield kept
    for number in kept:
        os.close(number)


async def staying(
    setting: Setting, stored: list[int], under_way: asyncio.Future[bytes] | bytes
) -> tuple[Helper, Recorder, list[str]]:
    """One that has told of its end, and what had been heard when it was cleared up. As under systemd, a process has
    the daemon's end of the connection as well."""
    recorder, heard = Recorder(), list[str]()

    def clear_up() -> asyncio.Future[bytes] | bytes:
        heard.append("over" if recorder.is_over else "cleared up")
        return under_way

    setting.bridge.expect(TICKET, ExpectedLaunch(STAYING, None, recorder, None, clear_up))
    helper = Helper(setting)
    await helper.send(encode_ticket(TICKET))
    await helper.receive(len(STAYING.encode()))
    await helper.send(encode_event(Descriptors(2)), 3)
    await helper.send(encode_event(Started()))
    await wait_until_async(lambda: "started" in recorder.heard, "the command has started")
    link = setting.bridge.link(TICKET)
    assert link is not None and link.kept is not None
    stored.append(os.dup(link.kept.connection))
    await helper.send(encode_event(Exited(3, 0)))
    await wait_until_async(lambda: bool(heard), "it is cleared up")
    return helper, recorder, heard


async def test_process_1_is_let_go_when_it_is_cleared_up(setting: Setting, stored: list[int]) -> None:
    helper, recorder, heard = await staying(setting, stored, HARMLESS)
    assert await helper.receive(1) == HARMLESS
    assert await helper.receive(1) == b"" and heard == ["cleared up"]
    assert (await hang_up_and_see(helper, recorder))[-1] == ("ended", 3)


async def test_process_1_is_let_go_when_what_takes_longer_is_done(setting: Setting, stored: list[int]) -> None:
    done = asyncio.get_running_loop().create_future()
    helper, recorder, heard = await staying(setting, stored, done)
    assert not setting.bridge.is_disconnected(TICKET) and not recorder.is_over
    done.set_result(HARMLESS)
    assert await helper.receive(1) == HARMLESS
    assert await helper.receive(1) == b"" and heard == ["cleared up"]
    assert (await hang_up_and_see(helper, recorder))[-1] == ("ended", 3)


@pytest.mark.parametrize("under_way", [True, False])
async def test_a_look_that_failed_is_not_confirmed(setting: Setting, stored: list[int], under_way: bool) -> None:
    done = asyncio.get_running_loop().create_future()
    helper, recorder, _ = await staying(setting, stored, done if under_way else b"")
    if under_way:
        done.set_result(b"")
    assert await helper.receive(1) == b""
    assert (await hang_up_and_see(helper, recorder))[-1] == ("ended", 3)


async def test_another_daemon_clears_up_what_it_finds_at_its_end(setting: Setting, stored: list[int]) -> None:
    helper, recorder, _ = await staying(setting, stored, asyncio.get_running_loop().create_future())
    await setting.bridge.prepared(1)
    _, link = setting.bridge.take(TICKET)
    assert link is not None and link.stays
    setting.bridge.resume(setting.bridge.hand_over())
    another, heard = Recorder(listeners=recorder.listeners), list[str]()

    def clear_up() -> bytes:
        heard.append("cleared up")
        return HARMLESS

    setting.bridge.resume_link(TICKET, link, another, None, clear_up)
    assert await helper.receive(1) == HARMLESS
    assert await helper.receive(1) == b"" and heard == ["cleared up"]
    assert (await hang_up_and_see(helper, another)) == [("ended", 3)]
