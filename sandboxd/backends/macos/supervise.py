"""The supervisor of `sandbox-exec`, as the helper's process 1 on Linux.

    python -I -S supervise.py SOCKET TICKET -- /usr/bin/sandbox-exec … -- /bin/sh -c STAGE NAME COMMAND…

A client starts it. It knows no policy, connects to the daemon, names its ticket and waits for `go`. Then it
starts the words after `--` in its own process group, with a pipe as descriptor 3: the first program inside the sandbox
writes one byte to it, which proves that the profile was applied. It passes signals on, ends the command when its owner
(the process that started it) dies or the daemon asks for it, and exits with the command's status.

A single file, standard library only, without site packages: it is on the path of every command. Messages are lines. To
the daemon: `ticket T`, `started PID`, `failed REASON`, `exit STATUS`, `signal N`. From the daemon:
`go GRACE_MS [terminal]`, `term`, `kill`. With `terminal` the command gets a pseudo-terminal of its own, and the
supervisor relays: where a profile cannot refuse TIOCSTI, a command types into nothing else. A daemon that goes away
takes the network with it; the command goes on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import socket
import sys
import termios
import time
import tty

NOT_SET_UP = 125
KILLED = 128 + signal.SIGKILL
STATUS_DESCRIPTOR = 3
POLL_S = 1.0
"""The interval of checks on the owner where no event reports its end."""

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that the terminal sends to its whole foreground group, and so to the command."""
NO_TERMINAL = "TERMINAL=/dev/null"
"""The word of the profile that names the command's terminal."""
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
        self.relays_terminal = words[2:] == [b"terminal"]
        if not 2 <= len(words) <= 3 or words[0] != b"go" or not words[1].isdigit():
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


def with_loader_variables(words: list[str]) -> list[str]:
    """Let env(1) set the variables of the loader, which macOS takes from each program of the system on the way."""
    kept = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("DYLD_")]
    start = words.index("--") + 5 if kept and "--" in words else 0  # behind: -- SHELL -c STAGE NAME
    return [*words[:start], "/usr/bin/env", *kept, *words[start:]] if start else words


def own_terminal() -> str | None:
    """Return the path of the terminal that a standard stream is."""
    for descriptor in range(3):
        with contextlib.suppress(OSError):
            return os.ttyname(descriptor)
    return None


class TerminalRelay:
    """A pseudo-terminal for the command, joined to the user's terminal."""

    def __init__(self) -> None:
        self.streams = [descriptor for descriptor in range(3) if os.isatty(descriptor)]
        self._user = self.streams[0]
        self._attributes = termios.tcgetattr(self._user)
        self.master, self.slave = os.openpty()
        termios.tcsetattr(self.slave, termios.TCSANOW, self._attributes)
        self.resize()
        self._in_front = _is_foreground()
        if self._in_front:
            tty.setraw(self._user)
        self.inputs = [0] if self._in_front and 0 in self.streams else []
        self._open = True

    def resize(self) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, fcntl.ioctl(self._user, termios.TIOCGWINSZ, bytes(8)))

    def carry(self, source: int) -> None:
        """Carry what has arrived from one side to the other."""
        try:
            data = os.read(source, 65536 if source == self.master else 512)
        except OSError:  # the last program has closed the command's side
            data = b""
        if not data and source == self.master:
            self._open = False
        elif not data:
            self.inputs.clear()
        view = memoryview(data)
        while view:
            written = os.write(self.master if source != self.master else self.streams[-1], view)
            view = view[written:]

    def sources(self) -> list[int]:
        """Return the descriptors to read from; input waits until the command takes more."""
        return [self.master, *([] if self.blocked() else self.inputs)] if self._open else []

    def blocked(self) -> list[int]:
        """Return the command's side while it takes no input."""
        full = self._open and self.inputs and not select.select([], [self.master], [], 0)[1]
        return [self.master] if full else []

    def carry_ready(self, ready: list[int]) -> None:
        for source in (self.master, *self.inputs):
            if source in ready and self._open:
                self.carry(source)

    def close(self) -> None:
        """Carry the rest, and restore the user's terminal."""
        while self._open and select.select([self.master], [], [], 0)[0]:
            self.carry(self.master)
        if self._in_front:
            termios.tcsetattr(self._user, termios.TCSADRAIN, self._attributes)


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
        self._relay = TerminalRelay() if link.relays_terminal and own_terminal() is not None else None
        self._wake, wake = socket.socketpair()
        self._wake.setblocking(False)
        wake.setblocking(False)
        self._wake_writer = wake
        for number in (*PASSED_ON, *FROM_TERMINAL, signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def start(self, words: list[str]) -> None:
        """Start the command. Raises NotSetUp."""
        if os.getppid() != self._owner:
            raise NotSetUp("the process that started this command has gone")
        reading, writing = os.pipe()
        self._status = reading
        terminal = own_terminal() if self._relay is None else os.ttyname(self._relay.slave)
        words = [f"TERMINAL={terminal}" if word == NO_TERMINAL and terminal else word for word in words]
        self._words = words = with_loader_variables(words)
        try:
            self._child = self._fork(words, writing) if self._relay else self._spawn(words, writing)
        except OSError as error:
            self._link.say(f"failed cannot start {words[0]}: {error.strerror}")
            raise NotSetUp(f"cannot start {words[0]}: {error.strerror}") from error
        finally:
            os.close(writing)

    @staticmethod
    def _spawn(words: list[str], status: int) -> int:
        return os.posix_spawn(
            words[0],
            words,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, status, STATUS_DESCRIPTOR)],
            setsigmask=[],
            setsigdef=RESTORED,
        )

    def _fork(self, words: list[str], status: int) -> int:
        """Start the command as the leader of a session at the relayed terminal."""
        assert self._relay is not None
        child = os.fork()
        if child:
            os.close(self._relay.slave)
            return child
        try:
            os.setsid()
            fcntl.ioctl(self._relay.slave, termios.TIOCSCTTY, 0)
            for descriptor in self._relay.streams:
                os.dup2(self._relay.slave, descriptor)
            os.dup2(status, STATUS_DESCRIPTOR)
            os.closerange(STATUS_DESCRIPTOR + 1, 256)
            for number in (*RESTORED, signal.SIGWINCH):
                signal.signal(number, signal.SIG_DFL)
            os.execv(words[0], words)
        finally:
            os._exit(NOT_SET_UP)

    def run(self) -> int:
        """Run the loop and return the exit status of the command."""
        try:
            return self._run()
        finally:
            if self._relay is not None:
                self._relay.close()

    def _run(self) -> int:
        while True:
            waited = [self._wake.fileno()]
            waited += self._relay.sources() if self._relay is not None else []
            waited += [self._status] if self._status >= 0 else []
            waited += [self._link.socket.fileno()] if self._link.open else []
            waited += [self._owner_watch] if self._owner_watch is not None else []
            blocked = self._relay.blocked() if self._relay is not None else []
            ready, _, _ = select.select(waited, blocked, [], self._timeout())
            if self._status in ready:
                self._hear_from_inside()
            if self._relay is not None:
                self._relay.carry_ready(ready)
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
            grace_s = self._link.grace_s if self._kill_at is None else 0.0  # asked a second time: at once
            self._kill_at = time.monotonic() + grace_s
        elif line == b"kill":
            self._signal(signal.SIGKILL)

    def _owner_gone(self) -> int:
        self._signal(signal.SIGKILL)
        os.waitpid(self._child, 0)
        self._link.say(f"signal {int(signal.SIGKILL)}")
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
            elif number == signal.SIGWINCH and self._relay is not None:
                self._relay.resize()
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
        self._link.say(f"exit {code}" if os.WIFEXITED(status) else f"signal {os.WTERMSIG(status)}")
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
