"""DNS sockets: datagrams and streams (RFC 1035, section 4.2; RFC 7766).

An answer (`dns_answers.py`) never waits, so a datagram is answered in the turn that reads it, and a stream in the order
of its questions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections.abc import Callable
from typing import Final, Protocol

from sandboxd.proxy.dns.dns_message import MAX_MESSAGE, MAX_QUERY
from sandboxd.proxy.fair_share import QUESTION, Share
from sandboxd.proxy.limits import ProxyLimits
from sandboxd.proxy.streams.stream import HEAD_READ_SIZE, Stream

QUESTIONS_AT_ONCE: Final = 64
"""Questions of one socket before others get a turn."""
MOST_FAULTS: Final = 64
"""Failed reads in a row before a socket is closed. Errors about earlier answers come singly."""

_IP_PKTINFO: Final = 8
"""From linux/in.h; Python has no name for it before 3.14."""
_IPV6_PKTINFO: Final = socket.IPV6_PKTINFO
_IPV6_FREEBIND: Final = 78
_ANCILLARY: Final = 2 * socket.CMSG_SPACE(20)
_Ancillary = tuple[int, int, bytes]

log = logging.getLogger(__name__)


class Respond(Protocol):
    def __call__(self, data: bytes, *, stream: bool = False) -> bytes | None: ...


class DatagramServer:
    """One UDP socket on the event loop, which it owns."""

    def __init__(
        self,
        sock: socket.socket,
        respond: Callable[[bytes], bytes | None],
        label: str = "",
        share: Share | None = None,
    ) -> None:
        self._share = share or Share()
        self._socket = sock
        self._respond = respond
        self._label = label
        self._faults = 0
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        if sock.family == socket.AF_INET6:
            with contextlib.suppress(OSError):  # answer from any queried address; IPv4 needs no option for it
                sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        self._watch()

    def _watch(self) -> None:
        if self._socket.fileno() >= 0:  # it may have been closed while it waited for its turn
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_failed(self) -> bool:
        """Return whether the socket was closed after repeated errors."""
        return self._socket.fileno() < 0

    def hand_over(self) -> int:
        """Release the socket, and return its descriptor. New datagrams wait."""
        self._loop.remove_reader(self._socket.fileno())
        return self._socket.detach()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _readable(self) -> None:
        for _ in range(QUESTIONS_AT_ONCE):
            if not self._share.has_some():  # not watched meanwhile: what waits would wake the loop in each turn
                self._loop.remove_reader(self._socket.fileno())
                self._share.later(self._watch)
                return
            begun = time.perf_counter()
            self._share.spend(QUESTION)
            try:
                data, ancillary, _, sender = self._socket.recvmsg(MAX_MESSAGE, _ANCILLARY)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._failed(error)
                return
            self._faults = 0
            try:
                answer = self._respond(data)
                if answer is not None:
                    self._socket.sendmsg([answer], _from_there(ancillary), 0, sender)
            except OSError:  # the client is gone or does not read; it can repeat the query
                pass
            except Exception:
                log.exception("internal error in a name look-up of %s", self._label)
            _charge(self._share, begun)

    def _failed(self, error: OSError) -> None:
        """Count an error, mostly the report of an undelivered answer (ECONNREFUSED)."""
        self._faults += 1
        if self._faults > MOST_FAULTS:
            log.error("cannot read the DNS socket of %s, closing it: %s", self._label, error.strerror)
            self.close()


def _from_there(ancillary: list[_Ancillary]) -> list[_Ancillary]:
    """Return control data to answer from the queried address (ip(7), ipv6(7)).

    Clients drop an answer from another address. Empty where the socket has a single address."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):  # interface, address to answer from, address asked
            return [(level, kind, struct.pack("=i", 0) + data[8:12] + bytes(4))]
        if (level, kind) == (socket.IPPROTO_IPV6, _IPV6_PKTINFO):  # address asked, interface
            return [(level, kind, data[:16] + struct.pack("=i", 0))]
    return []


def _charge(share: Share, begun: float) -> None:
    """Charge what a question took beyond its price."""
    if (more := int((time.perf_counter() - begun) * 1e6) - QUESTION) > 0:
        share.spend(more)


async def serve_dns(client: Stream, limits: ProxyLimits, respond: Respond) -> None:
    """Serve one TCP connection until its end or timeout, and close it.

    Also ends at a query that is too long, and when the command's incomplete ones are too large together."""
    waiting = bytearray()
    try:
        while True:
            client.unread(bytes(waiting))
            waiting.clear()
            client.begin()
            async with asyncio.timeout(limits.dns_idle_s):
                while not _is_whole(waiting):
                    data = await client.receive(HEAD_READ_SIZE)
                    if not data or client.share.held > limits.held_bytes:
                        return
                    waiting += data
                    if len(waiting) >= 2 and _length(waiting) > MAX_QUERY:
                        return
            client.commit()
            answers = bytearray()
            for count in range(QUESTIONS_AT_ONCE):
                if not _is_whole(waiting) or (count and not client.share.has_some()):
                    break
                begun = time.perf_counter()
                client.share.spend(QUESTION)
                end = 2 + _length(waiting)
                answer = respond(bytes(waiting[2:end]), stream=True)
                _charge(client.share, begun)
                del waiting[:end]
                if answer is None:
                    return
                answers += len(answer).to_bytes(2, "big") + answer
            async with asyncio.timeout(limits.dns_idle_s):
                await client.send(bytes(answers))
            await client.share.turn()
    except (OSError, TimeoutError):
        client.reset()
    except BaseException:
        client.reset()
        raise
    finally:
        client.close()


def _is_whole(waiting: bytearray) -> bool:
    return len(waiting) >= 2 and len(waiting) >= 2 + _length(waiting)


def _length(waiting: bytearray) -> int:
    return int.from_bytes(waiting[:2], "big")
