"""Credentials in requests at the proxies: which server gets the value, by which request, and what comes back."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sandboxd.errors import HostError
from sandboxd.policy.decision import Reason
from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.hosts.request_rules import parse_operations
from sandboxd.policy.model import CredentialRule, CredentialSource, NetworkPolicy, SourceKind
from sandboxd.proxy.credentials.request_heads import Secret
from sandboxd.proxy.tls.authority import Authority
from support.proxies import SETTINGS, Proxies, Wire, finish, rules, running_proxies, scripted_origin

TLS = Path(__file__).with_name("tls")
END = b"\r\n\r\n"
VALUE, STAND_IN = "ghp_real0123456789", "ghp_stand0123456789"
SOURCE = CredentialSource(SourceKind.ENV, ("GH_TOKEN",))
BASIC = base64.b64encode(f"me:{VALUE}".encode()).decode()


@dataclass
class Vault:
    """One credential of a session."""

    value: str = VALUE
    refusals: int = 0
    stand_ins: Sequence[tuple[bytes, CredentialSource]] = ((STAND_IN.encode(), SOURCE),)
    secrets: list[Secret] = field(default_factory=list)

    async def secret(self, source: CredentialSource, prefix: str | None) -> Secret:
        if not self.value:
            raise HostError("credential_missing", "the daemon has no value", hint="sandboxd credential set GH_TOKEN")
        self.secrets = [Secret(self.value.encode(), STAND_IN.encode())]
        return self.secrets[0]

    def refused(self, source: CredentialSource) -> None:
        self.refusals += 1


@dataclass
class Origin:
    """A server that records heads and bodies, and answers with what is scripted for a path."""

    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = (await reader.readuntil(END)).decode("latin-1")
            except asyncio.IncompleteReadError:
                return
            self.heads.append(head)
            lengths = [line[16:] for line in head.split("\r\n") if line.startswith("Content-Length: ")]
            self.bodies.append(await reader.readexactly(int(lengths[0]) if lengths else 0))
            path = head.split(" ")[1].partition("?")[0]
            writer.write(self.answers.get(path, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))


@contextlib.asynccontextmanager
async def secure(origin: Origin, certificate: Path = TLS / "server.pem") -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(OSError):
            await origin.talk(reader, writer)
        await finish(writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]
        for task in tasks:
            task.cancel()


def credential(place: str = "header", name: str = "Authorization", form: str = "Bearer {value}", *paths: str,
               methods: tuple[str, ...] = (), host: str = "ok.test") -> CredentialRule:  # fmt: skip
    pattern = HostPattern.parse(host)
    return CredentialRule(pattern, SOURCE, SETTINGS, place, name, form, parse_operations(methods), paths)


def network(*credentials: CredentialRule) -> NetworkPolicy:
    return NetworkPolicy(credentials=credentials, tls_terminate=rules("ok.test"))


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    return Authority([HostPattern.parse("ok.test")])


async def enter(proxies: Proxies, authority: Authority, port: int) -> Wire:
    reader, writer = await proxies.tunnel(f"ok.test:{port}")
    context = ssl.create_default_context(cadata=authority.certificate)
    await writer.start_tls(context, server_hostname="ok.test")
    return reader, writer


async def ask(wire: Wire, line: str, *headers: str, body: bytes = b"", host: str = "") -> tuple[str, bytes]:
    reader, writer = wire
    length = (f"Content-Length: {len(body)}",) if body else ()
    head = "\r\n".join((f"{line} HTTP/1.1", *([f"Host: {host}"] if host else []), *length, *headers, "", ""))
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(END)).decode("latin-1")
    size = next((int(one[15:]) for one in answer.split("\r\n") if one.lower().startswith("content-length:")), 0)
    return answer, await reader.readexactly(size)


ROWS = [
    (credential(), "GET /", [], f"Authorization: Bearer {VALUE}"),
    (credential(), "GET /", [f"Authorization: token {STAND_IN}"], f"Authorization: token {VALUE}"),
    (credential("basic", "me"), "GET /", [], f"Authorization: Basic {BASIC}"),
    (credential("query", "key"), f"GET /?key={STAND_IN}", [], f"GET /?key={VALUE} "),
    (credential("query", "key"), "GET /?a=1", [], f"GET /?a=1&key={VALUE} "),
    (credential("header", "Authorization", "Bearer {value}", "/me/**"), "GET /me/x", [], VALUE),
    (credential("header", "Authorization", "Bearer {value}", "/me/**"), "GET /you", [], ""),
    (credential("header", "Authorization", "Bearer {value}", "/me/**"), "GET /me/../you", [], ""),
    (credential("header", "Authorization", "Bearer {value}", "/me/**"), "GET /me/%2e%2e/you", [], ""),
    (credential(methods=("read",)), "GET /", [], VALUE),
    (credential(methods=("read",)), "POST /", [], ""),
    (credential(methods=("read",)), "GET /", ["X-HTTP-Method-Override: POST"], ""),
    (credential(host="also.test"), "GET /", [], ""),
    (credential(host="ok.test:1"), "GET /", [], ""),
    (credential(), "GET /", ["Authorization: mine"], "Authorization: mine"),
    (credential(), "GET /", ["Connection: authorization", f"Authorization: token {STAND_IN}"], f"Bearer {VALUE}"),
    (credential(), "GET /", [f"X-Other: {STAND_IN}", "Authorization: mine"], f"X-Other: {STAND_IN}"),
]


async def test_the_server_gets_the_value_where_a_rule_says_so(authority: Authority) -> None:
    origin, vault = Origin(), Vault()
    async with (
        secure(origin) as port,
        running_proxies("ok.test", network=network(), authority=authority, vault=vault) as proxies,
    ):
        wire = await enter(proxies, authority, port)
        for rule, line, headers, expected in ROWS:
            proxies.policy = replace(proxies.policy, credentials=(rule,))
            answer, _ = await ask(wire, line, *headers, host=f"ok.test:{port}")
            assert answer.startswith("HTTP/1.1 200 "), (line, answer)
            head = origin.heads.pop()
            assert expected in head and (VALUE in head or BASIC in head) is (VALUE in expected or BASIC in expected), (
                head
            )
        await finish(wire[1])


async def test_a_value_goes_over_verified_tls_alone() -> None:
    """Plain requests, tunnels without TLS and servers that are not trusted get the placeholder, or nothing."""
    origin, vault = Origin(), Vault()
    policy = network(credential())
    strange = Authority([HostPattern.parse("ok.test")])  # and the daemon does not trust the server's authority
    async with (
        secure(origin) as secure_port,
        scripted_origin(origin.talk) as plain,
        running_proxies("ok.test", network=policy, authority=strange, vault=vault) as proxies,
    ):
        wire = await enter(proxies, strange, secure_port)
        answer, _ = await ask(wire, "GET /", host=f"ok.test:{secure_port}")
        assert answer.startswith("HTTP/1.1 502 ") and "tls_untrusted" in answer and origin.heads == []
        await finish(wire[1])
        header = f"Authorization: Bearer {STAND_IN}"
        wire = await proxies.http()
        await ask(wire, f"GET http://ok.test:{plain.port}/", header, host="ok.test")
        await finish(wire[1])
        wire = await proxies.tunnel(f"ok.test:{plain.port}")
        await ask(wire, "GET /", header, host=f"ok.test:{plain.port}")
        await finish(wire[1])
        assert len(origin.heads) == 2 and all(STAND_IN in head and VALUE not in head for head in origin.heads)
        reasons = [one.decision.reason for one in proxies.blocked]
        assert reasons == [Reason.SERVER_UNTRUSTED, Reason.CREDENTIAL_MISPLACED]
        assert VALUE not in str(proxies.blocked) and "env/GH_TOKEN" not in str(proxies.blocked)
        assert "env:GH_TOKEN" in proxies.blocked[1].decision.text


ECHOES = {
    "/plain": f"X-Echo: {VALUE}",
    "/quoted": "X-Echo: " + "%67" + VALUE[1:],
    "/basic": f"X-Echo: Basic {BASIC}",
    "/redirect": f"Location: https://also.test/?token={VALUE}",
    "/cookie": f"Set-Cookie: a=b{VALUE}c",
    "/name": f"X-{VALUE}: 1",
}


async def test_no_header_of_an_answer_returns_a_value(authority: Authority) -> None:
    origin, vault = Origin(), Vault()
    for path, header in ECHOES.items():
        origin.answers[path] = f"HTTP/1.1 302 {VALUE}\r\n{header}\r\nContent-Length: 2\r\n\r\nok".encode()
    early = f"HTTP/1.1 103 {VALUE}\r\nLink: {VALUE}\r\n\r\n"
    trailers = f"Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nok\r\n0\r\nX-T: {VALUE}\r\n\r\n"
    origin.answers["/early"] = f"{early}HTTP/1.1 200 OK\r\n{trailers}".encode()
    origin.answers["/no"] = b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"
    async with (
        secure(origin) as port,
        running_proxies("ok.test", network=network(credential()), authority=authority, vault=vault) as proxies,
    ):
        wire = await enter(proxies, authority, port)
        for path in ECHOES:
            answer, body = await ask(wire, f"GET {path}", host=f"ok.test:{port}")
            assert answer.startswith("HTTP/1.1 302 ") and body == b"ok" and VALUE in origin.heads[-1]
            assert VALUE not in answer and BASIC not in answer and VALUE[1:] not in answer, path
        wire[1].write(f"GET /early HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n".encode())
        text = await wire[0].readuntil(b"0\r\n")
        text += await wire[0].readuntil(END)
        assert VALUE.encode() not in text and text.count(STAND_IN.encode()) == 3
        assert vault.refusals == 0
        await ask(wire, "GET /no", host=f"ok.test:{port}")
        assert vault.refusals == 1
        await finish(wire[1])


async def test_what_is_no_request_of_a_rule_gets_no_value(authority: Authority) -> None:
    """Bodies, a second request hidden in one, and heads that two readers would read differently."""
    origin, vault = Origin(), Vault()
    policy = network(credential("header", "Authorization", "Bearer {value}", "/me/**"))
    async with (
        secure(origin) as port,
        running_proxies("ok.test", network=policy, authority=authority, vault=vault) as proxies,
    ):
        host = f"ok.test:{port}"
        wire = await enter(proxies, authority, port)
        smuggled = f"GET /me/x HTTP/1.1\r\nHost: {host}\r\nAuthorization: {STAND_IN}\r\n\r\n".encode()
        await ask(wire, "POST /you", body=smuggled, host=host)
        assert origin.bodies[-1] == smuggled and VALUE not in origin.heads[-1]
        await ask(wire, "POST /me/up", body=STAND_IN.encode(), host=host)
        assert origin.bodies[-1] == STAND_IN.encode() and VALUE in origin.heads[-1]
        await finish(wire[1])
        count = len(origin.heads)
        for lines, status in (
            (("GET /me/x", "Host: also.test"), "421"),
            (("GET /me/x", f"Host: {host}", "Host: also.test"), "400"),
            (("GET /me/x", f"Host: {host}", "Content-Length: 1", "Transfer-Encoding: chunked"), "400"),
            (("POST /me/x", f"Host: {host}", "Transfer-Encoding: chunked, identity"), "501"),
            (("GET https://also.test/me/x", f"Host: {host}"), "421"),
            (("GET /me/x", f"Host: {host}", "Authorization : x"), "400"),
        ):
            wire = await enter(proxies, authority, port)
            answer, _ = await ask(wire, *lines)
            assert answer.split(" ")[1] in (status, "400", "421", "501") and VALUE not in answer, (lines, answer)
            await finish(wire[1])
        assert len(origin.heads) == count


async def test_without_a_value_the_request_is_refused(authority: Authority) -> None:
    """A change of the policy counts for the next request of a connection, a missing value too."""
    origin, vault = Origin(), Vault()
    async with (
        secure(origin) as port,
        running_proxies("ok.test", network=network(credential()), authority=authority, vault=vault) as proxies,
    ):
        host = f"ok.test:{port}"
        wire = await enter(proxies, authority, port)
        await ask(wire, "GET /", host=host)
        assert VALUE in origin.heads[-1]
        proxies.policy = replace(proxies.policy, credentials=())
        await ask(wire, "GET /", host=host)
        assert VALUE not in origin.heads[-1]
        proxies.policy = replace(proxies.policy, credentials=(credential(),))
        vault.value = ""
        answer, body = await ask(wire, "GET /", host=host)
        assert answer.startswith("HTTP/1.1 502 ") and "credential_missing" in answer and len(origin.heads) == 2
        assert b"sandboxd credential set GH_TOKEN" in body
        await finish(wire[1])


async def test_a_websocket_begins_with_the_value(authority: Authority) -> None:
    origin, vault = Origin(), Vault()
    switched = f"HTTP/1.1 101 {VALUE}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Echo: {VALUE}\r\n\r\n"
    origin.answers["/ws"] = switched.encode()
    async with (
        secure(origin) as port,
        running_proxies("ok.test", network=network(credential()), authority=authority, vault=vault) as proxies,
    ):
        for protocol, has_value in (("websocket", True), ("h2c", False)):
            wire = await enter(proxies, authority, port)
            answer, _ = await ask(
                wire, "GET /ws", "Connection: Upgrade", f"Upgrade: {protocol}", host=f"ok.test:{port}"
            )
            assert VALUE not in answer
            assert any(VALUE in head for head in origin.heads) is has_value
            origin.heads.clear()
            await finish(wire[1])


@pytest.mark.parametrize("name", ["127.0.0.1", "also.test"])
async def test_another_name_of_the_server_gets_no_value(authority: Authority, name: str) -> None:
    """An address, and a name that leads to the same server: TLS passes as it is, or is refused by its name."""
    origin, vault = Origin(), Vault()
    policy = network(credential())
    async with (
        secure(origin) as port,
        running_proxies(name, "ok.test", network=policy, authority=authority, vault=vault) as proxies,
    ):
        reader, writer = await proxies.tunnel(f"{name}:{port}")
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            context = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
            await writer.start_tls(context, server_hostname="ok.test")
            await ask((reader, writer), "GET /", f"Authorization: {STAND_IN}", host=f"ok.test:{port}")
        assert not any(VALUE in head for head in origin.heads)
        await finish(writer)
