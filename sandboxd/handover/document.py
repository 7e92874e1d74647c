"""The whole of what is handed over: parts, each with its kind, its version, its descriptors and its record.

What stands around a record never changes its form, so that a daemon which cannot read a part can still end it: `ends`
are the pidfds of what must not go on without somebody who knows it. The document names descriptors by numbers: those
of the process when it executes itself, places in a list when they lie in a service manager's store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sandboxd.errors import HostError
from sandboxd.handover.record import RecordError, read_record, write_record

FORMAT = 1
"""Of the document itself: what stands around the records."""

VERSIONS: Mapping[str, int] = {
    "daemon": 1,
    "placeholders": 1,
    "bridge": 1,
    "launch": 1,
    "session": 1,
    "questions": 1,
    "connection": 1,
}
"""Of the records of each kind that this program writes. A field that is added with a default changes no version."""

READABLE: Mapping[str, frozenset[int]] = {kind: frozenset({version}) for kind, version in VERSIONS.items()}
"""Those it reads: its own, and the one before where there was one."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that is handed over. `name` is for logs. `ends` are those of `descriptors` that are pidfds of what ends
    when nobody can take the part over."""

    kind: str
    name: str
    version: int
    body: Any
    descriptors: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


class Outgoing:
    """Collects parts. Whoever adds one gives its descriptors away."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.cut = 0
        """How many connections could not be handed over, and were ended."""
        self.for_manager = False
        """Whether it goes to the service manager, for a daemon in another process."""
        self.ends_at_once: Callable[[], bool] = bool
        """Whether the next daemon is to end as soon as it has everything; asked for until the last moment."""

    def add(self, kind: str, record: object, name: str = "", ends: Sequence[int] = ()) -> None:
        """`ends` are descriptors of the record."""
        body, descriptors = write_record(record)
        self.parts.append(Part(kind, name, VERSIONS[kind], body, tuple(descriptors), tuple(ends)))

    @property
    def descriptors(self) -> list[int]:
        return [number for part in self.parts for number in part.descriptors]

    def text(self) -> bytes:
        """The document, in which descriptors have the numbers they have here."""
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
    """What was handed over, until it is taken. `refused` are the parts that could not be read, with the reason."""

    parts: list[Part] = field(default_factory=list)
    cut: int = 0
    refused: list[tuple[Part, str]] = field(default_factory=list)
    crashed: bool = False
    """Whether the daemon before was gone without a word, and this is what it had kept for that (`kept`)."""

    def take(self, kind: str, cls: type[T]) -> list[T]:
        """The records of a kind. What cannot be read goes to `refused`."""
        mine = [part for part in self.parts if part.kind == kind]
        self.parts = [part for part in self.parts if part.kind != kind]
        found = []
        for part in mine:
            if part.version not in READABLE.get(kind, ()):
                self.refused.append((part, f"version {part.version} of {kind} is not known here"))
                continue
            try:
                found.append(read_record(cls, part.body, part.descriptors))
            except RecordError as error:
                self.refused.append((part, str(error)))
        return found

    @property
    def all_parts(self) -> list[Part]:
        """Also those that are refused already."""
        return [*self.parts, *(part for part, _ in self.refused)]

    def rest(self) -> list[tuple[Part, str]]:
        """What nobody took, for ever: it has to be ended and closed."""
        rest = [*self.refused, *((part, f"{part.kind} is not known here") for part in self.parts)]
        self.parts, self.refused = [], []
        return rest


def read_document(text: bytes, descriptors: Mapping[int, int] | None = None) -> Incoming:
    """The inverse of `Outgoing.text`. `descriptors` says which numbers those of the document have here; a part one of
    whose descriptors is missing is refused. Raises HostError `handover_unreadable`."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r} is not known here")
        incoming = Incoming(cut=int(document.get("cut", 0)))
        for one in document["parts"]:
            numbers = [int(number) for number in one["descriptors"]]
            here = [number if descriptors is None else descriptors.get(number, -1) for number in numbers]
            part = Part(
                str(one["kind"]),
                str(one["name"]),
                int(one["version"]),
                one["body"],
                tuple(here),
                tuple(here[position] for position in one.get("ends", ())),
            )
            if -1 in here:
                incoming.refused.append((part, "one of its descriptors is missing"))
            else:
                incoming.parts.append(part)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise HostError("handover_unreadable", f"what the daemon before left cannot be read: {error}") from error
    return incoming
