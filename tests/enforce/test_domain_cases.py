"""Field cases of domain matching at the proxies: what is dialled, and what is not."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from sandboxd.policy.hosts.host_patterns import IPAddress
from support.daemon import running_daemon
from support.fake_runtime import FakeMachine
from support.proxies import Proxies, running_proxies, scripted_origin


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await reader.read(65536)


async def status(proxies: Proxies, authority: str) -> int:
    said = await proxies.ask_http(f"CONNECT {authority} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return int(said.split(b" ")[1])


async def get(proxies: Proxies, name: str, port: int) -> int:
    request = f"GET http://{name}:{port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    said = await proxies.ask_http(request.encode())
    return int(said.split(b" ")[1])


async def test_a_wildcard_denial_holds_on_every_port() -> None:
    """A wildcard denial holds on every port."""
    async with (
        scripted_origin(answer) as origin,
        running_proxies("*", denied=["*.no.test"], pinned=("a.no.test", "ok.test")) as proxies,
    ):
        for port in (8443, 443, origin.port):
            assert await status(proxies, f"a.no.test:{port}") == 403
        assert await status(proxies, f"A.NO.test.:{origin.port}") == 403
        assert origin.connections == 0


@pytest.mark.parametrize("table", [
    ("ok.test", {"ok.test": True, "a.ok.test": False, "xok.test": False, "ok.test.no.test": False}),
    ("*.ok.test", {"ok.test": False, "a.ok.test": True, "a.b.ok.test": True, "xok.test": False}),
    ("*.test", None),
    ("*", {"ok.test": True, "a.b.ok.test": True, "ok.test.no.test": True}),
])  # fmt: skip
async def test_one_table_for_every_pattern(table: tuple[str, dict[str, bool] | None]) -> None:
    """One table for every pattern."""
    pattern, expected = table
    names = ("ok.test", "a.ok.test", "a.b.ok.test", "xok.test", "ok.test.no.test")
    expected = expected if expected is not None else dict.fromkeys(names, True)
    async with scripted_origin(answer) as origin, running_proxies(pattern, pinned=names) as proxies:
        for name, allowed in expected.items():
            assert await get(proxies, name, origin.port) == (200 if allowed else 403), name


LOCAL = ("169.254.169.254", "127.0.0.1", "::ffff:127.0.0.1", "fe80::1", "64:ff9b::7f00:1")


class Alternating:
    """Answers with one address, then with another, as a rebinding name server does."""

    def __init__(self, *answers: str) -> None:
        self._answers = answers
        self.asked = 0

    async def resolve(self, host: str) -> Sequence[IPAddress]:
        self.asked += 1
        return [ip_address(self._answers[(self.asked - 1) % len(self._answers)])]


@pytest.mark.parametrize("address", LOCAL)
async def test_a_name_that_leads_to_this_machine_is_not_dialled(address: str) -> None:
    async with scripted_origin(answer) as origin, running_proxies("ok.test", pinned=()) as proxies:
        names = Alternating(address)
        proxies.names.resolve = names.resolve  # type: ignore[method-assign]
        assert await status(proxies, f"ok.test:{origin.port}") == 403
        assert (names.asked, origin.connections) == (1, 0)


async def test_what_was_checked_is_what_is_dialled() -> None:
    dialled: list[tuple[str, int]] = []

    async def connect(address: IPAddress, port: int) -> socket.socket:
        dialled.append((str(address), port))
        raise OSError(errno.ECONNREFUSED, "refused")

    async with running_proxies("ok.test", pinned=(), connector=connect) as proxies:
        names = Alternating("192.0.2.7", "127.0.0.1")
        proxies.names.resolve = names.resolve  # type: ignore[method-assign]
        for expected in (502, 403, 502, 403):
            assert await status(proxies, "ok.test:80") == expected
        assert dialled == [("192.0.2.7", 80)] * 2 and names.asked == 4


async def test_listed_literals_open_and_private_ranges_are_optional() -> None:
    """A listed literal may be reached and private ranges are by choice."""
    async with scripted_origin(answer) as origin:
        async with running_proxies("ok.test", f"127.0.0.1:{origin.port}", pinned=()) as proxies:
            proxies.names.resolve = Alternating("127.0.0.1").resolve  # type: ignore[method-assign]
            assert await get(proxies, "ok.test", origin.port) == 200
        assert origin.connections == 1


@pytest.mark.parametrize(
    "command",
    [
        "curl no.test",
        "git clone git@no.test:x",
        "ssh no.test",
        "pip install --index-url http://no.test/",
        "ping no.test",
    ],
)
async def test_what_a_command_names_is_no_ground_for_its_decision(command: str) -> None:
    """Text says little about what a program will connect to: the proxies decide, when it does."""
    settings = {"sandbox": {"enabled": True, "network": {"deniedDomains": ["no.test"]}}}
    async with (
        running_daemon(settings=settings, assemble=FakeMachine().assemble) as running,
        running.client() as client,
    ):
        said = await client.result("should_sandbox", {"command": command})
        assert (said["sandboxed"], said["behavior"]) == (True, "allow")
        host = await client.result("policy.explain", {"kind": "host", "target": "no.test"})
        assert host["behavior"] == "deny"


async def test_without_a_back_end_the_answer_is_an_error_at_once() -> None:
    """Without a back end the answer is an error at once."""
    machine = FakeMachine()
    machine.backend.unavailable = "no user namespaces"
    settings = {"sandbox": {"enabled": True}}
    async with running_daemon(settings=settings, assemble=machine.assemble) as running, running.client() as client:
        error = await client.error("wrap", {"command": "x", "cwd": str(running.around.project)})
        assert (error["code"], error["data"]["slug"]) == (-32004, "sandbox_unavailable")
        assert error["message"] == "no user namespaces" and "sandboxd check" in error["data"]["hint"]
        said = await client.result("should_sandbox", {"command": "x"})
        assert (said["behavior"], said["reason"]["type"]) == ("deny", "sandboxUnavailable")
        assert "no user namespaces" in (await client.result("policy.describe"))["text"]
