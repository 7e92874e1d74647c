"""Who is calling: settled once, when a connection is accepted. Everything after it sees a `Caller`, never a socket.

A caller is this user, in the daemon's own user and pid namespaces. A sandboxed process runs under the same uid and
would pass a check of the uid alone; its namespaces give it away even when it reaches the socket (a bind mount, an
inherited descriptor). A root daemon therefore serves root only, and a user's daemon that user only.

The race: SO_PEERCRED names the process that connected by its pid, and a pid can be used again once that process is
gone. So the process is pinned by a descriptor first (SO_PEERPIDFD, Linux 6.5: exactly the one that connected; before
6.5 pidfd_open(2)), its namespaces are read through /proc/PID, and only then is the descriptor asked whether the
process still lives. If it does, its pid meant this process all the while. On a kernel before 6.5 a caller could die,
and its pid return, between connect and accept; what is read then is a live host process of this user. A caller whose
connection outlives it must have handed the connection on; that remainder is accepted and named here.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
from dataclasses import dataclass

from sandboxd.errors import CallerError
from sandboxd.rpc.call import EVERYTHING, Access
from sandboxd.rpc.peer_macos import check_peer

_SO_PEERCRED: int = getattr(socket, "SO_PEERCRED", 17)
_SO_PEERPIDFD = 77
_UCRED = struct.Struct("3i")
_NAMESPACES = ("user", "pid")


@dataclass(frozen=True, slots=True)
class Caller:
    """The process at the other end, as it was when it connected."""

    uid: int
    gid: int
    pid: int
    access: frozenset[Access] = EVERYTHING


@dataclass(frozen=True, slots=True)
class Identity:
    """What a caller must share with the daemon: its uid, and its namespaces as (device, inode)."""

    uid: int
    namespaces: tuple[tuple[int, int], ...]

    @classmethod
    def own(cls) -> Identity:
        return cls(os.geteuid(), () if sys.platform == "darwin" else _namespaces("self"))


def identify(connection: socket.socket, own: Identity) -> Caller:
    """The caller at the other end of an accepted Unix socket. Raises CallerError: `peer_other_user`,
    `peer_other_namespace`, `peer_unknown`. See unix(7), pidfd_open(2), namespaces(7). macOS: `rpc.peer_macos`."""
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
    except OSError as error:
        raise _unknown() from error
    finally:
        alive = _lives(descriptor)
        os.close(descriptor)
    if not alive:
        raise _unknown()
    if namespaces != own.namespaces:
        raise _other_namespace()
    return Caller(uid, gid, pid)


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


def _unknown() -> CallerError:
    return CallerError("peer_unknown", "the calling process could not be identified", hint="connect again")
