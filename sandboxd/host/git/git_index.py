"""The submodules of a git index. Format: gitformat-index(5), versions 2 to 4."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

_ENTRY = 62
_EXTENDED = 0x4000
_GITLINK = 0o160000
_TYPE = 0o170000
_OBJECT_NAMES = (20, 32)
"""Bytes of SHA-1 and SHA-256; the configuration decides which one it is."""


def gitlinks(index: bytes, is_over: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Yield the paths of submodules up to a malformed entry, or until `is_over`."""
    found = [_read(index, length, is_over) for length in _OBJECT_NAMES]
    yield from dict.fromkeys(path for paths in found for path in paths)


def _read(index: bytes, length: int, is_over: Callable[[], bool]) -> list[str]:
    paths: list[str] = []
    try:
        signature, version, count = struct.unpack_from(">4sII", index)
        if signature != b"DIRC" or version not in (2, 3, 4):
            return []
        offset, previous, fixed = 12, b"", _ENTRY - 20 + length
        for number in range(count):
            if number % 4096 == 0 and is_over():
                break
            mode = struct.unpack_from(">I", index, offset + 24)[0]
            flags = struct.unpack_from(">H", index, offset + fixed - 2)[0]
            start = offset + fixed + (2 if flags & _EXTENDED and version >= 3 else 0)
            if version == 4:
                strip, start = _variable_length(index, start)
                end = index.index(b"\0", start)
                entry = previous[: max(0, len(previous) - strip)] + index[start:end]
                offset = end + 1
            else:
                end = index.index(b"\0", start)
                entry = index[start:end]
                offset += (end - offset + 8) // 8 * 8
            if mode & _TYPE == _GITLINK:
                paths.append(entry.decode("utf-8", "surrogateescape"))
            previous = entry
    except (struct.error, ValueError, IndexError):
        pass
    return paths


def _variable_length(index: bytes, offset: int) -> tuple[int, int]:
    byte = index[offset]
    value = byte & 0x7F
    while byte & 0x80:
        offset += 1
        byte = index[offset]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, offset + 1
