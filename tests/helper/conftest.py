"""A sandbox for the tests of the helper: the true binary under real bubblewrap, and the test itself as the daemon.

`launch` starts one; what it returns plays the daemon's side of the bridge, step by step, and knows the process. The
fixture `identity` decides as whom everything runs.
"""

from __future__ import annotations

import array
import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import (
    DESCRIPTORS_MAX,
    INIT_WORDS,
    TICKET_SIZE,
    Descriptors,
    Event,
    EventDecoder,
    Exited,
    decode_ticket,
)
from sandboxd.backends.linux.helper.launch_configuration import Flags, LaunchConfiguration, Listener
from sandboxd.backends.linux.helper.supervision import flags_of
from sandboxd.backends.linux.seccomp.filter import build_filter
from sandboxd.plan.plan import Supervision
from support.users import SYSTEM_PATH, Identity
from support.waiting import LIMIT_S

CHECKOUT = Path(__file__).resolve().parents[2]
MACHINE = os.uname().machine
BWRAP = shutil.which("bwrap") or "/usr/bin/bwrap"
TICKET = "the-ticket"
PYTHON = os.path.basename(os.path.realpath(shutil.which("python3", path=SYSTEM_PATH) or ""))[:15]
"""The program that Python tests run, as the helper names it: by its executable."""

OPTIONS = (
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"),
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--cap-drop", "ALL", "--as-pid-1"),
)


class Sandbox:
    """One launch, seen from the daemon and from the process that started it."""

    def __init__(self, listener: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._listener = listener
        self._decoder = EventDecoder()
        self._connection: socket.socket | None = None
        self.sockets: list[socket.socket] = []
        self.namespace = -1
        self.events: list[Event] = []

    @property
    def connection(self) -> socket.socket:
        assert self._connection is not None, "nobody has connected yet"
        return self._connection

    def accept(self) -> str:
        """Waits for the launch stage and returns its ticket."""
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(LIMIT_S)
        data = b""
        while len(data) < TICKET_SIZE and (more := self._connection.recv(TICKET_SIZE - len(data))):
            data += more
        return decode_ticket(data)

    def send(self, data: bytes) -> None:
        """To a helper that has given up already it makes no difference."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.sendall(data)

    def hang_up(self) -> None:
        self.connection.close()

    def next_event(self) -> Event | None:
        """The next event; None when the helper has hung up. Descriptors that come along are kept."""
        while not self.events:
            space = socket.CMSG_SPACE(DESCRIPTORS_MAX * 4)
            try:
                data, ancillary, _, _ = self.connection.recvmsg(4096, space, socket.MSG_CMSG_CLOEXEC)
            except ConnectionResetError:  # it has ended without reading all that was sent to it
                return None
            if not data:
                self._decoder.finish()
                return None
            for _, _, payload in ancillary:
                descriptors = array.array("i", payload)
                self.namespace = descriptors.pop()
                self.sockets += [socket.socket(fileno=one) for one in descriptors]
            self.events += self._decoder.feed(data)
        return self.events.pop(0)

    def expect(self, *events: Event) -> None:
        """Asserts that exactly these events come next."""
        assert [self.next_event() for _ in events] == list(events)

    def rest(self) -> list[Event]:
        """All events until the helper hangs up."""
        return list(iter(self.next_event, None))

    def finish(self) -> tuple[int, str, str]:
        """Waits for the end: exit status of the process, its output, its errors. The last event must agree."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        if self._connection is not None and self._connection.fileno() >= 0:
            for event in self.rest():
                if isinstance(event, Exited):
                    assert event.status == self.process.returncode
        return self.process.returncode, (out or b"").decode(errors="replace"), (err or b"").decode(errors="replace")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        if self._connection is not None:
            self._connection.close()
        for one in self.sockets:
            one.close()
        if self.namespace >= 0:
            os.close(self.namespace)


def configuration(
    arguments: Sequence[str | bytes],
    *,
    program: bytes | None = None,
    ports: Sequence[Listener] = (),
    grace_ms: int = 5000,
    flags: Flags = Flags(0),  # noqa: B008
    watched: Supervision = Supervision(),  # noqa: B008
    asked_ports: tuple[tuple[int, int], ...] = (),
    processes: int | None = None,
) -> bytes:
    """The message of a configuration; without `program` with the filter that sandboxd itself uses."""
    return LaunchConfiguration(
        arguments=tuple(os.fsencode(word) for word in arguments),
        filter=(build_filter(MACHINE, watched) if program is None else program),
        listeners=tuple(ports),
        processes=processes,
        grace_ms=grace_ms,
        flags=flags | flags_of(watched),
        asked_ports=asked_ports,
    ).encode()


class Launcher:
    """See `launch`."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        programs = identity.code.tree / "vendor" / "seccomp" / MACHINE
        self.helper, self.launcher = str(programs / "apply-seccomp"), str(programs / "launch")
        self.path = str(identity.runtime / "bridge")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        identity.own(Path(self.path))
        self.listener.listen(64)
        self.listener.settimeout(LIMIT_S)
        self.started: list[Sandbox] = []

    def words(self, options: Sequence[str] = OPTIONS, *, stage: str = "launch") -> list[str]:
        return [self.launcher, stage, self.path, TICKET, "--", BWRAP, *options, "--", *INIT_WORDS]

    def start(self, words: Sequence[str], **keywords: Any) -> Sandbox:
        """Starts any argv, and returns at once: the test goes on as the daemon."""
        keywords = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **keywords}
        sandbox = Sandbox(self.listener, self.identity.popen(words, **keywords))
        self.started.append(sandbox)
        return sandbox

    def connect(self, **keywords: Any) -> Sandbox:
        """Starts the usual argv and receives the ticket."""
        sandbox = self.start(self.words(), **keywords)
        assert sandbox.accept() == TICKET
        return sandbox

    def __call__(
        self,
        arguments: Sequence[str | bytes],
        *,
        program: bytes | None = None,
        ports: Sequence[Listener] = (),
        grace_ms: int = 5000,
        flags: Flags = Flags(0),  # noqa: B008
        watched: Supervision = Supervision(),  # noqa: B008
        asked_ports: tuple[tuple[int, int], ...] = (),
        options: Sequence[str] = OPTIONS,
        env: Mapping[str, str] | None = None,
        **keywords: Any,
    ) -> Sandbox:
        """Starts `arguments` in a sandbox, up to the moment when the sockets have been handed out."""
        sandbox = self.start(self.words(options), env=env, **keywords)
        assert sandbox.accept() == TICKET
        sandbox.send(
            configuration(
                arguments,
                program=program,
                ports=ports,
                grace_ms=grace_ms,
                flags=flags,
                watched=watched,
                asked_ports=asked_ports,
            )
        )
        sandbox.expect(Descriptors(len(ports)))
        return sandbox

    def run(self, arguments: Sequence[str | bytes], **keywords: Any) -> tuple[int, str, str]:
        """The same to the end: exit status, output, errors."""
        return self(arguments, **keywords).finish()

    def python(self, text: str, *words: str, **keywords: Any) -> Sandbox:
        """Starts a Python program in a sandbox, isolated and without site packages."""
        return self(["/usr/bin/env", "python3", "-I", "-S", "-c", text, *words], **keywords)


@pytest.fixture
def launch(identity: Identity) -> Iterator[Launcher]:
    launcher = Launcher(identity)
    yield launcher
    for sandbox in launcher.started:
        sandbox.close()
    launcher.listener.close()


Launch = Callable[..., Sandbox]
