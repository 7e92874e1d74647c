"""Start a daemon when none answers.

The daemon is detached: its own session, no terminal, no descriptor of ours, `/` as its directory, and no child of this
process (it would stay a zombie here). Of clients that find no daemon at the same time one starts it, the others wait
for the same lock. Ready means that it can be connected to; that it died instead is noticed at once. What it writes goes
to `daemon.log` beside the socket, and is where the message of a failed start comes from.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.machinery
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from sandboxd_client import programs
from sandboxd_client.activation import start_socket_unit
from sandboxd_client.connection import Connection, open_connection
from sandboxd_client.errors import (
    ConnectionLost,
    DaemonNotRunning,
    DaemonStartFailed,
    DaemonTimeout,
    PermissionDenied,
)
from sandboxd_client.wire import location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandboxd_client.wire.messages.hello import Role

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 30.0
ROLE_TIMEOUT_S = 10.0
"""How long the daemon may take to confirm the role of a connection."""
LOG_NAME = "daemon.log"
_LOCK_NAME = "starting"
_FIRST_WAIT_MS = 2.0
_LONGEST_WAIT_MS = 50.0
_TAIL = 16384

# Variables by which a service manager talks to *this* process; the daemon must not answer in its name.
_NOT_PASSED_ON = ("LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")

# Runs in a bare interpreter (15 ms) because forking this process, which may have threads, is not safe.
_DETACH = """\
import os, sys, _signal
flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
log = os.open(sys.argv[1], flags, 0o600)  # here what fails is heard of; a FIFO must not wait
child = os.fork()
if child:
    os.write(1, b"%d" % child)
    os._exit(0)
for number in range(1, _signal.NSIG):
    try:
        _signal.signal(number, _signal.SIG_DFL)
    except (OSError, ValueError):
        pass
_signal.pthread_sigmask(_signal.SIG_SETMASK, ())
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(log, 1)
os.dup2(log, 2)
os.closerange(3, 256)
os.chdir("/")
os.execv(sys.argv[2], sys.argv[2:])
"""


def connect_or_start(
    path: str, *, autostart: bool = True, environment: Mapping[str, str] | None = None, timeout: float = START_TIMEOUT_S
) -> Connection:
    """A connection to the daemon at `path`; when none answers and `autostart` is set, to one that is started now.
    Raises DaemonNotRunning, DaemonStartFailed, PermissionDenied."""
    try:
        return open_connection(path)
    except DaemonNotRunning:
        if not autostart:
            raise
    try:
        location.make_directory(path)
    except location.LocationError as error:
        raise PermissionDenied(error.slug, error.message, error.hint) from error
    with _only_one(path):
        try:
            return open_connection(path)  # somebody else has started it while this one waited for the lock
        except DaemonNotRunning:
            if start_socket_unit(path):  # systemd is to start it: one that we started would be in its way
                with contextlib.suppress(DaemonNotRunning):  # it has given up since, or listens there for others
                    return open_connection(path)
            return _start(path, dict(os.environ if environment is None else environment), timeout)


def connect_in_role(path: str, role: Role, *, autostart: bool = True) -> Connection:
    """As `connect_or_start`; the connection has the role when this returns.

    Raises also ConnectionLost, and RpcError where the daemon is too old to know the role."""
    connection = connect_or_start(path, autostart=autostart)
    if role == "full":
        return connection
    try:
        answer = connection.call("hello", {"role": role}, ROLE_TIMEOUT_S)
        if answer.get("role") != role:
            raise PermissionDenied(
                "role_unknown", f"the daemon does not know the role {role}", "update it: sandboxd restart"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _start(path: str, environment: dict[str, str], timeout: float) -> Connection:
    for name in _NOT_PASSED_ON:
        environment.pop(name, None)
    log = os.path.join(os.path.dirname(path), LOG_NAME)
    command = [*daemon_command(path), "serve", "--socket", path]
    pid = _detach(path, log, command, environment)
    deadline = time.monotonic() + timeout
    wait_ms = _FIRST_WAIT_MS
    with _watched(pid) as ended:
        while True:
            over = ended(wait_ms)
            try:
                return open_connection(path)
            except DaemonNotRunning:
                if over:
                    raise _failure(path, log) from None
                if time.monotonic() > deadline:
                    raise DaemonStartFailed(
                        path, f"sandboxd was started and does not answer after {timeout:g} s", f"see {log}"
                    ) from None
            wait_ms = min(wait_ms * 1.5, _LONGEST_WAIT_MS)


def stop_daemon(path: str, *, grace_s: float | None = None, timeout: float = STOP_TIMEOUT_S) -> int:
    """End the daemon at `path` and wait until its process is gone. Returns its pid. Raises DaemonNotRunning,
    DaemonTimeout, RpcError."""
    connection = open_connection(path)
    try:
        result = connection.call("shutdown", {} if grace_s is None else {"grace_s": grace_s}, timeout)
        pid = int(result["pid"])
        deadline = time.monotonic() + timeout
        with contextlib.suppress(ConnectionLost):
            while True:
                connection.receive(max(deadline - time.monotonic(), 0.001))
    except TimeoutError:
        raise DaemonTimeout("shutdown", timeout) from None
    finally:
        connection.close()
    with _watched(pid) as ended:
        while not ended(_LONGEST_WAIT_MS):
            if time.monotonic() > deadline:
                raise DaemonTimeout("shutdown", timeout)
    return pid


def daemon_command(path: str) -> list[str]:
    """The program that is `sandboxd`, isolated from the environment: that of the installation this client belongs to,
    when it runs in this process already (the command line) or no command can have written it; else one that is found
    in such a place; else that of the installation all the same, which this process imports from too, unless commands
    could write it at any time. Neither the current directory nor PYTHONPATH counts, nor a directory of PATH that a
    project could have put something into.
    Raises DaemonNotRunning."""
    spec = importlib.machinery.PathFinder.find_spec("sandboxd", programs.isolated_path()) if sys.executable else None
    own = [sys.executable, "-I", "-m", "sandboxd"] if spec is not None else None
    if own is not None and ("sandboxd" in sys.modules or _is_safe(sys.executable, spec)):
        return own
    found = programs.find("sandboxd", os.environ.get("PATH", ""))
    if found.path is not None:
        return [found.path]
    if own is not None:
        opened = programs.opened_place((sys.prefix, os.path.dirname(sys.executable), (spec and spec.origin) or ""))
        if not opened:
            return own
        raise DaemonNotRunning(
            path,
            f"sandboxd is not running (nothing answers at {path}), and that in {sys.prefix} is not started, since "
            f"commands could write {opened}",
            "install it where no project is, with: uv tool install sandboxd",
        )
    why = f"; {found.refused} is not used, since a command could have written it: {found.why}" if found.refused else ""
    raise DaemonNotRunning(
        path,
        f"sandboxd is not running (nothing answers at {path}) and is not installed here{why}",
        "start it with: sandboxd serve; or install it for all projects with: uv tool install sandboxd, "
        "or beside this program with: pip install sandboxd",
    )


def _is_safe(interpreter: str, spec: importlib.machinery.ModuleSpec | None) -> bool:
    origin = spec.origin if spec is not None else None
    return origin is not None and not programs.why_writable(interpreter) and not programs.why_writable(origin)


def _detach(path: str, log: str, command: list[str], environment: Mapping[str, str]) -> int:
    interpreter = sys.executable or programs.find("python3").path or "/usr/bin/python3"
    done = subprocess.run(
        [interpreter, "-I", "-S", "-c", _DETACH, log, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=programs.without_code(environment),
        cwd="/",
        start_new_session=True,
        check=False,
    )
    if done.returncode or not done.stdout.isdigit():
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit status {done.returncode}"
        raise DaemonStartFailed(path, f"sandboxd could not be started: {reason}", f"try: {' '.join(command)} serve")
    return int(done.stdout)


@contextlib.contextmanager
def _only_one(socket: str) -> Iterator[None]:
    """Hold the lock of those who start a daemon at `socket`. The file goes when nobody holds it any more."""
    path = os.path.join(os.path.dirname(socket), _LOCK_NAME)
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise DaemonStartFailed(
                socket, f"cannot open {path}: {error.strerror}", "remove it; it is only a lock file"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(path, descriptor):  # else its last holder has removed the file in the meantime
                try:
                    yield
                finally:
                    os.unlink(path)
                return
        finally:
            os.close(descriptor)


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[Callable[[float], bool]]:
    """A function that waits for the end of `pid`, so many milliseconds at most, and tells whether it has come."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):  # macOS, an old kernel, or it has ended already

        def ended_by_look(wait_ms: float) -> bool:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
            except PermissionError:  # it lives, as somebody else
                pass
            time.sleep(wait_ms / 1000)
            return False

        yield ended_by_look
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    try:
        yield lambda wait_ms: bool(poll.poll(wait_ms))
    finally:
        os.close(descriptor)


def _failure(path: str, log: str) -> DaemonStartFailed:
    """What the daemon said before it died: its line `sandboxd: …` with the hint, else the last line there is."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    said = [line.removeprefix("sandboxd: ") for line in lines if line.startswith("sandboxd: ")]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    if said:
        return DaemonStartFailed(path, said[-1], hints[-1] if hints else f"see {log}")
    reason = lines[-1].strip() if lines else "it ended without a word"
    return DaemonStartFailed(path, f"sandboxd could not be started: {reason}", f"see {log}")
