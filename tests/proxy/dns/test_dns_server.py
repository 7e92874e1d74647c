"""DNS on real sockets: datagrams, streams in any pieces, limits, and what real resolvers make of the answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from sandboxd.policy.hosts.synthetic_addresses import NETWORK_V4
from sandboxd.policy.model import NetworkPolicy
from sandboxd.proxy.dial import Dialer
from sandboxd.proxy.dns.dns_message import Code, DnsQuestion, RecordType, parse_message, render_query
from sandboxd.proxy.gate import Gate
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.server import ProxyServer
from support.dialogue import splits
from support.proxies import Blocked, NoNames, finish, rules
from support.waiting import wait_until_async

OK = NETWORK_V4[256].packed


@dataclass
class NameService:
    server: ProxyServer
    port: int
    blocked: Blocked

    def datagram(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.connect(("127.0.0.1", self.port))
        return sock

    async def stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def name_service(*allowed: str, limits: ProxyLimits | None = None) -> AsyncIterator[NameService]:
    blocked = Blocked()
    names = NoNames()
    policy = NetworkPolicy(allowed=rules(*allowed))
    limits = limits or ProxyLimits()
    server = ProxyServer(Gate(lambda: policy, None, names), Dialer(), blocked.add, "test", limits=limits)
    listener = socket.create_server(("127.0.0.1", 0))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(listener.getsockname())
    server.serve_names([datagrams], [listener])
    try:
        yield NameService(server, listener.getsockname()[1], blocked)
    finally:
        await server.aclose()
        assert server.connections == 0 and datagrams.fileno() == listener.fileno() == -1
        assert names.asked == []


def query(name: str = "ok.test", kind: int = RecordType.A, number: int = 7) -> bytes:
    return render_query(number, DnsQuestion(tuple(name.encode().split(b".")), kind))


def framed(*messages: bytes) -> bytes:
    return b"".join(len(message).to_bytes(2, "big") + message for message in messages)


async def receive(sock: socket.socket) -> bytes:
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 65535), 20)


async def read_message(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))


async def test_datagrams_are_answered_and_what_is_no_query_is_not() -> None:
    async with name_service("ok.test") as service:
        with service.datagram() as sock:
            for nonsense in (b"", b"x", b"\xff" * 20):
                sock.send(nonsense)
            sock.send(query())
            reply = parse_message(await receive(sock))
            assert (reply.id, [record.data for record in reply.answers]) == (7, [OK])
            sock.send(query("no.test", number=8))
            reply = parse_message(await receive(sock))
            assert (reply.id, reply.code) == (8, Code.NXDOMAIN)
            assert [(one.operation, one.host) for one in service.blocked] == [("DNS", "no.test")]


@pytest.mark.parametrize(
    ("family", "anywhere", "option", "asked"),
    [
        (socket.AF_INET, "0.0.0.0", (socket.IPPROTO_IP, 8), "127.9.8.7"),  # IP_PKTINFO
        (socket.AF_INET6, "::", (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO), "::1"),
    ],
)
async def test_the_answer_comes_from_the_address_that_was_asked(
    family: int, anywhere: str, option: tuple[int, int], asked: str
) -> None:
    async with name_service("ok.test") as service:
        everywhere = socket.socket(family, socket.SOCK_DGRAM)
        everywhere.setsockopt(*option, 1)
        everywhere.bind((anywhere, 0))
        port = everywhere.getsockname()[1]
        service.server.serve_names([everywhere], [])
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect((asked, port))  # takes nothing from elsewhere
            sock.send(query())
            assert parse_message(await receive(sock)).answers[0].data == OK


async def test_who_went_away_does_not_disturb_the_others() -> None:
    async with name_service("ok.test") as service:
        for _ in range(100):  # the answers come back as ICMP errors
            with service.datagram() as sock:
                sock.send(query())
        with service.datagram() as sock:
            sock.send(query())
            assert parse_message(await receive(sock)).answers


async def test_many_at_once_each_get_their_own() -> None:
    async with name_service("*.ok.test") as service:
        socks = [service.datagram() for _ in range(200)]
        for number, sock in enumerate(socks):
            sock.send(query(f"n{number}.ok.test", number=number))
        replies = [parse_message(await receive(sock)) for sock in socks]
        assert [reply.id for reply in replies] == list(range(200))
        assert len({reply.answers[0].data for reply in replies}) == 200
        for sock in socks:
            sock.close()


async def test_a_stream_in_any_pieces_and_one_after_the_other() -> None:
    conversation = framed(query(), query("no.test", number=8))
    async with name_service("ok.test") as service:
        for pieces in splits(conversation):
            reader, writer = await service.stream()
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            replies = [parse_message(await read_message(reader)) for _ in range(2)]
            assert [(reply.id, reply.code) for reply in replies] == [(7, Code.NOERROR), (8, Code.NXDOMAIN)]
            writer.write(conversation)
            assert parse_message(await read_message(reader)).id == 7, "the connection stays"
            await finish(writer)


async def test_pipelined_questions_before_the_end_are_all_answered() -> None:
    async with name_service("*.ok.test") as service:
        reader, writer = await service.stream()
        writer.write(framed(*(query(f"n{number}.ok.test", number=number) for number in range(500))))
        writer.write_eof()
        for number in range(500):
            assert parse_message(await read_message(reader)).id == number
        assert await reader.read() == b""
        await finish(writer)


@pytest.mark.parametrize("nonsense", [b"\0\0", b"\0\1x", framed(b"\xff" * 20), framed(query(), b"")])
async def test_a_stream_that_is_none_ends(nonsense: bytes) -> None:
    async with name_service("ok.test") as service:
        reader, writer = await service.stream()
        writer.write(nonsense)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await finish(writer)
        await wait_until_async(lambda: service.server.connections == 0)


@pytest.mark.parametrize("silence", [b"", b"\0", framed(query())[:-1], framed(query()) + b"\0"])
async def test_who_says_nothing_whole_is_hung_up_on(silence: bytes) -> None:
    async with name_service("ok.test", limits=ProxyLimits(dns_idle_s=0.1)) as service:
        reader, writer = await service.stream()
        writer.write(silence)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await wait_until_async(lambda: service.server.connections == 0)
        await finish(writer)


async def test_who_does_not_read_the_answers_is_hung_up_on() -> None:
    async with name_service("ok.test", limits=ProxyLimits(dns_idle_s=0.1)) as service:
        _, writer = await service.stream()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(framed(query()) * 1000)
                await writer.drain()
        await wait_until_async(lambda: service.server.connections == 0)
        await finish(writer)


async def test_unfinished_questions_have_a_bound_together() -> None:
    async with name_service("ok.test", limits=ProxyLimits(held_bytes=1000)) as service:
        streams = [await service.stream() for _ in range(3)]
        for reader, writer in streams[:2]:
            writer.write(framed(query()) + framed(bytes(500))[:-50])
            assert parse_message(await read_message(reader)).id == 7
        await wait_until_async(lambda: service.server.share.held == 2 * 452)
        refused, writer = streams[2]
        writer.write(framed(bytes(500))[:-50])
        assert await refused.read() == b"", "the third is one too many"
        reader, writer = streams[0]
        writer.write(bytes(50) + framed(query()))
        assert [parse_message(await read_message(reader)).id for _ in range(2)] == [0, 7]
        await wait_until_async(lambda: service.server.share.held == 452)
        for _, writer in streams:
            await finish(writer)
        await wait_until_async(lambda: service.server.connections == 0 == service.server.share.held)


async def test_a_query_of_enormous_length_is_not_awaited() -> None:
    async with name_service("ok.test") as service:
        reader, writer = await service.stream()
        writer.write(b"\xff\xff")
        assert await reader.read() == b""
        await finish(writer)


async def test_an_unfinished_question_is_handed_over() -> None:
    async with name_service("ok.test") as service:
        reader, writer = await service.stream()
        question = framed(query(number=9))
        writer.write(framed(query()) + question[:5])
        assert parse_message(await read_message(reader)).id == 7
        await wait_until_async(lambda: service.server.share.held == 5)
        record, cut = await service.server.hand_over()
        policy = NetworkPolicy(allowed=rules("ok.test"))
        after = ProxyServer(Gate(lambda: policy, None, NoNames()), Dialer(), service.blocked.add, "after")
        after.resume(record)
        writer.write(question[5:])
        assert (parse_message(await read_message(reader)).id, cut) == (9, 0)
        await finish(writer)
        await after.aclose()
