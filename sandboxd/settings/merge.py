"""Merge of all layers into one `Settings`, by the rows of `key_table`.

- Sources are ordered by `PRECEDENCE`. Managed settings are above the command line.
- Several files of one source are equals: the strictest value wins; without an order, the file whose path sorts last. So
  the order of reading never matters.
- A layer that may not widen contributes only values that tighten. The others are kept in `Settings.ignored`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sandboxd.settings.key_table import MANAGED_LISTS, MANAGED_ONLY, TABLE, Combine, Effect, KeyRow
from sandboxd.settings.layer import Entries, Layer, Placed
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.presets import PRESETS
from sandboxd.settings.problems import Problem, first_fatal
from sandboxd.settings.rules import RuleSyntaxError, parse_rule
from sandboxd_client.records import dataclass, field

PRECEDENCE = (
    Source.MANAGED,
    Source.CLI,
    Source.FLAG,
    Source.LOCAL,
    Source.USER,
    Source.PROJECT,
    Source.DEFAULT,
)

_N = "sandbox.network."
_AUDIT = "audit.enabled"
"""If managed settings switch it on, the other keys of the section count in managed settings only. With them a user
could truncate or move the log, or run commands without it."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A value without effect, and the reason."""

    key: str
    value: Any
    origin: Origin
    reason: str

    def __str__(self) -> str:
        return f"{self.origin}: ignored: {self.reason}"


@dataclass(frozen=True, slots=True)
class Lock:
    """A key that only managed settings can change; `origin` is the managed value."""

    key: str
    reason: str
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The merged settings, immutable; `files` are all possible settings files."""

    values: Mapping[str, Placed | Entries] = field(default_factory=dict)
    ignored: tuple[Ignored, ...] = ()
    problems: tuple[Problem, ...] = ()
    files: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = field(default=(), repr=False)

    def scalar(self, key: str) -> Placed:
        """Return the effective value of a scalar key. `KeyError` for an unknown key."""
        value = self.values.get(key)
        if isinstance(value, Placed):
            return value
        return Placed(TABLE[key].default, Origin(Source.DEFAULT, key))

    def entries(self, key: str) -> Entries:
        """Return the effective entries of a list or object key."""
        value = self.values.get(key, ())
        return value if isinstance(value, tuple) else ()

    def is_set(self, key: str) -> bool:
        """Return whether any layer sets the key; an empty list sets it."""
        return key in self.values

    def locked(self, key: str) -> Lock | None:
        """Return the reason why the user cannot change the key, or None."""
        row = TABLE.get(key)
        if row is None:
            return None
        value = self.values.get(key)
        if row.sources == MANAGED_ONLY:
            origin = value.origin if isinstance(value, Placed) else None
            return Lock(key, f"{key} counts in managed settings only", origin)
        if key.startswith("audit.") and self._audit_is_managed():
            origin = self.scalar(_AUDIT).origin
            return Lock(key, f"{_AUDIT} is on in managed settings: only managed settings count", origin)
        switch = MANAGED_LISTS.get(key)
        if switch is not None and self.scalar(switch).value:
            return Lock(key, f"{switch} is on: only managed settings count", self.scalar(switch).origin)
        if isinstance(value, Placed) and value.origin.source is Source.MANAGED and row.combine is Combine.REPLACE:
            return Lock(key, "set by managed settings", value.origin)
        of_flag = (one.values.get(key) for one in self.layers if one.source is Source.FLAG and one.may_widen)
        by_flag = next((one.origin for one in of_flag if isinstance(one, Placed)), None)
        if by_flag is not None and row.combine is Combine.REPLACE:
            return Lock(key, "set by the flag settings", by_flag)
        return None

    def _audit_is_managed(self) -> bool:
        on = self.scalar(_AUDIT)
        return bool(on.value) and on.origin.source is Source.MANAGED

    def all_locked(self) -> tuple[Lock, ...]:
        return tuple(lock for key in TABLE if (lock := self.locked(key)) is not None)

    def fatal(self) -> Problem | None:
        """Return the problem that makes these settings unusable, or None."""
        return first_fatal(self.problems)

    def effective(self) -> dict[str, Any]:
        """Return plain values of all keys, defaults included, without origins."""
        return {key: plain(self.values.get(key, row.default)) for key, row in TABLE.items()}


def changed_keys(before: Settings, after: Settings) -> tuple[str, ...]:
    """Return the keys whose effective value differs, in table order."""
    old, new = before.effective(), after.effective()
    return tuple(key for key in TABLE if old[key] != new[key])


def merge(layers: Iterable[Layer]) -> Settings:
    """Merge layers, in any order. Never raises: see `Settings.fatal`."""
    ordered = sorted(layers, key=lambda layer: (PRECEDENCE.index(layer.source), layer.file or ""))
    ignored: list[Ignored] = []
    values: dict[str, Placed | Entries] = {}
    for row in TABLE.values():
        permitted = [layer for layer in ordered if _may_set(row, layer, ignored, values.get(_AUDIT))]
        if isinstance(row.default, tuple) and row.combine is Combine.UNION:
            result: Placed | Entries | None = _union(row, permitted, values, ignored)
        else:
            result = _scalar(row, permitted, ignored)
        if result is not None:
            values[row.key] = result
    _apply_managed_only(values, ignored)
    return Settings(
        values=values,
        ignored=tuple(ignored),
        problems=tuple(problem for layer in ordered for problem in layer.problems),
        files=tuple(dict.fromkeys(layer.file for layer in ordered if layer.file is not None)),
        layers=tuple(ordered),
    )


def _may_set(row: KeyRow, layer: Layer, ignored: list[Ignored], audit: Placed | Entries | None) -> bool:
    value = layer.values.get(row.key)
    if value is None:
        return False
    managed = isinstance(audit, Placed) and audit.value and audit.origin.source is Source.MANAGED
    if managed and row.key.startswith("audit.") and layer.source is Source.USER:
        strictest = row.combine is Combine.STRICTEST and _whole(row, layer).value == row.order[-1]
        if not strictest:
            reason = f"{_AUDIT} is on in managed settings: only managed settings count"
            ignored.append(Ignored(row.key, plain(value), _origin(value, layer, row.key), reason))
        return strictest
    if layer.source in row.sources:
        return True
    permitted = " or ".join(sorted(source.value for source in row.sources))
    ignored.append(
        Ignored(row.key, plain(value), _origin(value, layer, row.key), f"counts in {permitted} settings only")
    )
    return False


def _union(row: KeyRow, layers: Sequence[Layer], merged: Mapping[str, Any], ignored: list[Ignored]) -> Entries | None:
    """Join the entries of all layers, highest source first, without duplicates."""
    entries: dict[Any, Placed] = {}
    for layer in layers:
        value = layer.values[row.key]
        assert isinstance(value, tuple)
        for entry in value:
            if layer.may_widen or tightens(row, entry, layer):
                identity = entry.value[0] if row.key.endswith("Reasons") else entry.value
                entries.setdefault(identity, entry)
            else:
                ignored.append(Ignored(row.key, plain(entry), entry.origin, layer.distrust))
    return tuple(entries.values()) if layers else None


def tightens(row: KeyRow, entry: Placed, layer: Layer) -> bool:
    """Return whether an entry of a list denies something and allows nothing."""
    if row.effect is not Effect.BY_ENTRY:
        return row.effect is Effect.CLOSES
    if row.key == _N + "requests":
        return bool(entry.value.action == "deny")
    if row.key == "sandbox.presets":
        preset = PRESETS.get(entry.value)
        return preset is not None and not preset.opens
    # A user takes a reason for the policy's text, so a file may explain only the denials it contains.
    denied = layer.values.get(_N + "deniedDomains", ())
    return isinstance(denied, tuple) and entry.value[0] in {item.value for item in denied}


def _scalar(row: KeyRow, layers: Sequence[Layer], ignored: list[Ignored]) -> Placed | None:
    trusted = [layer for layer in layers if layer.may_widen]
    winner = _strictest(row, trusted) if row.combine is Combine.STRICTEST else _highest(row, trusted)
    for layer in trusted:
        value = _whole(row, layer)
        beaten = winner is not None and value.value != winner.value
        if beaten and winner and layer.source is Source.CLI and winner.origin.source is Source.MANAGED:
            ignored.append(Ignored(row.key, plain(value), value.origin, f"set by managed settings ({winner.origin})"))
    for layer in layers:
        if not layer.may_widen:
            winner = _tightened(row, layer, winner, ignored)
    return winner


def _tightened(row: KeyRow, layer: Layer, winner: Placed | None, ignored: list[Ignored]) -> Placed | None:
    """Return the winner after a layer that may not widen."""
    value = _whole(row, layer)
    current = winner.value if winner is not None else row.default
    new, old = row.strictness(value.value), row.strictness(current)
    if new is None or old is None or new < old:
        if value.value != current:
            ignored.append(Ignored(row.key, plain(value), value.origin, layer.distrust))
        return winner
    # Overrides of one command tighten any value; a project file, only one that no higher source has set.
    # Of a `strictest` key, any source tightens any value.
    anywhere = layer.source is Source.CLI or row.combine is Combine.STRICTEST
    if anywhere or winner is None or winner.origin.source is layer.source:
        return value if new > old or winner is None else winner
    if new > old:
        ignored.append(Ignored(row.key, plain(value), value.origin, f"set by {winner.origin}"))
    return winner


def _highest(row: KeyRow, layers: Sequence[Layer]) -> Placed | None:
    if not layers:
        return None
    return _strictest(row, [layer for layer in layers if layer.source is layers[0].source])


def _strictest(row: KeyRow, layers: Sequence[Layer]) -> Placed | None:
    """Return the strictest value; among equals the last by precedence and path."""
    winner: Placed | None = None
    for layer in reversed(layers) if row.combine is Combine.STRICTEST else layers:
        value = _whole(row, layer)
        strictness = row.strictness(value.value)
        if winner is None or strictness is None or strictness >= (row.strictness(winner.value) or 0):
            winner = value
    return winner


def _whole(row: KeyRow, layer: Layer) -> Placed:
    """Return a layer's value of a key; a list is one value."""
    value = layer.values[row.key]
    if isinstance(value, Placed):
        return value
    return Placed(tuple(entry.value for entry in value), _origin(value, layer, row.key))


def _apply_managed_only(values: dict[str, Placed | Entries], ignored: list[Ignored]) -> None:
    for key, switch in MANAGED_LISTS.items():
        on = values.get(switch)
        if not (isinstance(on, Placed) and on.value):
            continue
        reason = f"{switch} is on: only managed settings count"
        _keep_managed(values, key, reason, ignored, lambda _: True)
        if key.endswith("allowedDomains"):
            _keep_managed(values, "permissions.allow", reason, ignored, _is_web_rule)
            _keep_managed(values, _N + "requests", reason, ignored, lambda rule: rule.action != "deny")


def _keep_managed(
    values: dict[str, Placed | Entries], key: str, reason: str, ignored: list[Ignored], concerned: Any
) -> None:
    entries = values.get(key, ())
    assert isinstance(entries, tuple)
    kept = []
    for entry in entries:
        if entry.origin.source is Source.MANAGED or not concerned(entry.value):
            kept.append(entry)
        else:
            ignored.append(Ignored(key, plain(entry), entry.origin, reason))
    if key in values:
        values[key] = tuple(kept)


def _is_web_rule(text: str) -> bool:
    try:
        return parse_rule(text).tool == "WebFetch"
    except RuleSyntaxError:
        return False


def _origin(value: Placed | Entries, layer: Layer, key: str) -> Origin:
    if isinstance(value, Placed):
        return value.origin
    return value[0].origin if value else Origin(layer.source, key, layer.file)


def plain(value: Any) -> Any:
    """Return a value without origins, as JSON has it."""
    if isinstance(value, Placed):
        return plain(value.value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if hasattr(value, "model_dump"):  # a section of the schema, which is not imported without one
        return value.model_dump(exclude_none=True, mode="json", by_alias=True)
    return value
