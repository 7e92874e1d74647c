"""The supervisor of `sandbox-exec`, as the helper's process 1 on Linux.

    python -I -S supervise.py SOCKET TICKET -- /usr/bin/sandbox-exec … -- /bin/sh -c STAGE NAME COMMAND…

A client starts it. It knows no policy, connects to the daemon, names its ticket and waits for `go`. Then it
starts the words after `--` in its own process group, with a pipe as descriptor 3: the first program inside the sandbox
writes one byte to it, which proves that the profile was applied. It passes signals on, ends the command when its owner
(the process that started it) dies or the daemon asks for it, and exits with the command's status.

A single file, standard library only, without site packages: it is on the path of every command. Messages are lines. To
the daemon: `ticket T`, `started PID`, `failed REASON`, `exit STATUS`. From the daemon: `go GRACE_MS`, `term`,
`kill`. A daemon that goes away takes the network with it; the command goes on."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import sys
import time

NOT_SET_UP = 125
KILLED = 128 + signal.SIGKILL
STATUS_DESCRIPTOR = 3
POLL_S = 1.0
"""The interval of checks on the owner where no event reports its end."""

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that the terminal sends to its whole foreground group, and so to the command."""
RESTORED = (*PASSED_ON, *FROM_TERMINAL, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTSTP, signal.SIGCONT)


class NotSetUp(Exception):
    """A failure before the command was started, with its `hint`."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def main(arguments: list[str]) -> int:
    owner = os.getppid()
    _close_inherited()
    try:
        end = arguments.index("--")
        (address, ticket, *patterns), words = arguments[:end], arguments[end + 1 :]
        if not words:
            raise ValueError
    except ValueError:
        return _complain(NotSetUp("usage: supervise.py SOCKET TICKET [PATTERN]… -- COMMAND ARGUMENT…"))
    for name in [name for name in os.environ if any(fits(name, pattern) for pattern in patterns)]:
        del os.environ[name]
    try:
        link = DaemonLink(address, ticket)
        supervisor = Supervisor(link, owner)
        supervisor.start(words)
    except NotSetUp as error:
        return _complain(error)
    return supervisor.run()


def fits(name: str, pattern: str) -> bool:
    """Return whether a variable's name fits a pattern: `*` any characters, `?` one."""
    parts = [re.escape(part).replace(r"\?", ".") for part in pattern.split("*")]
    return re.fullmatch(".*".join(parts), name, re.DOTALL) is not None


def _complain(error: NotSetUp) -> int:
    sys.stderr.write(f"sandboxd: {error}\n")
    if error.hint:
        sys.stderr.write(f"hint: {error.hint}\n")
    sys.stderr.flush()
    return NOT_SET_UP


def _close_inherited() -> None:
    """Close the client's descriptors beside the three streams."""
    try:
        names = os.listdir("/dev/fd")
    except OSError:
        os.closerange(3, 256)
        return
    for name in names:
        if name.isdigit() and int(name) > 2:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))


class DaemonLink:
    """The connection to the daemon. Raises NotSetUp without a `go`."""

    def __init__(self, address: str, ticket: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._received = b""
        self.open = True
        try:
            self.socket.connect(address)
            self.socket.sendall(b"ticket %s\n" % ticket.encode("ascii", "replace"))
        except OSError as error:
            raise NotSetUp(
                f"the daemon does not answer at {address}: {error.strerror}", "start it with: sandboxd serve"
            ) from error
        words = self._first_line().split()
        if len(words) != 2 or words[0] != b"go" or not words[1].isdigit():
            raise NotSetUp("the daemon did not accept this launch: it was used before, has expired or was cancelled")
        self.grace_s = int(words[1]) / 1000

    def _first_line(self) -> bytes:
        while b"\n" not in self._received:
            try:
                data = self.socket.recv(4096)
            except OSError:
                data = b""
            if not data:
                return b""
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def lines(self) -> list[bytes]:
        """Return received messages; the connection may be closed afterwards."""
        try:
            data = self.socket.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
        *lines, self._received = (self._received + data).split(b"\n")
        return lines

    def say(self, text: str) -> None:
        if self.open:
            try:
                self.socket.sendall(text.encode("utf-8", "replace").replace(b"\n", b" ") + b"\n")
            except OSError:
                self.close()

    def close(self) -> None:
        self.open = False
        self.socket.close()


class Supervisor:
    """The loop around one command."""

    def __init__(self, link: DaemonLink, owner: int) -> None:
        self._link = link
        self._owner = owner
        self._owner_watch = watch_process(owner)
        self._child = 0
        self._status = -1
        self._applied = False
        self._kill_at: float | None = None
        self._words: list[str] = []
        self._wake, wake = socket.socketpair()
        self._wake.setblocking(False)
        wake.setblocking(False)
        self._wake_writer = wake
        for number in (*PASSED_ON, *FROM_TERMINAL, signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def start(self, words: list[str]) -> None:
        """Start the command. Raises NotSetUp."""
        if os.getppid() != self._owner:
            raise NotSetUp("the process that started this command has gone")
        reading, writing = os.pipe()
        self._status = reading
        self._words = words
        try:
            self._child = os.posix_spawn(
                words[0],
                words,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, writing, STATUS_DESCRIPTOR)],
                setsigmask=[],
                setsigdef=RESTORED,
            )
        except OSError as error:
            self._link.say(f"failed cannot start {words[0]}: {error.strerror}")
            raise NotSetUp(f"cannot start {words[0]}: {error.strerror}") from error
        finally:
            os.close(writing)

    def run(self) -> int:
        """Run the loop and return the exit status of the command."""
        while True:
            waited = [self._wake.fileno()]
            waited += [self._status] if self._status >= 0 else []
            waited += [self._link.socket.fileno()] if self._link.open else []
            waited += [self._owner_watch] if self._owner_watch is not None else []
            ready, _, _ = select.select(waited, [], [], self._timeout())
            if self._status in ready:
                self._hear_from_inside()
            if self._link.open and self._link.socket.fileno() in ready:
                for line in self._link.lines():
                    self._obey(line)
            if os.getppid() != self._owner or (self._owner_watch is not None and self._owner_watch in ready):
                return self._owner_gone()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                self._signal(signal.SIGKILL)
            status = self._after_signals()
            if status is not None:
                return self._ended(status)

    def _timeout(self) -> float | None:
        limits = [] if self._owner_watch is not None else [POLL_S]
        if self._kill_at is not None:
            limits.append(max(0.0, self._kill_at - time.monotonic()))
        return min(limits, default=None)

    def _hear_from_inside(self) -> None:
        data = os.read(self._status, 16)
        if data and not self._applied:
            self._applied = True
            self._link.say(f"started {self._child}")
        if not data:
            os.close(self._status)
            self._status = -1

    def _obey(self, line: bytes) -> None:
        if line == b"term":
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped process does not notice
            self._kill_at = time.monotonic() + self._link.grace_s
        elif line == b"kill":
            self._signal(signal.SIGKILL)

    def _owner_gone(self) -> int:
        self._signal(signal.SIGKILL)
        os.waitpid(self._child, 0)
        self._link.say(f"exit {KILLED}")
        return KILLED

    def _after_signals(self) -> int | None:
        """Forward signals; return the command's wait status once it has ended."""
        try:
            numbers = self._wake.recv(4096)
        except BlockingIOError:
            return None
        for number in dict.fromkeys(numbers):
            if number in PASSED_ON or (number in FROM_TERMINAL and not _is_foreground()):
                self._signal(number)
            elif number == signal.SIGTSTP:
                self._signal(signal.SIGTSTP)
                os.kill(os.getpid(), signal.SIGSTOP)
            elif number == signal.SIGCONT:
                self._signal(signal.SIGCONT)
        pid, status = os.waitpid(self._child, os.WNOHANG)
        return status if pid else None

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, number)

    def _ended(self, status: int) -> int:
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        while self._status >= 0 and select.select([self._status], [], [], 0)[0]:
            self._hear_from_inside()
        if not self._applied and self._kill_at is None:
            reason = f"the sandbox could not be set up: {os.path.basename(self._words[0])} ended with status {code}"
            self._link.say(f"failed {reason}")
            return _complain(NotSetUp(reason, "its own words are above; see: sandboxd check"))
        self._link.say(f"exit {code}")
        return code


def _is_foreground() -> bool:
    """Return whether this is the terminal's foreground process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def watch_process(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends.

    See kqueue(2) and pidfd_open(2). None without either, or for an ended process, whose children notice by their
    parent."""
    descriptor = None
    with contextlib.suppress(OSError):
        if sys.platform == "darwin":
            queue = select.kqueue()
            event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            queue.control([event], 0)
            _QUEUES.append(queue)
            descriptor = queue.fileno()
        elif sys.platform == "linux":
            descriptor = os.pidfd_open(pid)
    return descriptor


_QUEUES: list[object] = []
"""References: a collected queue closes its descriptor."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
