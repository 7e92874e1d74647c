"""What a daemon keeps all the time, in case it is gone without a word: one document for each command that runs, for
each session with such commands, and for the daemon, each in a memory file of its own. Pure: the names in the service
manager's store, and how a memory file holds a document that is written anew again and again.

Whoever writes may be killed in the middle. So a new document goes where the present one is not, and then a header says
where it stands: so few bytes, within one page, that they are written as a whole or not at all.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sandboxd.errors import HostError
from sandboxd.handover.document import Incoming

DAEMON: Final = "daemon"
"""The key of what is there once; sessions and commands have their ids."""
_NAME = re.compile(r"sandboxd-kept-(daemon|s-[0-9a-f]{1,64}|[0-9a-f]{1,64})(?:\.([0-9]{1,9}))?")
_HEADER = struct.Struct("<QQ")


def name_of(key: str, number: int | None = None) -> str:
    """That of a memory file in the store, or of the descriptor that it calls `number`: sd_pid_notify_with_fds(3) wants
    printable characters but the colon, and not more than 255."""
    return f"sandboxd-kept-{key}" + ("" if number is None else f".{number}")


def parse_name(name: str) -> tuple[str, int | None] | None:
    """The inverse of `name_of`; None for a name that is none of these."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], None if found[2] is None else int(found[2]))


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a document stands in its memory file."""

    offset: int = 0
    length: int = 0

    def next(self, length: int) -> Extent:
        """Where another one of this length goes, so that this one stays whole."""
        first = _HEADER.size
        fits = first + length <= self.offset
        return Extent(first if fits else max(self.offset + self.length, first), length)

    @property
    def header(self) -> bytes:
        """What stands at the beginning of the file as long as this is the present document."""
        return _HEADER.pack(self.offset, self.length)


def document_in(memory: bytes) -> bytes:
    """The present document of a memory file. Raises HostError `handover_unreadable`."""
    if len(memory) >= _HEADER.size:
        offset, length = _HEADER.unpack_from(memory)
        if offset >= _HEADER.size and 0 < length <= len(memory) - offset:
            return memory[offset : offset + length]
    raise HostError("handover_unreadable", "the daemon before was ended before it had written what it kept")


def gathered(documents: Iterable[Incoming]) -> Incoming:
    """All that a daemon had kept, as one."""
    incoming = Incoming(crashed=True)
    for one in documents:
        incoming.parts.extend(one.parts)
        incoming.refused.extend(one.refused)
    return incoming
