"""Rules for single requests at the proxies: plain requests, and those inside tunnels, with TLS and without."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host, HostPattern
from sandboxd.policy.hosts.request_rules import HttpRequest, parse_operations
from sandboxd.policy.model import NetworkPolicy, RequestRule
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.tls.authority import Authority
from support.greetings import client_hello
from support.proxies import SETTINGS, Proxies, Wire, finish, rules, running_proxies, scripted_origin
from support.waiting import wait_until_async

TLS = Path(__file__).with_name("tls")
END = b"\r\n\r\n"
CLOSE = "Connection: close\r\n"


def rule(action: str, *paths: str, host: str = "ok.test", methods: tuple[str, ...] = ()) -> RequestRule:
    operations = parse_operations(methods)
    return RequestRule(HostPattern.parse(host), Behavior(action), SETTINGS, f"{action} {host}", operations, paths)


READ_ME = (rule("allow", "/me/**", methods=("read",)), rule("allow", "/me/up", methods=("POST",)))


class Served:
    """Request lines and bodies that an origin got."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.bodies: list[bytes] = []
        self.hosts: list[str] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = (await reader.readuntil(END)).decode("latin-1")
            except asyncio.IncompleteReadError:
                return
            first, *lines = head.split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines if line)
            self.lines.append(first)
            self.hosts.append(headers["Host"])
            if "Upgrade" in headers:
                writer.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
                while data := await reader.read(1000):
                    writer.write(data[::-1])
                return
            self.bodies.append(await reader.readexactly(int(headers.get("Content-Length", 0))))
            path = first.split(" ")[1]
            body = path.encode() * (100_000 if path.endswith("big") else 1)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()


@contextlib.asynccontextmanager
async def tls_origin(
    served: Served,
    certificate: Path = TLS / "server.pem",
    protocols: tuple[str, ...] = (),
    listener: socket.socket | None = None,
) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(protocols)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(OSError):
            await served.talk(reader, writer)
        await finish(writer)

    listener = listener or socket.create_server(("127.0.0.1", 0))
    server = await asyncio.start_server(serve, sock=listener, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for task in tasks:
            task.cancel()


def ends_tls(*requests: RequestRule, hosts: str = "ok.test", exclude: tuple[str, ...] = ()) -> NetworkPolicy:
    return NetworkPolicy(requests=requests, tls_terminate=rules(hosts), tls_exclude=rules(*exclude))


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch) -> Authority:
    """The daemon's own trust, which is that of the machine, has the certificate authority of these tests."""
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    return Authority([HostPattern.parse("ok.test")])


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.certificate)


Enter = Callable[[Proxies, int], "asyncio.Future[Wire]"]


async def by_connect(proxies: Proxies, port: int) -> Wire:
    return await proxies.tunnel(f"ok.test:{port}")


async def by_socks(proxies: Proxies, port: int) -> Wire:
    return await proxies.socks_tunnel(b"ok.test", port)


async def request(wire: Wire, line: str, *headers: str, body: bytes = b"", host: str = "") -> tuple[bytes, bytes]:
    """Return head and body of the answer."""
    reader, writer = wire
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    extra = "".join(f"{one}\r\n" for one in headers)
    writer.write(f"{line} HTTP/1.1\r\nHost: {host}\r\n{length}{extra}\r\n".encode() + body)
    head = await reader.readuntil(END)
    size = next((int(one[15:]) for one in head.split(b"\r\n") if one.lower().startswith(b"content-length:")), 0)
    return head, await reader.readexactly(size)


async def test_plain_requests_to_the_proxy() -> None:
    served = Served()
    network = NetworkPolicy(requests=READ_ME)
    async with scripted_origin(served.talk) as origin, running_proxies(network=network) as proxies:
        base = f"http://ok.test:{origin.port}"
        wire = await proxies.http()
        for line, status in {
            f"GET {base}/me/a?key=1": b"200",
            f"GET {base}/you/a?key=1": b"403",
            f"POST {base}/me/up": b"200",
            f"DELETE {base}/me/up": b"403",
            f"GET {base}/me/../you": b"403",
        }.items():
            head, body = await request(wire, line, host="ok.test")
            assert head.split(b" ")[1] == status, (line, head)
            assert status == b"200" or (b"reason=request" in head and b"key=1" not in body)
        assert served.lines == ["GET /me/a?key=1 HTTP/1.1", "POST /me/up HTTP/1.1"]
        assert [one.decision.reason for one in proxies.blocked] == [
            Reason.REQUEST_DENIED, Reason.REQUEST_DENIED, Reason.REQUEST_UNCLEAR
        ]  # fmt: skip
        await finish(wire[1])


@pytest.mark.parametrize("enter", [by_connect, by_socks])
async def test_requests_in_a_tunnel_without_tls(enter: Callable[[Proxies, int], object]) -> None:
    served = Served()
    network = NetworkPolicy(requests=READ_ME)
    async with scripted_origin(served.talk) as origin, running_proxies(network=network) as proxies:
        wire = await enter(proxies, origin.port)  # type: ignore[misc]
        host = f"ok.test:{origin.port}"
        assert (await request(wire, "GET /me/a", host=host))[1] == b"/me/a"
        assert (await request(wire, "GET /you/a", host=host))[0].startswith(b"HTTP/1.1 403 ")
        assert (await request(wire, "POST /me/up", host=host, body=b"x" * 5000))[1] == b"/me/up"
        head, _ = await request(wire, "GET /me/a", host="other.test")
        assert head.startswith(b"HTTP/1.1 421 ") and b"host_mismatch" in head
        assert served.lines == ["GET /me/a HTTP/1.1", "POST /me/up HTTP/1.1"] and served.bodies[1] == b"x" * 5000
        assert set(served.hosts) == {host}
        await finish(wire[1])


@pytest.mark.parametrize(
    "beginning",
    [b"\x16\x03\x01\x00\x05hello", b"SSH-2.0-x\r\n", b"\0\0\0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"get / HTTP/1.1"],
)
async def test_what_cannot_be_seen_never_reaches_the_server(beginning: bytes) -> None:
    received: list[bytes] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())

    network = NetworkPolicy(requests=READ_ME)
    limits = ProxyLimits(linger_s=0.1, head_s=0.5)
    async with scripted_origin(keep) as origin, running_proxies(network=network, limits=limits) as proxies:
        reader, writer = await proxies.tunnel(f"ok.test:{origin.port}")
        writer.write(beginning)
        with contextlib.suppress(ConnectionResetError):
            answer = await reader.read()
            assert answer == b"" or (answer.startswith(b"HTTP/1.1 505 ") and beginning.startswith(b"PRI"))
        assert not b"".join(received)
        assert [one.decision.reason for one in proxies.blocked] == [
            Reason.REQUEST_UNSEEN for _ in range(not beginning.startswith(b"PRI"))
        ]
        await finish(writer)


async def test_https_to_a_host_with_rules_needs_tls_that_ends_here() -> None:
    """The refusal comes before the tunnel, so that every client shows it."""
    async with running_proxies(network=NetworkPolicy(requests=READ_ME)) as proxies:
        answer = await proxies.ask_http(b"CONNECT ok.test:443 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ") and b"reason=requestUnseen" in answer
        assert b"sandboxd settings add sandbox.network.tls.terminate ok.test" in answer


@pytest.mark.parametrize("enter", [by_connect, by_socks])
async def test_requests_inside_tls(authority: Authority, enter: Callable[[Proxies, int], object]) -> None:
    served = Served()
    async with (
        tls_origin(served) as port,
        running_proxies(network=ends_tls(*READ_ME), authority=authority) as proxies,
    ):
        reader, writer = await enter(proxies, port)  # type: ignore[misc]
        await writer.start_tls(trusting(authority), server_hostname="ok.test")
        wire, host = (reader, writer), f"ok.test:{port}"
        assert (await request(wire, "GET /me/a", host=host))[1] == b"/me/a"
        head, body = await request(wire, "GET /you/a?key=1", host=host)
        assert head.startswith(b"HTTP/1.1 403 ") and b"key=1" not in body
        assert (await request(wire, "POST /me/up", host=host, body=b"x" * 300_000))[1] == b"/me/up"
        assert len((await request(wire, "GET /me/big", host=host))[1]) == 700_000
        assert served.lines == ["GET /me/a HTTP/1.1", "POST /me/up HTTP/1.1", "GET /me/big HTTP/1.1"]
        await finish(writer)


async def test_a_websocket_inside_tls(authority: Authority) -> None:
    served = Served()
    async with tls_origin(served) as port, running_proxies(network=ends_tls(*READ_ME), authority=authority) as proxies:
        reader, writer = await by_connect(proxies, port)
        await writer.start_tls(trusting(authority), server_hostname="ok.test")
        upgrade = ("Connection: Upgrade", "Upgrade: websocket")
        head, _ = await request((reader, writer), "GET /me/ws", *upgrade, host=f"ok.test:{port}")
        assert head.startswith(b"HTTP/1.1 101 ")
        writer.write(b"abc")
        assert await reader.readexactly(3) == b"cba"
        await finish(writer)


async def test_tls_of_other_hosts_passes_untouched(authority: Authority) -> None:
    served = Served()
    for network in (ends_tls(hosts="also.test"), ends_tls(hosts="*", exclude=("ok.test",))):
        async with tls_origin(served) as port, running_proxies("ok.test", network=network) as proxies:
            reader, writer = await by_connect(proxies, port)
            await writer.start_tls(ssl.create_default_context(cafile=str(TLS / "ca.pem")), server_hostname="ok.test")
            assert (await request((reader, writer), "GET /x", host="anything"))[1] == b"/x"
            await finish(writer)


async def test_a_server_that_begins_is_not_kept_waiting(authority: Authority) -> None:
    """Mail servers greet first; where no rule needs to see requests, that passes."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        writer.write(await reader.readline())

    async with (
        scripted_origin(greet) as origin,
        running_proxies("ok.test", network=ends_tls(hosts="*"), authority=authority) as proxies,
    ):
        reader, writer = await by_connect(proxies, origin.port)
        assert await reader.readline() == b"220 ready\r\n"
        writer.write(b"QUIT\r\n")
        assert await reader.readline() == b"QUIT\r\n"
        await finish(writer)


async def test_a_server_that_is_not_trusted_is_said() -> None:
    authority = Authority([HostPattern.parse("ok.test")])
    served = Served()
    async with tls_origin(served) as port, running_proxies(network=ends_tls(*READ_ME), authority=authority) as proxies:
        reader, writer = await by_connect(proxies, port)
        await writer.start_tls(trusting(authority), server_hostname="ok.test")
        head, body = await request((reader, writer), "GET /me/a", host=f"ok.test:{port}")
        assert head.startswith(b"HTTP/1.1 502 ") and b"X-Sandboxd-Error: tls_untrusted" in head
        assert b"the certificate of ok.test is not valid" in body and served.lines == []
        await finish(writer)


async def test_client_and_server_shake_hands_at_the_same_time(authority: Authority) -> None:
    """With one protocol to choose from, no client waits for the handshake of the server, but its request does."""
    served = Served()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with running_proxies(network=ends_tls(*READ_ME), authority=authority) as proxies:
            wire = await by_connect(proxies, port)
            await wire[1].start_tls(trusting(authority), server_hostname="ok.test")
            answer = asyncio.create_task(request(wire, "GET /me/a", host=f"ok.test:{port}"))
            async with tls_origin(served, listener=listener):
                assert (await answer)[1] == b"/me/a"
                await finish(wire[1])
            assert served.lines == ["GET /me/a HTTP/1.1"] and not proxies.blocked


async def test_each_client_has_its_own_offer(authority: Authority) -> None:
    """The proxy prepares for the offer of the last client."""
    served, offers = Served(), (("h2", "http/1.1"), (), ("http/1.1",), ("h2",), ("h2", "http/1.1"))
    async with (
        tls_origin(served, protocols=("h2", "http/1.1")) as port,
        running_proxies(network=ends_tls(*READ_ME), authority=authority) as proxies,
    ):
        for offer in offers:
            _, writer = await by_connect(proxies, port)
            context = trusting(authority)
            context.set_alpn_protocols(offer)
            await writer.start_tls(context, server_hostname="ok.test")
            chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
            assert chosen == (offer[0] if offer else None)
            await finish(writer)


async def test_a_client_with_its_own_trust_is_reported(authority: Authority) -> None:
    served = Served()
    async with tls_origin(served) as port, running_proxies(network=ends_tls(*READ_ME), authority=authority) as proxies:
        _, writer = await by_connect(proxies, port)
        with pytest.raises(ssl.SSLCertVerificationError):
            await writer.start_tls(ssl.create_default_context(cafile=str(TLS / "ca.pem")), server_hostname="ok.test")
        await finish(writer)
        await wait_until_async(lambda: bool(proxies.blocked), "the refusal is reported")
        assert proxies.blocked[0].decision.reason is Reason.REQUEST_UNSEEN
        assert "sandbox.network.tls.exclude ok.test" in proxies.blocked[0].decision.hint


@pytest.mark.parametrize("name", ["also.test", "a.ok.test", None])
async def test_a_handshake_for_another_host_is_refused(authority: Authority, name: str | None) -> None:
    """One without a name gets the certificate of the host."""
    served = Served()
    async with tls_origin(served) as port, running_proxies(network=ends_tls(*READ_ME), authority=authority) as proxies:
        reader, writer = await by_connect(proxies, port)
        if name is None:
            context = trusting(authority)
            context.check_hostname = False
            await writer.start_tls(context)
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            await finish(writer)
            return
        writer.write(client_hello(name))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await finish(writer)
        assert proxies.blocked[0].decision.reason is Reason.SERVER_NAME and served.lines == []


async def test_a_question_about_a_request() -> None:
    asked: list[str] = []

    async def ask(host: Host, port: int, request: HttpRequest, decision: Decision) -> Decision:
        asked.append(f"{request.method} {request.path}")
        yes = request.path == "/me/yes"
        return Decision(Behavior.ALLOW if yes else Behavior.DENY, Reason.GRANTED if yes else Reason.PROMPT_DENIED, "")

    served = Served()
    network = NetworkPolicy(requests=(rule("ask", "/me/**"),))
    async with (
        scripted_origin(served.talk) as origin,
        running_proxies(network=network, ask_request=ask) as proxies,
    ):
        wire = await proxies.http()
        for path, status in (("/me/yes", b"200"), ("/me/no", b"403")):
            head, _ = await request(wire, f"GET http://ok.test:{origin.port}{path}?q=1", host="ok.test")
            assert head.split(b" ")[1] == status
        assert asked == ["GET /me/yes", "GET /me/no"] and served.lines == ["GET /me/yes?q=1 HTTP/1.1"]
        proxies.policy = replace(proxies.policy, requests=(rule("deny"), *network.requests))
        assert (await request(wire, f"GET http://ok.test:{origin.port}/me/yes", host="ok.test"))[0].split()[1] == b"403"
        await finish(wire[1])


@pytest.mark.parametrize("protocol", ["h2c", "websocket, h2c", "TLS/1.0"])
async def test_an_upgrade_that_hides_requests_is_refused(protocol: str) -> None:
    served = Served()
    network = NetworkPolicy(requests=READ_ME)
    async with scripted_origin(served.talk) as origin, running_proxies(network=network) as proxies:
        wire = await proxies.http()
        upgrade = ("Connection: Upgrade", f"Upgrade: {protocol}")
        head, _ = await request(wire, f"GET http://ok.test:{origin.port}/me/a", *upgrade, host="ok.test")
        assert head.startswith(b"HTTP/1.1 403 ") and b"reason=requestUnseen" in head and served.lines == []
        await finish(wire[1])


@pytest.mark.parametrize("mode", ["off", "log", "enforce"])
async def test_no_tunnel_of_another_host_leads_to_a_host_with_rules(mode: str) -> None:
    """A server of many names takes the one of the handshake."""
    served = Served()
    network = NetworkPolicy(requests=READ_ME, check_server_name=mode)
    async with tls_origin(served) as port, running_proxies("also.test", network=network) as proxies:
        reader, writer = await proxies.tunnel(f"also.test:{port}")
        writer.write(client_hello("ok.test"))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert proxies.blocked[0].decision.reason is Reason.REQUEST_UNSEEN
        await finish(writer)


async def test_connections_inside_tls_have_bounds(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.proxy.http.request_tunnel.MOST_TLS", 1)
    served = Served()
    async with tls_origin(served) as port, running_proxies(network=ends_tls(*READ_ME), authority=authority) as proxies:
        wires = [await by_connect(proxies, port) for _ in range(2)]
        await wires[0][1].start_tls(trusting(authority), server_hostname="ok.test")
        waiting = asyncio.create_task(wires[1][1].start_tls(trusting(authority), server_hostname="ok.test"))
        wires[0][1].write(b"GET /me/a HTTP/1.1\r\nA: " + b"a" * 5000)
        await wait_until_async(lambda: proxies.server.share.held > 5000, "an unfinished head is counted")
        assert not waiting.done(), "one at a time"
        await finish(wires[0][1])
        await asyncio.wait_for(waiting, 20)
        host = f"ok.test:{port}"
        assert (await request(wires[1], "GET /me/a", host=host))[1] == b"/me/a"
        await finish(wires[1][1])
        await wait_until_async(lambda: proxies.server.share.held == 0)


async def test_requests_in_a_tunnel_are_not_handed_over_as_others() -> None:
    served = Served()
    async with (
        scripted_origin(served.talk) as origin,
        running_proxies("ok.test", network=NetworkPolicy(allowed=rules("ok.test"), requests=READ_ME)) as proxies,
    ):
        wire = await by_connect(proxies, origin.port)
        assert (await request(wire, "GET /me/a", host=f"ok.test:{origin.port}"))[1] == b"/me/a"
        record, cut = await proxies.server.hand_over()
        assert (record.requests, record.tunnels, cut) == ((), (), 1)
        await finish(wire[1])


async def test_a_tunnel_ends_when_rules_for_requests_cover_its_host() -> None:
    async with scripted_origin(Served().talk) as origin, running_proxies("ok.test") as proxies:
        reader, writer = await by_connect(proxies, origin.port)
        assert proxies.server.recheck() == 0
        proxies.policy = replace(proxies.policy, requests=READ_ME)
        assert proxies.server.recheck() == 1
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert proxies.blocked[-1].decision.reason is Reason.REQUEST_UNSEEN
        await finish(writer)
