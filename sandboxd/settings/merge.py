"""Many layers in, one `Settings` out. How a key is merged stands in `TABLE`, one row for each key, and nowhere else.

The rules that the table works with:

- Sources are ordered by `PRECEDENCE`. Managed stands above the command line: the command line never overrides it.
- *replace*: the highest source that sets the key wins. *union*: lists are joined, the highest source first.
  *strictest*: the strictest value of all sources counts, whoever says it.
- Several files of one source (drop-ins) are equals: the strictest value counts, and where a key knows no strictness,
  the file whose path sorts last. So the order in which files are read never matters.
- A layer that may not widen (project settings, overrides of one command) contributes what tightens. What would widen
  is ignored, and kept in `Settings.ignored` with its place and the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandboxd.settings.layer import Entries, Layer, Placed
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.presets import PRESETS
from sandboxd.settings.problems import Problem, first_fatal
from sandboxd.settings.rules import RuleSyntaxError, parse_rule

PRECEDENCE = (
    Source.MANAGED,
    Source.CLI,
    Source.FLAG,
    Source.LOCAL,
    Source.USER,
    Source.PROJECT,
    Source.DEFAULT,
)


class Combine(StrEnum):
    REPLACE = "replace"
    UNION = "union"
    STRICTEST = "strictest"


class Effect(StrEnum):
    """What a key's value does to the sandbox; decides what a layer that may not widen can say."""

    OPENS = "opens"
    """More of it permits more: a list of permissions, or a switch whose `true` permits."""
    CLOSES = "closes"
    """More of it permits less."""
    SHAPES = "shapes"
    """Neither: it names a program, a port, a path. Only a layer that may widen can set it."""
    BY_ENTRY = "by entry"
    """A list in which some entries open and others close."""


ANYBODY = frozenset(Source)
MANAGED_ONLY = frozenset({Source.MANAGED})
USER_OR_MANAGED = frozenset({Source.MANAGED, Source.USER})


@dataclass(frozen=True, slots=True)
class Row:
    """`order` lists the values from the loosest to the strictest where they are not switches or numbers."""

    key: str
    combine: Combine
    effect: Effect
    default: Any
    sources: frozenset[Source] = ANYBODY
    order: tuple[str, ...] = ()

    def strictness(self, value: Any) -> int | None:
        """How strict a scalar is, comparable within the key; None where the question makes no sense."""
        if self.effect is Effect.SHAPES or isinstance(self.default, tuple):
            return None
        rank = self.order.index(value) if self.order else int(value)
        return rank if self.effect is Effect.CLOSES else -rank


_N = "sandbox.network."
_F = "sandbox.filesystem."
_R, _U, _S = Combine.REPLACE, Combine.UNION, Combine.STRICTEST
_OPENS, _CLOSES, _SHAPES = Effect.OPENS, Effect.CLOSES, Effect.SHAPES

TABLE: dict[str, Row] = {
    row.key: row
    for row in (
        Row("permissions.allow", _U, _OPENS, ()),
        Row("permissions.deny", _U, _CLOSES, ()),
        Row("permissions.ask", _U, _CLOSES, ()),
        Row("sandbox.enabled", _R, _CLOSES, False),
        Row("sandbox.failIfUnavailable", _R, _CLOSES, True),
        Row("sandbox.enabledPlatforms", _R, _SHAPES, None),
        Row("sandbox.autoAllowBashIfSandboxed", _R, _OPENS, True),
        Row("sandbox.allowUnsandboxedCommands", _R, _OPENS, True),
        Row("sandbox.allowOverrides", _R, _OPENS, True),
        Row("sandbox.excludedCommands", _U, _OPENS, ()),
        Row("sandbox.presets", _U, Effect.BY_ENTRY, ()),
        Row(_N + "allowedDomains", _U, _OPENS, ()),
        Row(_N + "deniedDomains", _U, _CLOSES, ()),
        Row(_N + "deniedDomainReasons", _U, Effect.BY_ENTRY, ()),
        Row(_N + "strictAllowlist", _R, _CLOSES, False),
        Row(_N + "onUnlisted", _R, _CLOSES, "ask", order=("ask", "deny")),
        Row(_N + "useWebFetchRules", _R, _OPENS, True),
        Row(_N + "allowManagedDomainsOnly", _R, _CLOSES, False, MANAGED_ONLY),
        Row(_N + "allowUnixSockets", _U, _OPENS, ()),
        Row(_N + "allowAllUnixSockets", _R, _OPENS, False),
        Row(_N + "allowLocalBinding", _R, _OPENS, False),
        Row(_N + "allowLocalPorts", _U, _OPENS, ()),
        Row(_N + "allowMachLookup", _U, _OPENS, ()),
        Row(_N + "allowMachRegister", _U, _OPENS, ()),
        # Whose proxy decides is for the person to say who owns the machine, not for a project or a caller.
        Row(_N + "httpProxyPort", _R, _SHAPES, None, USER_OR_MANAGED),
        Row(_N + "socksProxyPort", _R, _SHAPES, None, USER_OR_MANAGED),
        Row(_N + "parentProxy", _R, _SHAPES, None),
        Row(_N + "deniedResolvedAddresses", _U, _CLOSES, ()),
        # Without capture, programs that ignore the proxy variables reach nothing: false is the stricter value.
        Row(_N + "transparent", _R, _OPENS, True),
        Row(_N + "checkServerName", _R, _CLOSES, "log", order=("off", "log", "enforce")),
        Row(_F + "allowWrite", _U, _OPENS, ()),
        Row(_F + "denyWrite", _U, _CLOSES, ()),
        Row(_F + "denyRead", _U, _CLOSES, ()),
        Row(_F + "allowRead", _U, _OPENS, ()),
        Row(_F + "allowGitConfig", _R, _OPENS, False),
        Row(_F + "allowManagedReadPathsOnly", _R, _CLOSES, False, MANAGED_ONLY),
        Row("sandbox.environment.remove", _U, _CLOSES, ()),
        Row("sandbox.limits.maxProcesses", _R, _OPENS, 8192),
        Row("sandbox.reportViolations", _R, _CLOSES, "writes", order=("off", "writes", "all")),
        Row("sandbox.ignoreViolations", _U, _OPENS, ()),
        Row("sandbox.enableWeakerNestedSandbox", _R, _OPENS, False),
        Row("sandbox.enableWeakerNetworkIsolation", _R, _OPENS, False),
        Row("sandbox.allowAppleEvents", _R, _OPENS, False),
        Row("sandbox.allowPty", _R, _OPENS, False),
        Row("sandbox.mandatoryDenySearchDepth", _R, _CLOSES, 3),
        Row("sandbox.ripgrep.command", _R, _SHAPES, None),
        Row("sandbox.ripgrep.args", _R, _SHAPES, ()),
        Row("sandbox.bwrapPath", _R, _SHAPES, None, MANAGED_ONLY),
        Row("sandbox.socatPath", _R, _SHAPES, None, MANAGED_ONLY),
        Row("audit.enabled", _S, _CLOSES, False, USER_OR_MANAGED),
        Row("audit.path", _R, _SHAPES, None, USER_OR_MANAGED),
        Row("audit.maxBytes", _R, _SHAPES, 16 * 1024 * 1024, USER_OR_MANAGED),
        Row("audit.keep", _R, _SHAPES, 10, USER_OR_MANAGED),
        Row("audit.onFull", _S, _CLOSES, "block", USER_OR_MANAGED, order=("drop", "block")),
    )
}

MANAGED_LISTS = {
    _N + "allowedDomains": _N + "allowManagedDomainsOnly",
    _F + "allowRead": _F + "allowManagedReadPathsOnly",
}
"""Lists of which only the managed part counts once the named switch is on."""

_AUDIT = "audit.enabled"
"""Where managed settings switch it on, they alone say how the log is kept: the other keys of its section would
otherwise let a user cut it short, move it away, or let commands run without it."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A value that was written and does not count, with the reason."""

    key: str
    value: Any
    origin: Origin
    reason: str

    def __str__(self) -> str:
        return f"{self.origin}: ignored: {self.reason}"


@dataclass(frozen=True, slots=True)
class Lock:
    """A key that settings below managed policy cannot change. `origin` is the managed value, if there is one."""

    key: str
    reason: str
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The merged settings: an immutable snapshot in which every value knows its origin. `files` are all settings
    files that were read or would be if they existed."""

    values: Mapping[str, Placed | Entries] = field(default_factory=dict)
    ignored: tuple[Ignored, ...] = ()
    problems: tuple[Problem, ...] = ()
    files: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = field(default=(), repr=False)

    def scalar(self, key: str) -> Placed:
        """The effective value of a key that has one value. `KeyError` for an unknown key."""
        value = self.values.get(key)
        if isinstance(value, Placed):
            return value
        return Placed(TABLE[key].default, Origin(Source.DEFAULT, key))

    def entries(self, key: str) -> Entries:
        """The effective entries of a list or object key."""
        value = self.values.get(key, ())
        return value if isinstance(value, tuple) else ()

    def is_set(self, key: str) -> bool:
        """Whether anybody said something about the key; an empty list is something."""
        return key in self.values

    def locked(self, key: str) -> Lock | None:
        """Whether, and why, the user cannot change the key."""
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
        return None

    def _audit_is_managed(self) -> bool:
        on = self.scalar(_AUDIT)
        return bool(on.value) and on.origin.source is Source.MANAGED

    def all_locked(self) -> tuple[Lock, ...]:
        return tuple(lock for key in TABLE if (lock := self.locked(key)) is not None)

    def fatal(self) -> Problem | None:
        """The problem because of which these settings must not be used, or None."""
        return first_fatal(self.problems)

    def effective(self) -> dict[str, Any]:
        """Plain values of all keys, defaults included, without origins."""
        return {key: _plain(self.values.get(key, row.default)) for key, row in TABLE.items()}


def changed_keys(before: Settings, after: Settings) -> tuple[str, ...]:
    """The keys whose effective value differs, in table order. Where a value stands in its file makes no difference."""
    old, new = before.effective(), after.effective()
    return tuple(key for key in TABLE if old[key] != new[key])


def merge(layers: Iterable[Layer]) -> Settings:
    """Merge layers, in any order, by `TABLE`. Never raises: `Settings.fatal()` says when the result is unusable."""
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


def _may_set(row: Row, layer: Layer, ignored: list[Ignored], audit: Placed | Entries | None) -> bool:
    value = layer.values.get(row.key)
    if value is None:
        return False
    managed = isinstance(audit, Placed) and audit.value and audit.origin.source is Source.MANAGED
    if managed and row.key.startswith("audit.") and layer.source is Source.USER:
        strictest = row.combine is Combine.STRICTEST and _whole(row, layer).value == row.order[-1]
        if not strictest:
            reason = f"{_AUDIT} is on in managed settings: only managed settings count"
            ignored.append(Ignored(row.key, _plain(value), _origin(value, layer, row.key), reason))
        return strictest
    if layer.source in row.sources:
        return True
    who = " or ".join(sorted(source.value for source in row.sources))
    ignored.append(Ignored(row.key, _plain(value), _origin(value, layer, row.key), f"counts in {who} settings only"))
    return False


def _union(row: Row, layers: Sequence[Layer], merged: Mapping[str, Any], ignored: list[Ignored]) -> Entries | None:
    """Entries of all layers, highest source first, each value once (its highest origin stays)."""
    entries: dict[Any, Placed] = {}
    for layer in layers:
        value = layer.values[row.key]
        assert isinstance(value, tuple)
        for entry in value:
            if layer.may_widen or _tightens(row, entry, layer):
                identity = entry.value[0] if row.key.endswith("Reasons") else entry.value
                entries.setdefault(identity, entry)
            else:
                ignored.append(Ignored(row.key, _plain(entry), entry.origin, layer.distrust))
    return tuple(entries.values()) if layers else None


def _tightens(row: Row, entry: Placed, layer: Layer) -> bool:
    if row.effect is not Effect.BY_ENTRY:
        return row.effect is Effect.CLOSES
    if row.key == "sandbox.presets":
        preset = PRESETS.get(entry.value)
        return preset is not None and not preset.opens
    # A reason is text that people take for the policy's: a file may explain the denials it makes itself.
    denied = layer.values.get(_N + "deniedDomains", ())
    return isinstance(denied, tuple) and entry.value[0] in {item.value for item in denied}


def _scalar(row: Row, layers: Sequence[Layer], ignored: list[Ignored]) -> Placed | None:
    trusted = [layer for layer in layers if layer.may_widen]
    winner = _strictest(row, trusted) if row.combine is Combine.STRICTEST else _highest(row, trusted)
    for layer in trusted:
        value = _whole(row, layer)
        beaten = winner is not None and value.value != winner.value
        if beaten and winner and layer.source is Source.CLI and winner.origin.source is Source.MANAGED:
            ignored.append(Ignored(row.key, _plain(value), value.origin, f"set by managed settings ({winner.origin})"))
    for layer in layers:
        if not layer.may_widen:
            winner = _tightened(row, layer, winner, ignored)
    return winner


def _tightened(row: Row, layer: Layer, winner: Placed | None, ignored: list[Ignored]) -> Placed | None:
    """The winner after a layer that may not widen has spoken."""
    value = _whole(row, layer)
    current = winner.value if winner is not None else row.default
    mine, theirs = row.strictness(value.value), row.strictness(current)
    if mine is None or theirs is None or mine < theirs:
        if value.value != current:
            ignored.append(Ignored(row.key, _plain(value), value.origin, layer.distrust))
        return winner
    # A command's own overrides tighten whatever was set; a project file speaks where nobody above it did.
    if layer.source is Source.CLI or winner is None or winner.origin.source is layer.source:
        return value if mine > theirs or winner is None else winner
    if mine > theirs:
        ignored.append(Ignored(row.key, _plain(value), value.origin, f"set by {winner.origin}"))
    return winner


def _highest(row: Row, layers: Sequence[Layer]) -> Placed | None:
    if not layers:
        return None
    return _strictest(row, [layer for layer in layers if layer.source is layers[0].source])


def _strictest(row: Row, layers: Sequence[Layer]) -> Placed | None:
    """The strictest value; among equals, and where there is no strictness, the last in order of precedence and path."""
    winner: Placed | None = None
    for layer in reversed(layers) if row.combine is Combine.STRICTEST else layers:
        value = _whole(row, layer)
        strictness = row.strictness(value.value)
        if winner is None or strictness is None or strictness >= (row.strictness(winner.value) or 0):
            winner = value
    return winner


def _whole(row: Row, layer: Layer) -> Placed:
    """A layer's value of a key that is merged as a whole; a list is taken as one value."""
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
            ignored.append(Ignored(key, _plain(entry), entry.origin, reason))
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


def _plain(value: Any) -> Any:
    if isinstance(value, Placed):
        return _plain(value.value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
