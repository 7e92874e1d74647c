"""Lines of an audit log: JSON objects, chained by hashes. Pure.

A line is `{"seq":N,"time":…,"kind":…,…,"prev":"H","hash":"H"}` and a newline. `hash` is the SHA-256, in hexadecimal, of
the bytes of the line before `,"hash":`. `prev` is the hash of the line before, zeros for the first one ever. So a
change, removal or move of a line shows unless every later line is written anew. The *head*, a small file beside the
log, repeats number and hash of the newest line, so that missing lines at the end show too.

A program that can write all these files can write all of them anew. A copy of the head on another machine shows that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sandboxd_client.records import dataclass, field

GENESIS = "0" * 64
OPENED = "opened"
"""Kind of the first line of every file."""
LONGEST_LINE = 1 << 20

_TAIL = re.compile(rb',"hash":"([0-9a-f]{64})"\}\Z')
_HEAD = re.compile(rb'\A\{"seq":(\d{1,15}),"hash":"([0-9a-f]{64})"\} *\n\Z')


@dataclass(frozen=True, slots=True)
class Position:
    """Number of a line, from 1, and its hash; (0, GENESIS) is before the first."""

    seq: int = 0
    hash: str = GENESIS


BEGINNING = Position()


def encode_line(after: Position, record: Mapping[str, Any]) -> tuple[bytes, Position]:
    """Return the line for a record that follows `after`, and its place."""
    seq = after.seq + 1
    text = json.dumps({"seq": seq, **record, "prev": after.hash}, ensure_ascii=True, separators=(",", ":"))
    body = text[:-1].encode("ascii")
    digest = hashlib.sha256(body).hexdigest()
    return body + b',"hash":"' + digest.encode("ascii") + b'"}\n', Position(seq, digest)


def encode_head(position: Position) -> bytes:
    """Return the content of the head file; of constant length, to overwrite in place."""
    return f'{{"seq":{position.seq},"hash":"{position.hash}"}}'.encode("ascii").ljust(120) + b"\n"


def decode_head(data: bytes) -> Position | None:
    """Parse the head file; None when it is damaged."""
    found = _HEAD.match(data)
    return None if found is None else Position(int(found[1]), found[2].decode("ascii"))


@dataclass(frozen=True, slots=True)
class Line:
    """Whole line: its record, and the place that it states."""

    record: dict[str, Any]
    position: Position
    prev: str
    intact: bool
    """True where its hash matches its bytes."""


def decode_line(data: bytes) -> Line | None:
    """Parse a line without its newline; None when it is not one."""
    tail = _TAIL.search(data[-90:])
    if tail is None or len(data) > LONGEST_LINE:
        return None
    body = data[: len(data) - len(tail[0])]
    try:
        record = json.loads(body + b"}")
    except ValueError:  # also UnicodeDecodeError
        return None
    except RecursionError:
        return None
    if not isinstance(record, dict):
        return None
    seq, prev = record.get("seq"), record.get("prev")
    if type(seq) is not int or not isinstance(prev, str):
        return None
    digest = tail[1].decode("ascii")
    intact = hashlib.sha256(body).hexdigest() == digest
    return Line(record, Position(seq, digest), prev, intact)


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault at a line of a file; line 0 is the file as a whole."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Verification:
    """Result; `first` and `last` are line numbers (0: none), `notes` no faults."""

    lines: int
    first: int
    last: int
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.faults


@dataclass(slots=True)
class _Reading:
    before: Position | None = None
    first: int = 0
    lines: int = 0
    kept: int | None = None
    """Number of older files that the newest `opened` line permits."""
    seen: dict[int, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(files: Iterable[tuple[str, Iterable[bytes]]], head: bytes | None) -> Verification:
    """Verify files (name, lines), oldest first, against the head file's content."""
    state = _Reading()
    known = decode_head(head) if head is not None else None
    names: list[str] = []
    for name, lines in files:
        names.append(name)
        for number, data in enumerate(lines, 1):
            _follow(state, name, number, data, known)
    newest = names[-1] if names else "the log"
    if state.first > 1 and state.kept is not None and len(names) <= state.kept:
        state.faults.append(Fault(names[0], 1, f"it begins with line {state.first}: older files have been removed"))
    elif state.first > 1:
        state.notes.append(f"lines 1 to {state.first - 1} were in older files, which are not kept")
    last = state.before.seq if state.before is not None else 0
    _compare_head(state, newest, last, known, head)
    return Verification(state.lines, state.first, last, tuple(state.faults), tuple(state.notes))


def _follow(state: _Reading, name: str, number: int, data: bytes, known: Position | None) -> None:
    def fault(text: str) -> None:
        state.faults.append(Fault(name, number, text))

    if not data.endswith(b"\n"):
        cut = known is not None and state.before is not None and known.seq > state.before.seq
        if cut or decode_line(data) is not None:
            fault("the line is cut off")
        else:  # there is no sign that it was ever whole
            state.notes.append(f"{name}:{number}: an unfinished line, of a daemon that was killed while writing it")
        return
    line = decode_line(data[:-1])
    if line is None:
        fault("not a line of an audit log")
        return
    state.lines += 1
    if not line.intact:
        fault(f"line {line.position.seq} was changed")
    before = state.before
    if before is None:
        state.first = line.position.seq
        if line.position.seq == 1 and line.prev != GENESIS:
            fault("the first line names one before it")
    elif line.position.seq <= before.seq:
        fault(f"line {line.position.seq} stands after line {before.seq}")
    elif line.position.seq > before.seq + 1:
        fault(f"lines {before.seq + 1} to {line.position.seq - 1} are missing")
    elif line.prev != before.hash:
        fault(f"line {line.position.seq} does not follow the line before it, which is not the one that was written")
    if known is not None and line.position.seq == known.seq and line.position.hash != known.hash:
        fault(f"line {known.seq} is not the one that the head knows")
    if number == 1 and line.record.get("kind") != OPENED:
        fault("the file does not begin as files do: lines have been removed")
    if line.record.get("kind") == OPENED and type(line.record.get("keep")) is int:
        state.kept = line.record["keep"]
    if before is None or line.position.seq > before.seq:
        state.before = line.position


def _compare_head(state: _Reading, newest: str, last: int, known: Position | None, head: bytes | None) -> None:
    if head is None:
        if state.lines:
            state.notes.append("without the head file, missing lines at the end do not show")
    elif known is None:
        state.faults.append(Fault(newest, 0, "the head file is damaged"))
    elif known.seq > last:
        state.faults.append(Fault(newest, 0, f"lines {last + 1} to {known.seq} are missing at the end"))


def records(files: Iterable[tuple[str, Iterable[bytes]]]) -> Iterator[dict[str, Any]]:
    """Yield the records of all readable lines, oldest first, also of a broken chain."""
    for _, lines in files:
        for data in lines:
            line = decode_line(data.rstrip(b"\n"))
            if line is not None:
                yield line.record


def default_path(home: str) -> str:
    """Return the default of `audit.path`. Its directory holds nothing else."""
    return f"{home}/.local/state/sandboxd/audit/audit.jsonl"
