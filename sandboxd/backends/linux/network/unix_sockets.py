"""The Unix sockets of a network namespace, as listed by the kernel (unix_diag).

The list has their files and bound names. Programs cannot change these names afterwards: a link or a rename moves the
file only."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace

from sandboxd.backends.linux.network.netlink import NETLINK_SOCK_DIAG, UnixFile, bound_unix_sockets, read_unix_sockets
from sandboxd.plan.host_facts import SocketFile, SocketsAtStart

PART, MOST_PARTS = 1 << 16, 1000
"""Bytes per read, and the limit of reads. A part holds some hundred sockets."""


def file_of(file: SocketFile) -> UnixFile:
    """Convert to the kernel's form; an inode beyond 32 bits matches none there."""
    major, minor = file.device
    return major << 20 | minor, file.inode


def list_unix_sockets(sock: socket.socket) -> dict[UnixFile, str]:
    """List the bound sockets in the namespace of a NETLINK_SOCK_DIAG socket, by file.

    The kernel has each part of its answer ready before it is read. Raises OSError."""
    found: dict[UnixFile, str] = {}
    sock.send(bound_unix_sockets())
    for _ in range(MOST_PARTS):
        some, is_last = read_unix_sockets(sock.recv(PART))
        found.update(some)
        if is_last:
            break
    return found


def with_names(sockets: SocketsAtStart) -> SocketsAtStart:
    """Add the bound names of this namespace's sockets; none if the kernel fails."""
    if not sockets.found:
        return sockets
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as sock:
        names = list_unix_sockets(sock)
        named = (replace(one, bound_at=names.get(file_of(one.file), "")) for one in sockets.found)
        return replace(sockets, found=tuple(named))
    return sockets
