"""Hand-over document: parts with kind, version, descriptors and record.

The form around a record never changes, so that a daemon which cannot read a part can still end it: `ends` are the
pidfds of processes that must not run unsupervised. The document names descriptors by numbers: those of the process when
it executes itself, places in a list when a service manager stores them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sandboxd.errors import HostError
from sandboxd.handover.record import RecordError, read_record, write_record
from sandboxd_client.records import dataclass, field

FORMAT = 1
"""Version of the form around the records."""

VERSIONS: Mapping[str, int] = {
    "daemon": 1,
    "placeholders": 1,
    "bridge": 1,
    "launch": 1,
    "overlay": 1,
    "session": 2,
    "questions": 1,
    "connection": 1,
}
"""Versions of the written records; fields with defaults change none."""

READABLE: Mapping[str, frozenset[int]] = {kind: frozenset({1, version}) for kind, version in VERSIONS.items()}
"""Versions that this program reads: its own, and the one before. Sessions of version 1 have no tunnels with pipes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the state.

    `name` is for logs. `ends` are those of `descriptors` that are pidfds of processes to end when the part cannot be
    resumed."""

    kind: str
    name: str
    version: int
    body: Any
    descriptors: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


class Outgoing:
    """Collector of parts. It takes ownership of their descriptors."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.cut = 0
        """Number of connections that could not be handed over and were closed."""
        self.for_manager = False
        """True where the service manager passes it to a daemon in another process."""
        self.ends_at_once: Callable[[], bool] = bool
        """Return whether the next daemon has to end at once; asked until the last moment."""

    def add(self, kind: str, record: object, name: str = "", ends: Sequence[int] = ()) -> None:
        """Add a record; `ends` are descriptors of it."""
        body, descriptors = write_record(record)
        self.parts.append(Part(kind, name, VERSIONS[kind], body, tuple(descriptors), tuple(ends)))

    @property
    def descriptors(self) -> list[int]:
        return [number for part in self.parts for number in part.descriptors]

    def text(self) -> bytes:
        """Return the document; descriptors have their numbers in this process."""
        parts = [
            {
                "kind": part.kind,
                "name": part.name,
                "version": part.version,
                "descriptors": part.descriptors,
                "ends": [part.descriptors.index(number) for number in part.ends],
                "body": part.body,
            }
            for part in self.parts
        ]
        return json.dumps({"format": FORMAT, "cut": self.cut, "parts": parts}).encode("ascii")


@dataclass(slots=True)
class Incoming:
    """State of an earlier daemon; `refused` are unreadable parts with reasons."""

    parts: list[Part] = field(default_factory=list)
    cut: int = 0
    refused: list[tuple[Part, str]] = field(default_factory=list)
    crashed: bool = False
    """True where the earlier daemon crashed and these are its crash entries."""

    def take(self, kind: str, cls: type[T]) -> list[T]:
        """Take the records of a kind. Unreadable parts go to `refused`."""
        mine = [part for part in self.parts if part.kind == kind]
        self.parts = [part for part in self.parts if part.kind != kind]
        found = []
        for part in mine:
            if part.version not in READABLE.get(kind, ()):
                self.refused.append((part, f"version {part.version} of {kind} is unknown"))
                continue
            try:
                found.append(read_record(cls, part.body, part.descriptors))
            except RecordError as error:
                self.refused.append((part, str(error)))
        return found

    @property
    def all_parts(self) -> list[Part]:
        """Return all parts, also refused ones."""
        return [*self.parts, *(part for part, _ in self.refused)]

    def rest(self) -> list[tuple[Part, str]]:
        """Take all parts that are left, for the caller to end and close."""
        rest = [*self.refused, *((part, f"{part.kind} is unknown") for part in self.parts)]
        self.parts, self.refused = [], []
        return rest


def read_document(text: bytes, descriptors: Mapping[int, int] | None = None) -> Incoming:
    """Parse the document of `Outgoing.text`.

    `descriptors` maps its numbers to those in this process. A part with a missing descriptor is refused. Raises
    HostError `handover_unreadable`."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r} is unknown")
        incoming = Incoming(cut=int(document.get("cut", 0)))
        for one in document["parts"]:
            numbers = [int(number) for number in one["descriptors"]]
            numbers_here = [number if descriptors is None else descriptors.get(number, -1) for number in numbers]
            part = Part(
                str(one["kind"]),
                str(one["name"]),
                int(one["version"]),
                one["body"],
                tuple(numbers_here),
                tuple(numbers_here[position] for position in one.get("ends", ())),
            )
            if -1 in numbers_here:
                incoming.refused.append((part, "one of its descriptors is missing"))
            else:
                incoming.parts.append(part)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise HostError("handover_unreadable", f"cannot read the state of the earlier daemon: {error}") from error
    return incoming
