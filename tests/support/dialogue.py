"""Conversations with a sans-IO parser: the same bytes whole, byte by byte, and split anywhere, lead to the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def splits(data: bytes) -> Iterator[tuple[bytes, ...]]:
    """`data` whole, one byte at a time, and cut in two at every place."""
    yield (data,)
    yield tuple(data[place : place + 1] for place in range(len(data)))
    for place in range(1, len(data)):
        yield (data[:place], data[place:])


def feed(receive: Callable[[bytes], T | None], pieces: Iterable[bytes]) -> tuple[T | None, bytes]:
    """What `receive` gives first that is not None, and the pieces that were not fed by then, joined."""
    waiting = list(pieces)
    while waiting:
        found = receive(waiting.pop(0))
        if found is not None:
            return found, b"".join(waiting)
    return None, b""
