"""The protocol between daemon and helper as bytes: both ends against each other, any split, and what is no message."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.backends.linux.helper.bridge_protocol import (
    MAX_LISTENERS,
    MAX_PAYLOAD,
    MAX_TICKET,
    TICKET_SIZE,
    VERSION,
    Descriptors,
    Event,
    EventDecoder,
    ExecFailed,
    Exited,
    Failed,
    ProtocolError,
    Started,
    decode_ticket,
    encode_event,
    encode_ticket,
)
from sandboxd.backends.linux.helper.launch_configuration import (
    MAX_ARGUMENTS,
    MAX_PORT_RANGES,
    Confinement,
    Flags,
    LaunchConfiguration,
    Listener,
)
from sandboxd.errors import CallerError, InternalError

FILTER = struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000)
PLAIN = LaunchConfiguration(arguments=(b"true",), filter=FILTER)

items = st.binary(max_size=40).map(lambda item: item.replace(b"\0", b"0"))
configurations = st.builds(
    LaunchConfiguration,
    arguments=st.lists(items, min_size=1, max_size=8).map(tuple),
    filter=st.integers(1, 5).map(lambda n: FILTER * n),
    listeners=st.lists(
        st.builds(
            Listener,
            st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)),
            st.integers(0, 65535),
            st.integers(0, 0x7FFFFFFF),
        ),
        max_size=MAX_LISTENERS,
    ).map(tuple),
    grace_ms=st.integers(0, 0xFFFFFFFF),
    flags=st.sampled_from([Flags(0), Flags.WAIT, Flags.WATCHED, Flags.WATCHED | Flags.INTERNET | Flags.UNIX]),
    asked_ports=st.lists(
        st.tuples(st.integers(0, 65535), st.integers(0, 65535)).map(lambda pair: (min(pair), max(pair))),
        max_size=MAX_PORT_RANGES,
    ).map(tuple),
    confinement=st.none()
    | st.builds(
        Confinement,
        *[st.integers(0, 0xFFFFFFFF)] * 4,
        st.lists(items, max_size=4).map(tuple),
    ),
)


class TestConfiguration:
    @given(configurations)
    def test_round_trip(self, configuration: LaunchConfiguration) -> None:
        assert LaunchConfiguration.decode(configuration.encode()) == configuration

    def test_round_trip_without_a_filter(self) -> None:
        configuration = LaunchConfiguration((b"a", b"", b"\xff\n"), b"", flags=Flags.UNFILTERED | Flags.WAIT)
        assert LaunchConfiguration.decode(configuration.encode()) == configuration

    def test_the_bytes(self) -> None:
        configuration = LaunchConfiguration(
            (b"ls", b"-l"),
            FILTER,
            (Listener(IPv4Address("127.0.0.1"), 3128, 7),),
            grace_ms=1500,
            flags=Flags.WAIT,
            asked_ports=((5432, 5440),),
            removals=(b"AWS_*",),
        )
        assert configuration.encode() == (
            b"SBXC"
            + struct.pack("<10I", VERSION, 44 + 36 + 4 + 8 + 12, 1, 1500, 1, 8, 3, 12, 1, 1)
            + struct.pack("<II", 7, 16)
            + bytes([2, 0, 0x0C, 0x38, 127, 0, 0, 1])
            + bytes(20)
            + bytes([0x38, 0x15, 0x40, 0x15])
            + FILTER
            + b"AWS_*\0ls\0-l\0"
        )

    def test_the_bytes_of_a_confinement(self) -> None:
        confinement = Confinement(1, 2, 3, 4, (b"/w", b"/dev"))
        encoded = LaunchConfiguration((b"ls",), FILTER, removals=(b"AWS_*",), confinement=confinement).encode()
        assert encoded[12:16] == struct.pack("<I", 32)
        assert encoded[44:] == FILTER + struct.pack("<5I", 1, 2, 3, 4, 2) + b"AWS_*\0/w\0/dev\0ls\0"
        for roots in (3, 0xFFFFFFFF):
            with pytest.raises(ProtocolError):
                LaunchConfiguration.decode(encoded[:68] + struct.pack("<I", roots) + encoded[72:])

    def test_an_address_of_ipv6(self) -> None:
        encoded = LaunchConfiguration((b"x",), FILTER, (Listener(IPv6Address("::1"), 1080, 1),)).encode()
        assert encoded[44:80] == struct.pack("<II", 1, 28) + b"\x0a\0\x04\x38" + bytes(4) + bytes(15) + b"\x01" + bytes(
            4
        )
        assert Listener.tcp("::1", 1080, 1) == Listener(IPv6Address("::1"), 1080, 1)

    @given(configurations, st.data())
    def test_one_that_is_cut_off_is_none(self, configuration: LaunchConfiguration, data: st.DataObject) -> None:
        encoded = configuration.encode()
        with pytest.raises(ProtocolError):
            LaunchConfiguration.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])

    def test_one_with_more_behind_it_is_none(self) -> None:
        with pytest.raises(ProtocolError):
            LaunchConfiguration.decode(PLAIN.encode() + b"\0")

    @pytest.mark.parametrize(
        ("offset", "value"),
        [
            (0, 0), (4, 1), (8, 0), (8, 0xFFFFFFFF), (12, 32), (12, 64), (12, 2), (12, 8), (12, 16), (12, 6), (36, 1),
            (36, 65), (20, 1), (20, 17), (20, 0xFFFFFFFF), (24, 0),
            (24, 7), (24, 16), (24, 0xFFFFFFF8), (28, 0), (28, 2), (28, 0xFFFFFFFF), (32, 4), (32, 0xFFFFFFFF),
        ],
    )  # fmt: skip
    def test_a_head_that_contradicts_itself_is_an_error(self, offset: int, value: int) -> None:
        message = bytearray(PLAIN.encode())
        struct.pack_into("<I", message, offset, value)
        with pytest.raises(ProtocolError) as caught:
            LaunchConfiguration.decode(bytes(message))
        assert caught.value.slug == "bridge_protocol" and caught.value.hint

    def test_an_unknown_address_family_is_an_error(self) -> None:
        message = bytearray(LaunchConfiguration((b"x",), FILTER, (Listener.tcp("127.0.0.1", 1),)).encode())
        struct.pack_into("<H", message, 52, 1)
        with pytest.raises(ProtocolError, match="address family 1"):
            LaunchConfiguration.decode(bytes(message))

    @given(st.binary(max_size=200))
    def test_random_bytes_are_an_error(self, data: bytes) -> None:
        with pytest.raises(ProtocolError):
            LaunchConfiguration.decode(data)

    @pytest.mark.parametrize(
        ("arguments", "slug"),
        [((), "argv_empty"), ((b"a\0b",), "argv_nul"), ((b"x" * MAX_ARGUMENTS,), "argv_too_large")],
    )
    def test_what_no_process_can_be_given_is_the_callers_fault(self, arguments: tuple[bytes, ...], slug: str) -> None:
        with pytest.raises(CallerError) as caught:
            LaunchConfiguration(arguments, FILTER)
        assert caught.value.slug == slug and caught.value.hint

    def test_the_largest_arguments(self) -> None:
        configuration = LaunchConfiguration((b"x" * (MAX_ARGUMENTS - 1),), FILTER)
        assert LaunchConfiguration.decode(configuration.encode()) == configuration

    @pytest.mark.parametrize(
        "wrong",
        [
            {"filter": b""},
            {"filter": FILTER, "flags": Flags.UNFILTERED},
            {"filter": FILTER[:-1]},
            {"filter": FILTER * 4097},
            {"filter": FILTER, "grace_ms": -1},
            {"filter": FILTER, "flags": Flags.INTERNET},
            {"filter": b"", "flags": Flags.UNFILTERED | Flags.WATCHED},
            {"filter": FILTER, "asked_ports": ((2, 1),)},
            {"filter": FILTER, "asked_ports": ((1, 65536),)},
            {"filter": FILTER, "asked_ports": ((1, 1),) * (MAX_PORT_RANGES + 1)},
            {"filter": FILTER, "listeners": (Listener.tcp("127.0.0.1", 1),) * (MAX_LISTENERS + 1)},
        ],
    )
    def test_what_cannot_be_meant_is_our_own_fault(self, wrong: dict[str, object]) -> None:
        with pytest.raises(InternalError):
            LaunchConfiguration((b"x",), **wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("port", "backlog"), [(-1, 1), (65536, 1), (1, -1), (1, 1 << 31)])
    def test_impossible_listeners(self, port: int, backlog: int) -> None:
        with pytest.raises(InternalError):
            Listener.tcp("127.0.0.1", port, backlog)


class TestTicket:
    @pytest.mark.parametrize("ticket", ["t", "w-0123456789abcdef", "x" * MAX_TICKET])
    def test_round_trip(self, ticket: str) -> None:
        assert len(encode_ticket(ticket)) == TICKET_SIZE
        assert decode_ticket(encode_ticket(ticket)) == ticket

    @pytest.mark.parametrize("ticket", ["", "x" * (MAX_TICKET + 1), "ü", "a\0b"])
    def test_what_is_no_ticket(self, ticket: str) -> None:
        with pytest.raises(InternalError):
            encode_ticket(ticket)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            encode_ticket("t")[:-1],
            encode_ticket("t") + b"\0",
            bytes(TICKET_SIZE),
            b"GET / HTTP/1.1\r\n".ljust(TICKET_SIZE),
            struct.pack("<III", 1, 68, VERSION) + bytes(64),
            struct.pack("<III", 1, 68, VERSION) + b"a\0b".ljust(64, b"\0"),
            struct.pack("<III", 1, 68, VERSION) + b"\xff".ljust(64, b"\0"),
            struct.pack("<III", 2, 68, VERSION) + b"t".ljust(64, b"\0"),
            struct.pack("<III", 1, 67, VERSION) + b"t".ljust(64, b"\0"),
        ],
    )
    def test_what_is_no_ticket_message(self, data: bytes) -> None:
        with pytest.raises(ProtocolError):
            decode_ticket(data)

    def test_another_version_is_named(self) -> None:
        with pytest.raises(ProtocolError, match="version 9"):
            decode_ticket(struct.pack("<III", 1, 68, 9) + b"t".ljust(64, b"\0"))


LIVES: list[tuple[Event, ...]] = [
    (Descriptors(2), Started(), Exited(0, 0)),
    (Descriptors(0), Started(), Exited(143, 15)),
    (Descriptors(16), ExecFailed(127, 2), Exited(127, 0)),
    (Descriptors(2), Exited(137, 9)),
    (Descriptors(2), Failed("the daemon hung up")),
    (Descriptors(2), Started(), Failed("cannot wait")),
    (Failed("the sandbox still holds capabilities"),),
]


class TestEvents:
    @pytest.mark.parametrize("life", LIVES, ids=str)
    def test_success(self, life: tuple[Event, ...]) -> None:
        decoder = EventDecoder()
        assert decoder.feed(b"".join(map(encode_event, life))) == life
        decoder.finish()

    @pytest.mark.parametrize("life", LIVES, ids=str)
    def test_one_byte_at_a_time(self, life: tuple[Event, ...]) -> None:
        decoder = EventDecoder()
        got = [event for byte in b"".join(map(encode_event, life)) for event in decoder.feed(bytes([byte]))]
        assert tuple(got) == life
        decoder.finish()

    @given(st.sampled_from(LIVES), st.lists(st.integers(0, 100)))
    def test_any_split(self, life: tuple[Event, ...], cuts: list[int]) -> None:
        data = b"".join(map(encode_event, life))
        places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        decoder = EventDecoder()
        got = [event for a, b in pairwise(places) for event in decoder.feed(data[a:b])]
        assert tuple(got) == life

    def test_bytes_behind_the_last_event_are_kept(self) -> None:
        decoder = EventDecoder()
        assert decoder.feed(encode_event(Descriptors(1)) + encode_event(Started())[:5]) == (Descriptors(1),)
        assert decoder.feed(encode_event(Started())[5:]) == (Started(),)

    def test_an_end_inside_a_message_is_an_error(self) -> None:
        decoder = EventDecoder()
        decoder.feed(encode_event(Descriptors(1))[:-1])
        with pytest.raises(ProtocolError, match="cut off"):
            decoder.finish()

    @pytest.mark.parametrize(
        "data",
        [
            struct.pack("<II", 0, 0),
            struct.pack("<II", 10, 0),
            struct.pack("<II", 1, 4) + bytes(4),
            struct.pack("<II", 2, 3) + bytes(3),
            struct.pack("<II", 2, 8) + bytes(8),
            struct.pack("<III", 2, 4, MAX_LISTENERS + 1),
            struct.pack("<II", 2, MAX_PAYLOAD + 1),
            struct.pack("<II", 2, 0xFFFFFFFF),
            encode_event(Started()),
            encode_event(Exited(0, 0)),
            encode_event(ExecFailed(127, 2)),
            encode_event(Descriptors(1)) * 2,
            encode_event(Descriptors(1)) + struct.pack("<II", 3, 1) + b"x",
            encode_event(Descriptors(1)) + encode_event(Started()) * 2,
            encode_event(Descriptors(1)) + encode_event(Started()) + encode_event(ExecFailed(127, 2)),
            encode_event(Failed("x")) * 2,
            encode_event(Descriptors(1)) + encode_event(Exited(0, 0)) * 2,
        ],
    )
    def test_errors_stay(self, data: bytes) -> None:
        decoder = EventDecoder()
        with pytest.raises(ProtocolError):
            decoder.feed(data)
        with pytest.raises(ProtocolError):
            decoder.feed(b"")
        with pytest.raises(ProtocolError):
            decoder.finish()

    @given(st.binary(max_size=300))
    def test_random_bytes_give_events_or_an_error(self, data: bytes) -> None:
        decoder = EventDecoder()
        try:
            for event in decoder.feed(data):
                assert isinstance(event, Event)
        except ProtocolError:
            pass

    def test_a_text_that_is_not_utf8_is_still_shown(self) -> None:
        data = struct.pack("<II", 6, 2) + b"\xffx"
        assert EventDecoder().feed(data) == (Failed("\ufffdx"),)
