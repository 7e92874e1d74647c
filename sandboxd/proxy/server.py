"""The proxies of one command.

It accepts and serves connections on the listening sockets that the sandbox handed over. A listener belongs to one
command, so each of its connections does too. The sockets may live in another network namespace, which accept() allows.
Each connection is a named task owned here; a fault ends only its own connection."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from itertools import count

from sandboxd.handover.record import Descriptor
from sandboxd.proxy.acceptor import Acceptor, ProxyListenerRecord, Serve
from sandboxd.proxy.credentials.injector import Injector, SessionSecrets
from sandboxd.proxy.dial import Dialer
from sandboxd.proxy.dns.dns_answers import DnsAnswers
from sandboxd.proxy.dns.dns_server import DatagramServer, serve_dns
from sandboxd.proxy.dns.synthetic_names import NameTable
from sandboxd.proxy.fair_share import CONNECTION, Share, Turns
from sandboxd.proxy.gate import Gate
from sandboxd.proxy.http.credentials import Check
from sandboxd.proxy.http.http_server import serve_http
from sandboxd.proxy.http.request_tunnel import RequestTunnels
from sandboxd.proxy.limits import DEFAULT, ProxyLimits, SessionRoom
from sandboxd.proxy.outbound import Outbound, Report, ignore
from sandboxd.proxy.sandbox_servers import SandboxServers, ServerNetwork
from sandboxd.proxy.socks.socks_server import serve_socks
from sandboxd.proxy.streams.connection import Closed, Opened
from sandboxd.proxy.streams.stream import Stream, reset
from sandboxd.proxy.streams.tunnel import TunnelRecord
from sandboxd.proxy.tls.authority import Authority
from sandboxd.proxy.transparent.captured_connections import Captures, Elsewhere
from sandboxd.proxy.upstream.parent_dialer import ParentDialer
from sandboxd.proxy.upstream.user_proxy import ServeUser, UserPort, serve_user_http, serve_user_socks
from sandboxd_client.records import dataclass

ServeChecked = Callable[[Stream, Outbound, ProxyLimits, Check | None], Awaitable[None]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A resumable connection: its current request has had no effect yet.

    `data` is everything read of the request, `sent` the bytes sent of the dialogue that leads up to it, `ahead` the
    bytes sent of the answer."""

    protocol: str
    socket: Descriptor
    data: bytes = b""
    sent: int = 0
    ahead: bytes = b""


@dataclass(frozen=True, slots=True)
class ProxyRecord:
    """The proxies of one command in the hand-over document.

    `all_names` have synthetic addresses, in order, one a line: as one text they are fast to write for each crash entry.
    `names` are those of version 1. `families` as in `DnsAnswers`."""

    listeners: tuple[ProxyListenerRecord, ...] = ()
    datagrams: tuple[Descriptor, ...] = ()
    families: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    requests: tuple[RequestRecord, ...] = ()
    tunnels: tuple[TunnelRecord, ...] = ()
    all_names: str = ""


class ProxyServer:
    """The proxies of one command.

    `gate` decides, `dialer` connects, `parents` through parent proxies. `report` receives each refused request once,
    `opened` each established connection, `closed` its end. `label` names the command in task names and logs. `room` is
    shared with the session's other commands. `user_http` and `user_socks` return the port of a user proxy that serves a
    listener instead. `authority` returns the certificate authority that the command trusts, if any. `vault` has
    the values of credentials."""

    def __init__(
        self,
        gate: Gate,
        dialer: Dialer,
        report: Report,
        label: str = "",
        *,
        limits: ProxyLimits = DEFAULT,
        room: SessionRoom | None = None,
        parents: ParentDialer | None = None,
        user_http: UserPort = lambda: None,
        user_socks: UserPort = lambda: None,
        opened: Opened = ignore,
        closed: Closed = ignore,
        authority: Callable[[], Authority | None] = lambda: None,
        vault: SessionSecrets | None = None,
    ) -> None:
        self._gate = gate
        self._report = report
        self.names = NameTable()
        """The names with synthetic addresses."""
        self._outbound = Outbound(gate, dialer, report, parents, opened, closed, self.names)
        self._outbound.request_tunnels = RequestTunnels(self._outbound, limits, authority).serve
        if vault is not None:
            self._outbound.injector = Injector(gate.network, vault, self._outbound.report)
        self._limits = limits
        self._room = room
        self.turns = Turns() if room is None else room.turns
        self.share = Share(self.turns)
        """The processor share of all connections of the command."""
        self._user_http, self._user_socks = user_http, user_socks
        self._label = label
        self._protocols: dict[str, Serve] = {}
        self._tasks: dict[asyncio.Task[None], tuple[Stream | None, str]] = {}
        self._acceptors: list[Acceptor] = []
        self._datagrams: list[DatagramServer] = []
        self._captures: Captures | None = None
        self.elsewhere: Elsewhere | None = None
        """Connects to servers of the session's other commands; set before connections are accepted."""
        self._families: tuple[int, ...] = ()
        self._serial = count(1)

    def serve(
        self,
        http_listener: socket.socket | None,
        socks_listener: socket.socket | None,
        check: Check | None = None,
    ) -> None:
        """Start accepting, and return at once. Takes over the bound, listening sockets.

        With `check` every client has to send a user name and password that it accepts."""
        self._protocols = self._serving(check)
        for listener, protocol in ((http_listener, "http"), (socks_listener, "socks")):
            if listener is not None:
                self._acceptors.append(Acceptor(self, listener, protocol, self._protocols[protocol]))

    def _serving(self, check: Check | None) -> dict[str, Serve]:
        return {
            "http": self._or_user(serve_http, self._user_http, serve_user_http, check),
            "socks": self._or_user(serve_socks, self._user_socks, serve_user_socks, check),
        }

    def reach(self, inside: ServerNetwork, machine_name: Callable[[], str] = str) -> None:
        """Route requests for servers inside the sandbox to them."""
        self._outbound.inside = SandboxServers(
            inside, machine_name=machine_name, is_local_port=self._gate.is_local_port, never=self._own_ports()
        )

    def _own_ports(self) -> frozenset[int]:
        return frozenset(acceptor.port for acceptor in self._acceptors)

    def capture(self, listeners: Sequence[socket.socket], inside: ServerNetwork | None = None) -> None:
        """Accept captured connections on these listeners, and take them over."""
        self._captures = Captures(
            self._outbound, self.names, self._limits, inside, self._own_ports, self._gate.is_local_port, self.elsewhere
        )
        self._protocols["captured"] = self._captures.serve
        for listener in listeners:
            self._acceptors.append(Acceptor(self, listener, "captured", self._captures.serve))

    def connecting(self, address: str, port: int, answer: Callable[[int], None]) -> None:
        """Decide a connect() that waits (`transparent/captured_connections.py`)."""
        if self._captures is None:
            answer(0)
            return
        if self.is_full or self.share.waiting >= 2 * self._limits.connections:
            answer(errno.EAGAIN)  # as connect(2) fails for lack of resources
            return
        start = partial(self._start_connecting, self._captures, address, port, answer)
        if self.share.has_some():
            start()
        else:
            self.share.later(start)

    def _start_connecting(self, captures: Captures, address: str, port: int, answer: Callable[[int], None]) -> None:
        self.share.spend(CONNECTION)
        self._start(captures.connecting(address, port, answer), "connect")

    def serve_names(
        self,
        datagrams: Sequence[socket.socket],
        listeners: Sequence[socket.socket],
        *,
        machine_name: Callable[[], str] = str,
        families: Collection[int] = (4, 6),
    ) -> None:
        """Answer DNS on these UDP and TCP sockets, and take them over."""
        self._families = tuple(sorted(families))
        answers = DnsAnswers(self._gate, self.names, self._report, machine_name=machine_name, families=families)

        async def serve(client: Stream, outbound: Outbound, limits: ProxyLimits) -> None:
            await serve_dns(client, limits, answers.respond)

        self._protocols["dns"] = serve

        for sock in datagrams:
            self._datagrams.append(DatagramServer(sock, answers.respond, self._label, self.share))
        for listener in listeners:
            self._acceptors.append(Acceptor(self, listener, "dns", serve))

    @staticmethod
    def _or_user(serve_self: ServeChecked, user: UserPort, serve_user: ServeUser, check: Check | None) -> Serve:
        """Choose between the daemon's proxy and a user proxy for each connection anew."""

        def serve(client: Stream, outbound: Outbound, limits: ProxyLimits) -> Awaitable[None]:
            port = user()
            if port is not None:
                return serve_user(client, port, limits, check)
            return serve_self(client, outbound, limits, check)

        return serve

    @property
    def connections(self) -> int:
        """Return the number of open client connections."""
        return len(self._tasks)

    def targets(self) -> list[str]:
        """Return `HOST:PORT` of every open connection to the outside."""
        return self._outbound.targets()

    def recheck(self) -> int:
        """Cut every connection that the policy denies by now; return their number."""
        return self._outbound.recheck()

    async def aclose(self) -> None:
        """End everything at once: stop accepting, reset every connection."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        for datagrams in self._datagrams:
            datagrams.close()
        self._datagrams.clear()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._outbound.idle.close()

    # hand-over (docs/restarts.md)

    def pause(self) -> None:
        """Stop accepting. New clients wait in the backlog."""
        for acceptor in self._acceptors:
            acceptor.close(keep_listening=True)

    @property
    def is_busy(self) -> bool:
        """Return whether a connection is in a state that cannot be handed over."""
        clients = (client for client, _ in self._tasks.values() if client is not None)
        return any(
            not (client in self._outbound.tunnels or client.is_resumable or client.is_between_requests)
            for client in clients
        )

    @property
    def kept(self) -> ProxyRecord:
        """The listeners and synthetic names, for the crash store. Releases nothing."""
        self._forget_failed()
        return ProxyRecord(
            tuple(acceptor.record for acceptor in self._acceptors),
            tuple(Descriptor(one.fileno()) for one in self._datagrams),
            self._families,
            all_names="\n".join(self.names.names),
        )

    async def shed(self, most: int) -> int:
        """Reset the newest connections, so that they have at most so many descriptors; return their number."""
        ending = [task for place, task in enumerate(self._tasks) if 2 * (place + 1) > most]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        self._outbound.idle.drop_unless(lambda connection: False)
        return len(ending)

    async def hand_over(self) -> tuple[ProxyRecord, int]:
        """Release everything; return the record and the number of reset connections."""
        self.pause()
        self._forget_failed()
        listeners = tuple(acceptor.hand_over() for acceptor in self._acceptors)
        self._acceptors.clear()
        datagrams = tuple(Descriptor(one.hand_over()) for one in self._datagrams)
        self._datagrams.clear()
        connections = dict(self._tasks)
        tunnels = {}
        for task, (client, _) in connections.items():
            if client is None:  # a waiting connect() goes on, and arrives as a connection
                task.cancel()
                continue
            client.keep()
            if (tunnel := self._outbound.tunnels.hand_over(client)) is not None:
                tunnels[task] = tunnel
            task.cancel()
        if connections:
            await asyncio.wait(connections)
        self._outbound.idle.close()
        requests = []
        cut = 0
        for task, (client, protocol) in connections.items():
            if client is None or task in tunnels or client.is_closed:  # it has just ended
                continue
            if client.is_resumable:
                descriptor, data, sent, ahead = client.hand_over()
                requests.append(RequestRecord(protocol, Descriptor(descriptor), data, sent, ahead))
            else:
                reset(client.socket)
                cut += 1
        names = "\n".join(self.names.names)
        return (
            ProxyRecord(listeners, datagrams, self._families, (), tuple(requests), tuple(tunnels.values()), names),
            cut,
        )

    def _forget_failed(self) -> None:
        self._acceptors = [acceptor for acceptor in self._acceptors if not acceptor.has_failed]
        self._datagrams = [datagrams for datagrams in self._datagrams if not datagrams.has_failed]

    def resume(
        self, record: ProxyRecord, *, machine_name: Callable[[], str] = str, inside: ServerNetwork | None = None
    ) -> None:
        """Resume the proxies of another process; close sockets of unknown protocols."""
        self._protocols = self._serving(None)
        if any(one.protocol == "captured" for one in record.listeners):
            self.capture((), inside)
        self.names.resume(record.names or record.all_names.split())
        datagrams = [socket.socket(fileno=number) for number in record.datagrams]
        self.serve_names(datagrams, (), machine_name=machine_name, families=record.families)
        connections: tuple[TunnelRecord | RequestRecord, ...] = (*record.tunnels, *record.requests)
        for connection in connections:
            try:
                self._resume_connection(connection)
            except Exception:  # a fault in one connection must not end the command and its session
                log.exception("cannot resume a connection of %s", self._label)
        for one in sorted(record.listeners, key=lambda one: one.protocol == "dns"):
            if inside is not None and self._outbound.inside is None and one.protocol == "dns":
                self.reach(inside, machine_name)
            listener = socket.socket(fileno=one.socket)
            if one.protocol in self._protocols:
                self._acceptors.append(Acceptor(self, listener, one.protocol, self._protocols[one.protocol]))
            else:
                listener.close()
        if inside is not None and self._outbound.inside is None:
            self.reach(inside, machine_name)

    def _resume_connection(self, record: TunnelRecord | RequestRecord) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(record, TunnelRecord):
            client = _stream(record.client, loop, self.share)
            self._serve(client, "tunnel", partial(self._outbound.tunnels.resume, client, record))
            return
        client = _stream(record.socket, loop, self.share)
        client.resumed(record.data, record.sent, record.ahead)
        serve = self._protocols.get(record.protocol)
        if serve is None:
            client.reset()
        else:
            self._serve(client, record.protocol, partial(serve, client, self._outbound, self._limits))

    # for the acceptors

    @property
    def is_full(self) -> bool:
        return len(self._tasks) >= self._limits.connections or self.is_crowded_out

    @property
    def is_crowded_out(self) -> bool:
        """Return whether the other commands leave no room, without a later notice."""
        return self._room is not None and not self._room.has_some(len(self._tasks))

    @property
    def retry_s(self) -> float:
        return self._limits.accept_retry_s

    def accepted(self, sock: socket.socket, protocol: str, serve: Serve) -> None:
        client = Stream(sock, asyncio.get_running_loop(), self.share)
        self._serve(client, protocol, partial(serve, client, self._outbound, self._limits))

    def _serve(self, client: Stream, protocol: str, work: Callable[[], Awaitable[None]]) -> None:
        client.begin()  # until its first step
        name = f"{protocol} {self._label} {next(self._serial)}"
        task = asyncio.get_running_loop().create_task(self._run(client, work, name), name=name)
        self._note(task, client, protocol)
        task.add_done_callback(lambda ended: self._ended(ended, client))

    def _note(self, task: asyncio.Task[None], client: Stream | None, what: str) -> None:
        self._tasks[task] = client, what
        if self._room is not None:
            self._room.count(1)

    def _start(self, work: Coroutine[object, object, None], what: str) -> None:
        name = f"{what} {self._label} {next(self._serial)}"
        task = asyncio.get_running_loop().create_task(self._guarded(work, name), name=name)
        self._note(task, None, what)
        task.add_done_callback(self._has_ended)

    async def _guarded(self, work: Coroutine[object, object, None], name: str) -> None:
        try:
            await work
        except Exception:
            log.exception("internal error in %s", name)

    async def _run(self, client: Stream, work: Callable[[], Awaitable[None]], name: str) -> None:
        try:
            client.commit()
            await work()
        except Exception:
            log.exception("internal error in proxy connection %s", name)

    def _ended(self, task: asyncio.Task[None], client: Stream) -> None:
        client.close()  # for a task that was cancelled before its first step
        self._has_ended(task)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if self._tasks.pop(task, None) is not None and self._room is not None:
            self._room.count(-1)
        for acceptor in self._acceptors:
            acceptor.resume()


def _stream(descriptor: int, loop: asyncio.AbstractEventLoop, share: Share) -> Stream:
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return Stream(sock, loop, share)
