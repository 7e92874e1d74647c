"""Published ports of one command: listeners on the host for servers inside.

They are bound before the command is made and gone when it has ended.

A connection is closed at once when nothing listens inside yet, as the kernel does for a port without a server. A
client that waits for a server tries again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from sandboxd.backends.base import SandboxNetwork
from sandboxd.errors import CallerError, HostError, LaunchError
from sandboxd.handover.record import Descriptor
from sandboxd.policy.hosts.host_patterns import quote
from sandboxd.policy.hosts.publication import MOST, Publication
from sandboxd.proxy.fair_share import CONNECTION, Share, Turns
from sandboxd.proxy.streams.relay import SocketRelay
from sandboxd.proxy.streams.stream import hurry, reset, send_at_once
from sandboxd_client.records import dataclass

LOOPBACK: Final = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
CONNECTIONS: Final = 1024
"""Open connections of one command; further ones are closed.

One port has at most twice what it leaves to the others."""
BACKLOG: Final = 256
ACCEPTS_AT_ONCE: Final = 64

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedRecord:
    """The listeners of one command between two daemons, one for each publication."""

    publications: tuple[Publication, ...]
    listeners: tuple[Descriptor, ...]
    files: tuple[tuple[int, int], ...] = ()
    """Device and inode of each Unix socket's file, zeros for a port."""


class PublishedPorts:
    """Listeners of one command, bound at once so that a taken port is known early.

    Raises HostError (`port_taken`, `port_unusable`), CallerError. `label` names the command in task names and logs."""

    def __init__(self, wanted: Iterable[Publication], label: str = "") -> None:
        self._label = label
        self._inside: SandboxNetwork | None = None
        self._listeners: list[socket.socket] = []
        self._files: list[tuple[int, int]] = []
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        """The connections, each with the listener that accepted it."""
        self._turns = Turns()
        self._shares: dict[socket.socket, Share] = {}
        """The share of each listener, so that a flood at one leaves others their turns."""
        self._loop = asyncio.get_running_loop()
        self.publications: tuple[Publication, ...] = ()
        """The publications; the kernel chose each port that the client left open."""
        try:
            for one in wanted:
                if len(self._listeners) == MOST:
                    raise CallerError("publish_invalid", f"more than {MOST} ports to publish", hint="publish fewer")
                self._listen(one)
        except BaseException:
            self.close()
            raise

    @property
    def kept(self) -> PublishedRecord:
        """Return the listeners for a crash entry; release nothing."""
        numbers = tuple(Descriptor(one.fileno()) for one in self._listeners)
        return PublishedRecord(self.publications, numbers, tuple(self._files))

    async def hand_over(self) -> tuple[PublishedRecord, int]:
        """Let go of the listeners, and cut what is open; how much that was."""
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
        cut = len(self._tasks)
        listeners = tuple(Descriptor(listener.detach()) for listener in self._listeners)
        files = tuple(self._files)
        self._files.clear()
        self.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        return PublishedRecord(self.publications, listeners, files), cut

    @classmethod
    def resumed(cls, record: PublishedRecord, label: str = "") -> PublishedPorts:
        """Resume the listeners of another daemon."""
        ports = cls((), label)
        ports.publications = record.publications
        ports._files = list(record.files)
        for publication, number in zip(record.publications, record.listeners, strict=True):
            listener = socket.socket(fileno=number)
            listener.setblocking(False)
            ports._listeners.append(listener)
            ports._resume(listener, publication.inner)
        return ports

    def serve(self, inside: SandboxNetwork, turns: Turns | None = None) -> None:
        """Connect the ports with the network `inside`, in `turns` of the daemon."""
        self._inside, self._turns = inside, turns or Turns()
        self._shares.clear()

    def close(self) -> None:
        """Stop listening and cut what is open."""
        for listener in self._listeners:
            if listener.fileno() >= 0:
                self._loop.remove_reader(listener.fileno())
                listener.close()
        self._listeners.clear()
        for publication, file in zip(self.publications, self._files, strict=False):
            if publication.path and _file_of(publication.path) == file:
                with contextlib.suppress(OSError):
                    os.unlink(publication.path)
        self._files.clear()
        for task in tuple(self._tasks):
            task.cancel()

    def _listen(self, wanted: Publication) -> None:
        if wanted.path:
            self._listen_at_path(wanted)
            return
        family = socket.AF_INET6 if wanted.address.version == 6 else socket.AF_INET
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
            self._listeners.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((str(wanted.address), wanted.port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise _bind_error(wanted, error) from error
        self.publications += (replace(wanted, port=listener.getsockname()[1]),)
        self._files.append((0, 0))
        self._loop.add_reader(listener.fileno(), self._readable, listener, wanted.inner)

    def _listen_at_path(self, wanted: Publication) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listeners.append(listener)
        listener.setblocking(False)
        try:
            os.fchmod(listener.fileno(), 0o600)  # bind(2) gives the file the mode of the socket: never open to others
            try:
                listener.bind(wanted.path)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not _removed_if_dead(wanted.path):
                    raise
                listener.bind(wanted.path)
            listener.listen(BACKLOG)
        except OSError as error:
            raise _bind_error(wanted, error) from error
        self.publications += (wanted,)
        self._files.append(_file_of(wanted.path) or (0, 0))
        self._loop.add_reader(listener.fileno(), self._readable, listener, wanted.inner)

    def _readable(self, listener: socket.socket, inner: int) -> None:
        share = self._shares.get(listener)
        if share is None:
            share = self._shares[listener] = Share(self._turns)
        for _ in range(ACCEPTS_AT_ONCE):
            if not share.has_some():
                self._loop.remove_reader(listener.fileno())
                share.later(partial(self._resume, listener, inner))
                return
            try:
                client, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: what waits is taken when there are some again
                log.warning("published port of %s waits: %s", self._label, error.strerror)
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(0.1, self._resume, listener, inner)
                return
            share.spend(CONNECTION)
            if self._inside is None or not self._has_room(listener):
                reset(client)
                continue
            client.setblocking(False)
            joining = self._join(client, inner, self._inside, share)
            task = self._loop.create_task(joining, name=f"published {self._label}")
            self._tasks[task] = listener
            task.add_done_callback(partial(self._ended, client))

    def _has_room(self, listener: socket.socket) -> bool:
        left = CONNECTIONS - len(self._tasks)
        return left > 0 and (len(self._listeners) == 1 or list(self._tasks.values()).count(listener) < 2 * left)

    def _resume(self, listener: socket.socket, inner: int) -> None:
        if listener in self._listeners and listener.fileno() >= 0:
            self._loop.add_reader(listener.fileno(), self._readable, listener, inner)

    def _ended(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        client.close()  # again, for a task that was cancelled before its first step
        self._tasks.pop(task, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("published port of %s: a connection ended by a fault", self._label, exc_info=fault)

    async def _join(self, client: socket.socket, inner: int, inside: SandboxNetwork, share: Share) -> None:
        try:
            server = await _connect(inside, inner)
        except BaseException as error:
            reset(client)
            if isinstance(error, (OSError, LaunchError)):
                return
            raise
        for sock in (client, server):
            send_at_once(sock)  # as `hurry`, without effect on a Unix socket
            hurry(sock)
        await SocketRelay(client, server, share=share).run()


async def _connect(inside: SandboxNetwork, port: int) -> socket.socket:
    """Connect to the server inside, on either loopback address.

    Raises OSError, LaunchError."""
    for address in LOOPBACK[:-1]:
        try:
            return await inside.connect_inside(address, port)
        except OSError:
            continue
    return await inside.connect_inside(LOOPBACK[-1], port)


def _file_of(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None


def _removed_if_dead(path: str) -> bool:
    """Remove a Unix socket of this user without a listener, left by a killed daemon."""
    before = _file_of(path)
    if before is None or os.lstat(path).st_uid != os.geteuid():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        if probe.connect_ex(path) != errno.ECONNREFUSED or _file_of(path) != before:
            return False
    os.unlink(path)
    return True


def _bind_error(wanted: Publication, error: OSError) -> HostError:
    if wanted.path:
        taken = error.errno == errno.EADDRINUSE
        return HostError(
            "port_taken" if taken else "port_unusable",
            f"{quote(wanted.path)} cannot be published: {'it exists' if taken else error.strerror}",
            hint="choose a path that does not exist, in a directory that you can write",
        )
    if error.errno == errno.EADDRINUSE:
        return HostError(
            "port_taken",
            f"{wanted.outer} cannot be published: something on this machine listens there",
            hint=f"choose another port, or any that is free: --publish 0:{wanted.inner}",
        )
    return HostError(
        "port_unusable",
        f"{wanted.outer} cannot be published: {error.strerror}",
        hint="choose a port above 1023" if error.errno == errno.EACCES else "choose another address or port",
    )
