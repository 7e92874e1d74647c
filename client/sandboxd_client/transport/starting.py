"""Start of a daemon when none answers.

The daemon is detached: its own session, no terminal, no inherited descriptor, `/` as its directory, and no child of
this process (it would stay a zombie here). Of several clients one starts it, the others wait for its lock. The daemon
is ready when it accepts a connection; its early end is noticed at once. Its output goes to its log, which is kept, and
is the source of the message of a failed start."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.machinery
import os
import select
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from sandboxd_client import programs
from sandboxd_client.errors import (
    ConnectionLost,
    DaemonNotRunning,
    DaemonStartFailed,
    DaemonTimeout,
    PermissionDenied,
)
from sandboxd_client.transport.activation import start_socket_unit
from sandboxd_client.transport.connection import Connection, open_connection
from sandboxd_client.wire import location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandboxd_client.wire.messages.hello import Role

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 30.0
ROLE_TIMEOUT_S = 10.0
"""Limit for the daemon's confirmation of a role."""
_LOCK_NAME = "starting"
_FIRST_WAIT_MS = 2.0
_LONGEST_WAIT_MS = 50.0
_TAIL = 16384

# Variables of a service manager for *this* process; the daemon must not answer in its name.
_NOT_PASSED_ON = ("LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")

# Runs in a bare interpreter (15 ms) because forking this process, which may have threads, is not safe.
_DETACH = """\
import os, sys, _signal
flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
log = os.open(sys.argv[1], flags, 0o600)  # errors are still reported; a FIFO must not block
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
    """Return a connection, starting a daemon if needed. Raises SandboxdError."""
    try:
        return open_connection(path)
    except DaemonNotRunning:
        if not autostart:
            raise
    try:
        location.make_directory(path)
    except location.LocationError as error:
        raise PermissionDenied(error.slug, error.message, error.hint) from error
    with _start_lock(path):
        try:
            return open_connection(path)  # another client has started it meanwhile
        except DaemonNotRunning:
            if start_socket_unit(path):  # systemd starts it; a daemon of this client would be in its way
                with contextlib.suppress(DaemonNotRunning):  # systemd gave up, or listens for another file system
                    return open_connection(path)
            return _start(path, dict(os.environ if environment is None else environment), timeout)


def connect_in_role(path: str, role: Role, *, autostart: bool = True) -> Connection:
    """Return a connection that has the role. Raises SandboxdError."""
    connection = connect_or_start(path, autostart=autostart)
    if role == "full":
        return connection
    try:
        answer = connection.call("hello", {"role": role}, ROLE_TIMEOUT_S)
        if answer.get("role") != role:
            raise PermissionDenied(
                "role_unknown", f"the daemon does not know the role {role}", "update it with: sandboxd restart"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _start(path: str, environment: dict[str, str], timeout: float) -> Connection:
    for name in _NOT_PASSED_ON:
        environment.pop(name, None)
    log = _log_file(path, environment)
    log_size = _size(log)
    command = [*daemon_command(path), "serve", "--socket", path]
    pid = _detach(path, log, command, environment)
    deadline = time.monotonic() + timeout
    wait_ms = _FIRST_WAIT_MS
    with _exit_of(pid) as ended:
        while True:
            over = ended(wait_ms)
            try:
                return open_connection(path)
            except DaemonNotRunning:
                if over:
                    raise _failure(path, log, log_size) from None
                if time.monotonic() > deadline:
                    raise DaemonStartFailed(
                        path, f"sandboxd was started and does not answer within {timeout:g} s", f"see {log}"
                    ) from None
            wait_ms = min(wait_ms * 1.5, _LONGEST_WAIT_MS)


def stop_daemon(path: str, *, grace_s: float | None = None, timeout: float = STOP_TIMEOUT_S) -> int:
    """End the daemon, wait for it, return its pid. Raises SandboxdError."""
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
    with _exit_of(pid) as ended:
        while not ended(_LONGEST_WAIT_MS):
            if time.monotonic() > deadline:
                raise DaemonTimeout("shutdown", timeout)
    return pid


def daemon_command(path: str) -> list[str]:
    """Return the argv prefix of `sandboxd`, isolated from the environment.

    In this order: the installation of this client, when it is already in use (the command line) or no command can have
    written it; a program in such a place; the installation of this client, unless a record says that commands could
    write it. The current directory, PYTHONPATH and directories of PATH that a project could write do not count. Raises
    DaemonNotRunning."""
    spec = importlib.machinery.PathFinder.find_spec("sandboxd", programs.isolated_path()) if sys.executable else None
    installed = [sys.executable, "-I", "-m", "sandboxd"] if spec is not None else None
    if installed is not None and ("sandboxd" in sys.modules or _is_safe(sys.executable, spec)):
        return installed
    found = programs.find("sandboxd", os.environ.get("PATH", ""))
    if found.path is not None:
        return [found.path]
    if installed is not None:
        opened = programs.opened_place((sys.prefix, os.path.dirname(sys.executable), (spec and spec.origin) or ""))
        if not opened:
            return installed
        raise DaemonNotRunning(
            path,
            f"sandboxd is not running (nothing answers at {path}), and the one in {sys.prefix} is not started: "
            f"commands could write {opened}",
            "install it outside all projects with: ./dev install, in a checkout of sandboxd",
        )
    why = f"; {found.refused} is not used, since a command could have written it: {found.why}" if found.refused else ""
    raise DaemonNotRunning(
        path,
        f"sandboxd is not running (nothing answers at {path}) and is not installed here{why}",
        "start it with: sandboxd serve; or install it with: ./dev install, in a checkout of sandboxd",
    )


def _is_safe(interpreter: str, spec: importlib.machinery.ModuleSpec | None) -> bool:
    origin = spec.origin if spec is not None else None
    return origin is not None and not programs.why_writable(interpreter) and not programs.why_writable(origin)


def _detach(path: str, log: str, command: list[str], environment: Mapping[str, str]) -> int:
    done = subprocess.run(
        [_detaching_interpreter(path, command[0]), "-I", "-S", "-c", _DETACH, log, *command],
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


def _log_file(path: str, environment: Mapping[str, str]) -> str:
    """Return the log below the home directory, and make its directory; beside the socket where that is not possible."""
    real = programs.home_of_the_user()
    home = environment.get("HOME") or real
    first, *others = location.log_paths(path, home)
    if not others or (home != real and programs.opened_place((home,), (real,))) or not _is_own(home):
        return others[-1] if others else first
    place = home
    for name in location.STATE_DIRECTORY.split("/"):
        place = os.path.join(place, name)
        with contextlib.suppress(OSError):
            os.mkdir(place, 0o700)
    return first if _is_own(place) and os.access(place, os.W_OK) else others[-1]


def _is_own(directory: str) -> bool:
    """Return whether it is a directory that this user alone can write."""
    try:
        state = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o022


def _detaching_interpreter(path: str, program: str) -> str:
    """Return that of the daemon or of the system before this process's own, which PYTHONEXECUTABLE may name.

    Raises DaemonStartFailed where there is none but one that commands could write."""
    if sys.executable == program:
        return program
    interpreter = programs.find("python3").path or sys.executable or "/usr/bin/python3"
    opened = programs.opened_place((interpreter,)) if interpreter == sys.executable else ""
    if opened:
        raise DaemonStartFailed(
            path, f"{interpreter} is not used to start sandboxd: commands could write {opened}", "try: sandboxd serve"
        )
    return interpreter


@contextlib.contextmanager
def _start_lock(socket: str) -> Iterator[None]:
    """Hold the lock for a start at `socket`; the last holder removes the file."""
    path = os.path.join(os.path.dirname(socket), _LOCK_NAME)
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise DaemonStartFailed(
                socket, f"cannot open {path}: {error.strerror}", "remove it: it is only a lock file"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_file_at(path, descriptor):  # else its last holder has removed the file
                try:
                    yield
                finally:
                    os.unlink(path)
                return
        finally:
            os.close(descriptor)


def _is_file_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _exit_of(pid: int) -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits some milliseconds for the end of `pid`."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):  # macOS, an old kernel, or an ended process

        def ended_by_poll(wait_ms: float) -> bool:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
            except PermissionError:  # it runs as another user
                pass
            time.sleep(wait_ms / 1000)
            return False

        yield ended_by_poll
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    try:
        yield lambda wait_ms: bool(poll.poll(wait_ms))
    finally:
        os.close(descriptor)


def _size(log: str) -> int:
    try:
        return os.stat(log).st_size
    except OSError:
        return 0


def _failure(path: str, log: str, start: int) -> DaemonStartFailed:
    """Return the daemon's last message with its hint, else its last line; its log begins at `start`."""
    try:
        with open(log, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(start if start <= size else 0, size - _TAIL))  # shorter than before: a new part has begun
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    messages = [line.removeprefix("sandboxd: ") for line in lines if line.startswith("sandboxd: ")]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    if messages:
        return DaemonStartFailed(path, messages[-1], hints[-1] if hints else f"see {log}")
    reason = lines[-1].strip() if lines else "it ended without a message"
    return DaemonStartFailed(path, f"sandboxd could not be started: {reason}", f"see {log}")
