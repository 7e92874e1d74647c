"""Frames of the stream: one JSON text a line, UTF-8, at most 4 MiB. No I/O.

`LineDecoder` owns its buffer and accepts any split of the bytes. Both of its errors leave it usable: it drops the rest
of the offending line, and reads the next line as usual."""

from __future__ import annotations

from sandboxd_client.wire.jsontext import JsonTextError, dumps

MAX_LINE = 4 * 1024 * 1024


class FrameError(Exception):
    """A line that breaks the framing. `slug` is stable (see `codes`)."""

    slug = "invalid_request"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class LineTooLong(FrameError):
    """A line of more than MAX_LINE bytes, without its newline."""

    slug = "line_too_long"

    def __init__(self, limit: int) -> None:
        super().__init__(f"a line is longer than {limit} bytes")


class NotUtf8(FrameError):
    """Bytes that are not UTF-8, or text to write with a lone surrogate."""

    slug = "not_utf8"


class LineDecoder:
    """Decoder of lines: bytes in with `feed`, lines out with `next_line`."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._scanned = 0
        self._dropping = False

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data

    def next_line(self) -> str | None:
        """Return the next line that is not blank, or None. Raises FrameError."""
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if self._dropping:
                if end < 0:
                    self._buffer.clear()
                    self._scanned = 0
                    return None
                self._take(end)
                self._dropping = False
                continue
            if end < 0:
                self._scanned = len(self._buffer)
                if self._scanned > self._limit:
                    self._dropping = True
                    raise LineTooLong(self._limit)
                return None
            line = self._take(end)
            if len(line) > self._limit:
                raise LineTooLong(self._limit)
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise NotUtf8(f"a line is not UTF-8: {error.reason} at byte {error.start}") from error
            if text and not text.isspace():
                return text

    def _take(self, end: int) -> bytes:
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._scanned = 0
        return line

    def __len__(self) -> int:
        """Return the number of buffered bytes."""
        return len(self._buffer)

    def drop(self) -> None:
        """Drop the unfinished line, and what is still to come of it."""
        self._dropping = True
        self._buffer.clear()
        self._scanned = 0

    @property
    def state(self) -> tuple[bytes, bool]:
        """Return the buffered bytes, and whether their line is being dropped."""
        return bytes(self._buffer), self._dropping

    @classmethod
    def resumed(cls, buffer: bytes, dropping: bool, limit: int = MAX_LINE) -> LineDecoder:
        """Return a decoder that continues from the `state` of another one."""
        decoder = cls(limit)
        decoder._buffer += buffer
        decoder._dropping = dropping
        return decoder

    @property
    def partial(self) -> bool:
        """Return whether a line has begun and not ended."""
        return bool(self._buffer) or self._dropping


def encode_line(message: object, limit: int = MAX_LINE) -> bytes:
    """Return one frame. Raises LineTooLong, NotUtf8, JsonTextError."""
    try:
        line = dumps(message).encode()
    except UnicodeEncodeError as error:
        raise NotUtf8("text with a lone surrogate (bytes that were not UTF-8) cannot be sent") from error
    if len(line) > limit:
        raise LineTooLong(limit)
    return line + b"\n"


__all__ = ["MAX_LINE", "FrameError", "JsonTextError", "LineDecoder", "LineTooLong", "NotUtf8", "encode_line"]
