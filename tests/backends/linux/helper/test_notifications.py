"""What the helper says of system calls, as bytes: both ends against each other, any split, and what is no message."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.backends.linux.helper.bridge_protocol import (
    MAX_PAYLOAD,
    Descriptors,
    Event,
    EventDecoder,
    ExecFailed,
    Exited,
    ProtocolError,
    Started,
    encode_event,
)
from sandboxd.backends.linux.helper.notifications import (
    Connecting,
    Lost,
    MadeName,
    RefusedCall,
    ReportedAccess,
    encode_answer,
)
from sandboxd.plan.host_facts import SocketFile

BEFORE = encode_event(Descriptors(2)) + encode_event(Started())
UNIX, INET, INET6 = int(socket.AF_UNIX), int(socket.AF_INET), int(socket.AF_INET6)

numbers = st.integers(0, 0xFFFFFFFF)
processes = st.binary(max_size=15).map(lambda name: name.replace(b"\0", b"0").decode("utf-8", "surrogateescape"))
paths = st.binary(max_size=MAX_PAYLOAD - 73).map(
    lambda path: (b"/" + path.replace(b"\0", b"0")).decode("utf-8", "surrogateescape")
)
refused = st.builds(
    RefusedCall, st.sampled_from(ReportedAccess), numbers, st.integers(1, 4095), numbers, processes, paths,
    st.integers(1, 0xFFFFFFFF), st.booleans(),
)  # fmt: skip
long_numbers = st.integers(0, (1 << 64) - 1)
files = st.builds(SocketFile, st.tuples(numbers, numbers), long_numbers, st.integers(-(1 << 62), 1 << 62))
addresses = st.one_of(
    st.tuples(st.just(INET), st.ip_addresses(v=4).map(str), st.integers(0, 65535), st.none()),
    st.tuples(st.just(INET6), st.ip_addresses(v=6).map(str), st.integers(0, 65535), st.none()),
    st.tuples(st.just(UNIX), paths, st.just(0), st.none() | files),
)
connecting = st.builds(
    lambda question, address, pid, process: Connecting(
        question, address[0], address[1], address[2], pid, process, address[3]
    ),
    numbers, addresses, numbers, processes,
)  # fmt: skip
notifications = st.one_of(
    refused, connecting, st.builds(Lost, st.integers(1, 0xFFFFFFFF)), st.builds(MadeName, paths, numbers)
)


def started() -> EventDecoder:
    decoder = EventDecoder()
    decoder.feed(BEFORE)
    return decoder


@given(st.lists(notifications, max_size=5))
def test_round_trip(events: list[Event]) -> None:
    decoder = started()
    assert decoder.feed(b"".join(map(encode_event, events))) == tuple(events)
    assert decoder.feed(encode_event(Exited(0, 0))) == (Exited(0, 0),)
    decoder.finish()


@given(notifications)
def test_one_byte_at_a_time_with_more_behind_it(event: Event) -> None:
    decoder = started()
    data = encode_event(event) + encode_event(Lost(1))[:3]
    assert [got for byte in data for got in decoder.feed(bytes([byte]))] == [event]
    with pytest.raises(ProtocolError, match="cut off"):
        decoder.finish()


def test_the_bytes() -> None:
    event = RefusedCall(ReportedAccess.WRITE, 257, 30, 7, "touch", "/etc/x", 3, is_cut=True)
    payload = struct.pack("<6I16s", 2, 257, 30, 7, 3, 1, b"touch") + b"/etc/x"
    assert encode_event(event) == struct.pack("<II", 7, len(payload)) + payload
    assert encode_event(Lost(5)) == struct.pack("<III", 8, 4, 5)
    asked = Connecting(9, INET, "192.0.2.1", 443, 7, "curl")
    payload = struct.pack("<4I16s", 9, INET, 443, 7, b"curl") + bytes([192, 0, 2, 1])
    assert encode_event(asked) == struct.pack("<II", 9, len(payload)) + payload
    assert encode_answer(9, 111) == b"R" + struct.pack("<II", 9, 111)


@pytest.mark.parametrize("impossible", [-1, 4096, 1 << 40])
def test_an_answer_that_is_no_error_number_refuses(impossible: int) -> None:
    assert encode_answer(1, impossible) == b"R" + struct.pack("<II", 1, 13)


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack("<II", kind, len(payload)) + payload


def report(access: int = 2, errno: int = 30, count: int = 1, flags: int = 0, path: bytes = b"/x") -> bytes:
    return frame(7, struct.pack("<6I16s", access, 257, errno, 7, count, flags, b"sh") + path)


def question(family: int, address: bytes, port: int = 80) -> bytes:
    return frame(9, struct.pack("<4I16s", 1, family, port, 7, b"sh") + address)


@pytest.mark.parametrize(
    "data",
    [
        report(access=0),
        report(access=5),
        report(errno=0),
        report(errno=4096),
        report(count=0),
        report(flags=2),
        report(path=b""),
        report(path=b"/a\0b"),
        frame(7, bytes(39)),
        frame(7, b""),
        frame(8, b""),
        frame(8, bytes(4)),
        frame(8, bytes(5)),
        question(INET, bytes(3)),
        question(INET, bytes(16)),
        question(INET6, bytes(4)),
        question(INET, bytes(4), port=65536),
        question(UNIX, b""),
        question(UNIX, b"relative"),
        question(UNIX, b"\0abstract"),
        question(UNIX, b"/a\0"),
        question(0, bytes(4)),
        question(16, bytes(4)),
        frame(9, bytes(31)),
        frame(10, b"x"),
        frame(11, b""),
    ],
)
def test_errors_stay(data: bytes) -> None:
    decoder = started()
    with pytest.raises(ProtocolError):
        decoder.feed(data)
    with pytest.raises(ProtocolError):
        decoder.feed(encode_event(Lost(1)))


@pytest.mark.parametrize(
    "before",
    [b"", encode_event(Descriptors(2)), encode_event(Descriptors(2)) + encode_event(ExecFailed(127, 2)),
     BEFORE + encode_event(Exited(0, 0))],
)  # fmt: skip
def test_only_while_the_command_runs(before: bytes) -> None:
    decoder = EventDecoder()
    decoder.feed(before)
    with pytest.raises(ProtocolError):
        decoder.feed(encode_event(Lost(1)))


@given(st.binary(max_size=200), st.sampled_from([7, 8, 9]))
def test_random_payloads_give_events_or_an_error(payload: bytes, kind: int) -> None:
    try:
        (event,) = started().feed(frame(kind, payload))
    except ProtocolError:
        return
    assert encode_event(event)[:8] == frame(kind, payload)[:8]
