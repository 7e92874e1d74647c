"""Connections through a parent proxy: HTTP CONNECT, SOCKS5, or plain URLs.

A failure at the proxy ends the connection; this module never dials the target itself. Errors name the proxy without its
credentials, and repeat nothing of its answer except a status number."""

from __future__ import annotations

import asyncio
import base64
import re
import socket
from typing import Final

from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.policy.hosts.parent_proxies import ParentProxy, Protocol
from sandboxd.proxy.dial import Dialer, DialError, Resolver
from sandboxd.proxy.http.http1 import HttpSyntaxError, ResponseReader, render_request
from sandboxd.proxy.limits import DEFAULT, ProxyLimits
from sandboxd.proxy.streams.stream import READ_SIZE
from sandboxd_client.records import dataclass

_HEAD_END: Final = re.compile(rb"\n\r?\n")
_CREDENTIALS_HINT: Final = "set user and password in parentProxy or the proxy variables of the daemon"
_NOT_AROUND: Final = "start or repair that proxy, or correct the setting; connections never bypass it"
_NOT_ALLOWED: Final = "ask the administrator of that proxy to allow this host; the sandbox allows it"
_SOCKS_FAULTS: Final = {
    1: "failed",
    2: "refused it by its rules",
    3: "finds the network unreachable",
    4: "finds the host unreachable",
    5: "found the connection refused",
    6: "got no answer in time",
    7: "does not serve CONNECT",
    8: "does not take this kind of address",
}


@dataclass(frozen=True, slots=True)
class ParentDialer:
    """Dialer through parent proxies.

    Slugs of its DialError: `upstream_unusable`, `upstream_unreachable`, `upstream_auth`, `upstream_refused`,
    `upstream_bad_answer`, `upstream_timeout`."""

    dialer: Dialer
    resolver: Resolver
    limits: ProxyLimits = DEFAULT

    async def open(self, parent: ParentProxy, host: Host, port: int, *, forward: bool = False) -> socket.socket:
        """Return a connected socket that leads to `host`. Raises DialError.

        With `forward` it leads to the proxy itself, which gets the whole URL."""
        if parent.host is None:
            raise DialError("upstream_unusable", parent.fault, hint=f"correct {parent.place}, or remove it")
        sock = await self._connect(parent, parent.host)
        if forward:
            return sock
        try:
            async with asyncio.timeout(self.limits.parent_s):
                if parent.protocol is Protocol.HTTP:
                    await _connect_by_http(sock, parent, host, port)
                else:
                    await connect_by_socks(sock, parent, host, port)
        except TimeoutError:
            sock.close()
            raise DialError(
                "upstream_timeout",
                f"{_name(parent)} did not connect to {host.authority(port)} in time",
                hint=_NOT_AROUND,
            ) from None
        except OSError as error:
            sock.close()
            raise _broken(parent) from error
        except BaseException:
            sock.close()
            raise
        return sock

    async def _connect(self, parent: ParentProxy, host: Host) -> socket.socket:
        try:
            known = (host.address,) if host.address is not None else None
            addresses = known or await self.resolver.resolve(host.name)
            sock, _ = await self.dialer.dial(addresses, parent.port, host.name)
        except DialError as error:
            if error.slug == "out_of_descriptors":
                raise
            raise DialError(
                "upstream_unreachable",
                f"{_name(parent)} cannot be reached: {error.message}",
                hint=_NOT_AROUND,
            ) from error
        return sock


def proxy_authorization(parent: ParentProxy) -> tuple[bytes, bytes] | None:
    """Return the login header for an HTTP proxy (RFC 7617)."""
    if parent.user is None:
        return None
    pair = f"{parent.user}:{parent.password}".encode()
    return b"Proxy-Authorization", b"Basic " + base64.b64encode(pair)


def login_refused(parent: ParentProxy) -> DialError:
    """Return the error for a 407, which the client must not see as the daemon's."""
    wrong = "requires a user and a password" if parent.user is None else "rejected the configured user and password"
    return DialError("upstream_auth", f"{_name(parent)} {wrong}", hint=_CREDENTIALS_HINT)


async def _connect_by_http(sock: socket.socket, parent: ParentProxy, host: Host, port: int) -> None:
    loop = asyncio.get_running_loop()
    target = host.authority(port).encode("ascii")
    login = proxy_authorization(parent)
    headers = [(b"Host", target), *([login] if login else [])]
    await loop.sock_sendall(sock, render_request("CONNECT", target, headers))
    status = 100
    try:
        while status < 200:
            status = await _read_status(sock)
    except HttpSyntaxError as error:
        raise DialError(
            "upstream_bad_answer", f"{_name(parent)} does not answer as an HTTP proxy does", hint=_NOT_AROUND
        ) from error
    if status == 407:
        raise login_refused(parent)
    if not 200 <= status < 300:
        raise DialError(
            "upstream_refused",
            f"{_name(parent)} did not connect to {host.authority(port)}: status {status}",
            hint=_NOT_ALLOWED,
        )


async def _read_status(sock: socket.socket) -> int:
    """Read exactly one head, not the tunnel's bytes. Raises HttpSyntaxError, OSError."""
    reader = ResponseReader()
    seen = b""
    while True:
        await _readable(sock)
        seen = seen[-2:]
        try:
            offered = seen + sock.recv(READ_SIZE, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        end = _HEAD_END.search(offered)
        data = sock.recv((len(offered) if end is None else end.end()) - len(seen))
        if not data:
            raise ConnectionResetError("the proxy hung up")
        seen += data
        head = reader.receive_response(data)
        if head is not None:
            return head.status


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    number = sock.fileno()
    loop.add_reader(number, lambda: None if future.done() else future.set_result(None))
    try:
        await future
    finally:
        loop.remove_reader(number)


async def connect_by_socks(sock: socket.socket, parent: ParentProxy, host: Host, port: int) -> None:
    """Perform the client's side of SOCKS5 (RFC 1928). Raises DialError, OSError."""
    loop = asyncio.get_running_loop()
    methods = b"\x00" if parent.user is None else b"\x02\x00"
    await loop.sock_sendall(sock, bytes((5, len(methods))) + methods)
    version, method = await _exactly(sock, 2)
    if version != 5:
        raise _not_socks(parent)
    if method == 2 and parent.user is not None:
        user, password = parent.user.encode(), parent.password.encode()
        await loop.sock_sendall(sock, bytes((1, len(user))) + user + bytes((len(password),)) + password)
        if (await _exactly(sock, 2))[1] != 0:
            raise login_refused(parent)
    elif method != 0:
        raise login_refused(parent)
    await loop.sock_sendall(sock, b"\x05\x01\x00" + _socks_address(host) + port.to_bytes(2, "big"))
    version, reply, _, kind = await _exactly(sock, 4)
    if version != 5:
        raise _not_socks(parent)
    if reply != 0:
        raise DialError(
            "upstream_refused",
            f"{_name(parent)} did not connect to {host.authority(port)}: it {_SOCKS_FAULTS.get(reply, 'failed')}",
            hint=_NOT_ALLOWED,
        )
    lengths = {1: 4, 4: 16}
    if kind == 3:
        lengths[3] = (await _exactly(sock, 1))[0]
    if kind not in lengths:
        raise _not_socks(parent)
    await _exactly(sock, lengths[kind] + 2)


def _socks_address(host: Host) -> bytes:
    if host.address is None:
        name = host.name.encode("ascii")
        return bytes((3, len(name))) + name
    return (b"\x01" if host.address.version == 4 else b"\x04") + host.address.packed


async def _exactly(sock: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < count:
        piece = await loop.sock_recv(sock, count - len(data))
        if not piece:
            raise ConnectionResetError("the proxy hung up")
        data += piece
    return data


def _name(parent: ParentProxy) -> str:
    return f"the parent proxy {parent} ({parent.place})" if parent.place else f"the parent proxy {parent}"


def _not_socks(parent: ParentProxy) -> DialError:
    return DialError("upstream_bad_answer", f"{_name(parent)} does not answer as a SOCKS5 proxy does", hint=_NOT_AROUND)


def _broken(parent: ParentProxy) -> DialError:
    return DialError("upstream_refused", f"{_name(parent)} closed the connection without an answer", hint=_NOT_AROUND)
