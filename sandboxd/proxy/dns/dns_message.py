"""DNS messages as bytes: queries, and answers to them, without I/O.

Sources: RFC 1035, section 4; RFC 6891 (EDNS); RFC 8914 (extended errors). A query is parsed whole or refused. Names are
tuples of labels with the received bytes: answers keep their case, and a dot inside a label is no separator."""

from __future__ import annotations

import struct
from dataclasses import replace
from enum import IntEnum
from ipaddress import IPv6Address
from typing import Final

from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd_client.records import dataclass

HEADER_SIZE: Final = 12
MAX_NAME: Final = 255
"""Bytes of a name on the wire, with lengths and root."""
MOST_POINTERS: Final = 32
"""Compression pointers in one name. Real messages need one."""
MAX_MESSAGE: Final = 65535
MAX_QUERY: Final = 4096
"""Longer queries are refused. A question with every existing option is far shorter."""
PLAIN_UDP: Final = 512
"""Maximum size of a UDP answer unless the query allows more."""
OUR_UDP: Final = 1232
MOST_RECORDS: Final = (1, 0, 1, 2)
"""Entries of each section of a query. A zone transfer has one in `authority`; options and a signature are additional.
Names cost time, and with compression six bytes suffice for one of 126 labels."""
IN: Final = 1
ANY_CLASS: Final = 255

_RESPONSE: Final = 0x8000
_TRUNCATED: Final = 0x0200
_RECURSION_DESIRED: Final = 0x0100
_RECURSION_AVAILABLE: Final = 0x0080
_CHECKING_DISABLED: Final = 0x0010
_EXTENDED_ERROR: Final = 15
_QUESTION_NAME: Final = b"\xc0\x0c"
"""A pointer to the name of the first question."""

Labels = tuple[bytes, ...]


class RecordType(IntEnum):
    """Record types with a special meaning here."""

    A = 1
    NS = 2
    CNAME = 5
    SOA = 6
    PTR = 12
    TXT = 16
    AAAA = 28
    SRV = 33
    OPT = 41
    SVCB = 64
    HTTPS = 65
    IXFR = 251
    AXFR = 252
    ANY = 255


class Code(IntEnum):
    """Response codes; those from 16 need EDNS."""

    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


BLOCKED: Final = 15
"""Extended error of RFC 8914 for a name blocked by policy."""


class DnsSyntaxError(ValueError):
    """A malformed DNS message, or one that must not be answered."""


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    labels: Labels
    kind: int
    class_: int = IN


@dataclass(frozen=True, slots=True)
class ResourceRecord:
    """A record; `data` is as on the wire, where names may be compressed."""

    labels: Labels
    kind: int
    class_: int
    ttl: int
    data: bytes


@dataclass(frozen=True, slots=True)
class DnsMessage:
    """A parsed message; `code` lacks the bits that EDNS adds."""

    id: int
    flags: int
    questions: tuple[DnsQuestion, ...] = ()
    answers: tuple[ResourceRecord, ...] = ()
    authority: tuple[ResourceRecord, ...] = ()
    additional: tuple[ResourceRecord, ...] = ()

    @property
    def is_response(self) -> bool:
        return bool(self.flags & _RESPONSE)

    @property
    def is_truncated(self) -> bool:
        return bool(self.flags & _TRUNCATED)

    @property
    def opcode(self) -> int:
        return self.flags >> 11 & 15

    @property
    def code(self) -> int:
        return self.flags & 15


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query.

    `question` is None unless there is exactly one. `udp_size` is the client's limit, None without EDNS. `fault` is the
    code of an answer without content."""

    id: int
    flags: int
    question: DnsQuestion | None = None
    udp_size: int | None = None
    fault: Code = Code.NOERROR


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """The content of an answer: addresses, a pointer, or neither.

    NOERROR without content means no data of this type. `explanation` is ASCII text for the user, which programs with
    EDNS can show."""

    code: Code = Code.NOERROR
    addresses: tuple[IPAddress, ...] = ()
    pointer: Labels | None = None
    ttl: int = 0
    explanation: str = ""


def parse_query(data: bytes) -> Query:
    """Parse a query. Raises DnsSyntaxError for a message that must not be answered.

    That is one too short for a header, or an answer itself, since answering answers could loop."""
    if len(data) < HEADER_SIZE:
        raise DnsSyntaxError("shorter than a header")
    number, flags = struct.unpack_from("!HH", data)
    if flags & _RESPONSE:
        raise DnsSyntaxError("an answer, not a query")
    bare = Query(number, flags)
    if len(data) > MAX_QUERY:
        return replace(bare, fault=Code.FORMERR)
    if flags >> 11 & 15:
        return replace(bare, fault=Code.NOTIMP)
    try:
        counts = struct.unpack_from("!4H", data, 4)
        if counts[0] != 1 or any(count > most for count, most in zip(counts, MOST_RECORDS, strict=True)):
            raise DnsSyntaxError("query without exactly one question, or with too many records")
        message = parse_message(data)
        options = [record for record in message.additional if record.kind == RecordType.OPT]
        if len(options) > 1:
            raise DnsSyntaxError("query with several options records")
    except DnsSyntaxError:
        return replace(bare, fault=Code.FORMERR)
    query = replace(bare, question=message.questions[0])
    if not options:
        return query
    option = options[0]  # class: the size; ttl: extended code, version, flags
    version = option.ttl >> 16 & 255
    fault = Code.FORMERR if option.labels else Code.BADVERS if version else Code.NOERROR
    return replace(query, udp_size=max(option.class_, PLAIN_UDP), fault=fault)


def parse_message(data: bytes) -> DnsMessage:
    """Parse a whole message without surrounding bytes. Raises DnsSyntaxError."""
    if not HEADER_SIZE <= len(data) <= MAX_MESSAGE:
        raise DnsSyntaxError("shorter than a header, or too long")
    number, flags, *counts = struct.unpack_from("!6H", data)
    reader = _DnsReader(data)
    questions = tuple(reader.question() for _ in range(counts[0]))
    answers, authority, additional = (tuple(reader.record() for _ in range(count)) for count in counts[1:])
    if reader.at != len(data):
        raise DnsSyntaxError("bytes after the end")
    return DnsMessage(number, flags, questions, answers, authority, additional)


class _DnsReader:
    """Reader of questions and records, which stops at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = HEADER_SIZE

    def question(self) -> DnsQuestion:
        labels = self.name()
        kind, class_ = struct.unpack("!HH", self._take(4))
        return DnsQuestion(labels, kind, class_)

    def record(self) -> ResourceRecord:
        labels = self.name()
        kind, class_, ttl, size = struct.unpack("!HHIH", self._take(10))
        return ResourceRecord(labels, kind, class_, ttl, self._take(size))

    def _take(self, size: int) -> bytes:
        found = self._data[self.at : self.at + size]
        if len(found) < size:
            raise DnsSyntaxError("ends early")
        self.at += size
        return found

    def name(self) -> Labels:
        labels, self.at = read_name(self._data, self.at)
        return labels


def read_name(data: bytes, at: int) -> tuple[Labels, int]:
    """Return the name at an offset, and the offset after it. Raises DnsSyntaxError.

    A pointer must lead to before the part that it ends, so there is no loop. The limit of pointers bounds the time."""
    labels: list[bytes] = []
    pointers = 0
    size = 1
    behind = -1
    began = at
    while True:
        if at >= len(data):
            raise DnsSyntaxError("name ends early")
        length = data[at]
        if length >= 0xC0:
            if at + 1 >= len(data):
                raise DnsSyntaxError("name ends early")
            target = (length & 0x3F) << 8 | data[at + 1]
            if behind < 0:
                behind = at + 2
            pointers += 1
            if not HEADER_SIZE <= target < began or pointers > MOST_POINTERS:
                raise DnsSyntaxError("pointer that does not lead back")
            at = began = target
            continue
        if length > 63:
            raise DnsSyntaxError("label of an unknown kind")
        at += 1
        if length == 0:
            return tuple(labels), at if behind < 0 else behind
        size += length + 1
        if size > MAX_NAME or at + length > len(data):
            raise DnsSyntaxError("name too long, or ends early")
        labels.append(data[at : at + length])
        at += length


def write_name(labels: Labels) -> bytes:
    """Encode a name without compression. Raises DnsSyntaxError for an invalid name."""
    if any(not 1 <= len(label) <= 63 for label in labels):
        raise DnsSyntaxError("label empty or too long")
    found = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    if len(found) > MAX_NAME:
        raise DnsSyntaxError("name too long")
    return found


def render_query(number: int, question: DnsQuestion, *, udp_size: int | None = None) -> bytes:
    """A query for recursion, with EDNS when `udp_size` is given."""
    data = struct.pack("!6H", number, _RECURSION_DESIRED, 1, 0, 0, 0 if udp_size is None else 1)
    data += _render_question(question)
    return data if udp_size is None else data + b"\0" + struct.pack("!HHIH", RecordType.OPT, udp_size, 0, 0)


def render_answer(query: Query, answer: DnsAnswer, *, stream: bool = False) -> bytes:
    """Render an answer for the client.

    Over UDP the explanation is dropped when it does not fit, then all records. TC then requests another attempt over
    TCP (`stream`)."""
    limit = MAX_MESSAGE if stream else min(query.udp_size or PLAIN_UDP, OUR_UDP)
    contents = () if query.fault or query.question is None else (*answer.addresses, answer.pointer)
    records = [_render_record(content, answer.ttl) for content in contents if content is not None]
    whole = _render(query, answer, records, answer.explanation)
    if len(whole) > limit and answer.explanation:
        whole = _render(query, answer, records, "")
    if len(whole) > limit:
        whole = _render(query, answer, [], "", truncated=True)
    return whole


def _render(
    query: Query, answer: DnsAnswer, records: list[bytes], explanation: str, *, truncated: bool = False
) -> bytes:
    code = query.fault or answer.code
    flags = _RESPONSE | _RECURSION_AVAILABLE | code & 15
    flags |= query.flags & (0x7800 | _RECURSION_DESIRED | _CHECKING_DISABLED)
    if truncated:
        flags |= _TRUNCATED
    asked = query.question is not None
    counts = (int(asked), len(records), 0, int(query.udp_size is not None))
    data = struct.pack("!6H", query.id, flags, *counts)
    if query.question is not None:
        data += _render_question(query.question)
    data += b"".join(records)
    return data if query.udp_size is None else data + _render_options(code, explanation)


def _render_question(question: DnsQuestion) -> bytes:
    return write_name(question.labels) + struct.pack("!HH", question.kind, question.class_)


def _render_record(content: IPAddress | Labels, ttl: int) -> bytes:
    if isinstance(content, tuple):
        kind, data = RecordType.PTR, write_name(content)
    else:
        kind, data = RecordType.AAAA if isinstance(content, IPv6Address) else RecordType.A, content.packed
    return _QUESTION_NAME + struct.pack("!HHIH", kind, IN, ttl, len(data)) + data


def _render_options(code: int, explanation: str) -> bytes:
    data = b""
    if explanation:
        text = struct.pack("!H", BLOCKED) + explanation.encode("ascii", "replace")
        data = struct.pack("!HH", _EXTENDED_ERROR, len(text)) + text
    return b"\0" + struct.pack("!HHIH", RecordType.OPT, OUR_UDP, code >> 4 << 24, len(data)) + data
