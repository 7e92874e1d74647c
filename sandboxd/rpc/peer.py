"""Caller identification, once for each accepted connection.

Everything after it sees a `Caller`, never a socket.

A caller is this user, in the daemon's own user and pid namespaces. A sandboxed process runs under the same uid and
would pass a check of the uid alone; its namespaces give it away even when it reaches the socket (a bind mount, an
inherited descriptor). A root daemon therefore serves root only, and a user's daemon that user only.

The race: SO_PEERCRED names the process that connected by its pid, and a pid can be used again once that process is
gone. So the process is pinned by a descriptor first (SO_PEERPIDFD, Linux 6.5: exactly the one that connected; before
6.5 pidfd_open(2)), its namespaces are read through /proc/PID, and only then is the descriptor asked whether the
process still lives. If it does, its pid meant this process all the while. On a kernel before 6.5 a caller could die,
and its pid return, between connect and accept; what is read then is a live host process of this user. A caller whose
connection outlives it must have handed the connection on; that remainder is accepted and named here.

Groups: what a command may read and write is looked at by the daemon, with the daemon's groups. A caller with more of
them (`sg`, a membership that is younger than the daemon) could read a denied file that the daemon cannot even find, and
no process can take groups away from it. So it may ask, and stop the daemon, and run nothing."""

from __future__ import annotations

import os
import re
import select
import socket
import struct
import sys
from collections.abc import Collection, Iterable
from enum import Enum
from pathlib import Path

from sandboxd.errors import CallerError
from sandboxd.processes import MOST_ANCESTORS, Process, parent_of
from sandboxd.rpc.peer_macos import check_peer
from sandboxd_client.records import dataclass, field

_SO_PEERCRED: int = getattr(socket, "SO_PEERCRED", 17)
_SO_PEERGROUPS = 59
_SO_PEERPIDFD = 77
_UCRED = struct.Struct("3i")
_ROOM = 1024
_NAMESPACES = ("user", "pid")
_GROUPS = re.compile(r"^Groups:(.*)$", re.MULTILINE)


class MethodAccess(Enum):
    """Powers that a method needs of its caller.

    A connection begins with all of them and can give some up."""

    ASK = "ask"
    """Look at settings, decisions and state."""
    RUN = "run"
    """Open sessions and wrap commands."""
    JOIN = "join"
    """Use sessions that other connections have opened."""
    ANSWER = "answer"
    """Hear the questions to people."""
    CONTROL = "control"
    """Answer questions, and change what holds for every client: settings, and whether there is a daemon."""


EVERYTHING = frozenset(MethodAccess)
AGENT = frozenset({MethodAccess.ASK, MethodAccess.RUN})
"""Powers of the role `agent`, for its own sessions only."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The process at the other end, as it was when it connected.

    `started` is its start time in clock ticks since boot (proc_pid_stat(5), field 22), which together with `pid`
    names it for good; 0 where that is not known."""

    uid: int
    gid: int
    pid: int
    access: frozenset[MethodAccess] = EVERYTHING
    more_groups: tuple[int, ...] = ()
    """The caller's groups that the daemon is not in."""
    started: int = field(default=0, compare=False)

    @property
    def restricted(self) -> bool:
        """Return whether the connection has the role agent."""
        return self.access != EVERYTHING

    @property
    def process(self) -> Process:
        return self.pid, self.started

    def descends_from(self, ancestors: Collection[Process]) -> bool:
        """Return whether the caller is one of these processes or their descendant.

        True where that cannot be told. A process whose parents have ended is not recognised: it is a child of init
        then."""
        if not ancestors:
            return False
        if self.process in ancestors:
            return True
        if sys.platform != "linux":
            return False
        pid, started = self.process
        for _ in range(MOST_ANCESTORS):
            try:
                parent, now = parent_of(pid)
            except OSError:
                return True
            if started and now != started:
                return True
            if (pid, now) in ancestors:
                return True
            if parent <= 0:
                return False
            pid, started = parent, 0
        return True

    def check_groups(self) -> None:
        """Check the caller's groups. Raises CallerError `peer_other_groups`."""
        if self.more_groups:
            names = ", ".join(map(str, self.more_groups))
            raise CallerError(
                "peer_other_groups",
                f"the daemon is not in all groups of its caller (missing: {names}), so it cannot see all files that "
                "rules deny",
                hint="run: sandboxd stop, then call again; if systemd starts the daemon, log out everywhere and in "
                "again first; if sg or newgrp gave the command its group, run it without",
            )


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity that a caller must share with the daemon: uid and namespaces.

    Namespaces are (device, inode). `groups` are those that it may have; None where the daemon needs none to see
    everything."""

    uid: int
    namespaces: tuple[tuple[int, int], ...]
    groups: frozenset[int] | None = None

    @classmethod
    def own(cls) -> Identity:
        if sys.platform == "darwin":  # rules go by paths there
            return cls(os.geteuid(), ())
        groups = frozenset((os.getegid(), *os.getgroups())) if os.geteuid() else None
        return cls(os.geteuid(), _namespaces("self"), groups)


def identify(connection: socket.socket, own: Identity) -> Caller:
    """Identify the caller at the other end of an accepted Unix socket.

    Raises CallerError: `peer_other_user`, `peer_other_namespace`, `peer_other_groups`, `peer_unknown`. See unix(7),
    pidfd_open(2), namespaces(7). macOS: `rpc.peer_macos`."""
    if sys.platform == "darwin":
        uid, gid, pid = check_peer(connection, own.uid)
        return Caller(uid, gid, pid)
    else:
        return _identify_on_linux(connection, own)


def _identify_on_linux(connection: socket.socket, own: Identity) -> Caller:
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, _UCRED.size))
    if uid != own.uid:
        raise CallerError(
            "peer_other_user",
            f"this daemon serves uid {own.uid} only",
            hint="start your own with: sandboxd serve",
        )
    if pid <= 0:  # the process is not in our pid namespace or below it
        raise _other_namespace()
    try:
        descriptor = _pin(connection, pid)
    except OSError as error:
        raise _unknown() from error
    try:
        namespaces = _namespaces(str(pid))
        _, started = parent_of(pid)
        groups = {gid, *_groups(connection, pid)} if own.groups is not None else set()
    except OSError as error:
        if isinstance(error, PermissionError) and own.groups is not None and gid != os.getegid():
            raise _other_group(gid) from error
        raise _unknown() from error
    finally:
        alive = _lives(descriptor)
        os.close(descriptor)
    if not alive:
        raise _unknown()
    if namespaces != own.namespaces:
        raise _other_namespace()
    return Caller(uid, gid, pid, more_groups=tuple(sorted(groups - (own.groups or set()))), started=started)


def identify_runner(connection: socket.socket, own: Identity) -> Caller:
    """Identify a caller that is about to become a command."""
    caller = identify(connection, own)
    caller.check_groups()
    return caller


def _pin(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        if sys.platform == "linux":
            return os.pidfd_open(pid)
        raise


def _namespaces(process: str) -> tuple[tuple[int, int], ...]:
    states = (os.stat(f"/proc/{process}/ns/{name}") for name in _NAMESPACES)
    return tuple((state.st_dev, state.st_ino) for state in states)


def _groups(connection: socket.socket, pid: int) -> Iterable[int]:
    """Return the supplementary groups of a process.

    Where there are more than 256, which getsockopt of Python has no room for, from proc_pid_status(5), which takes
    twenty times as long."""
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _ROOM)
    except OSError:
        found = _GROUPS.search(Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace"))
        return map(int, found[1].split()) if found else ()
    return struct.unpack(f"{len(packed) // 4}I", packed)


def _lives(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return not poll.poll(0)


def _other_namespace() -> CallerError:
    return CallerError(
        "peer_other_namespace",
        "callers in another user or pid namespace, such as a sandboxed command, are not served",
        hint="call from outside the sandbox or container, or run a daemon inside it",
    )


def _other_group(gid: int) -> CallerError:
    """Return the error for a caller that another main group hides (ptrace(2))."""
    return CallerError(
        "peer_other_groups",
        f"the caller runs with another main group than the daemon (gid {gid})",
        hint="call with your usual group: sg and newgrp have changed it",
    )


def _unknown() -> CallerError:
    return CallerError("peer_unknown", "the calling process could not be identified", hint="connect again")
