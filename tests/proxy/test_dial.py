"""Resolving and dialling: pins, races, and faults with their names."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from sandboxd.errors import CallerError
from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd.proxy import dial
from sandboxd.proxy.dial import Dialer, DialError, PinnedResolver, SystemResolver, connect_socket, interleave
from sandboxd.proxy.host_addresses import read_interface_addresses
from sandboxd.proxy.limits import ProxyLimits
from support.waiting import wait_until_async

A, B, C, SIX, SEVEN = (ip_address(text) for text in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::6", "fd00::7"))


class Names:
    async def resolve(self, host: str) -> Sequence[IPAddress]:
        raise DialError("dns_failed", host)


async def test_pins_answer_for_their_names_only() -> None:
    resolver = PinnedResolver({"OK.test.": ("127.0.0.1", "[::1]"), "bücher.test": ("::1",)}, Names())
    assert await resolver.resolve("ok.test") == (ip_address("127.0.0.1"), ip_address("::1"))
    assert set(resolver.pins) == {"ok.test", "xn--bcher-kva.test"}
    with pytest.raises(DialError):
        await resolver.resolve("a.ok.test")


@pytest.mark.parametrize(
    "pins", [{"": ("127.0.0.1",)}, {"ok.test": ("x",)}, {"ok.test": ()}, {"127.0.0.1": ("::1",)}, {"a b": ("::1",)}]
)
def test_pins_that_are_none(pins: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(CallerError) as caught:
        PinnedResolver(pins, Names())
    assert caught.value.slug == "resolve_invalid" and "NAME=ADDRESS" in caught.value.hint


async def test_the_system_resolver_works_off_the_event_loop() -> None:
    found = await SystemResolver().resolve("localhost")
    assert found and all(address.is_loopback for address in found)
    with pytest.raises(DialError) as caught:
        await SystemResolver().resolve("does-not-exist.test")
    assert caught.value.slug in ("dns_failed", "dns_timeout")


async def test_a_look_up_without_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(*_: object, **__: object) -> list[object]:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    resolver = SystemResolver(ProxyLimits(resolve_s=0.01), lookups=1)
    for _ in range(2):  # the second has to wait for the thread of the first, in vain
        with pytest.raises(DialError) as caught:
            await resolver.resolve("ok.test")
        assert caught.value.slug == "dns_timeout"
    go.set()
    await SystemResolver(lookups=1).resolve("ok.test")


async def test_an_enormous_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(0, 0, 0, "", (f"10.0.{n // 250}.{n % 250}", 0)) for n in range(4000) for _ in range(2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    found = await SystemResolver().resolve("many.test")
    assert found == tuple(ip_address(f"10.0.0.{n}") for n in range(dial.MOST_RESOLVED))


async def test_look_ups_that_hang_take_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(host: bytes, *_: object, **__: object) -> list[object]:
        if host.startswith(b"evil"):
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return [(0, 0, 0, "", ("192.0.2.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    whole = PinnedResolver({}, SystemResolver(ProxyLimits(resolve_s=0.05), lookups=4, each=3))
    evil, other = whole.share(), whole.share()
    for number in range(3):  # no look-up waits after this; a leak would grow each time
        hanging = (evil.resolve(f"evil{number}{n}.test") for n in range(3))
        for outcome in await asyncio.gather(*hanging, return_exceptions=True):
            assert isinstance(outcome, DialError) and outcome.slug == "dns_timeout"
        assert await other.resolve("ok.test") == (ip_address("192.0.2.1"),)
    go.set()


async def test_only_connections_to_other_hosts_get_keepalive() -> None:
    """Idle tunnels: a far end that vanished is noticed after three minutes, not never."""
    far = [one for one in read_interface_addresses() if one.version == 4 and not one.is_loopback]
    with socket.create_server(("", 0)) as server:
        for address in (ip_address("127.0.0.1"), *far[:1]):
            with await connect_socket(address, server.getsockname()[1]) as sock:
                alive = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert bool(alive) is not address.is_loopback
                assert not alive or sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


def test_families_alternate() -> None:
    assert interleave([A, B, C, SIX, SEVEN]) == [A, SIX, B, SEVEN, C]
    assert interleave([SIX, A]) == [SIX, A]
    assert interleave([]) == []


class Network:
    """A connector: addresses that connect, fail with an error, or never answer."""

    def __init__(self, **outcomes: object) -> None:
        self.outcomes = outcomes
        self.dialled: list[IPAddress] = []
        self.sockets: list[socket.socket] = []
        self.cancelled: list[IPAddress] = []

    async def __call__(self, address: IPAddress, port: int) -> socket.socket:
        self.dialled.append(address)
        outcome = self.outcomes.get("a" + str(address)[-1])
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(address)
                raise
        self.sockets.append(socket.socket())
        return self.sockets[-1]


REFUSED = OSError(errno.ECONNREFUSED, "refused")


async def test_the_first_address_that_answers_wins() -> None:
    network = Network(a1=REFUSED, a6=REFUSED, a2="connects")
    sock, address = await Dialer(network).dial([A, B, SIX], 80)
    assert address == B and network.dialled == [A, SIX, B]
    sock.close()


async def test_a_slow_address_does_not_keep_the_next_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.proxy.dial.ATTEMPT_DELAY_S", 0)
    network = Network(a6="connects")
    sock, address = await Dialer(network).dial([A, SIX], 80)
    assert address == SIX and network.cancelled == [A]
    sock.close()


async def test_a_name_with_many_addresses_costs_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.proxy.dial.ATTEMPT_DELAY_S", 0)
    addresses = [ip_address(f"192.0.2.{number}0") for number in range(1, 10)]
    network = Network()
    dialled = asyncio.create_task(Dialer(network).dial(addresses, 80))
    await wait_until_async(lambda: len(network.dialled) == len(addresses), "all are tried")
    assert network.cancelled == addresses[:5], "the last ones may take their time"
    network = Network(a0="connects")
    dialled.cancel()
    sock, address = await Dialer(network).dial(addresses, 80)
    assert address == addresses[0]
    sock.close()


async def test_of_two_that_connect_at_once_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.proxy.dial.ATTEMPT_DELAY_S", 0)
    ready = asyncio.Event()
    sockets: list[socket.socket] = []

    async def connect(address: IPAddress, port: int) -> socket.socket:
        if address == SIX:
            ready.set()
        await ready.wait()
        sockets.append(socket.socket())
        return sockets[-1]

    sock, _ = await Dialer(connect).dial([A, SIX], 80)
    assert [one.fileno() >= 0 for one in sockets].count(True) == 1
    sock.close()


@pytest.mark.parametrize(
    ("number", "slug"),
    [
        (errno.ECONNREFUSED, "connection_refused"), (errno.EHOSTUNREACH, "unreachable"),
        (errno.ENETUNREACH, "unreachable"), (errno.ETIMEDOUT, "connect_timeout"), (errno.EMFILE, "out_of_descriptors"),
        (errno.ECONNRESET, "connection_lost"), (errno.EIO, "connect_failed"),
    ],
)  # fmt: skip
async def test_faults_have_names(number: int, slug: str) -> None:
    for addresses in ([A], [A, A]):
        with pytest.raises(DialError) as caught:
            await Dialer(Network(a1=OSError(number, "x"))).dial(addresses, 80, "ok.test")
        assert caught.value.slug == slug and caught.value.message.startswith("ok.test:80 (10.0.0.1")


def test_the_local_network_privacy_of_macos_is_explained() -> None:
    """Its answer looks like a host that is not there."""
    for platform, address, number, told in (
        ("darwin", A, errno.EHOSTUNREACH, True), ("linux", A, errno.EHOSTUNREACH, False),
        ("darwin", ip_address("8.8.8.8"), errno.EHOSTUNREACH, False), ("darwin", A, errno.ETIMEDOUT, False),
    ):  # fmt: skip
        error = dial._explain(OSError(number, ""), "x", [address], platform)
        assert ("Local Network" in (error.hint or "")) is told


async def test_no_answer_at_all_ends() -> None:
    for addresses in ([A], [A, B]):
        network = Network()
        with pytest.raises(DialError) as caught:
            await Dialer(network, ProxyLimits(connect_s=0.01)).dial(addresses, 80)
        assert caught.value.slug == "connect_timeout"
        assert network.cancelled == network.dialled


async def test_no_address_is_a_fault() -> None:
    with pytest.raises(DialError):
        await Dialer(Network()).dial([], 80)


async def test_a_real_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        sock = await connect_socket(ip_address("127.0.0.1"), port)
        with sock, listener.accept()[0]:
            assert sock.getpeername()[1] == port and not sock.getblocking()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with pytest.raises(ConnectionRefusedError):
        await connect_socket(ip_address("127.0.0.1"), port)
