"""What a launch is: words without secrets, two ports of its own, and what can go wrong before anything starts. And the
place where supervisors report, with a connection in the place of a supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandboxd.backends.base import AnswerConnect, ConnectAttempt, LaunchSpec, Listeners
from sandboxd.backends.macos.backend import STAGE, MacosTools, SeatbeltBackend, open_listeners
from sandboxd.backends.macos.monitor import LogMonitor, MonitorState
from sandboxd.backends.macos.planner import SeatbeltPlan, SeatbeltPlanner
from sandboxd.backends.macos.reception import Reception, SeatbeltLaunch
from sandboxd.backends.macos.tokens import ProxyPassword
from sandboxd.errors import DaemonError, HostError, LaunchError
from sandboxd.plan.plan import Plan
from sandboxd.plan.request import Argv
from sandboxd.policy.model import FilePolicy, Policy
from sandboxd.policy.violation import DenialEvent
from support.dictionary_host import DictionaryHost
from support.seatbelt import SYSTEM, place, rules

TOOLS = MacosTools("/usr/bin/sandbox-exec", "/opt/python", "/opt/supervise.py")


@dataclass
class Heard:
    """An Observer that keeps notes."""

    words: list[str] = field(default_factory=list)
    listeners: Listeners | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def lost(self, count: int) -> None: ...

    def connecting(self, attempt: ConnectAttempt, answer: AnswerConnect) -> None:
        answer(0)

    def refused(self, refusal: DenialEvent) -> None:
        self.words.append(f"refused {refusal.target}")

    def claimed(self, pid: int) -> None:
        self.words.append(f"claimed {pid}")

    def listening(self, listeners: Listeners) -> None:
        self.listeners = listeners
        self.words.append("listening")

    def starting(self, inside: object = None) -> None: ...

    def listens(self) -> None: ...

    def started(self) -> None:
        self.words.append("started")

    def failed(self, reason: str, *, outdated: bool = False) -> None:
        self.words.append(f"failed {reason}")

    def ended(self, status: int | None) -> None:
        self.words.append(f"ended {status}")
        self.close()
        self.over.set()

    def close(self) -> None:
        if self.listeners is not None:
            for listener in (self.listeners.http, self.listeners.socks):
                assert listener is not None
                listener.close()


@dataclass
class Ground:
    reception: Reception
    monitor: LogMonitor
    backend: SeatbeltBackend
    ended: list[str]
    said: list[tuple[str, dict[str, object]]]
    opened: contextlib.ExitStack
    """Closes what a failed test leaves open: its traceback keeps that until it warns in a later test."""


async def found() -> MacosTools:
    return TOOLS


@asynccontextmanager
async def context(
    tmp_path: Path, find_tools: Callable[[], object] = found, identify: Callable[[socket.socket], int] = lambda _: 4711
) -> AsyncIterator[Ground]:
    ended: list[str] = []
    said: list[tuple[str, dict[str, object]]] = []

    async def end_tree(member: str) -> None:
        ended.append(member)

    def log(event: str, **fields: object) -> None:
        said.append((event, fields))

    reception = Reception(str(tmp_path / "launches"), identify, end_tree, log)
    monitor = LogMonitor(log)
    await reception.open()
    try:
        backend = SeatbeltBackend(reception, monitor, find_tools)  # type: ignore[arg-type]
        with contextlib.ExitStack() as opened:
            yield Ground(reception, monitor, backend, ended, said, opened)
    finally:
        await reception.close()


async def plan_of(*argv: str, policy: Policy | None = None) -> SeatbeltPlan:
    bare = Policy(files=FilePolicy(allow_write=rules("/Users/me/project")))
    planner = SeatbeltPlanner(DictionaryHost(SYSTEM))
    return await planner.plan(policy or bare, place(), Argv(argv))


async def launch(at: Ground, observer: Heard, name: str = "L1") -> tuple[LaunchSpec, SeatbeltLaunch]:
    await at.backend.ready()
    made, handle = await at.backend.launch(name, await plan_of("make", "-j 4"), observer)
    assert isinstance(handle, SeatbeltLaunch)
    at.opened.callback(observer.close)
    return made, handle


def parameters(argv: Sequence[str]) -> dict[str, str]:
    return dict(argv[at + 1].split("=", 1) for at, word in enumerate(argv) if word == "-D")


async def test_words_of_a_launch(tmp_path: Path) -> None:
    """The command's own words come last and unchanged; paths are parameters; the password is in no argument."""
    async with context(tmp_path) as at:
        made, handle = await launch(at, Heard())
        assert made.argv[:7] == (
            "/opt/python", "-I", "-S", "/opt/supervise.py", at.reception.path, "L1", "--",
        )  # fmt: skip
        assert made.argv[7:9] == ("/usr/bin/sandbox-exec", "-p")
        end = made.argv.index("/bin/sh")
        assert made.argv[end - 1 :] == ("--", "/bin/sh", "-c", STAGE, "sandboxd", "make", "-j 4")
        given = parameters(made.argv)
        assert "/Users/me/project" in given.values() and "dev.sandboxd.member.L1" in given.values()
        assert "/Users/me" not in made.argv[9]
        password = made.env_set["CLOUDSDK_PROXY_PASSWORD"]
        assert password and not any(password in word for word in made.argv)
        assert password not in repr(made) + repr(handle)
        assert made.layers == ("seatbelt", "network-proxy")
        handle.cancel()


async def test_the_log_is_a_layer_while_it_is_read(tmp_path: Path) -> None:
    async with context(tmp_path) as at:
        at.monitor.state = MonitorState.RUNNING
        assert at.backend.layers == ("seatbelt", "network-proxy", "violation-log")


async def test_each_launch_has_ports_and_a_password_of_its_own(tmp_path: Path) -> None:
    async with context(tmp_path) as at:
        made = [await launch(at, Heard(), name) for name in ("L1", "L2")]
        ports = [one.env_set["HTTP_PROXY"].rpartition(":")[2] for one, _ in made]
        assert ports[0] != ports[1]
        for (one, _), port in zip(made, ports, strict=True):
            assert parameters(one.argv)["HTTP_PORT"] == port
        assert made[0][0].env_set["CLOUDSDK_PROXY_PASSWORD"] != made[1][0].env_set["CLOUDSDK_PROXY_PASSWORD"]
        for _, handle in made:
            handle.cancel()


async def test_nothing_runs_before_a_sandbox_was_proven(tmp_path: Path) -> None:
    async def refuse() -> MacosTools:
        raise HostError("seatbelt_nested", "no", hint="outside")

    async with context(tmp_path, refuse) as at:
        with pytest.raises(HostError, match="no"):
            await at.backend.ready()
        with pytest.raises(LaunchError) as caught:
            await at.backend.launch("L1", await plan_of("true"), Heard())
        assert caught.value.slug == "backend_not_ready"


async def test_a_plan_for_linux_is_refused(tmp_path: Path) -> None:
    async with context(tmp_path) as at:
        await at.backend.ready()
        plan = await plan_of("true")
        other = Plan(plan.view, plan.environment, plan.cwd, plan.argv, plan.layers, plan.warnings)
        with pytest.raises(LaunchError) as caught:
            await at.backend.launch("L1", other, Heard())
        assert caught.value.slug == "plan_of_another_system"


def test_ports_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first port is given back when there is no second."""
    opened: list[socket.socket] = []

    class Second(socket.socket):
        def bind(self, address: object) -> None:
            opened.append(self)
            if len(opened) == 2:
                raise OSError(24, "Too many open files")
            super().bind(address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Second)
    with pytest.raises(HostError) as caught:
        open_listeners(ProxyPassword())
    assert caught.value.slug == "proxy_ports" and "Too many open files" in caught.value.message
    assert [one.fileno() for one in opened] == [-1, -1]


# The reception


async def connect(at: Ground) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(at.reception.path)
    at.opened.callback(writer.close)
    return reader, writer


async def test_from_ticket_to_end(tmp_path: Path) -> None:
    async with context(tmp_path) as at:
        heard = Heard()
        await launch(at, heard)
        assert stat.S_IMODE((tmp_path / "launches").stat().st_mode) == 0o600
        reader, writer = await connect(at)
        writer.write(b"ticket L1\n")
        assert await reader.readline() == b"go 600000\n"
        writer.write(b"started\nno such word\nexit 3\n")
        writer.close()
        await asyncio.wait_for(heard.over.wait(), 30)
        assert heard.words == ["claimed 4711", "listening", "started", "ended 3"]
        assert at.ended == ["dev.sandboxd.member.L1"], "before the end is reported"
        assert heard.listeners is not None and heard.listeners.check is not None


@pytest.mark.parametrize(
    "end", [b"", b"exit \xff\n", b"exit -1\n", b"exit 99", b"x" * 20000, b"started\n" + b"y" * 9000]
)
async def test_a_supervisor_that_ends_without_a_status(tmp_path: Path, end: bytes) -> None:
    """Killed, or with an unknown answer: the tree ends all the same, and no status is made up."""
    async with context(tmp_path) as at:
        heard = Heard()
        await launch(at, heard)
        reader, writer = await connect(at)
        writer.write(b"ticket L1\n")
        await reader.readline()
        writer.write(end)
        writer.close()
        await asyncio.wait_for(heard.over.wait(), 30)
        assert at.ended == ["dev.sandboxd.member.L1"]
        assert heard.words[-1] == ("ended 99" if end == b"exit 99" else "ended None")


@pytest.mark.parametrize(
    "said", [b"ticket L2\n", b"\n", b"ticket\n", b"ticket \xff\n", b"GET / HTTP/1.1\r\n\r\n", b"z" * 9000]
)
async def test_others_get_no_answer(tmp_path: Path, said: bytes) -> None:
    async with context(tmp_path) as at:
        heard = Heard()
        _, handle = await launch(at, heard)
        reader, writer = await connect(at)
        writer.write(said)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        assert heard.words == [] and at.ended == []
        handle.cancel()


async def test_a_ticket_is_good_once_and_not_after_its_end(tmp_path: Path) -> None:
    async with context(tmp_path) as at:
        _, cancelled = await launch(at, Heard(), "L2")
        cancelled.cancel()
        heard = Heard()
        await launch(at, heard)
        first, held = await connect(at)
        held.write(b"ticket L1\n")
        assert await first.readline() == b"go 600000\n"
        for name in (b"L1", b"L2"):
            reader, writer = await connect(at)
            writer.write(b"ticket %s\n" % name)
            assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
        held.close()
        await asyncio.wait_for(heard.over.wait(), 30)


async def test_another_user_is_refused(tmp_path: Path) -> None:
    def identify(_: socket.socket) -> int:
        raise DaemonError("peer_of_another_user", "no")

    async with context(tmp_path, identify=identify) as at:
        heard = Heard()
        _, handle = await launch(at, heard)
        reader, writer = await connect(at)
        writer.write(b"ticket L1\n")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        assert at.said == [("supervisor_refused", {"error": "peer_of_another_user"})]
        assert heard.words == []
        handle.cancel()


async def test_ending_a_command(tmp_path: Path) -> None:
    """`terminate` asks the supervisor; `kill` does not wait for it, since it may be stopped."""
    async with context(tmp_path, identify=lambda _: 2**22 + 1) as at:
        heard = Heard()
        _, handle = await launch(at, heard)
        handle.terminate()
        handle.kill()  # no process exists yet: nothing happens
        reader, writer = await connect(at)
        writer.write(b"ticket L1\n")
        await reader.readline()
        handle.terminate()
        assert await reader.readline() == b"term\n"
        handle.kill()
        handle.kill()
        assert await reader.readline() == b"kill\n"
        await asyncio.sleep(0)
        assert at.ended == ["dev.sandboxd.member.L1"]
        writer.close()
        await asyncio.wait_for(heard.over.wait(), 30)
        assert at.ended == ["dev.sandboxd.member.L1"] * 2


async def test_closing_lets_commands_go_on(tmp_path: Path) -> None:
    """The daemon ends: launches that have not started never will, and its ports are released."""
    async with context(tmp_path) as at:
        made, _ = await launch(at, Heard(), "L2")
        port = int(made.env_set["HTTP_PROXY"].rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), 30).close()
        await at.reception.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 30)
        assert not (tmp_path / "launches").exists()
        await at.reception.close()
