"""The frames of an HTTP/2 connection (RFC 9113, section 4), before the library sees them. No I/O.

The library takes all frames of its input at once, keeps unfinished header blocks of any size and every unknown setting,
and ends a connection at GOAWAY, after which the open streams go on. So frames are passed on a few at a time, blocks
have a limit, unknown settings are left out, and GOAWAY is taken out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from h2.errors import ErrorCodes

from sandboxd_client.records import dataclass

AT_ONCE: Final = 32
"""Most frames of a piece. A frame without content takes the library about 20 us."""
MOST_BLOCK: Final = 65536
"""Longest compressed header block."""
MOST_USELESS: Final = 10_000
"""Frames without any request or content between them: settings, pings, resets, empty ones."""
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD: Final = 9
_DATA, _HEADERS, _SETTINGS, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 4, 7, 8, 9
_SETTING: Final = struct.Struct(">HI")
_KNOWN_SETTINGS: Final = frozenset({1, 2, 3, 4, 5, 6, 8})
_END_HEADERS: Final = 4
_ACK: Final = 1
_LONGEST_HELD: Final = 16384


class BadFrames(ConnectionResetError):
    """Frames that end the connection, with the code for the peer: mostly they cost too much."""

    def __init__(self, text: str, code: ErrorCodes = ErrorCodes.ENHANCE_YOUR_CALM) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class GoAway:
    """The end of a connection for new streams; those up to `last` go on."""

    last: int
    code: int

    def render(self) -> bytes:
        return struct.pack(">HBBBIII", 0, 8, _GOAWAY, 0, 0, self.last, self.code)


class FrameSplitter:
    """Parser of one side's bytes; `has_preface` for those of a client."""

    def __init__(self, *, has_preface: bool) -> None:
        self._head = bytearray()
        self._left = len(PREFACE) if has_preface else 0
        self._held: bytearray | None = None
        """The frame that is passed on as a whole or not at all."""
        self._block = self._useless = 0

    def split(self, data: bytes) -> Iterator[bytes | GoAway]:
        """Yield pieces of at most `AT_ONCE` frames, and each GOAWAY in its place. Raises BadFrames."""
        piece, place, frames = bytearray(), 0, 0
        while place < len(data):
            if self._left == 0:
                taken = data[place : place + _HEAD - len(self._head)]
                self._head += taken
                place += len(taken)
                if len(self._head) < _HEAD:
                    break
                self._begin(self._head)
                if self._held is None:
                    piece += self._head
                    frames += 1
                self._head.clear()
            content = data[place : place + self._left]
            place += len(content)
            self._left -= len(content)
            if self._held is None:
                piece += content
            else:
                self._held += content
            if self._left == 0 and self._held is not None:
                held, self._held = self._held, None
                if held[3] == _SETTINGS:
                    piece += _without_unknown(held)
                    frames += 1
                else:
                    if piece:
                        yield bytes(piece)
                        piece, frames = bytearray(), 0
                    last, code = struct.unpack(">II", held[_HEAD : _HEAD + 8])
                    yield GoAway(last & 0x7FFFFFFF, code)
            if self._left == 0 and frames >= AT_ONCE:
                yield bytes(piece)
                piece, frames = bytearray(), 0
        if piece:
            yield bytes(piece)

    def _begin(self, head: bytearray) -> None:
        self._left, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        if kind == _HEADERS or (kind == _DATA and self._left):
            self._useless = 0
        elif kind != _WINDOW_UPDATE:
            self._useless += 1
            if self._useless > MOST_USELESS:
                raise BadFrames(f"more than {MOST_USELESS} frames without a request or content")
        if kind in (_HEADERS, _CONTINUATION):
            self._block += self._left
            if self._block > MOST_BLOCK:
                raise BadFrames(f"header block is longer than {MOST_BLOCK} bytes")
            if flags & _END_HEADERS:
                self._block = 0
        elif kind in (_SETTINGS, _GOAWAY):
            least, most = (8, _LONGEST_HELD) if kind == _GOAWAY else (0, 0 if flags & _ACK else _LONGEST_HELD)
            if not least <= self._left <= most:
                raise BadFrames("SETTINGS or GOAWAY frame has a wrong length", ErrorCodes.FRAME_SIZE_ERROR)
            if kind == _GOAWAY and int.from_bytes(head[5:], "big") & 0x7FFFFFFF:
                raise BadFrames("GOAWAY frame is of a stream", ErrorCodes.PROTOCOL_ERROR)
            self._held = bytearray(head)


def _without_unknown(frame: bytearray) -> bytes:
    """Return a SETTINGS frame without unknown settings, which have no effect (RFC 9113, section 6.5.2)."""
    content = frame[_HEAD:]
    if len(content) % _SETTING.size:
        return bytes(frame)  # the library refuses it
    kept = b"".join(_SETTING.pack(*one) for one in _SETTING.iter_unpack(content) if one[0] in _KNOWN_SETTINGS)
    return len(kept).to_bytes(3, "big") + bytes(frame[3:_HEAD]) + kept
