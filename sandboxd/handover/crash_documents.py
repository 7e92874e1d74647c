"""Names and memory files of crash entries. Pure.

Each running command, each session with such commands and the daemon has a document in its own memory file.

A daemon may be killed while it writes. So a new document goes beside the present one, and then a header names its
place: so few bytes, within one page, that they are written as a whole or not at all."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Final

from sandboxd.errors import HostError
from sandboxd.handover.document import Incoming
from sandboxd_client.records import dataclass

DAEMON: Final = "daemon"
"""Key of the daemon's own entry; sessions and commands have their ids."""
LONGEST_KEY: Final = 12
"""Characters of a key in a name."""
_NAME = re.compile(r"sandboxd-k(?:ept-)?(daemon|s-[0-9a-f]{1,64}|[0-9a-f]{1,64})(?:\.([0-9]{1,9}))?")
_HEADER = struct.Struct("<QQ")


def name_of(key: str, number: int | None = None) -> str:
    """Return the name of a memory file, or of its descriptor `number`.

    It is short: the manager passes all names in one variable of the environment (`descriptor_store.MOST`)."""
    return f"sandboxd-k{key[:LONGEST_KEY]}" + ("" if number is None else f".{number}")


def parse_name(name: str) -> tuple[str, int | None] | None:
    """Return key and number of a name of `name_of`; None for any other name."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], None if found[2] is None else int(found[2]))


@dataclass(frozen=True, slots=True)
class Extent:
    """Place of a document in its memory file."""

    offset: int = 0
    length: int = 0

    def next(self, length: int) -> Extent:
        """Return a place for a document of this length that leaves this one whole."""
        first = _HEADER.size
        fits = first + length <= self.offset
        return Extent(first if fits else max(self.offset + self.length, first), length)

    @property
    def header(self) -> bytes:
        """Return the header that makes this the present document."""
        return _HEADER.pack(self.offset, self.length)


def document_in(memory: bytes) -> bytes:
    """Return the present document. Raises HostError `handover_unreadable`."""
    if len(memory) >= _HEADER.size:
        offset, length = _HEADER.unpack_from(memory)
        if offset >= _HEADER.size and 0 < length <= len(memory) - offset:
            return memory[offset : offset + length]
    raise HostError("handover_unreadable", "the earlier daemon ended before it wrote its crash entry")


def gathered(documents: Iterable[Incoming]) -> Incoming:
    """Join the documents of a crashed daemon."""
    incoming = Incoming(crashed=True)
    for one in documents:
        incoming.parts.extend(one.parts)
        incoming.refused.extend(one.refused)
    return incoming
