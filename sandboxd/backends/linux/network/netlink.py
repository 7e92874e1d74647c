"""Netlink messages that configure the kernel's network, as bytes. Pure.

Sources: netlink(7), rtnetlink(7), linux/netfilter/nf_tables.h. A `Batch` is sent in one piece to one netlink protocol,
with the number of expected acknowledgements: each message requests one. `capture_rules.py` has the rule set."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address

from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd.policy.hosts.synthetic_addresses import SANDBOX_V4, SANDBOX_V6
from sandboxd_client.records import dataclass

NETLINK_ROUTE = 0
NETLINK_SOCK_DIAG = 4
NETLINK_NETFILTER = 12
LOOPBACK_INDEX = 1
"""lo is the first interface of every network namespace."""

_NESTED = 0x8000
_REQUEST, _ACK, _REPLACE, _CREATE = 0x01, 0x04, 0x100, 0x400
_NEWADDR, _NEWROUTE = 20, 24
_SOCK_DIAG_BY_FAMILY, _DUMP = 20, 0x300
_ERROR, _DONE = 2, 3
_NO_DETECTION = 0x02
"""IFA_F_NODAD: usable at once, since no other host can have the address."""
_TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL = 255, 3, 254, 2
_NFTABLES = 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NEWTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE = (_NFTABLES << 8 | number for number in (0, 2, 3, 6))


class Family(IntEnum):
    """AF_INET and AF_INET6, with the same numbers as NFPROTO_IPV4 and NFPROTO_IPV6."""

    V4 = 2
    V6 = 10


@dataclass(frozen=True, slots=True)
class Batch:
    protocol: int
    messages: bytes
    acknowledgements: int


# ---- Building blocks ----------------------------------------------------------------------------------------------


def attribute(kind: int, value: bytes) -> bytes:
    """Encode a struct nlattr with its value, padded."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """Encode 32 bits in network order, as in all of nf_tables."""
    return attribute(kind, struct.pack(">I", value))


def message(kind: int, flags: int, payload: bytes, sequence: int = 0) -> bytes:
    """Encode a struct nlmsghdr with its payload."""
    data = struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload
    return data + bytes(-len(data) % 4)


# ---- Routes -------------------------------------------------------------------------------------------------------


def everything_is_local(families: Sequence[Family]) -> Batch:
    """Return routes that make every address local to the namespace.

    A connection to any address then reaches a socket inside. Packets without a source address get the loopback address.
    lo also gets an address that does not look like loopback, see `SANDBOX_V4`. Can be applied repeatedly."""
    messages = [make(family) for family in families for make in (_local_route, _sandbox_address)]
    return Batch(NETLINK_ROUTE, b"".join(messages), len(messages))


def _local_route(family: Family) -> bytes:
    source = IPv4Address("127.0.0.1") if family is Family.V4 else IPv6Address("::1")
    head = struct.pack("=8BI", family, 0, 0, 0, _TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL, 0)
    interface = attribute(4, struct.pack("=I", LOOPBACK_INDEX))  # RTA_OIF
    preferred = attribute(7, source.packed)  # RTA_PREFSRC
    return message(_NEWROUTE, _REQUEST | _ACK | _CREATE | _REPLACE, head + interface + preferred)


def _sandbox_address(family: Family) -> bytes:
    address: IPAddress = SANDBOX_V4 if family is Family.V4 else SANDBOX_V6
    head = struct.pack("=4BI", family, address.max_prefixlen, _NO_DETECTION, 0, LOOPBACK_INDEX)
    addresses = attribute(1, address.packed) + attribute(2, address.packed)  # IFA_ADDRESS, IFA_LOCAL
    return message(_NEWADDR, _REQUEST | _ACK | _CREATE | _REPLACE, head + addresses)


# ---- Unix sockets -------------------------------------------------------------------------------------------------


def dump_sockets(body: bytes) -> bytes:
    """Return a query for all sockets that a struct of sock_diag(7) describes."""
    return message(_SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, body)


def parts(answer: bytes) -> Iterator[bytes | None]:
    """Yield the payload of each message of an answer, None for the end.

    Raises OSError, and struct.error for a malformed answer."""
    at = 0
    while at < len(answer):
        length, kind = struct.unpack_from("=IH", answer, at)
        if kind in (_ERROR, _DONE):
            (code,) = struct.unpack_from("=i", answer, at + 16)
            if code:
                raise OSError(-code, os.strerror(-code))
            yield None
            return
        yield answer[at + 16 : at + length]
        at += max(length, 16) + -length % 4


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and value of each struct nlattr."""
    at = 0
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        yield kind, data[at + 4 : at + size]
        at += max(size, 4) + -size % 4


def bound_unix_sockets() -> bytes:
    """Return the query for bound Unix sockets with names and files (unix_diag.h)."""
    not_connected = 1 << 7 | 1 << 10  # TCP_CLOSE, TCP_LISTEN
    body = struct.pack("=BBHIIIII", 1, 0, 0, not_connected, 0, 3, 0xFFFFFFFF, 0xFFFFFFFF)  # AF_UNIX, name and file
    return dump_sockets(body)


UnixFile = tuple[int, int]
"""Device and inode of a socket, each in the kernel's 32 bits."""


def read_unix_sockets(answer: bytes) -> tuple[dict[UnixFile, str], bool]:
    """Parse one part of the answer: bound names by file, and whether it was the last.

    Raises OSError, and struct.error for a malformed answer."""
    found: dict[UnixFile, str] = {}
    for body in parts(answer):
        if body is None:
            return found, True
        name, file = "", None
        for kind, value in attributes(body[16:]):  # behind struct unix_diag_msg
            if kind == 0:  # UNIX_DIAG_NAME
                name = value.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif kind == 1:  # UNIX_DIAG_VFS
                inode, device = struct.unpack_from("=II", value)
                file = device, inode
        if file is not None:
            found[file] = name
    return found, False


# ---- nf_tables: expressions ---------------------------------------------------------------------------------------

Expression = bytes
_VERDICT, _FIRST, _SECOND = 0, 1, 2  # registers
_ACCEPT, _JUMP = 1, -3 & 0xFFFFFFFF


def _expression(name: str, *attributes: bytes) -> Expression:
    return nested(1, text(1, name), nested(2, *attributes))


def _value(kind: int, data: bytes) -> bytes:
    return nested(kind, attribute(1, data))


def compare(data: bytes, *, equal: bool = True) -> Expression:
    """Continue when the loaded bytes are (not) equal to these."""
    return _expression("cmp", number(1, _FIRST), number(2, 0 if equal else 1), _value(3, data))


def between(first: bytes, last: bytes) -> Expression:
    """Continue when the loaded bytes are in this inclusive range, in network order."""
    return _expression("range", number(1, _FIRST), number(2, 0), _value(3, first), _value(4, last))


def load_protocol() -> Expression:
    """Load the transport protocol, one byte."""
    return _expression("meta", number(2, 16), number(1, _FIRST))


def load_network(offset: int, length: int) -> Expression:
    """Load bytes of the network header."""
    return _expression("payload", number(1, _FIRST), number(2, 1), number(3, offset), number(4, length))


def load_transport(offset: int, length: int) -> Expression:
    """Load bytes of the transport header."""
    return _expression("payload", number(1, _FIRST), number(2, 2), number(3, offset), number(4, length))


def mask(bits: bytes) -> Expression:
    """Keep these bits of the loaded bytes."""
    size = number(3, len(bits))
    return _expression(
        "bitwise", number(1, _FIRST), number(2, _FIRST), size, _value(4, bits), _value(5, bytes(len(bits)))
    )


def load_is_transparent() -> Expression:
    """Load whether the packet's socket has IP_TRANSPARENT; stop without a socket."""
    return _expression("socket", number(1, 0), number(2, _FIRST))


def give_to(family: Family, address: bytes, port: int) -> tuple[Expression, ...]:
    """Pass the packet unchanged to the transparent socket bound there (`tproxy`)."""
    return (
        _expression("immediate", number(1, _FIRST), _value(2, address)),
        _expression("immediate", number(1, _SECOND), _value(2, struct.pack(">H", port))),
        _expression("tproxy", number(1, family), number(2, _FIRST), number(3, _SECOND)),
    )


def accept() -> Expression:
    return _expression("immediate", number(1, _VERDICT), nested(2, nested(2, number(1, _ACCEPT))))


def jump(chain: str) -> Expression:
    return _expression("immediate", number(1, _VERDICT), nested(2, nested(2, number(1, _JUMP), text(2, chain))))


def reject(family: Family) -> Expression:
    """Reject as port unreachable, so that the sender gets an immediate error."""
    code = 3 if family is Family.V4 else 4
    return _expression("reject", number(1, 0), attribute(2, bytes([code])))


# ---- nf_tables: tables --------------------------------------------------------------------------------------------

Rule = tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Rules in order. `hook` (NF_INET_…) and `priority` are those of a base chain."""

    name: str
    rules: tuple[Rule, ...]
    hook: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    family: Family
    chains: tuple[Chain, ...]
    """Jump targets come first."""


def new_tables(tables: Sequence[Table]) -> Batch:
    """Return a batch that makes all tables or none."""
    return _transaction([one for table in tables for one in _table(table)])


def replace_table(table: Table) -> Batch:
    """Return a batch that puts a table in the place of one of its name.

    A table without chains is removed."""
    return _transaction([_new(table, _NEWTABLE), _new(table, _DELTABLE), *(_table(table) if table.chains else ())])


def read_acknowledgement(answer: bytes) -> bool:
    """Return whether the answer acknowledges a batch of `replace_table`. Raises OSError for a refusal."""
    return any(body is None for body in parts(answer))


def _without_acknowledgement(one: bytes) -> bytes:
    (flags,) = struct.unpack_from("=H", one, 6)
    return one[:6] + struct.pack("=H", flags & ~_ACK) + one[8:]


def _transaction(made: Sequence[bytes]) -> Batch:
    """Return a batch of which only the last message is acknowledged, and any that is refused.

    Each answer is a system call, and a thousand would not fit into the buffer of a socket."""
    begin, end = (message(kind, _REQUEST, struct.pack(">BBH", 0, 0, _NFTABLES)) for kind in (_BATCH_BEGIN, _BATCH_END))
    quiet = b"".join(map(_without_acknowledgement, made[:-1]))
    return Batch(NETLINK_NETFILTER, begin + quiet + made[-1] + end, 1)


def _new(table: Table, kind: int, *more: bytes) -> bytes:
    head = struct.pack(">BBH", table.family, 0, 0)
    return message(kind, _REQUEST | _ACK | _CREATE | _APPEND, head + text(1, table.name) + b"".join(more))


def _table(table: Table) -> list[bytes]:
    made = [_new(table, _NEWTABLE)]
    for chain in table.chains:
        attached: tuple[bytes, ...] = ()
        if chain.hook is not None:
            where = nested(4, number(1, chain.hook), number(2, chain.priority & 0xFFFFFFFF))
            attached = (where, text(7, "filter"))
        made.append(_new(table, _NEWCHAIN, text(3, chain.name), *attached))
    for chain in table.chains:
        made += [_new(table, _NEWRULE, text(2, chain.name), nested(4, *rule)) for rule in chain.rules]
    return made


_APPEND = 0x800
