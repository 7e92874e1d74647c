"""The values of a layer that could widen a command's permissions. Pure.

They are shown before a user trusts a file. The answer does not depend on other layers, which may change later: a value
counts unless it is the strictest of its key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sandboxd.settings.key_table import TABLE, Combine, Effect, KeyRow
from sandboxd.settings.layer import Layer, Placed
from sandboxd.settings.merge import plain, tightens
from sandboxd.settings.origins import Origin, Source
from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class Widening:
    """One value or entry with its origin."""

    key: str
    value: Any
    origin: Origin


def widening(layer: Layer) -> tuple[Widening, ...]:
    """Return every value of a project's layer that could widen, in table order."""
    return tuple(_of_layer(layer))


def _of_layer(layer: Layer) -> Iterator[Widening]:
    for row in TABLE.values():
        value = layer.values.get(row.key)
        if value is None or row.sources.isdisjoint({layer.source, Source.LOCAL, Source.PROJECT}):
            continue
        if isinstance(value, Placed):
            if not _is_strictest(row, value.value):
                yield Widening(row.key, plain(value), value.origin)
        elif row.combine is not Combine.UNION:
            origin = value[0].origin if value else Origin(layer.source, row.key, layer.file)
            yield Widening(row.key, plain(value), origin)
        else:
            yield from (
                Widening(row.key, plain(entry), entry.origin) for entry in value if not tightens(row, entry, layer)
            )


def _is_strictest(row: KeyRow, value: Any) -> bool:
    if row.effect is Effect.SHAPES:
        return False
    if isinstance(value, bool):
        return value is (row.effect is Effect.CLOSES)
    return bool(row.order) and row.effect is Effect.CLOSES and value == row.order[-1]
