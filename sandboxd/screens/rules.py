"""The view Policy: effective rules and switches with their origins, locks, problems, and decisions explained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from sandboxd.policy.display import neutralise
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.origins import OriginRecord
from sandboxd_client.wire.messages.policy import ExplainKind, ExplainResult
from sandboxd_client.wire.messages.settings import LockedKey, SettingsGetResult, SettingsProblem, SettingValue

# The verb and object of `sandboxd allow` and `deny`: the list that a rule is added to.
LISTS: Final = {
    "allow host": "sandbox.network.allowedDomains",
    "deny host": "sandbox.network.deniedDomains",
    "allow write": "sandbox.filesystem.allowWrite",
    "deny write": "sandbox.filesystem.denyWrite",
    "deny read": "sandbox.filesystem.denyRead",
    "allow read": "sandbox.filesystem.allowRead",
    "allow socket": "sandbox.network.allowUnixSockets",
    "run outside": "sandbox.excludedCommands",
    "preset": "sandbox.presets",
}
_MODES: Final = (
    ("sandbox.enabled", "sandbox"),
    ("sandbox.autoAllowBashIfSandboxed", "run sandboxed commands unasked"),
    ("sandbox.allowUnsandboxedCommands", "commands may ask to run outside"),
    ("sandbox.network.onUnlisted", "unlisted hosts"),
)
_VERDICTS: Final = {"allow": "allowed", "ask": "asks first", "deny": "denied"}


@dataclass(frozen=True, slots=True)
class RuleRow:
    """An entry of a list. `removable`: it is in the user's local settings, and nothing locks its list."""

    key: str
    value: Any
    text: str
    source: str
    place: str
    removable: bool
    locked: str


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """A single value. `locked` is the reason why only managed settings change it, else empty."""

    key: str
    value: Any
    text: str
    source: str
    place: str
    locked: str


@dataclass(frozen=True, slots=True)
class ProblemRow:
    severity: str
    text: str
    place: str
    hint: str


@dataclass(frozen=True, slots=True)
class PolicyView:
    """Rules, switches (those that a file sets first), problems, and the mode in words."""

    rules: tuple[RuleRow, ...]
    switches: tuple[SwitchRow, ...]
    problems: tuple[ProblemRow, ...]
    mode: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ExplainedRow:
    """A decision explained: `behavior` is allow, ask or deny."""

    behavior: str
    sentence: str
    facts: tuple[tuple[str, str], ...]


def policy_of(
    got: SettingsGetResult, locked: Sequence[LockedKey], problems: Sequence[SettingsProblem] = ()
) -> PolicyView:
    """Return the view of effective settings; `problems` are those of `settings.lint`."""
    reasons = {one.key: neutralise(one.reason) for one in locked}
    rules = [row for one in got.values if isinstance(one.value, list | tuple) for row in _rules(one, reasons)]
    switches = [
        SwitchRow(one.key, one.value, text_of(one.value), *_placed(one.origins[:1]), reasons.get(one.key, ""))
        for one in got.values
        if not isinstance(one.value, list | tuple | dict)
    ]
    switches.sort(key=lambda one: one.source == "default")
    ignored = [
        ProblemRow("ignored", neutralise(f"{one.key}: {one.reason}"), neutralise(str(one.origin)), "")
        for one in got.ignored
    ]
    found = dict.fromkeys([*map(_problem, problems or got.problems), *ignored])
    values = {one.key: one.value for one in got.values}
    mode = tuple((words, text_of(values[key])) for key, words in _MODES if key in values)
    return PolicyView(tuple(rules), tuple(switches), tuple(found), mode)


def _rules(one: SettingValue, reasons: dict[str, str]) -> list[RuleRow]:
    locked = reasons.get(one.key, "")
    rows = []
    for value, origin in zip(one.value, one.origins, strict=False):
        source, place = _placed((origin,))
        rows.append(RuleRow(one.key, value, text_of(value), source, place, source == "local" and not locked, locked))
    return rows


def _placed(origins: Sequence[OriginRecord]) -> tuple[str, str]:
    if not origins:
        return "default", ""
    origin = origins[0]
    if origin.file is None:
        return origin.source, ""
    return origin.source, neutralise(f"{origin.file}:{origin.line}" if origin.line else origin.file)


def _problem(one: SettingsProblem) -> ProblemRow:
    place = ":".join(str(part) for part in (one.file, one.line, one.column) if part)
    return ProblemRow(one.severity, neutralise(one.message), neutralise(place), neutralise(one.hint))


def text_of(value: Any) -> str:
    """Format a value: words bare, the rest as JSON."""
    switch = {True: "on", False: "off", None: "not set"}
    if value is None or isinstance(value, bool):
        return switch[value]
    return neutralise(value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False))


def explain_query(text: str) -> tuple[ExplainKind, str, bool]:
    """Read the explain box: a kind of `sandboxd explain` may stand before the target, else its form decides."""
    text = text.strip()
    word, _, rest = text.partition(" ")
    if word in ("read", "write", "path") and rest.strip():
        return "path", rest.strip(), word == "write"
    for kind in ("host", "command", "socket"):
        if word == kind and rest.strip():
            return kind, rest.strip(), False
    if " " not in text and text.startswith(("/", "~", ".")):
        return "path", text, False
    if " " not in text and ("." in text or ":" in text) and "/" not in text.removeprefix("https://"):
        return "host", text, False
    return "command", text, False


def explained(result: ExplainResult, *, write: bool = False) -> ExplainedRow:
    words = _VERDICTS.get(result.behavior, result.behavior)
    if (result.kind, result.behavior) == ("host", "ask"):
        words = "denied, unless a permission prompt allows it"
    where = "" if result.sandboxed is None else ", in the sandbox" if result.sandboxed else ", without the sandbox"
    action = {"path": "write " if write else "read ", "socket": "connect to "}.get(result.kind, "")
    facts = [("reason", f"{result.reason.text} ({result.reason.type})")]
    facts += [("rule", result.reason.rule)] if result.reason.rule is not None else []
    facts += [("from", str(result.reason.origin))] if result.reason.origin is not None else []
    facts += [("hint", result.hint)] if result.hint else []
    sentence = neutralise(f"{words}{where}: {action}{result.subject}", 2000)
    return ExplainedRow(result.behavior, sentence, tuple((label, neutralise(text)) for label, text in facts))
