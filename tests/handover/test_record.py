"""Records as JSON and back, with their descriptors; documents that another version wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import HostError
from sandboxd.handover.document import FORMAT, VERSIONS, Outgoing, read_document
from sandboxd.handover.record import NO_DESCRIPTOR, Descriptor, RecordError, read_record, write_record


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Number(Enum):
    ONE = 1


class Pair(NamedTuple):
    colour: Colour
    text: str = ""


@dataclass(frozen=True, slots=True)
class Inner:
    data: bytes
    socket: Descriptor = NO_DESCRIPTOR


@dataclass(frozen=True, slots=True)
class Everything:
    text: str
    number: int
    real: float
    flag: bool
    colour: Colour
    one: Number
    address: IPv4Address | IPv6Address | None
    inner: Inner | None
    many: tuple[Inner, ...]
    fixed: tuple[str, int | None]
    pairs: tuple[Pair, ...]
    named: Mapping[str, tuple[int, ...]]
    names: frozenset[str]
    anything: Any = None


texts = st.text(st.characters(codec=None))  # lone surrogates as well
descriptors = st.integers(-1, 2**20).map(Descriptor)
inners = st.builds(Inner, data=st.binary(max_size=20), socket=descriptors)
everything = st.builds(
    Everything,
    text=texts,
    number=st.integers(),
    real=st.floats(allow_nan=False),
    flag=st.booleans(),
    colour=st.sampled_from(Colour),
    one=st.sampled_from(Number),
    address=st.none() | st.ip_addresses(),
    inner=st.none() | inners,
    many=st.lists(inners, max_size=3).map(tuple),
    fixed=st.tuples(texts, st.none() | st.integers()),
    pairs=st.lists(st.builds(Pair, st.sampled_from(Colour), texts), max_size=2).map(tuple),
    named=st.dictionaries(texts, st.lists(st.integers(), max_size=2).map(tuple), max_size=2),
    names=st.frozensets(texts, max_size=2),
    anything=st.recursive(st.none() | st.booleans() | texts, lambda inner: st.lists(inner, max_size=2), max_leaves=3),
)


@given(everything)
def test_what_is_written_is_read_again(record: Everything) -> None:
    body, numbers = write_record(record)
    assert read_record(Everything, json.loads(json.dumps(body)), numbers) == record


@given(everything, st.integers(1, 1000))
def test_descriptors_may_have_other_numbers_by_then(record: Everything, shift: int) -> None:
    body, numbers = write_record(record)
    read = read_record(Everything, body, [number + shift for number in numbers])
    found = [inner.socket for inner in read.many if inner.socket >= 0]
    assert found == [inner.socket + shift for inner in record.many if inner.socket >= 0]


@dataclass(frozen=True, slots=True)
class Newer:
    data: bytes
    socket: Descriptor = NO_DESCRIPTOR
    added: int = 7


def test_new_fields_default_and_unknown_ones_are_ignored() -> None:
    body, numbers = write_record(Inner(b"x", Descriptor(3)))
    assert read_record(Newer, body, numbers) == Newer(b"x", Descriptor(3), 7)
    body, numbers = write_record(Newer(b"x", Descriptor(3), 9))
    assert read_record(Inner, body, numbers) == Inner(b"x", Descriptor(3))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "Inner without data"),
        ({"data": 1}, "Inner.data: str expected, not int"),
        ({"data": "%"}, "Inner.data: no base64"),
        ({"data": "", "socket": 5}, "there is no descriptor 5"),
        ({"data": "", "socket": True}, "int expected, not bool"),
        ([], "dict expected, not list"),
    ],
)
def test_what_is_no_such_record_is_refused(body: object, said: str) -> None:
    with pytest.raises(RecordError, match=said):
        read_record(Inner, body, [])


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(
    st.sampled_from(["data", "socket", "text", "many", "named"]), i), max_leaves=10))  # fmt: skip
def test_nothing_else_than_a_refusal_comes_of_rubbish(body: object) -> None:
    for kind in (Inner, Everything):
        try:
            read_record(kind, body, [3])
        except RecordError:
            continue


def document(**changes: Any) -> bytes:
    part = {"kind": "bridge", "name": "n", "version": VERSIONS["bridge"], "descriptors": [11, 12], "ends": [1]}
    part |= {"body": {"data": "", "socket": 0}} | changes
    return json.dumps({"format": FORMAT, "parts": [part]}).encode()


def test_a_document_gives_its_parts_new_descriptors() -> None:
    outgoing = Outgoing()
    outgoing.add("bridge", Inner(b"x", Descriptor(11)), "n", ends=[11])
    outgoing.cut = 2
    incoming = read_document(outgoing.text(), {11: 5})
    assert (incoming.cut, incoming.parts[0].ends) == (2, (5,))
    assert incoming.take("bridge", Inner) == [Inner(b"x", Descriptor(5))]
    assert incoming.rest() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 99}, "version 99 of bridge is unknown"),
        ({"kind": "lantern"}, "lantern is unknown"),
        ({"body": {}}, "Inner without data"),
    ],
)
def test_a_part_that_cannot_be_read_can_still_be_ended(changes: dict[str, Any], said: str) -> None:
    incoming = read_document(document(**changes))
    assert incoming.take("bridge", Inner) == []
    ((part, reason),) = incoming.rest()
    assert (reason, part.descriptors, part.ends) == (said, (11, 12), (12,))


def test_a_part_without_its_descriptor_is_refused() -> None:
    incoming = read_document(document(), {12: 7})
    assert incoming.take("bridge", Inner) == []
    ((part, reason),) = incoming.rest()
    assert (reason, part.descriptors, part.ends) == ("one of its descriptors is missing", (-1, 7), (7,))


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"format": 2, "parts": []}', b'{"format": 1, "parts": [{}]}'])
def test_what_is_no_document_is_an_error(text: bytes) -> None:
    with pytest.raises(HostError) as raised:
        read_document(text)
    assert raised.value.slug == "handover_unreadable"
