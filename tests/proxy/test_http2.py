"""HTTP/2 in tunnels whose TLS ends in the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RequestReceived, StreamEnded
from h2.settings import SettingCodes
from hpack import Encoder

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_patterns import Host, HostPattern
from sandboxd.policy.hosts.request_rules import HttpRequest, parse_operations
from sandboxd.policy.model import CredentialRule, CredentialSource, NetworkPolicy, RequestRule, SourceKind, UploadRule
from sandboxd.proxy.credentials.request_heads import Secret
from sandboxd.proxy.http2.frames import PREFACE, FrameSplitter, GoAway
from sandboxd.proxy.tls.authority import Authority
from support.http2 import Message, Peer, echo, http2_origin, secure
from support.proxies import SETTINGS, Proxies, finish, rules, running_proxies, scripted_origin
from support.waiting import wait_until_async

TLS = Path(__file__).with_name("tls")
SERVER = TLS / "server.pem"


def rule(action: str, *paths: str, methods: tuple[str, ...] = ()) -> RequestRule:
    operations = parse_operations(methods)
    return RequestRule(HostPattern.parse("ok.test"), Behavior(action), SETTINGS, f"{action} ok.test", operations, paths)


NETWORK = NetworkPolicy(
    requests=(
        rule("allow", "/me/**", methods=("read",)),
        rule("allow", "/me/up", methods=("POST",)),
        rule("ask", "/ask/**"),
    ),
    tls_terminate=rules("ok.test"),
)


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    return Authority([HostPattern.parse("ok.test")])


@contextlib.asynccontextmanager
async def connected(
    proxies: Proxies, authority: Authority, port: int, *offer: str, chosen: str = "h2", takes: bool = True
) -> AsyncIterator[Peer]:
    """A client in a tunnel."""
    reader, writer = await proxies.tunnel(f"ok.test:{port}")
    context = secure(ssl.create_default_context(cadata=authority.certificate), *offer)
    await writer.start_tls(context, server_hostname="ok.test")
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
    peer = Peer((reader, writer), takes=takes)
    try:
        yield peer
    finally:
        await peer.close()


async def test_requests_are_decided_one_by_one(authority: Authority) -> None:
    """A refused one is answered, and the connection goes on."""
    async with (
        http2_origin(echo, SERVER) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
        connected(proxies, authority, origin.port) as client,
    ):
        host = f"ok.test:{origin.port}"
        asked = {
            client.ask("GET", "/me/a", host, ("te", "trailers")): "200",
            client.ask("GET", "/you/a?key=1", host): "403",
            client.ask("DELETE", "/me/a", host): "403",
            client.ask("GET", "/me/../you", host): "403",
            client.ask("PUT", "/me/up", host, end=False): "403",
        }
        for number, status in asked.items():
            answer = await client.answer(number)
            assert answer.status == status, (number, answer)
            assert status == "200" or (b"Blocked by the sandbox" in answer.body and b"key=1" not in answer.body)
        await client.send(number, b"u" * 1000)  # curl takes no answer that comes with the end of what it sends
        small, number = number, client.ask("PUT", "/me/up", host, end=False)
        assert (await client.answer(number)).status == "403"
        await client.send(number, b"u" * 65_535, end=False)  # and then it is told to stop
        await client.until(lambda: client.streams[number].reset == ErrorCodes.NO_ERROR)
        assert client.streams[small].reset is None
        upload = client.ask("POST", "/me/up", host, end=False)
        await client.send(upload, b"u" * 300_000)
        answer = await client.answer(upload)
        assert (answer.status, answer.size, answer.trailers) == ("200", 300_000, {"x-size": "300000"})
        assert origin.requests == ["GET /me/a", "POST /me/up"] and len(origin.peers) == 1
        reasons = Counter(one.decision.reason for one in proxies.blocked)
        assert reasons == {Reason.REQUEST_DENIED: 4, Reason.REQUEST_UNCLEAR: 1}
        assert client.gone is None
        await wait_until_async(lambda: proxies.server.share.held == 0)


def fields(host: str, **changed: str | None) -> list[tuple[str, str]]:
    present = {"method": "GET", "scheme": "https", "authority": host, "path": "/me/a"} | changed
    return [(f":{name}", value) for name, value in present.items() if value is not None]


async def test_ambiguous_heads_are_refused_with_the_reason(authority: Authority) -> None:
    async with (
        http2_origin(echo, SERVER) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
        connected(proxies, authority, origin.port) as client,
    ):
        host = f"ok.test:{origin.port}"
        plain = fields(host)
        table = [
            ([*plain, ("host", "also.test")], "421"),
            ([*plain, ("host", host), ("host", host)], "421"),
            (fields("also.test"), "421"),
            (fields(f"x@{host}"), "421"),
            (fields(host, authority=None), "400"),
            (fields(host, path=None), "400"),
            (fields(host, path="/me/a HTTP/1.1"), "400"),
            (fields(host, path="me/a"), "400"),
            (fields(host, path="/me/a#b"), "400"),
            (fields(host, method="GET /me"), "400"),
            (fields(host, scheme="http"), "400"),
            (fields(host, method="CONNECT"), "501"),
            (fields(host, method="CONNECT", protocol="websocket"), "501"),
            (fields(host, method="TRACE"), "405"),
            ([*plain, (":path", "/me/b")], "400"),
            ([*plain[:3], ("a", "b"), plain[3]], "400"),
            ([*plain, (":status", "200")], "400"),
            ([*plain, ("Upper", "a")], "400"),
            ([*plain, ("a b", "c")], "400"),
            ([*plain, ("a", "b\r\nc: d")], "400"),
            ([*plain, ("a", " b")], "400"),
            ([*plain, ("connection", "close")], "400"),
            ([*plain, ("transfer-encoding", "chunked")], "400"),
            ([*plain, ("upgrade", "h2c")], "400"),
            ([*plain, ("te", "gzip")], "400"),
            ([*plain, *(("a", "b") for _ in range(250))], "431"),
            ([*plain, ("x-http-method-override", "DELETE")], "403"),
            ([*fields(host, authority=None), ("host", host)], "200"),
            ([*plain, ("host", host), ("cookie", "a=b"), ("cookie", "c=d")], "200"),
        ]
        for head, status in table:
            answer = await client.answer(client.ask_raw(head))
            assert answer.heads and answer.status == status, (head, answer)
        assert origin.requests == ["GET /me/a"] * 2 and client.gone is None


async def test_both_directions_flow_at_once(authority: Authority) -> None:
    """As gRPC does: each piece is answered before the next, after 100; trailers end the answer."""

    async def serve(peer: Peer, number: int, message: Message, event: Event) -> None:
        if isinstance(event, RequestReceived):
            assert message.heads[0]["te"] == "trailers"
            peer.conn.send_headers(number, [(":status", "100")])
            peer.conn.send_headers(number, [(":status", "200"), ("alt-svc", 'h3=":443"'), ("x-sandboxd-error", "a")])
        elif isinstance(event, DataReceived):
            peer.conn.send_data(number, event.data)
        elif isinstance(event, StreamEnded):
            peer.conn.send_headers(number, [("grpc-status", "0"), ("content-length", "5")], end_stream=True)

    async with (
        http2_origin(serve, SERVER) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
        connected(proxies, authority, origin.port) as client,
    ):
        more = (("te", "trailers"), ("content-type", "application/grpc"), ("expect", "100-continue"))
        number = client.ask("POST", "/me/up", f"ok.test:{origin.port}", *more, end=False)
        message = client.streams[number]
        await client.until(lambda: len(message.heads) == 2)
        assert message.heads == [{":status": "100"}, {":status": "200"}]
        for size in (1, 1000, 100_000):
            before = message.size
            await client.send(number, b"p" * size, end=False)
            await client.until(lambda goal=before + size: message.size == goal)  # type: ignore[misc]
        client.conn.send_headers(number, [("x-sum", "1"), ("authorization", "no")], end_stream=True)
        client.flush()
        await client.answer(number)
        assert message.trailers == {"grpc-status": "0"} and message.reset is None
        assert origin.peers[0].streams[1].trailers == {"x-sum": "1"}


async def test_requests_go_through_a_parent_proxy(authority: Authority) -> None:
    """Which sees TLS only, and alone knows the name."""
    asked: list[bytes] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                assert b"/me/" not in data
                writer.write(data)
                await writer.drain()
        writer.close()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        far = await asyncio.open_connection("127.0.0.1", origin.port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            await asyncio.gather(pipe(reader, far[1]), pipe(far[0], writer))
        finally:
            await finish(far[1])

    async with (
        http2_origin(echo, SERVER) as origin,
        scripted_origin(tunnel) as parent,
        running_proxies(
            network=NETWORK, authority=authority, parent=f"http://127.0.0.1:{parent.port}", pinned=()
        ) as proxies,
        connected(proxies, authority, 443) as client,
    ):
        body = b"b" * 200_000
        asking = {client.ask("GET", path, "ok.test"): status for path, status in (("/me/a", "200"), ("/you", "403"))}
        asking[upload := client.ask("POST", "/me/up", "ok.test", end=False)] = "200"
        await client.send(upload, body)
        assert {number: (await client.answer(number)).status for number in asking} == asking
        assert client.streams[upload].body == body and asked == [b"CONNECT ok.test:443 HTTP/1.1"]
        assert sorted(origin.requests) == ["GET /me/a", "POST /me/up"] and proxies.names.asked == []


async def test_a_slow_reader_slows_its_sender(authority: Authority) -> None:
    """Nothing is stored beyond the windows; other streams go on."""
    size = 8 << 20
    sent: list[int] = []

    async def serve(peer: Peer, number: int, message: Message, event: Event) -> None:
        async def send() -> None:
            for _ in range(size >> 16):
                await peer.send(number, b"d" * 65536, end=False)
                sent.append(65536)
            peer.conn.end_stream(number)
            peer.flush()

        if isinstance(event, StreamEnded):
            peer.conn.send_headers(number, [(":status", "200")])
            tasks.append(asyncio.create_task(send()))

    tasks: list[asyncio.Task[None]] = []
    async with (
        http2_origin(serve, SERVER) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
        connected(proxies, authority, origin.port, takes=False) as client,
    ):
        client.keeps = False
        host = f"ok.test:{origin.port}"
        client.conn.increment_flow_control_window(1 << 20)
        slow = client.ask("GET", "/me/slow", host)
        await client.until(lambda: client.streams[slow].size == 65535)
        server = origin.peers[0]
        assert sum(sent) + server.conn.local_flow_control_window(1) <= 3 * 65536
        refused = await client.answer(client.ask("GET", "/you", host))
        assert refused.status == "403" and proxies.server.share.held < 100_000
        client.takes = True
        client.conn.acknowledge_received_data(65535, slow)
        client.flush()
        await client.answer(slow)
        assert client.streams[slow].size == size and proxies.server.share.held < 100_000


async def test_a_question_holds_up_its_own_stream_only(authority: Authority) -> None:
    asked: list[str] = []
    answers: dict[str, asyncio.Future[None]] = {}
    ended: list[str] = []

    async def ask(host: Host, port: int, request: HttpRequest, decision: Decision) -> Decision:
        asked.append(request.path)
        answers[request.path] = asyncio.get_running_loop().create_future()
        try:
            await answers[request.path]
        except asyncio.CancelledError:
            ended.append(request.path)
            raise
        return Decision(Behavior.ALLOW, Reason.GRANTED, "")

    async with (
        http2_origin(echo, SERVER) as origin,
        running_proxies(network=NETWORK, authority=authority, ask_request=ask) as proxies,
        connected(proxies, authority, origin.port) as client,
    ):
        host = f"ok.test:{origin.port}"
        yes = client.ask("POST", "/ask/yes", host, end=False)
        gone = client.ask("GET", "/ask/gone", host)
        await client.send(yes, b"b" * 60_000)
        await client.until(lambda: True)
        assert (await client.answer(client.ask("GET", "/me/a", host))).status == "200"
        client.conn.reset_stream(gone)
        client.flush()
        await wait_until_async(lambda: ended == ["/ask/gone"], "the question ends with its stream")
        answers["/ask/yes"].set_result(None)
        answer = await client.answer(yes)
        assert (answer.status, answer.size) == ("200", 60_000) and asked == ["/ask/yes", "/ask/gone"]
        assert origin.requests == ["GET /me/a", "POST /ask/yes"]


def frame(kind: int, content: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def bomb(conn: H2Connection) -> bytes:
    """A header block that names a long entry of the table many times."""
    block = conn.encoder.encode([(b"a", b"b" * 4000)])
    return frame(1, bytes(block) + b"\xbe" * 4000, flags=5, stream=1)


FLOODS: dict[str, Callable[[H2Connection], bytes]] = {
    "continuations": lambda conn: frame(1, b"\x00", stream=1) + frame(9, b"\x00" * 16000, stream=1) * 5,
    "bomb": bomb,
    "pings": lambda conn: frame(6, b"12345678") * 20_000,
    "settings": lambda conn: frame(4) * 20_000,
    "resets": lambda conn: b"".join(frame(3, b"\0\0\0\0", stream=1) for _ in range(20_000)),
    "no content": lambda conn: frame(1, bytes(conn.encoder.encode([(b"a", b"b")])), 4, 1) + frame(0, stream=1) * 20_000,
    "short goaway": lambda conn: frame(7, b"1234"),
    "long frame": lambda conn: frame(0, b"1" * 20_000, stream=1),
    "window": lambda conn: frame(8, b"\x7f\xff\xff\xff"),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_ends_its_connection_alone(authority: Authority, name: str) -> None:
    async with (
        http2_origin(echo, SERVER) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
        connected(proxies, authority, origin.port) as good,
        connected(proxies, authority, origin.port) as bad,
    ):
        bad.task.cancel()  # it reads no answers
        bad.writer.write(FLOODS[name](bad.conn))
        host = f"ok.test:{origin.port}"
        assert (await good.answer(good.ask("GET", "/me/a", host))).status == "200"
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(bad.writer.drain(), 20)
            while await asyncio.wait_for(bad.reader.read(1 << 20), 20):
                pass
        assert (await good.answer(good.ask("GET", "/me/b", host))).status == "200"
        await wait_until_async(lambda: proxies.server.connections == 1 and proxies.server.share.held == 0)


async def test_taking_back_many_requests_ends_the_connection(authority: Authority) -> None:
    async with (
        http2_origin(echo, SERVER) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
        connected(proxies, authority, origin.port) as client,
    ):
        host = f"ok.test:{origin.port}"
        with contextlib.suppress(ConnectionError):
            for _ in range(300):
                number = client.ask("GET", "/you", host, end=False)
                client.conn.reset_stream(number)
                client.flush()
            await client.until(lambda: client.gone)
        assert client.gone is not None and client.gone.code == ErrorCodes.ENHANCE_YOUR_CALM and not origin.requests


async def test_a_server_that_leaves_finishes_its_answers(authority: Authority) -> None:
    """The requests that it has not taken are refused, so that the client may send them again."""

    async def serve(peer: Peer, number: int, message: Message, event: Event) -> None:
        if isinstance(event, RequestReceived) and number == 1:
            peer.conn.send_headers(number, [(":status", "200")])
        elif isinstance(event, RequestReceived) and number == 3:
            peer.flush()
            peer.writer.write(frame(7, struct.pack(">II", 1, 0)))
            peer.conn.send_data(1, b"rest", end_stream=True)

    async with (
        http2_origin(serve, SERVER) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
        connected(proxies, authority, origin.port) as client,
    ):
        host = f"ok.test:{origin.port}"
        first = client.ask("GET", "/me/a", host, end=False)
        await client.until(lambda: client.streams[first].heads)
        second = client.ask("GET", "/me/b", host)
        refused = await client.answer(second)
        assert refused.reset == ErrorCodes.REFUSED_STREAM
        await client.until(lambda: client.gone)
        assert client.gone == GoAway(second, 0)
        await client.until(lambda: client.streams[first].body == b"rest")
        client.conn.end_stream(first)
        client.flush()
        await asyncio.wait_for(asyncio.shield(client.task), 20)


async def test_streams_wait_for_a_server_that_takes_few(authority: Authority) -> None:
    seen: list[int] = []

    async def serve(peer: Peer, number: int, message: Message, event: Event) -> None:
        if isinstance(event, RequestReceived):
            seen.append(peer.conn.open_inbound_streams)
        await echo(peer, number, message, event)

    async with (
        http2_origin(serve, SERVER, settings={SettingCodes.MAX_CONCURRENT_STREAMS: 2}) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
        connected(proxies, authority, origin.port) as client,
    ):
        host = f"ok.test:{origin.port}"
        assert (await client.answer(client.ask("GET", "/me/0", host))).status == "200"
        asked = [client.ask("GET", f"/me/{one}", host) for one in range(8)]
        assert [(await client.answer(number)).status for number in asked] == ["200"] * 8
        assert max(seen) == 2


@pytest.mark.parametrize(
    ("offer", "server", "chosen"),
    [
        (("h2", "http/1.1"), ("http/1.1",), "http/1.1"),
        (("http/1.1",), ("h2", "http/1.1"), "http/1.1"),
        (("h2",), ("h2",), "h2"),
    ],
)
async def test_the_protocol_is_that_of_both_ends(
    authority: Authority, offer: tuple[str, ...], server: tuple[str, ...], chosen: str
) -> None:
    async with (
        http2_origin(echo, SERVER, *server) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
        connected(proxies, authority, origin.port, *offer, chosen=chosen),
    ):
        pass


async def test_a_server_that_fails_is_said_in_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    untrusting = Authority([HostPattern.parse("ok.test")])
    async with (
        http2_origin(echo, SERVER) as origin,
        running_proxies(network=NETWORK, authority=untrusting) as proxies,
        connected(proxies, untrusting, origin.port, "h2") as client,
    ):
        host = f"ok.test:{origin.port}"
        for path, status in (("/me/a", "502"), ("/you", "403")):
            answer = await client.answer(client.ask("GET", path, host))
            assert answer.status == status
            assert status == "403" or b"the certificate of ok.test is not valid" in answer.body


async def test_credentials_in_http2(authority: Authority) -> None:
    """As in HTTP/1.1: the value at its place for the path of its rule, and none in heads and trailers of answers."""
    value, stand_in = "ghp_real0123456789", "ghp_stand0123456789"
    source = CredentialSource(SourceKind.ENV, ("GH_TOKEN",))
    found = CredentialRule(HostPattern.parse("ok.test"), source, SETTINGS, form="Bearer {value}", paths=("/me/**",))

    class Vault:
        stand_ins = ((stand_in.encode(), source),)
        secrets = (Secret(value.encode(), stand_in.encode()),)
        refusals = 0

        async def secret(self, source: CredentialSource, prefix: str | None) -> Secret:
            return self.secrets[0]

        def refused(self, source: CredentialSource) -> None:
            self.refusals += 1

    async def tell(peer: Peer, number: int, message: Message, event: Event) -> None:
        if isinstance(event, StreamEnded):
            given = message.heads[0].get("authorization", "none")
            peer.conn.send_headers(number, [(":status", "103"), ("link", given)])
            peer.conn.send_headers(number, [(":status", "401"), ("x-echo", given), ("location", f"/?t={value}")])
            peer.conn.send_data(number, b"body")
            peer.conn.send_headers(number, [("x-end", given)], end_stream=True)

    vault, network = Vault(), NetworkPolicy(credentials=(found,), tls_terminate=rules("ok.test"))
    async with (
        http2_origin(tell, SERVER) as origin,
        running_proxies("ok.test", network=network, authority=authority, vault=vault) as proxies,
        connected(proxies, authority, origin.port) as client,
    ):
        host = f"ok.test:{origin.port}"
        rows = {
            client.ask("GET", "/me/a", host): ("Bearer", f"Bearer {value}"),
            client.ask("GET", "/me/a", host, ("authorization", f"token {stand_in}")): ("token", f"token {value}"),
            client.ask("GET", "/you", host, ("authorization", f"token {stand_in}")): ("token", f"token {stand_in}"),
        }
        for number, (form, _) in rows.items():
            answer = await client.answer(number)
            expected = f"{form} {stand_in}"
            assert [head.get("link") or head.get("x-echo") for head in answer.heads] == [expected, expected]
            assert answer.trailers == {"x-end": expected} and answer.heads[1]["location"] == f"/?t={stand_in}"
        got = [one.heads[0]["authorization"] for peer in origin.peers for one in peer.streams.values()]
        assert got == [sent for _, sent in rows.values()] and vault.refusals == 2
        assert [one.decision.reason for one in proxies.blocked] == [Reason.CREDENTIAL_MISPLACED]


async def test_a_limit_of_bytes_holds_in_http2(authority: Authority) -> None:
    upload = UploadRule(HostPattern.parse("ok.test"), 50_000, SETTINGS)
    network = NetworkPolicy(uploads=(upload,), tls_terminate=rules("ok.test"))
    async with (
        http2_origin(echo, SERVER) as origin,
        running_proxies("ok.test", network=network, authority=authority) as proxies,
        connected(proxies, authority, origin.port) as client,
    ):
        number = client.ask("POST", "/up", f"ok.test:{origin.port}", end=False)
        with contextlib.suppress(OSError):
            await client.send(number, b"x" * 100_000)
        await client.until(lambda: client.gone)
        assert sum(one.size for peer in origin.peers for one in peer.streams.values()) <= 50_000
        assert [one.decision.reason for one in proxies.blocked] == [Reason.UPLOAD_LIMIT]


async def test_requests_of_a_broken_server_are_answered(authority: Authority) -> None:
    """With the reason; those that may be sent again are refused, so that clients do."""
    table = {
        "close": ("502", b"closed the connection"),
        "push": ("502", b"is not valid HTTP/2"),
        "head": ("502", b"status"),
    }

    async def serve(peer: Peer, number: int, message: Message, event: Event) -> None:
        if not isinstance(event, StreamEnded):
            return
        how = message.heads[0][":path"].rpartition("/")[2]
        if how == "close":
            peer.writer.close()
        elif how == "push":
            peer.writer.write(frame(5, struct.pack(">I", 2) + b"\x82", 4, number))
        elif how == "head":
            peer.conn.send_headers(number, [(":status", "099")], end_stream=True)

    network = replace(NETWORK, requests=(rule("allow", "/me/**"),))
    async with (
        http2_origin(serve, SERVER) as origin,
        running_proxies(network=network, authority=authority) as proxies,
    ):
        host = f"ok.test:{origin.port}"
        for how, (status, text) in table.items():
            async with connected(proxies, authority, origin.port) as client:
                answer = await client.answer(client.ask("POST", f"/me/{how}", host))
                assert answer.heads, (how, answer)
                assert answer.status == status and text in answer.body, (how, answer)
        async with connected(proxies, authority, origin.port) as client:
            answer = await client.answer(client.ask("GET", "/me/close", host))
            assert answer.reset == ErrorCodes.REFUSED_STREAM


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_a_server_that_wants_a_certificate_is_said(authority: Authority, protocol: str) -> None:
    async with (
        http2_origin(echo, SERVER, protocol, authority=TLS / "ca.pem") as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
    ):
        host = f"ok.test:{origin.port}"
        if protocol == "h2":
            async with connected(proxies, authority, origin.port) as client:
                answer = await client.answer(client.ask("GET", "/me/a", host))
                assert answer.status == "502"
                text = bytes(answer.body)
        else:
            reader, writer = await proxies.tunnel(host)
            await writer.start_tls(ssl.create_default_context(cadata=authority.certificate), server_hostname="ok.test")
            writer.write(f"GET /me/a HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            text = await reader.read()
            assert text.startswith(b"HTTP/1.1 502 ")
            await finish(writer)
        assert b"asks for a certificate" in text and b"sandbox.network.tls.exclude ok.test" in text


def test_a_peer_cannot_make_the_library_keep_much() -> None:
    """Unknown settings are left out, and GOAWAY is taken out, however the bytes are divided."""
    known = struct.pack(">HI", 4, 7)
    settings = b"".join(struct.pack(">HI", one, 7) for one in range(100, 2000))
    data = PREFACE + frame(4, settings + known) + frame(6, b"12345678") + frame(7, struct.pack(">II", 5, 1) + b"bye")
    wanted = PREFACE + frame(4, known) + frame(6, b"12345678")
    for size in (1, 7, 1000, len(data)):
        splitter = FrameSplitter(has_preface=True)
        found = [one for place in range(0, len(data), size) for one in splitter.split(data[place : place + size])]
        assert found[-1] == GoAway(5, 1)
        assert b"".join(one for one in found if isinstance(one, bytes)) == wanted


async def test_the_table_of_sent_headers_stays_small(authority: Authority) -> None:
    async with (
        http2_origin(echo, SERVER, settings={SettingCodes.HEADER_TABLE_SIZE: 1 << 24}) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
        connected(proxies, authority, origin.port) as client,
    ):
        host = f"ok.test:{origin.port}"
        for one in range(3):
            answer = await client.answer(client.ask("GET", "/me/a", host, (f"x-{one}", "v" * 3000)))
            assert answer.status == "200"
        assert origin.peers[0].conn.decoder.header_table_size == 4096


def vectors(host: str) -> dict[str, tuple[bytes, str]]:
    """Frames that follow a client's preface, and what the proxy says: an error with its code, or the PING's answer."""

    def head(*more: tuple[str, str], method: str = "POST", stream: int = 1, flags: int = 4) -> bytes:
        asked = [(":method", method), (":scheme", "https"), (":authority", host), (":path", "/me/up"), *more]
        return frame(1, bytes(Encoder().encode(asked)), flags, stream)

    def setting(number: int, value: int) -> bytes:
        return frame(4, struct.pack(">HI", number, value))

    begun, ended, block = head(), head(flags=5), head()[9:]
    grow = struct.pack(">I", (1 << 31) - 1)
    return {
        # 3.4 and 4
        "unknown frame": (frame(99, b"a", 255) + frame(99, b"", 0, 7), "PONG"),
        "unknown frame within a head": (head(flags=0) + frame(99, b"", 0, 1), "GOAWAY PROTOCOL_ERROR"),
        "unknown flags": (frame(6, b"12345678", 0xFE), "PONG"),
        "reserved bit": (frame(6, b"12345678", 0, 1 << 31), "PONG"),
        "long content": (begun + frame(0, bytes(16385), 0, 1), "GOAWAY FRAME_SIZE_ERROR"),
        "long head": (frame(1, bytes(16385), 4, 1), "GOAWAY FRAME_SIZE_ERROR"),
        "broken compression": (frame(1, b"\xff" * 6, 5, 1), "GOAWAY PROTOCOL_ERROR"),  # the library's code
        # 5.1
        "content of no stream": (frame(0, b"a", 0, 5), "GOAWAY PROTOCOL_ERROR"),
        "reset of no stream": (frame(3, bytes(4), 0, 5), "GOAWAY PROTOCOL_ERROR"),
        "window of no stream": (frame(8, b"\0\0\0\1", 0, 5), "GOAWAY PROTOCOL_ERROR"),
        "content after the end": (ended + frame(0, b"a", 0, 1), "RST STREAM_CLOSED"),
        "head after the end": (ended + ended, "RST STREAM_CLOSED"),
        "content after a reset": (begun + frame(3, bytes(4), 0, 1) + frame(0, b"a", 0, 1), "STREAM_CLOSED"),
        "head after a reset": (begun + frame(3, bytes(4), 0, 1) + ended, "STREAM_CLOSED"),
        "reset twice": (begun + frame(3, bytes(4), 0, 1) * 2, "PONG"),
        "window after the end": (ended + frame(8, b"\0\0\0\1", 0, 1), "PONG"),
        "even stream": (head(stream=2), "GOAWAY PROTOCOL_ERROR"),
        "stream that goes back": (head(stream=5) + head(stream=3), "GOAWAY PROTOCOL_ERROR"),
        "too many streams": (b"".join(head(stream=2 * one + 1) for one in range(101)), "GOAWAY PROTOCOL_ERROR"),
        # 6.1 to 6.4
        "content on stream 0": (frame(0, b"a"), "GOAWAY PROTOCOL_ERROR"),
        "padding beyond the content": (begun + frame(0, b"\xff", 8, 1), "GOAWAY PROTOCOL_ERROR"),
        "padded content": (begun + frame(0, b"\1a\0", 8, 1), "PONG"),
        "head on stream 0": (frame(1, block, 5), "GOAWAY PROTOCOL_ERROR"),
        "padding beyond the head": (frame(1, b"\xff" + block, 13, 1), "GOAWAY PROTOCOL_ERROR"),
        "padded head with a priority": (frame(1, b"\1\0\0\0\3\7" + block + b"\0", 0x2C, 1), "PONG"),
        "priority within a head": (head(flags=0) + frame(2, b"\0\0\0\3\1", 0, 1), "GOAWAY PROTOCOL_ERROR"),
        "head within a head": (head(flags=0) + head(stream=3), "GOAWAY PROTOCOL_ERROR"),
        "priority": (frame(2, b"\0\0\0\3\1", 0, 9), "PONG"),
        "priority on stream 0": (frame(2, b"\0\0\0\3\1"), "GOAWAY PROTOCOL_ERROR"),
        "short priority": (frame(2, b"\0\0\0\3", 0, 1), "FRAME_SIZE_ERROR"),
        "reset of stream 0": (frame(3, bytes(4)), "GOAWAY PROTOCOL_ERROR"),
        "long reset": (begun + frame(3, bytes(5), 0, 1), "GOAWAY FRAME_SIZE_ERROR"),
        # 6.5 and 6.6
        "settings that confirm with content": (frame(4, struct.pack(">HI", 4, 9), 1), "GOAWAY FRAME_SIZE_ERROR"),
        "settings that confirm unknown ones": (frame(4, struct.pack(">HI", 99, 9), 1), "GOAWAY FRAME_SIZE_ERROR"),
        "odd settings": (frame(4, bytes(5)), "GOAWAY FRAME_SIZE_ERROR"),
        "settings of a stream": (frame(4, b"", 0, 1), "GOAWAY PROTOCOL_ERROR"),
        "unknown settings": (setting(99, 1), "PONG"),
        "push that is a number": (setting(2, 2), "GOAWAY PROTOCOL_ERROR"),
        "large window": (setting(4, 1 << 31), "GOAWAY FLOW_CONTROL_ERROR"),
        "small frames": (setting(5, 100), "GOAWAY PROTOCOL_ERROR"),
        "large frames": (setting(5, 1 << 24), "GOAWAY PROTOCOL_ERROR"),
        "windows beyond the largest by a setting": (
            begun + frame(8, struct.pack(">I", (1 << 31) - 70_000), 0, 1) + setting(4, 200_000),
            "GOAWAY FLOW_CONTROL_ERROR",
        ),
        "push by a client": (frame(5, bytes(4) + block, 4, 1), "GOAWAY PROTOCOL_ERROR"),
        # 6.7 and 6.8
        "long ping": (frame(6, bytes(9)), "GOAWAY FRAME_SIZE_ERROR"),
        "ping of a stream": (frame(6, bytes(8), 0, 1), "GOAWAY PROTOCOL_ERROR"),
        "answer to no ping": (frame(6, b"12345678", 1), "PONG"),
        "farewell of a stream": (frame(7, bytes(8), 0, 1), "GOAWAY PROTOCOL_ERROR"),
        "short farewell": (frame(7, bytes(7)), "GOAWAY FRAME_SIZE_ERROR"),
        # 6.9 and 6.10
        "window by nothing": (frame(8, bytes(4)), "GOAWAY PROTOCOL_ERROR"),
        "window of a stream by nothing": (begun + frame(8, bytes(4), 0, 1), "PROTOCOL_ERROR"),
        "long window": (frame(8, bytes(5)), "GOAWAY FRAME_SIZE_ERROR"),
        "window beyond the largest": (frame(8, grow), "GOAWAY FLOW_CONTROL_ERROR"),
        "window of a stream beyond the largest": (begun + frame(8, grow, 0, 1), "RST FLOW_CONTROL_ERROR"),
        "more content than the window": (begun + frame(0, bytes(16384), 0, 1) * 9, "GOAWAY FLOW_CONTROL_ERROR"),
        "head in pieces": (frame(1, block[:5], 0, 1) + frame(9, block[5:9], 0, 1) + frame(9, block[9:], 4, 1), "PONG"),
        "continuation of no head": (frame(9, block, 4, 1), "GOAWAY PROTOCOL_ERROR"),
        "continuation after the head": (begun + frame(9, block, 4, 1), "GOAWAY PROTOCOL_ERROR"),
        "continuation of stream 0": (head(flags=0) + frame(9, b"", 4), "GOAWAY PROTOCOL_ERROR"),
        # 8.1
        "trailers without an end": (begun + frame(1, bytes(Encoder().encode([("a", "b")])), 4, 1), "PROTOCOL_ERROR"),
        "pseudo-header as trailer": (begun + head(flags=5), "RST PROTOCOL_ERROR"),
        "length without content": (head(("content-length", "1"), flags=5), "PROTOCOL_ERROR"),
        "less content than its length": (head(("content-length", "2")) + frame(0, b"a", 1, 1), "PROTOCOL_ERROR"),
        "more content than its length": (head(("content-length", "1")) + frame(0, b"ab", 0, 1), "PROTOCOL_ERROR"),
    }  # fmt: skip


async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Return the first error that the proxy tells of, or PONG: the library answers the first PING before others."""
    writer.write(frame(6, b"SENTINE1"))
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            beginning = await reader.readexactly(9)
            content = await reader.readexactly(int.from_bytes(beginning[:3], "big"))
            if beginning[3] == 3 and (code := int.from_bytes(content, "big")):
                return f"RST {ErrorCodes(code).name}"
            if beginning[3] == 7:
                return f"GOAWAY {ErrorCodes(int.from_bytes(content[4:8], 'big')).name}"
            if beginning[3] == 6 and content == b"SENTINE1":
                writer.write(frame(6, b"SENTINE2"))
            if beginning[3] == 6 and content == b"SENTINE2":
                return "PONG"
    return "closed"


async def test_mistakes_end_their_stream_or_connection(authority: Authority) -> None:
    """As RFC 9113 names it (sections 3 to 8), with the code; what is no mistake passes."""
    wrong: dict[str, str] = {}
    async with (
        http2_origin(echo, SERVER) as origin,
        running_proxies(network=NETWORK, authority=authority) as proxies,
    ):
        host = f"ok.test:{origin.port}"
        context = secure(ssl.create_default_context(cadata=authority.certificate))
        for name, (data, expected) in vectors(host).items():
            reader, writer = await proxies.tunnel(host)
            await writer.start_tls(context, server_hostname="ok.test")
            writer.write(PREFACE + frame(4) + data)
            found = await asyncio.wait_for(said(reader, writer), 20)
            if expected not in found:
                wrong[name] = found
            await finish(writer)
    assert wrong == {}
