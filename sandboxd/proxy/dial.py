"""Name resolution and outgoing connections of the proxies.

No other module of the proxies connects outward. The gate resolves once, checks every answer and passes the surviving
addresses to the dialer. The dialer never sees a name, so the addresses it dials are the checked ones."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from itertools import islice
from typing import Final, Protocol

from sandboxd.errors import CallerError, HostError
from sandboxd.policy.hosts.host_patterns import Host, HostSyntaxError, IPAddress, parse_host
from sandboxd.proxy.limits import DEFAULT, ProxyLimits
from sandboxd.proxy.streams.stream import hurry, keep_alive, reset, send_at_once
from sandboxd_client.records import dataclass

MOST_ANSWERS: Final = 16
MOST_RESOLVED: Final = 64
"""Addresses of a name that are looked at. An answer over TCP holds thousands, each of which costs a decision."""
ATTEMPT_DELAY_S: Final = 0.25
"""The time one attempt may delay the next address (RFC 8305, section 5)."""
ATTEMPTS_AT_ONCE: Final = 4
"""Beyond it the oldest attempt ends, so that a hostile name server cannot cost sixteen descriptors a connection."""


class DialError(HostError):
    """A connection failed for a reason other than policy.

    Slugs: `dns_failed`, `dns_timeout`, `unreachable`, `connection_refused`, `connect_timeout`, `connection_lost`,
    `out_of_descriptors`, `connect_failed`."""


class Resolver(Protocol):
    async def resolve(self, host: str) -> Sequence[IPAddress]:
        """Return the addresses of a canonical name, best first. Raises DialError."""
        ...


Connector = Callable[[IPAddress, int], Awaitable[socket.socket]]
"""Returns a connected, non-blocking socket. Raises OSError. Cancelling it leaves nothing open."""


class SystemResolver:
    """getaddrinfo(3), each call in its own thread.

    A look-up cannot be cancelled, and a hanging thread must delay neither the event loop nor the daemon's end.
    `lookups` bounds all threads, `each` those of one share."""

    def __init__(self, limits: ProxyLimits = DEFAULT, *, lookups: int = 64, each: int = 16) -> None:
        self._timeout = limits.resolve_s
        self._slots = asyncio.Semaphore(lookups)
        self._each = each

    def share(self) -> Resolver:
        """Return a resolver for one session, with a bounded part of the threads.

        A cancelled look-up counts until its thread ends. So a name server that never answers blocks its own session
        only."""
        return _Share(self, asyncio.Semaphore(self._each))

    async def resolve(self, host: str, slots_of_share: asyncio.Semaphore | None = None) -> Sequence[IPAddress]:
        taken: list[asyncio.Semaphore] = []
        try:
            async with asyncio.timeout(self._timeout):
                for slots in filter(None, (slots_of_share, self._slots)):
                    await slots.acquire()
                    taken.append(slots)
                look_up = self._look_up(host, tuple(taken))
                taken.clear()  # the thread of the look-up releases them
                found = await look_up
        except TimeoutError:
            raise DialError("dns_timeout", f"cannot resolve {host}: no answer from the name service") from None
        except OSError as error:
            raise DialError("dns_failed", f"cannot resolve {host}: {error.strerror or error}") from error
        finally:
            for slots in taken:
                slots.release()
        return found

    def _look_up(self, host: str, slots: tuple[asyncio.Semaphore, ...]) -> asyncio.Future[Sequence[IPAddress]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[IPAddress]] = loop.create_future()

        def finish(found: Sequence[IPAddress], error: OSError | None) -> None:
            for one in slots:
                one.release()
            if not future.done():
                future.set_result(found) if error is None else future.set_exception(error)

        def work() -> None:
            found: Sequence[IPAddress] = ()
            failure: OSError | None = None
            try:
                found = _getaddrinfo(host)
            except OSError as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(finish, found, failure)

        try:
            threading.Thread(target=work, name=f"resolve {host}", daemon=True).start()
        except RuntimeError as error:
            finish((), OSError(errno.EAGAIN, str(error)))
        return future


@dataclass(frozen=True, slots=True)
class _Share:
    whole: SystemResolver
    slots: asyncio.Semaphore

    async def resolve(self, host: str) -> Sequence[IPAddress]:
        return await self.whole.resolve(host, self.slots)


def _getaddrinfo(host: str) -> Sequence[IPAddress]:
    """Resolve the name as bytes, so that Python's IDNA codec is not involved."""
    answers = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    return tuple(map(ip_address, islice(dict.fromkeys(str(answer[4][0]) for answer in answers), MOST_RESOLVED)))


class PinnedResolver:
    """Resolver of the names pinned with `--resolve NAME=ADDR`.

    `fallback` resolves all others. A pinned name is exempt from the address guard: pass `pins` to the gate as well."""

    def __init__(self, pins: Mapping[str, Sequence[str]], fallback: Resolver) -> None:
        """Check names and addresses. Raises CallerError (`resolve_invalid`)."""
        self.pins: dict[str, tuple[IPAddress, ...]] = {}
        self._fallback = fallback
        for name, texts in pins.items():
            try:
                host = parse_host(name)
                addresses = tuple(ip_address(text.strip("[]")) for text in texts)
            except (HostSyntaxError, ValueError) as error:
                raise CallerError(
                    "resolve_invalid", f"cannot pin {name!a}: {error}", hint="use --resolve NAME=ADDRESS"
                ) from error
            if host.address is not None or not addresses:
                reason = "no address given" if host.address is None else "it is an address, not a name"
                raise CallerError(
                    "resolve_invalid", f"cannot pin {name!a}: {reason}", hint="use --resolve NAME=ADDRESS"
                )
            self.pins[host.name] = addresses

    def share(self) -> PinnedResolver:
        """Return a copy for one session."""
        shared = copy.copy(self)
        if isinstance(self._fallback, SystemResolver):
            shared._fallback = self._fallback.share()
        return shared

    async def resolve(self, host: str) -> Sequence[IPAddress]:
        pinned = self.pins.get(host)
        return pinned if pinned is not None else await self._fallback.resolve(host)


async def connect_socket(address: IPAddress, port: int) -> socket.socket:
    """The default Connector."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        send_at_once(sock)
        if address.is_loopback:
            hurry(sock)
        else:
            keep_alive(sock)
        target = str(address), port
        code = sock.connect_ex(target)
        if code == errno.EINPROGRESS and address.is_loopback:
            code = sock.connect_ex(target)  # the other end is in this kernel, and has mostly answered by now
        if code in (errno.EINPROGRESS, errno.EALREADY):
            await _connected(sock)
        elif code not in (0, errno.EISCONN):
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


async def _connected(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def writable() -> None:
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not future.done():
            future.set_exception(OSError(code, "connect")) if code else future.set_result(None)

    number = sock.fileno()  # passing the socket is slow: asyncio formats it for each failed look-up
    loop.add_writer(number, writable)
    try:
        await future
    finally:
        loop.remove_writer(number)


class Dialer:
    """Connects to the first address that answers, as in RFC 8305 (Happy Eyeballs)."""

    def __init__(self, connector: Connector = connect_socket, limits: ProxyLimits = DEFAULT) -> None:
        self._connector = connector
        self._limits = limits

    async def dial(self, addresses: Sequence[IPAddress], port: int, name: str = "") -> tuple[socket.socket, IPAddress]:
        """Return a connected socket and its peer's address. Raises DialError."""
        try:
            async with asyncio.timeout(self._limits.connect_s):
                if len(addresses) == 1:
                    return await self._connector(addresses[0], port), addresses[0]
                return await self._race(interleave(addresses)[:MOST_ANSWERS], port)
        except TimeoutError:
            raise DialError("connect_timeout", f"{_where(name, addresses, port)} did not answer in time") from None
        except OSError as error:
            raise _explain(error, _where(name, addresses, port), addresses) from error

    async def _race(self, addresses: Sequence[IPAddress], port: int) -> tuple[socket.socket, IPAddress]:
        """Return the first connection of staggered attempts. Raises the first OSError."""
        running: dict[asyncio.Task[socket.socket], IPAddress] = {}
        failure: OSError | None = None
        waiting = list(addresses)
        try:
            while waiting or running:
                if waiting:
                    if len(running) >= ATTEMPTS_AT_ONCE:
                        oldest = next(iter(running))
                        await _abandon({oldest: running.pop(oldest)})
                    address = waiting.pop(0)
                    attempt = asyncio.ensure_future(self._connector(address, port))
                    attempt.set_name(f"dial {address}:{port}")
                    running[attempt] = address
                done, _ = await asyncio.wait(
                    running, timeout=ATTEMPT_DELAY_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    error = task.exception()
                    if error is None:
                        return task.result(), running.pop(task)
                    running.pop(task)
                    if not isinstance(error, OSError):
                        raise error
                    failure = failure or error
        finally:
            await _abandon(running)
        raise failure or OSError(errno.EHOSTUNREACH, "no address to dial")


async def _abandon(attempts: Mapping[asyncio.Task[socket.socket], IPAddress]) -> None:
    """Cancel the losing attempts, and close one that connected at the same moment."""
    for task in attempts:
        task.cancel()
    for outcome in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(outcome, socket.socket):
            reset(outcome)


def interleave(addresses: Sequence[IPAddress]) -> list[IPAddress]:
    """Return the addresses with alternating families (RFC 8305, section 4)."""
    if not addresses:
        return []
    first_is_v6 = isinstance(addresses[0], IPv6Address)
    preferred = [address for address in addresses if isinstance(address, IPv6Address) is first_is_v6]
    others = [address for address in addresses if isinstance(address, IPv6Address) is not first_is_v6]
    ordered: list[IPAddress] = []
    for place in range(max(len(preferred), len(others))):
        ordered += preferred[place : place + 1] + others[place : place + 1]
    return ordered


_SLUGS: Final = {
    errno.ECONNREFUSED: ("connection_refused", "refused the connection: no server listens on that port"),
    errno.EHOSTUNREACH: ("unreachable", "is not reachable"),
    errno.ENETUNREACH: ("unreachable", "is not reachable: no route to its network"),
    errno.EADDRNOTAVAIL: ("unreachable", "is not reachable: no address to connect from"),
    errno.EAFNOSUPPORT: ("unreachable", "is not reachable: this machine has no support for its address family"),
    errno.EACCES: ("unreachable", "is not reachable: forbidden by this machine"),
    errno.EPERM: ("unreachable", "is not reachable: forbidden by this machine's firewall"),
    errno.ETIMEDOUT: ("connect_timeout", "did not answer in time"),
    errno.ECONNRESET: ("connection_lost", "closed the connection at once"),
    errno.EMFILE: ("out_of_descriptors", "could not be dialled: the daemon is out of file descriptors"),
    errno.ENFILE: ("out_of_descriptors", "could not be dialled: the machine is out of file descriptors"),
}


LOCAL_NETWORK: Final = (
    "macOS answers so where programs may not use the local network: allow the daemon's Python in System Settings > "
    "Privacy & Security > Local Network"
)


def _explain(
    error: OSError, where: str, addresses: Sequence[IPAddress] = (), platform: str = sys.platform
) -> DialError:
    hint = ""
    if platform == "darwin" and error.errno == errno.EHOSTUNREACH and any(one.is_private for one in addresses):
        hint = LOCAL_NETWORK
    slug, text = _SLUGS.get(error.errno or 0, ("connect_failed", f"could not be dialled: {error.strerror or error}"))
    return DialError(slug, f"{where} {text}", hint=hint)


def _where(name: str, addresses: Sequence[IPAddress], port: int) -> str:
    targets = [Host.of_address(address) for address in addresses]
    if name and name != (targets[0].name if targets else ""):
        shown = ", ".join(target.name for target in targets[:3]) + (", ..." if len(targets) > 3 else "")
        return f"{name}:{port} ({shown})"
    return targets[0].authority(port) if targets else f"port {port}"
