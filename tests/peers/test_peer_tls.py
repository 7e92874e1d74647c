"""TLS that ends at the proxy, as the tests of srt and codex have it: what a client inside is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from peers.tables import PeerCase, cases_of
from proxy.test_requests import END, TLS, Served, by_connect, ends_tls, request, rule, tls_origin, trusting
from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.proxy.tls.authority import Authority
from support.proxies import Proxies, Wire, finish, running_proxies

RULES = (rule("allow", "/me/**"),)
FILE = 'attachment; filename="中文名.pdf"'.encode()


class Named(Served):
    """An origin whose answers have bytes beyond ASCII in a header."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(END)
        self.lines.append("seen")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Disposition: " + FILE + b"\r\n\r\nok")
        await writer.drain()


Try = Callable[[Wire, int, Served], Awaitable[str]]


def status(head: bytes) -> str:
    return head.split(b" ")[1].decode()


async def in_form(wire: Wire, port: int, target: str, host: str = "") -> tuple[str, bytes]:
    head, body = await request(wire, f"GET {target}", host=host or f"ok.test:{port}")
    return status(head), body


async def header_in_utf8(wire: Wire, port: int, served: Served) -> str:
    head, body = await request(wire, "GET /me/a", host=f"ok.test:{port}")
    return "the same bytes" if FILE in head and body == b"ok" else str(head)


async def absolute(wire: Wire, port: int, served: Served) -> str:
    told, _ = await in_form(wire, port, f"https://ok.test:{port}/me/a?x=1")
    return f"{told} {served.lines[0].split()[1] if served.lines else ''}".strip()


async def absolute_without_a_rule(wire: Wire, port: int, served: Served) -> str:
    told, _ = await in_form(wire, port, f"https://ok.test:{port}/you/a")
    return told if not served.lines else "it arrived"


async def other_host(wire: Wire, port: int, served: Served) -> str:
    told, _ = await in_form(wire, port, "/me/a", host="evil.test")
    return told if not served.lines else "it arrived"


async def other_method(wire: Wire, port: int, served: Served) -> str:
    head, _ = await request(wire, "POST /you/a?api_key=secret", host=f"ok.test:{port}")
    return status(head) if not served.lines and b"secret" not in head else "it arrived"


INSIDE: dict[str, Try] = {
    "a header in UTF-8": header_in_utf8, "an absolute target": absolute,
    "an absolute target without a rule": absolute_without_a_rule, "another Host": other_host,
    "a method without a rule": other_method,
}  # fmt: skip


async def tried(what: str, proxies: Proxies, authority: Authority, port: int, served: Served) -> str:
    reader, writer = await by_connect(proxies, port)
    await writer.start_tls(trusting(authority), server_hostname="ok.test")
    try:
        return await INSIDE[what]((reader, writer), port, served)
    finally:
        await finish(writer)


async def of_tunnel(proxies: Proxies, authority: bytes) -> str:
    return status(await proxies.ask_http(b"CONNECT " + authority + b" HTTP/1.1\r\n\r\n"))


@pytest.mark.parametrize("case", cases_of("inside_tls", 1), ids=lambda one: one.inputs[0])
async def test_what_a_client_is_answered(case: PeerCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    authority = Authority([HostPattern.parse("ok.test")])
    what = case.inputs[0]
    served = Named() if what == "a header in UTF-8" else Served()
    async with (
        tls_origin(served) as port,
        running_proxies(network=ends_tls(*RULES), authority=authority) as proxies,
    ):
        if what == "a server that is not there":
            found = await of_tunnel(proxies, b"ok.test:1")
        elif what == "a host that no rule allows":
            found = await of_tunnel(proxies, b"denied.test:443")
        else:
            found = await tried(what, proxies, authority, port, served)
    assert found == case.expected
