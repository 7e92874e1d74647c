"""Generated network settings: what `explain` says of a host is what real connections through real proxies meet.

The settings go the whole way (file text, merge, policy); the connections are CONNECT, a plain request and SOCKS5. Every
name leads to this machine, so that only the policy is between a connection and the origin. Connections to any other
address are made to fail by the connector, after the decision.

`SANDBOXD_HOST_CASES` sets how many policies (seed 0 upwards; 40 by default).
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import socket
from dataclasses import dataclass
from typing import Any

import pytest

from sandboxd.policy.build import build_policy
from sandboxd.policy.decision import Behavior
from sandboxd.policy.explain.explanation import explain_host
from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd.policy.model import Policy
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.proxy.dial import connect_socket
from sandboxd.settings.layer import parse_layer
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source
from support.ports import closed_port
from support.proxies import Proxies, ScriptedOrigin, exchange, finish, running_proxies, scripted_origin

CASES = int(os.environ.get("SANDBOXD_HOST_CASES", "40"))
NAMES = ("ok.test", "a.ok.test", "b.a.ok.test", "xok.test", "no.test", "a.no.test", "ok.test.no.test")
LOCAL_NAMES = ("localhost", "a.localhost")
SPELLINGS = ("OK.test", "ok.test.", "127.0.0.1", "127.1", "0x7f000001", "2130706433", "[::1]", "[::ffff:127.0.0.1]",
             "10.0.0.5", "169.254.169.254", "192.0.2.7", "[2001:db8::7]", "0.0.0.0")  # fmt: skip
NO_HOSTS = ("ok..test", "a b", "user@ok.test", "[::1", "")
PATTERNS = ("ok.test", "*.ok.test", ".ok.test", "*.a.ok.test", "no.test", "*.no.test", ".no.test", "*", "127.0.0.1",
            "[::1]", "10.0.0.5", "192.0.2.7", "localhost",
            "*.localhost", ".localhost", "a.localhost", "169.254.169.254")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probe:
    host: str
    port: int


def random_settings(chance: random.Random, ports: tuple[int, ...]) -> dict[str, Any]:
    def patterns(most: int) -> list[str]:
        chosen = chance.sample(PATTERNS, chance.randint(0, most))
        return [f"{p}:{chance.choice(ports)}" if chance.random() < 0.3 else p for p in chosen]

    def web(texts: list[str]) -> list[str]:
        return [f"WebFetch(domain:{text})" for text in texts]

    network = {
        "allowedDomains": patterns(5),
        "deniedDomains": patterns(2),
        "strictAllowlist": chance.random() < 0.3,
        "useWebFetchRules": chance.random() < 0.8,
    }
    if chance.random() < 0.3:
        network["deniedResolvedAddresses"] = ["10.0.0.0/8"]
    permissions = {"allow": web(patterns(2)), "deny": web(patterns(1))}
    return {"permissions": permissions, "sandbox": {"network": network}}


def policy_of(settings: dict[str, Any]) -> Policy:
    layer = parse_layer(json.dumps(settings), Source.USER, "/home/u/.claude/settings.json")
    return build_policy(merge([layer]), PathScope("/home/u", "/home/u/p"))


async def connect_here(address: IPAddress, port: int) -> socket.socket:
    """Only this machine is dialled for real."""
    if not address.is_loopback:
        raise OSError(errno.ENETUNREACH, "not in a test")
    return await connect_socket(address, port)


async def by_connect(proxies: Proxies, probe: Probe) -> bool | None:
    reader, writer = await proxies.http()
    writer.write(f"CONNECT {probe.host}:{probe.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    status = (await reader.readline()).split(b" ")[1]
    await finish(writer)
    return allowed_by(status)


async def by_request(proxies: Proxies, probe: Probe) -> bool | None:
    authority = f"{probe.host}:{probe.port}"
    request = f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"
    answer = await exchange(await proxies.http(), request.encode())
    return allowed_by(answer.split(b" ")[1])


async def by_socks(proxies: Proxies, probe: Probe) -> bool | None:
    bracketed = probe.host.startswith("[") and probe.host.endswith("]")  # SOCKS has no brackets
    name = (probe.host[1:-1] if bracketed else probe.host).encode()
    reader, writer = await proxies.socks()
    writer.write(b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name + probe.port.to_bytes(2, "big"))
    await reader.readexactly(2)
    reply = (await reader.readexactly(2))[1]
    await finish(writer)
    return None if reply not in (0, 2, 3, 4, 5) else reply != 2


def allowed_by(status: bytes) -> bool | None:
    """None for what is no host: refused before any rule."""
    assert status in (b"200", b"400", b"403", b"502", b"504"), status
    return None if status == b"400" else status != b"403"


async def disagreements(seed: int) -> list[str]:
    chance = random.Random(seed)
    wrong: list[str] = []
    async with scripted_origin(_answer) as origin:
        ports = (origin.port, closed_port())
        settings = random_settings(chance, ports)
        policy = policy_of(settings)
        async with running_proxies(pinned=NAMES, connector=connect_here) as proxies:
            proxies.policy = policy.network
            hosts = (*NAMES, *LOCAL_NAMES, *chance.sample(SPELLINGS, 6), chance.choice(NO_HOSTS))
            for probe in (Probe(host, chance.choice(ports)) for host in hosts):
                said = explain_host(policy, f"{probe.host}:{probe.port}")
                before, ways = await accepted(origin), (by_connect, by_request, by_socks)
                for way in ways:
                    happened = await way(proxies, probe)
                    if (happened is True) is not (said.behavior is Behavior.ALLOW):
                        wrong.append(f"{way.__name__} {probe}: {happened}, and explain says {said}")
                reached = await accepted(origin) > before + 1
                if reached and said.behavior is not Behavior.ALLOW:
                    wrong.append(f"{probe} reached the origin, and explain says {said}")
    return [f"seed {seed}: {one}\n  {json.dumps(settings)}" for one in wrong]


async def accepted(origin: ScriptedOrigin) -> int:
    """Return the number of connections, of which this makes the last."""
    reader, writer = await asyncio.open_connection("127.0.0.1", origin.port)
    await reader.readline()
    await finish(writer)
    return origin.connections


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    await reader.read(65536)


@pytest.mark.parametrize("first", range(0, CASES, 20))
async def test_explain_agrees_with_real_connections(first: int) -> None:
    wrong = [line for seed in range(first, min(first + 20, CASES)) for line in await disagreements(seed)]
    assert not wrong, "\n".join(wrong[:5]) + f"\n{len(wrong)} disagreements"


async def test_the_comparison_sees_a_difference() -> None:
    """With other rules in force than the ones that are explained, something has to be found."""
    found = 0
    async with scripted_origin(_answer) as origin, running_proxies("ok.test", pinned=NAMES) as proxies:
        policy = policy_of({"sandbox": {"network": {"allowedDomains": ["no.test"]}}})
        for host in ("ok.test", "no.test"):
            for way in (by_connect, by_request, by_socks):
                happened = await way(proxies, Probe(host, origin.port))
                found += (happened is True) is not explain_host(policy, f"{host}:{origin.port}").allowed
    assert found == 6
