"""The sandbox network: sockets in a running sandbox's network namespace."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket

from sandboxd.backends.base import SessionServer
from sandboxd.backends.linux.network.namespace_program import (
    STREAM,
    NamespaceProgram,
    OpenNetlink,
    OpenSocket,
    SocketUse,
)
from sandboxd.backends.linux.network.namespace_request import NamespaceError
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker
from sandboxd.backends.linux.network.netlink import (
    NETLINK_NETFILTER,
    NETLINK_SOCK_DIAG,
    Family,
    read_acknowledgement,
)
from sandboxd.backends.linux.network.session_ports import MOST_SERVERS, listening_query, read_listening, rules_to
from sandboxd.backends.linux.network.unix_sockets import PART, file_of, list_unix_sockets
from sandboxd.plan.host_facts import SocketFile
from sandboxd.policy.hosts.host_patterns import IPAddress

_REUSE_ADDRESS = (1, 2, 1)
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.ENOENT)
"""Errors of a kernel without IPv6."""
MOST_PARTS = 8
"""Parts of a list of sockets, of some hundred each, that are read: a command may have any number."""
AT_ONCE = 2
"""Concurrent requests of one sandbox. Each forks a process that launches of other sandboxes need too."""


class NamespaceHold:
    """Owner of a sandbox's network namespace, for further sockets in it."""

    def __init__(self, worker: NamespaceWorker, namespace: int) -> None:
        self._worker = worker
        self._namespace = namespace
        self._room = asyncio.Semaphore(AT_ONCE)
        self._controls: asyncio.Future[tuple[socket.socket, socket.socket]] | None = None
        """Netlink sockets for the sockets and for the packet rules, once they are needed."""

    def fileno(self) -> int:
        return self._namespace

    async def connect_inside(self, address: IPAddress, port: int) -> socket.socket:
        """Return a connected socket, as if made inside. Raises OSError, NamespaceError."""
        step = OpenSocket(STREAM, address, port, SocketUse.CONNECT)
        try:
            sock = await self._open(step)
        except NamespaceError as error:
            if error.number:
                raise OSError(error.number, os.strerror(error.number)) from error
            raise
        try:
            await _connected(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    async def is_listening(self, address: IPAddress, port: int) -> bool:
        """Return whether a server listens there.

        The test binds a socket there, which only a listener prevents, and not a mere connection."""
        step = OpenSocket(STREAM, address, port, SocketUse.BIND, options=(_REUSE_ADDRESS,))
        try:
            sock = await self._open(step)
        except NamespaceError as error:
            if error.number == errno.EADDRINUSE:
                return True
            raise
        sock.close()
        return False

    async def is_bound(self, file: SocketFile) -> bool:
        """Return whether a socket made inside is bound to this file.

        Raises OSError, NamespaceError. The kernel reports 32 bits of the inode, and on some file systems (btrfs)
        another device than stat(2). Then the result is False."""
        with await self._open(OpenNetlink(NETLINK_SOCK_DIAG)) as sock:
            return file_of(file) in await asyncio.to_thread(list_unix_sockets, sock)

    async def servers(self) -> frozenset[SessionServer]:
        """Return what programs listen at, MOST_SERVERS of the first MOST_PARTS. Raises OSError, NamespaceError."""
        sockets, _ = await self._control()
        found: set[SessionServer] = set()
        for family in Family:
            sockets.send(listening_query(family))
            for _ in range(MOST_PARTS):  # the kernel has each part of its answer ready before it is read
                some, is_last = read_listening(sockets.recv(PART))
                found |= some
                if is_last:
                    break
                await asyncio.sleep(0)
            else:
                self._close_controls()  # no other list can be had from them
                break
        return frozenset(sorted(found, key=lambda one: (one.port, str(one.address)))[:MOST_SERVERS])

    async def lead_out(self, servers: frozenset[SessionServer]) -> None:
        """Replace the rules that lead to other sandboxes. Raises OSError, NamespaceError."""
        _, rules = await self._control()
        for family, batch in rules_to(servers):
            rules.send(batch.messages)
            try:
                while not read_acknowledgement(rules.recv(PART)):
                    pass
            except OSError as error:
                if family is Family.V4 or error.errno not in _NO_FAMILY:
                    raise

    async def _control(self) -> tuple[socket.socket, socket.socket]:
        if self._controls is None:
            self._controls = asyncio.ensure_future(self._open_controls())
        try:
            return await asyncio.shield(self._controls)
        except (NamespaceError, OSError):
            self._controls = None
            raise

    async def _open_controls(self) -> tuple[socket.socket, socket.socket]:
        program = NamespaceProgram.of((OpenNetlink(NETLINK_SOCK_DIAG), OpenNetlink(NETLINK_NETFILTER)))
        async with self._room:
            sockets, rules = await self._worker.start(self._usable(), program)
        if self._namespace < 0:
            sockets.close()
            rules.close()
            raise NamespaceError("the sandbox has ended")
        return sockets, rules

    async def _open(self, step: OpenSocket | OpenNetlink) -> socket.socket:
        async with self._room:
            (sock,) = await self._worker.start(self._usable(), NamespaceProgram.of((step,)))
        return sock

    def _usable(self) -> int:
        if self._namespace < 0:
            raise NamespaceError("the sandbox has ended")
        return self._namespace

    def close(self) -> None:
        if self._namespace >= 0:
            with contextlib.suppress(OSError):
                os.close(self._namespace)
            self._namespace = -1
        self._close_controls()

    def _close_controls(self) -> None:
        opened, self._controls = self._controls, None
        if opened is not None and opened.done() and not opened.cancelled() and opened.exception() is None:
            for one in opened.result():
                one.close()


async def _connected(sock: socket.socket) -> None:
    """Wait until a pending connect() ends. Raises OSError."""
    loop = asyncio.get_running_loop()
    writable: asyncio.Future[None] = loop.create_future()
    number = sock.fileno()

    def is_writable() -> None:
        if not writable.done():
            writable.set_result(None)

    loop.add_writer(number, is_writable)
    try:
        await writable
    finally:
        loop.remove_writer(number)
    if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(code, os.strerror(code))
