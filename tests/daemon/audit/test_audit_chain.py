"""The chain of the audit log: every change of a log is found, and an untouched one is whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.daemon.audit.audit_chain import (
    BEGINNING,
    GENESIS,
    Position,
    Verification,
    decode_head,
    decode_line,
    encode_head,
    encode_line,
    records,
    verify,
)

TEXT = st.text(max_size=40)
RECORDS = st.dictionaries(TEXT.filter(lambda key: key not in {"seq", "prev", "hash"}), TEXT | st.integers() | st.none())


def chain(*given: dict[str, object], after: Position = BEGINNING) -> tuple[list[bytes], Position]:
    lines = []
    for record in given:
        line, after = encode_line(after, record)
        lines.append(line)
    return lines, after


FIVE: list[dict[str, object]] = [
    {"kind": "opened", "keep": 3},
    {"kind": "run", "command": "make"},
    {"kind": "started"},
    {"kind": "ended", "status": 0},
    {"kind": "run", "command": "make install"},
]


def checked(lines: Iterable[bytes], head: Position | None) -> Verification:
    return verify([("a.jsonl", lines)], None if head is None else encode_head(head))


@given(st.lists(RECORDS, max_size=8))
def test_what_was_written_is_read_and_whole(given: list[dict[str, object]]) -> None:
    given = [{"kind": "opened"}, *given]
    lines, last = chain(*given)
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii() for line in lines)
    read = list(records([("a", lines)]))
    assert [{key: record[key] for key in one} for one, record in zip(given, read, strict=True)] == given
    assert [record["seq"] for record in read] == list(range(1, len(given) + 1))
    found = checked(lines, last)
    assert found.ok and found.lines == len(given) and found.last == len(given) and not found.notes


def test_the_first_line() -> None:
    line, position = encode_line(BEGINNING, {"kind": "opened"})
    whole = json.loads(line)
    assert whole == {"seq": 1, "kind": "opened", "prev": GENESIS, "hash": position.hash}
    assert position.seq == 1


@given(st.data())
def test_no_byte_can_be_changed(data: st.DataObject) -> None:
    lines, last = chain(*FIVE)
    number = data.draw(st.integers(0, len(lines) - 1))
    place = data.draw(st.integers(0, len(lines[number]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != lines[number][place]))
    lines[number] = lines[number][:place] + bytes([byte]) + lines[number][place + 1 :]
    content = b"".join(lines)
    assert not checked(content.splitlines(keepends=True) if b"\r" not in content else lines, last).ok


MANIPULATIONS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "removed": lambda lines: lines[:2] + lines[3:],
    "the first removed": lambda lines: lines[1:],
    "the last removed": lambda lines: lines[:-1],
    "all removed": lambda lines: [],
    "moved": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "doubled": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "the last cut": lambda lines: [*lines[:-1], lines[-1][:-9]],
    "the last cut by its newline": lambda lines: [*lines[:-1], lines[-1][:-1]],
    "a line in the middle cut": lambda lines: [*lines[:2], lines[2][:30] + b"\n", *lines[3:]],
    "a foreign line": lambda lines: [*lines[:2], b'{"kind":"run"}\n', *lines[2:]],
    "an empty line": lambda lines: [*lines[:2], b"\n", *lines[2:]],
    "rewritten without the rest": lambda lines: [
        *lines[:2], encode_line(Position(2, json.loads(lines[1])["hash"]), {"kind": "run"})[0], *lines[3:],
    ],
    "the last one rewritten": lambda lines: [
        *lines[:4], encode_line(Position(4, json.loads(lines[3])["hash"]), {"kind": "run"})[0],
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MANIPULATIONS)
def test_manipulations_are_found(name: str) -> None:
    lines, last = chain(*FIVE)
    assert checked(lines, last).ok
    found = checked(MANIPULATIONS[name](lines), last)
    assert not found.ok and all(fault.text for fault in found.faults)


def test_an_unfinished_line_of_a_killed_writer_is_no_fault() -> None:
    """The head says that the line before it was the last one that was finished."""
    lines, last = chain(*FIVE)
    unfinished, _ = encode_line(last, {"kind": "run"})
    for size in range(1, len(unfinished) - 1):
        found = checked([*lines, unfinished[:size]], last)
        assert found.ok and found.last == 5 and len(found.notes) == 1, size


def test_a_head_that_is_behind_is_no_fault() -> None:
    """The daemon was killed between a line and the head."""
    lines, _ = chain(*FIVE)
    assert checked(lines, Position(4, json.loads(lines[3])["hash"])).ok
    assert not checked(lines, Position(4, "0" * 64)).ok


def test_without_a_head_the_end_is_not_known() -> None:
    lines, _ = chain(*FIVE)
    found = checked(lines[:-1], None)
    assert found.ok and "head" in found.notes[0]
    assert not verify([("a", lines)], b"{}").ok


def test_a_chain_over_several_files() -> None:
    older, between = chain(*FIVE)
    newer, last = chain({"kind": "opened", "keep": 3}, {"kind": "run"}, after=between)
    assert verify([("a.1", older), ("a", newer)], encode_head(last)).ok
    swapped = verify([("a", newer), ("a.1", older)], encode_head(last))
    assert not swapped.ok
    alone = verify([("a", newer)], encode_head(last))
    assert not alone.ok and "older files have been removed" in alone.faults[0].text


def test_files_that_are_not_kept_any_more() -> None:
    _, between = chain(*FIVE)
    middle, there = chain({"kind": "opened", "keep": 1}, after=between)
    newest, last = chain({"kind": "opened", "keep": 1}, after=there)
    found = verify([("a.1", middle), ("a", newest)], encode_head(last))
    assert found.ok and found.first == 6 and "1 to 5" in found.notes[0]


@given(st.integers(0, 10**15 - 1), st.binary(min_size=32, max_size=32))
def test_heads(seq: int, digest: bytes) -> None:
    position = Position(seq, digest.hex())
    data = encode_head(position)
    assert decode_head(data) == position and len(data) == 121
    for size in range(len(data)):
        assert decode_head(data[:size]) is None
    assert decode_head(data + b"x") is None


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"null", b"[]", b"\xff\xfe", b'{"seq":1}', b'"hash"', b"[" * 100_000,
        b'{"seq":"1","prev":"x","hash":"' + b"0" * 64 + b'"}', b'{"seq":1,"prev":2,"hash":"' + b"0" * 64 + b'"}',
        b'{"seq":true,"prev":"x","hash":"' + b"0" * 64 + b'"}', b'[1,"hash":"' + b"0" * 64 + b'"}',
    ],
)  # fmt: skip
def test_what_is_no_line(data: bytes) -> None:
    assert decode_line(data) is None


@given(st.binary(max_size=300))
def test_no_bytes_upset_it(data: bytes) -> None:
    decode_line(data)
    decode_head(data)
    verify([("a", [data])], data)
