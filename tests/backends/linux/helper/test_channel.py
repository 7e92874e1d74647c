"""The connection of a helper, from both ends."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import DESCRIPTORS_MAX
from sandboxd.backends.linux.helper.channel import Channel
from support.waiting import wait_until_async

MUCH = os.urandom(1 << 20)


@dataclass
class Ends:
    channel: Channel
    peer: socket.socket
    read: bytearray = field(default_factory=bytearray)

    def drain(self) -> bytes:
        """What has come so far."""
        try:
            while piece := self.peer.recv(1 << 20):
                self.read += piece
        except BlockingIOError:
            pass
        return bytes(self.read)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ours, peer = socket.socketpair()
    peer.setblocking(False)
    made = Ends(Channel(ours), peer)
    yield made
    made.channel.close()
    peer.close()


async def test_descriptors_come_with_bytes_and_say_who_sent_them(ends: Ends) -> None:
    socket.send_fds(ends.peer, [b"two"], [0, 0])
    assert ends.channel.receive(100) == (b"two", os.getpid(), False)
    descriptors = list(ends.channel.descriptors)
    assert len(descriptors) == 2
    assert not any(map(os.get_inheritable, descriptors))
    ends.channel.close()
    for descriptor in descriptors:
        with pytest.raises(OSError):
            os.fstat(descriptor)


async def test_more_descriptors_than_there_can_be_are_told(ends: Ends) -> None:
    socket.send_fds(ends.peer, [b"x"], [0] * (DESCRIPTORS_MAX + 10))
    assert ends.channel.receive(1).is_cut
    assert len(ends.channel.descriptors) < DESCRIPTORS_MAX + 10


async def test_nothing_yet_and_the_end_are_two_things(ends: Ends) -> None:
    with pytest.raises(BlockingIOError):
        ends.channel.receive(1)
    ends.peer.close()
    assert ends.channel.receive(1).data == b""


async def test_what_the_kernel_does_not_take_waits_and_comes_in_order(ends: Ends) -> None:
    ends.channel.send(MUCH)
    assert ends.channel.outgoing
    ends.channel.send(b"the end")
    await wait_until_async(lambda: ends.drain().endswith(b"the end"), "all has come")
    assert ends.read == MUCH + b"the end"
    assert ends.channel.outgoing == b""


async def test_what_an_earlier_one_had_left_comes_first(ends: Ends) -> None:
    ends.channel.resume(b"left, ", ())
    assert ends.drain() == b""
    ends.channel.flush()
    ends.channel.send(b"new")
    assert ends.drain() == b"left, new"


async def test_what_is_sent_to_nobody_is_dropped(ends: Ends) -> None:
    ends.peer.close()
    ends.channel.send(MUCH)
    ends.channel.send_at_once(b"K")
    assert ends.channel.outgoing == b""
    ends.channel.disconnect()
    ends.channel.send(b"x")
    ends.channel.send_at_once(b"K")
    ends.channel.flush()
    assert ends.channel.outgoing == b""


async def test_a_file_is_read_from_its_beginning(ends: Ends) -> None:
    ends.channel.send_file(b"A", MUCH)
    data, (descriptor,), _, _ = socket.recv_fds(ends.peer, 1, 1)
    with open(descriptor, "rb") as file:
        assert (data, file.read()) == (b"A", MUCH)


async def test_who_has_it_now_goes_on_with_it(ends: Ends) -> None:
    socket.send_fds(ends.peer, [b"x"], [0])
    ends.channel.watch(lambda: None)
    ends.channel.receive(1)
    (descriptor,) = ends.channel.descriptors
    connection = ends.channel.let_go()
    assert not ends.channel.is_open and ends.channel.descriptors == []
    assert ends.channel.let_go() == -1
    ends.channel.close()
    os.close(descriptor)  # it was not closed
    with socket.socket(fileno=connection) as other:
        other.send(b"still here")
    assert ends.drain() == b"still here"


async def test_one_that_was_over_before() -> None:
    channel = Channel(None)
    assert not channel.is_open
    channel.send(b"x")
    channel.pause()
    channel.close()
