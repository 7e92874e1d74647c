"""DNS messages: whole, byte by byte, with bytes behind, a table of errors, and anything at all."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandboxd.proxy.dns import dns_message
from sandboxd.proxy.dns.dns_message import (
    HEADER_SIZE,
    MAX_NAME,
    Code,
    DnsAnswer,
    DnsQuestion,
    DnsSyntaxError,
    Labels,
    Query,
    RecordType,
    parse_message,
    parse_query,
    read_name,
    render_answer,
    render_query,
    write_name,
)

OK = (b"ok", b"test")
QUESTION = DnsQuestion(OK, RecordType.A)
PLAIN = render_query(7, QUESTION)
WITH_EDNS = render_query(7, QUESTION, udp_size=4096)
labels = st.lists(st.binary(min_size=1, max_size=20), max_size=10).map(tuple)


def header(*, flags: int = 0x0100, counts: tuple[int, int, int, int] = (1, 0, 0, 0)) -> bytes:
    return struct.pack("!6H", 7, flags, *counts)


def question(name: bytes = write_name(OK), kind: int = 1, class_: int = 1) -> bytes:
    return name + struct.pack("!HH", kind, class_)


def record(
    name: bytes = b"\0", kind: int = RecordType.OPT, class_: int = 4096, ttl: int = 0, data: bytes = b""
) -> bytes:
    return name + struct.pack("!HHIH", kind, class_, ttl, len(data)) + data


@pytest.mark.parametrize(
    ("data", "query"),
    [
        (PLAIN, Query(7, 0x0100, QUESTION)),
        (WITH_EDNS, Query(7, 0x0100, QUESTION, 4096)),
        (render_query(7, QUESTION, udp_size=1), Query(7, 0x0100, QUESTION, 512)),
        (header() + question(b"\x02oK\x04TesT\0"), Query(7, 0x0100, DnsQuestion((b"oK", b"TesT"), 1))),
        (header() + question(b"\0", RecordType.NS), Query(7, 0x0100, DnsQuestion((), RecordType.NS))),
        (header(flags=0x0130) + question(), Query(7, 0x0130, QUESTION)),
        # a signature (TSIG) after the options, and authority in a query
        (
            header(counts=(1, 0, 0, 2)) + question() + record() + record(b"\x01k\0", 250, 255, 0, b"x" * 40),
            Query(7, 0x0100, QUESTION, 4096),
        ),
        (header(counts=(1, 0, 1, 0)) + question() + record(kind=6), Query(7, 0x0100, QUESTION)),
    ],
)
def test_queries_that_are_whole(data: bytes, query: Query) -> None:
    assert parse_query(data) == query


@pytest.mark.parametrize("whole", [PLAIN, WITH_EDNS])
def test_a_query_that_ends_early_is_no_query_at_any_byte(whole: bytes) -> None:
    for end in range(len(whole)):
        if end < HEADER_SIZE:
            with pytest.raises(DnsSyntaxError):
                parse_query(whole[:end])
        else:
            assert parse_query(whole[:end]).fault is Code.FORMERR, end


@pytest.mark.parametrize("behind", [b"\0", b"x", PLAIN])
@pytest.mark.parametrize("whole", [PLAIN, WITH_EDNS])
def test_bytes_behind_a_query_make_it_none(whole: bytes, behind: bytes) -> None:
    assert parse_query(whole + behind) == Query(7, 0x0100, fault=Code.FORMERR)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (header(counts=(0, 0, 0, 0)), Code.FORMERR),
        (header(counts=(2, 0, 0, 0)) + question() * 2, Code.FORMERR),
        (header(counts=(65535, 0, 0, 0)) + question(), Code.FORMERR),
        (header(counts=(1, 65535, 65535, 65535)) + question(), Code.FORMERR),
        (header(counts=(1, 1, 0, 0)) + question() + record(write_name(OK), 1, 1, 0, b"\x7f\0\0\1"), Code.FORMERR),
        (header(counts=(1, 0, 0, 2)) + question() + record() * 2, Code.FORMERR),
        (header(counts=(1, 0, 0, 1)) + question() + record(write_name(OK)), Code.FORMERR),
        (header(counts=(1, 0, 0, 1)) + question() + record(ttl=1 << 16), Code.BADVERS),
        (header(counts=(1, 0, 0, 1)) + question() + record()[:-1], Code.FORMERR),
        (header(counts=(1, 0, 0, 1)) + question() + struct.pack("!BHHIH", 0, 41, 0, 0, 9) + b"x", Code.FORMERR),
        (header(flags=0x0900) + question(), Code.NOTIMP),
        (header(flags=0x2800) + b"not even a question", Code.NOTIMP),
        # names
        (header() + question(b"\xc0\x0c"), Code.FORMERR),  # points to itself
        (header() + question(b"\x01a\xc0\x0c"), Code.FORMERR),  # to its own beginning
        (header() + question(b"\xc0\x0e\xc0\x0c"), Code.FORMERR),  # two that point to each other
        (header() + question(b"\xc0\x00"), Code.FORMERR),  # into the header
        (header() + question(b"\xc0\xff"), Code.FORMERR),  # to behind the end
        (header() + question(b"\xc0"), Code.FORMERR),
        (header() + question(b"\x40" + b"a" * 64 + b"\0"), Code.FORMERR),
        (header() + question(b"\x80abc\0"), Code.FORMERR),
        (header() + question((b"\x3f" + b"a" * 63) * 4 + b"\0"), Code.FORMERR),
        (header() + b"\x3fabc", Code.FORMERR),
        (header(counts=(1, 0, 0, 1)) + question() + record(data=b"x" * 5000), Code.FORMERR),
    ],
)
def test_faults_are_answered_with_their_code_and_nothing_else(data: bytes, fault: Code) -> None:
    query = parse_query(data)
    assert query.fault is fault
    reply = parse_message(render_answer(query, DnsAnswer()))
    assert (reply.id, reply.is_response, reply.answers) == (7, True, ())
    assert reply.code == fault & 15
    if fault is Code.BADVERS:
        assert reply.additional[0].ttl >> 24 == 1, "the rest of the code"
    if fault is Code.NOTIMP:
        assert reply.opcode == data[2] >> 3


MANY_LABELS = b"\1a" * 126 + b"\0"


@pytest.mark.parametrize(
    "data",
    [
        header(counts=(600, 0, 0, 0)) + question(MANY_LABELS) + question(b"\xc0\x0c") * 599,
        header(counts=(1, 0, 300, 0)) + question(MANY_LABELS) + record(b"\xc0\x0c") * 300,
        header(counts=(1, 0, 0, 300)) + question(MANY_LABELS) + record(b"\xc0\x0c") * 300,
    ],
)
def test_a_query_has_a_few_names_to_read(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counting(data: bytes, at: int) -> tuple[Labels, int]:
        read.append(at)
        return read_name(data, at)

    monkeypatch.setattr(dns_message, "read_name", counting)
    assert parse_query(data).fault is Code.FORMERR and len(read) <= 4
    assert parse_query(header() + question(MANY_LABELS)).question is not None


@pytest.mark.parametrize("data", [b"", b"\0" * 11, header(flags=0x8180) + question(), header(flags=0x8000)])
def test_what_must_not_be_answered(data: bytes) -> None:
    with pytest.raises(DnsSyntaxError):
        parse_query(data)


@example(b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01")
@given(st.one_of(st.binary(max_size=80), st.binary(max_size=60).map(lambda rest: header(counts=(1, 0, 0, 1)) + rest)))
def test_any_bytes_are_read_or_refused_and_answers_parse(data: bytes) -> None:
    try:
        query = parse_query(data)
    except DnsSyntaxError:
        return
    reply = parse_message(render_answer(query, DnsAnswer(addresses=(ip_address("198.18.1.0"),), explanation="no")))
    assert reply.is_response and reply.id == query.id
    if query.question is not None:
        assert reply.questions == (query.question,)


@given(labels, st.integers(0, 65535), st.integers(0, 65535), st.none() | st.integers(512, 65535))
def test_a_query_that_was_made_is_read_as_it_was_meant(name: Labels, kind: int, class_: int, size: int | None) -> None:
    query = parse_query(render_query(7, DnsQuestion(name, kind, class_), udp_size=size))
    assert query == Query(7, 0x0100, DnsQuestion(name, kind, class_), size)


def test_names_lead_back_and_never_round() -> None:
    data = b"\0" * 12 + b"\x04test\0" + b"\x02ok\xc0\x0c" + b"\x01a\xc0\x12"
    assert read_name(data, 12) == ((b"test",), 18)
    assert read_name(data, 18) == ((b"ok", b"test"), 23)
    assert read_name(data, 23) == ((b"a", b"ok", b"test"), 27)
    chain = b"\0" * 12 + b"\0" + b"".join(struct.pack("!H", 0xC000 | max(at - 2, 12)) for at in range(13, 400, 2))
    assert read_name(chain, 13 + 2 * 31)[0] == ()
    with pytest.raises(DnsSyntaxError):
        read_name(chain, 13 + 2 * 32)
    long = b"\0" * 12 + (b"\x3f" + b"a" * 63) * 3 + b"\x3d" + b"a" * 61 + b"\0"
    assert len(long) - 12 == MAX_NAME
    assert len(read_name(long, 12)[0]) == 4
    with pytest.raises(DnsSyntaxError):
        read_name(long + b"\x01a\xc0\x0c", len(long))


@pytest.mark.parametrize("name", [(b"",), (b"a" * 64,), (b"a" * 63,) * 4])
def test_what_is_no_name_is_not_written(name: Labels) -> None:
    with pytest.raises(DnsSyntaxError):
        write_name(name)


def test_an_answer_repeats_the_question_as_it_was_asked() -> None:
    query = parse_query(header(flags=0x0110) + question(b"\x02oK\x04TesT\0"))
    data = render_answer(query, DnsAnswer(addresses=(ip_address("198.18.1.0"),), ttl=60))
    reply = parse_message(data)
    assert reply.flags == 0x8190, "a response, recursion desired and available, checking disabled"
    assert reply.questions[0].labels == (b"oK", b"TesT")
    assert [(one.kind, one.class_, one.ttl, one.data) for one in reply.answers] == [(1, 1, 60, b"\xc6\x12\x01\0")]
    assert reply.answers[0].labels == (b"oK", b"TesT")
    assert reply.additional == ()


def test_both_families_and_pointers() -> None:
    both = (ip_address("198.18.1.0"), ip_address("fd73:616e:6462:78::100"))
    reply = parse_message(render_answer(parse_query(PLAIN), DnsAnswer(addresses=both)))
    assert [(one.kind, len(one.data)) for one in reply.answers] == [(RecordType.A, 4), (RecordType.AAAA, 16)]
    pointer = parse_message(render_answer(parse_query(PLAIN), DnsAnswer(pointer=OK)))
    assert [(one.kind, one.data) for one in pointer.answers] == [(RecordType.PTR, write_name(OK))]


def test_the_explanation_is_for_who_asks_with_edns() -> None:
    answer = DnsAnswer(Code.NXDOMAIN, explanation="blocked \N{SNOWMAN}")
    plain = parse_message(render_answer(parse_query(PLAIN), answer))
    assert (plain.code, plain.additional) == (Code.NXDOMAIN, ())
    (option,) = parse_message(render_answer(parse_query(WITH_EDNS), answer)).additional
    assert option.data == struct.pack("!HHH", 15, 11, 15) + b"blocked ?"


def test_what_does_not_fit_into_a_datagram_is_said_over_tcp() -> None:
    """First goes the explanation, which is only for people, then everything, and TC says so."""
    many = DnsAnswer(addresses=tuple(ip_address(f"198.18.1.{last}") for last in range(80)), explanation="x" * 100)
    for query, limit in ((parse_query(PLAIN), 512), (parse_query(WITH_EDNS), 1232)):
        data = render_answer(query, many)
        reply = parse_message(data)
        assert len(data) <= limit
        assert (reply.is_truncated, reply.answers, reply.questions) == (True, (), (QUESTION,))
        whole = parse_message(render_answer(query, many, stream=True))
        assert not whole.is_truncated and len(whole.answers) == 80
    some = DnsAnswer(addresses=many.addresses[:28], explanation="x" * 100)
    reply = parse_message(render_answer(parse_query(render_query(7, QUESTION, udp_size=512)), some))
    assert (reply.is_truncated, len(reply.answers), reply.additional[0].data) == (False, 28, b"")
