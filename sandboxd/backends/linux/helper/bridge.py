"""The bridge: the Unix socket where helpers meet the daemon.

The launch stage of the helper connects from the host side and names its ticket. The init stage inherits the same
connection through bubblewrap, finds its configuration in it, and sends the sandbox's listening sockets back over it. So
no socket file exists inside the sandbox, and no argument or variable holds a secret: a ticket is a name that is good
once, and only for a process of this user in the daemon's own namespaces (`identify`).

Everything is callbacks on the event loop instead of tasks: the three short exchanges of a launch are on the path of
every command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable

from sandboxd.backends.base import Observer
from sandboxd.backends.linux.bwrap.launch_processes import OrphanSearch
from sandboxd.backends.linux.helper.expected_launch import Aftermath, Peer, Preparation
from sandboxd.backends.linux.helper.expected_launch import ExpectedLaunch as ExpectedLaunch
from sandboxd.backends.linux.helper.helper_connection import HelperConnection
from sandboxd.backends.linux.helper.launch_records import BridgeRecord, LinkRecord
from sandboxd.errors import DaemonError
from sandboxd.handover.record import Descriptor

_BACKLOG = 1024
_TICKET_WITHIN_S = 10.0
"""How long a peer may be connected without a ticket; at most twice as long, because one timer is for all."""
_MOST_REFUSED = 16
"""Refused peers whose end is awaited: bubblewrap, which runs by then, may leave an orphan."""


class Handle:
    """A `LaunchHandle` by ticket, before and after the launch is claimed."""

    def __init__(self, bridge: Bridge, ticket: str) -> None:
        self._bridge = bridge
        self._ticket = ticket

    def cancel(self) -> None:
        self._bridge.forget(self._ticket)

    def terminate(self) -> None:
        link = self._bridge.link(self._ticket)
        if link is not None:
            link.terminate()

    def kill(self) -> None:
        link = self._bridge.link(self._ticket)
        if link is not None:
            link.kill()

    def claim(self, arguments: Iterable[bytes]) -> bool:
        link = self._bridge.link(self._ticket)
        return link is not None and link.claim(arguments)


class Bridge:
    """The listening socket, the expected launches and the connections of helpers.

    `identify` returns the process of the peer; it raises SandboxdError for a peer that is not this user on this host.
    `log(event, **values)` receives events for the administrator, `made` the ticket, path and inode of a new name."""

    def __init__(
        self,
        path: str,
        identify: Callable[[socket.socket], Peer],
        log: Callable[..., None],
        made: Callable[[str, str, int], object] = lambda ticket, path, inode: None,
    ) -> None:
        self.path = path
        self.made = made
        self._identify = identify
        self.log = log
        self._expected: dict[str, ExpectedLaunch] = {}
        self._links: dict[str, HelperConnection] = {}
        self.orphans = OrphanSearch(lambda pids: log("bridge_straggler_ended", pids=pids))
        self._strangers: dict[HelperConnection, None] = {}
        self._late: tuple[HelperConnection, ...] = ()
        """Strangers that were there when the timer ran out last."""
        self._timer: asyncio.TimerHandle | None = None
        self._held: tuple[LinkRecord, ...] = ()
        """Connections of an earlier bridge that have not named their ticket, until `go_on`."""
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Listen at `path`. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            mask = os.umask(0o177)
            try:
                listener.bind(self.path)
            finally:
                os.umask(mask)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        self._socket = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)

    # restart (docs/restarts.md)

    async def prepared(self, patience_s: float) -> None:
        """Accept nothing more, and wait until no sandbox set-up is in progress.

        Returns after `patience_s` at the latest. Precedes `hand_over`."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        for link in [*self._links.values(), *self._strangers]:
            link.pause()
        if working := [link.preparing for link in self._links.values() if link.preparing is not None]:
            await asyncio.wait(working, timeout=patience_s)

    def hand_over(self) -> BridgeRecord:
        """Release the listening socket and the connections without a ticket.

        Connections with a ticket and expected launches are released one by one before (`take`)."""
        assert self._socket is not None
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        listener, self._socket = self._socket, None
        refused = [link for link in self._strangers if link.is_disconnected]
        for link in refused:
            link.close()
        strangers = tuple(link.hand_over() for link in self._strangers)
        self._strangers.clear()
        self._stop_timers()
        return BridgeRecord(Descriptor(listener.detach()), strangers)

    def take(self, ticket: str) -> tuple[ExpectedLaunch | None, LinkRecord | None]:
        """Release one launch: what it expects if unclaimed, else its connection."""
        link = self._links.pop(ticket, None)
        return self._expected.pop(ticket, None), None if link is None else link.hand_over()

    def resume(self, record: BridgeRecord) -> None:
        """Take over from another bridge, in place of `open`. Helpers wait until `go_on`."""
        self._socket = socket.socket(fileno=record.listener)
        self._socket.setblocking(False)
        self._held = record.strangers

    def go_on(self) -> None:
        """Serve helpers after `resume`, once all launches are expected again.

        An unknown ticket is refused from now on."""
        assert self._socket is not None
        held, self._held = self._held, ()
        for one in held:
            connection = socket.socket(fileno=one.connection)
            self._expect_ticket(HelperConnection(self, connection, one.pid, one.pidfd, one))
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def resume_link(
        self,
        ticket: str,
        one: LinkRecord,
        observer: Observer,
        preparation: Preparation | None,
        aftermath: Aftermath | None = None,
    ) -> Handle:
        """Resume the connection of a launch and report to `observer` from now on.

        Raises ProtocolError for an inconsistent record."""
        connection = None if one.connection < 0 else socket.socket(fileno=one.connection)
        self._links[ticket] = link = HelperConnection(self, connection, one.pid, one.pidfd, one)
        link.resume(ticket, observer, preparation, one.preparing, aftermath if one.stays else None)
        return Handle(self, ticket)

    def close(self) -> None:
        """Stop listening and drop every connection: running commands lose their network."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = None
        for link in [*self._links.values(), *self._strangers]:
            link.close()
        self._stop_timers()
        for one in self._held:
            os.close(one.connection)
            os.close(one.pidfd)
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def expect(self, ticket: str, expected: ExpectedLaunch) -> Handle:
        self._expected[ticket] = expected
        return Handle(self, ticket)

    def forget(self, ticket: str) -> None:
        self._expected.pop(ticket, None)

    def link(self, ticket: str) -> HelperConnection | None:
        return self._links.get(ticket)

    def is_disconnected(self, ticket: str) -> bool:
        """Return whether the helper has hung up and its end is not yet reported."""
        link = self._links.get(ticket)
        return link is not None and link.is_disconnected

    def _accept(self) -> None:
        assert self._socket is not None
        while True:
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors: the peer waits in the backlog until some are free
                self.log("bridge_accept_failed", error=error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket.fileno())
                loop.call_later(0.1, self._accept_again)
                return
            connection.setblocking(False)
            try:
                peer = self._identify(connection)
                pidfd = os.pidfd_open(peer.pid)
            except (DaemonError, OSError) as error:
                self.log("bridge_peer_refused", error=str(error))
                connection.close()
                self.orphans.ask()  # it may have been killed
                continue
            link = HelperConnection(self, connection, peer.pid, pidfd)
            self._expect_ticket(link)
            link.readable()

    def _expect_ticket(self, link: HelperConnection) -> None:
        self._strangers[link] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICKET_WITHIN_S, self._end_late)

    def _end_late(self) -> None:
        """End strangers that were there the last time as well."""
        self._timer = None
        for link in self._late:
            if link in self._strangers:
                self._end_stranger(link)
        self._late = tuple(self._strangers)
        if self._late:
            self._timer = asyncio.get_running_loop().call_later(_TICKET_WITHIN_S, self._end_late)

    def _end_stranger(self, link: HelperConnection) -> None:
        self.log("bridge_stranger_ended")
        link.close()
        self.orphans.ask()

    def _stop_timers(self) -> None:
        self.orphans.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _accept_again(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)
            self._accept()

    def claim(self, link: HelperConnection, ticket: str) -> ExpectedLaunch | None:
        expected = self._expected.pop(ticket, None)
        if expected is not None:
            self._strangers.pop(link, None)
            self._links[ticket] = link
        else:
            refused = [one for one in self._strangers if one.is_disconnected]
            for one in refused[: max(0, len(refused) + 1 - _MOST_REFUSED)]:
                self._end_stranger(one)
        return expected

    def lost(self, link: HelperConnection) -> None:
        self._strangers.pop(link, None)
        if link.ticket is not None and self._links.get(link.ticket) is link:
            del self._links[link.ticket]
