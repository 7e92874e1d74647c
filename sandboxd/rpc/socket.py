"""The listening socket: its place, its owner, and the remains of dead daemons.

Promises, in the order they are kept:
- the directory belongs to this user and no other user can enter it (mode 0700), or nothing is opened in it;
- one daemon per directory: an flock on `lock`, held for the daemon's life, decides. A kernel lock dies with its holder,
  so a daemon killed with SIGKILL blocks no other, and two that start at once leave exactly one;
- whatever stands at the socket's path and is not a dead socket of this user is left alone and refused;
- at a clean end the socket and the lock are removed, the socket only when it is still the one that was made here.

`Passed` is the seam for a service manager that opened the socket itself (sd_listen_fds(3))."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import sys
from collections.abc import MutableMapping

from sandboxd.errors import HostError
from sandboxd.handover.record import Descriptor
from sandboxd.rpc.launchd_socket import activated_sockets
from sandboxd_client.records import dataclass
from sandboxd_client.wire.location import LocationError, check_path, make_directory

LOCK_NAME = "lock"
"""Of an automatic start (`sandboxd_client.transport.starting`)."""
BACKLOG = 1024
"""A connect(2) that does not wait fails when this many wait already (EAGAIN), which asyncio takes for success."""
_FIRST_PASSED = 3  # SD_LISTEN_FDS_START
_MOST_PASSED = 65536
_STORED = "stored"  # the name of what another program has put into the service manager's store, after all sockets


def prepare_directory(path: str) -> str:
    """Make the private directory of the socket (0700), check and return it.

    The client checks the same place with the same code before it connects. Raises HostError: `socket_path_invalid`,
    `directory_unusable`, `directory_foreign`, `directory_not_private`, `socket_path_occupied`."""
    try:
        make_directory(check_path(path))
    except LocationError as error:
        raise HostError(
            error.slug, error.message, hint=error.hint or "choose another place with --socket or $SANDBOXD_SOCKET"
        ) from error
    return os.path.dirname(path)


class DirectoryLock:
    """The right to be the daemon of one directory.

    Raises HostError `daemon_running` when another one has it. `held` is the descriptor of the lock when an earlier
    daemon has handed it over."""

    def __init__(self, directory: str, held: int = -1) -> None:
        self.path = os.path.join(directory, LOCK_NAME)
        if held >= 0 and self._is_at_path(held):
            self._descriptor = held
            self._sign(held)
        else:
            self._descriptor = self._claim()

    def hand_over(self) -> Descriptor:
        """Let go of the lock without unlocking it."""
        descriptor, self._descriptor = self._descriptor, -1
        return Descriptor(descriptor)

    def _claim(self) -> int:
        while True:
            try:
                descriptor = _open_lock(self.path)
            except FileNotFoundError:  # a daemon that ended has just taken its directory along
                with contextlib.suppress(FileExistsError):
                    os.mkdir(os.path.dirname(self.path), 0o700)
                continue
            except OSError as error:
                raise HostError(
                    "directory_unusable",
                    f"cannot open {self.path}: {error.strerror}",
                    hint="remove it; it is only a lock file",
                ) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise HostError(
                    "daemon_running",
                    f"sandboxd is already running{holder}: {self.path} is held",
                    hint="see it with: sandboxd status, end it with: sandboxd stop",
                ) from error
            if self._is_at_path(descriptor):
                self._sign(descriptor)
                return descriptor
            # Its holder removed the file between our open and our lock: what we hold has no name any more.
            os.close(descriptor)

    @staticmethod
    def _sign(descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)  # whether we may have it is the lock's to say

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the lock file while it is held, then release it. Idempotent.

        So no other daemon can lock it in between. The directory goes too when it has a default name (`wire.location`)
        and holds nothing but what an automatic start has left."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        directory = os.path.dirname(self.path)
        if os.path.basename(directory) in ("sandboxd", f"sandboxd-{os.geteuid()}"):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        os.close(self._descriptor)
        self._descriptor = -1


def _open_lock(path: str) -> int:
    """Open the lock file. Raises OSError, also for anything but a file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file")
    return descriptor


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 16, 0).strip()
    return f" (pid {int(text)})" if text.isdigit() else ""


@dataclass(frozen=True, slots=True)
class ListeningSocketRecord:
    """Record of a listening socket; with `made` its file is removed at the end."""

    socket: Descriptor
    path: str
    made: bool
    own: bool


@dataclass(slots=True)
class ListeningSocket:
    """The listening socket and the path at which clients connect.

    `own` is False when a service manager made it."""

    socket: socket.socket
    path: str
    own: bool = True
    _made: os.stat_result | None = None

    def hand_over(self) -> ListeningSocketRecord:
        """Let go of the socket.

        Who connects from now on waits in its backlog."""
        record = ListeningSocketRecord(Descriptor(self.socket.detach()), self.path, self._made is not None, self.own)
        self._made = None
        return record

    @classmethod
    def resumed(cls, record: ListeningSocketRecord) -> ListeningSocket:
        """Return the same socket in the next daemon."""
        listener = socket.socket(fileno=record.socket)
        listener.setblocking(False)
        made = None
        if record.made:
            with contextlib.suppress(OSError):
                made = os.lstat(record.path)
        return cls(listener, record.path, record.own, made)

    def close(self) -> None:
        """Stop listening and remove the file that was made here.

        Idempotent."""
        self.socket.close()
        if self._made is None:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.lstat(self.path), self._made):
                os.unlink(self.path)
        self._made = None


def listen(path: str) -> ListeningSocket:
    """Listen at `path` with mode 0600.

    The directory's lock is held, so a socket without a listener is a dead daemon's. Raises HostError:
    `socket_path_occupied`, `socket_in_use`, `socket_unusable`."""
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # Python makes it non-inheritable, on every system
    listener.setblocking(False)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)  # the directory is 0700: no other user could have connected in between
        listener.listen(BACKLOG)
        return ListeningSocket(listener, path, _made=os.lstat(path))
    except OSError as error:
        listener.close()
        raise HostError(
            "socket_unusable",
            f"cannot listen at {path}: {error.strerror}",
            hint="choose another place with --socket or $SANDBOXD_SOCKET",
        ) from error


def _clear(path: str) -> None:
    """Remove a dead socket of this user; refuse anything else at `path`."""
    try:
        state = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(state.st_mode):
        raise HostError(
            "socket_path_occupied",
            f"{path} exists and is not a socket",
            hint="move it away, or choose another place with --socket or $SANDBOXD_SOCKET",
        )
    if state.st_uid != os.geteuid():
        raise HostError(
            "socket_path_occupied",
            f"{path} is a socket of another user (uid {state.st_uid})",
            hint="remove it, or choose another place with --socket or $SANDBOXD_SOCKET",
        )
    if _answers(path):
        raise HostError(
            "socket_in_use",
            f"something else is listening at {path}",
            hint="end it (a unit with: systemctl --user stop sandboxd.socket), or choose another place with --socket",
        )
    os.unlink(path)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # ECONNREFUSED alone means that no process listens: a full backlog (EAGAIN) and a datagram socket (EPROTOTYPE)
        # are alive.
        return probe.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT)


def take_passed(environment: MutableMapping[str, str]) -> ListeningSocket | None:
    """Return the listening socket from a service manager, or None.

    Source: sd_listen_fds(3), launch_activate_socket(3). The variables are removed, so that no child takes them for
    its own. Raises HostError `passed_socket_unusable`."""
    return _take_activated() if sys.platform == "darwin" else _take_listed(environment)


def _take_activated() -> ListeningSocket | None:
    descriptors = activated_sockets()
    if not descriptors:
        return None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return _taken(descriptors[0], "give the agent's socket SockFamily Unix and SockType stream")


def _take_listed(environment: MutableMapping[str, str]) -> ListeningSocket | None:
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdigit() or int(count) < 1:
        return None
    for descriptor in range(_FIRST_PASSED, min(_FIRST_PASSED + int(count), _MOST_PASSED)):
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, False)
    if names[0] == _STORED:
        return None
    try:
        return _taken(_FIRST_PASSED, "in the .socket unit use ListenStream= with a path")
    except HostError:
        if not names[0] or names[0].endswith(".socket"):  # systemd.socket(5), FileDescriptorName=: the unit's own name
            raise
        return None


def _taken(descriptor: int, hint: str) -> ListeningSocket:
    passed = _as_listener(descriptor)
    if passed is None:
        raise HostError(
            "passed_socket_unusable",
            "the service manager passed a descriptor that is not a listening Unix stream socket",
            hint=hint,
        )
    passed.setblocking(False)
    return ListeningSocket(passed, os.fsdecode(passed.getsockname()), own=False)


def _as_listener(descriptor: int) -> socket.socket | None:
    try:
        passed = socket.socket(fileno=descriptor)
    except OSError:
        return None
    stream = passed.family is socket.AF_UNIX and passed.type is socket.SOCK_STREAM
    if stream and passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return passed
    passed.detach()
    return None
