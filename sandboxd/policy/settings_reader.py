"""What settings say, entry by entry, for whoever makes a part of a policy of it: with the place of each, and a problem
for each that cannot be understood.

Two kinds of fault in a list entry, and the difference is the point: an entry that only *opens* something is left out
with a warning, which is stricter than what was meant; an entry that *closes* something cannot be left out, so the whole
policy is refused. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sandboxd.policy.command_patterns import CommandPatternError
from sandboxd.policy.hosts import HostPatternError
from sandboxd.policy.rule_paths import RulePathError, Scope, expand_rule_path
from sandboxd.settings.layer import Entries, Placed
from sandboxd.settings.merge import Settings
from sandboxd.settings.origins import Origin
from sandboxd.settings.problems import Problem, error, warning
from sandboxd.settings.rules import Feeds, Kind, parse_rule

T = TypeVar("T")


class SettingsReader:
    """`problems` grows with what is read."""

    def __init__(self, settings: Settings, scope: Scope) -> None:
        self.settings = settings
        self.scope = scope
        self.problems: list[Problem] = list(settings.problems)
        for ignored in settings.ignored:
            self.warn("settings_ignored", f"{ignored.key} is ignored: {ignored.reason}", ignored.origin)

    def warn(self, slug: str, message: str, origin: Origin, hint: str = "") -> None:
        self.problems.append(warning(slug, message, origin, hint=hint))

    def value(self, key: str) -> Any:
        return self.settings.scalar(key).value

    def origin(self, key: str) -> Origin:
        return self.settings.scalar(key).origin

    def entries(self, key: str) -> Entries:
        return self.settings.entries(key)

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(entry.value for entry in self.settings.entries(key))

    def rules(self, kind: Kind, feeds: Feeds) -> Iterator[Placed]:
        """The contents of the permission rules that become what `feeds` says."""
        for entry in self.settings.entries(f"permissions.{kind.value}"):
            rule = parse_rule(entry.value)
            if rule.feeds(kind) is feeds:
                yield Placed(rule.content, entry.origin)

    def collect(
        self, entries: Iterator[Placed] | tuple[Placed, ...], make: Callable[[Any, Origin], T], *, opens: bool
    ) -> Iterator[T]:
        """Convert entries; report those that cannot be converted, fatally where they would have closed something."""
        for entry in entries:
            try:
                yield make(entry.value, entry.origin)
            except (RulePathError, CommandPatternError, HostPatternError, BadEntry) as fault:
                report = error(fault.slug, fault.message, entry.origin, hint=fault.hint, fatal=not opens)
                if opens and fault.slug == "path_variable_unset":
                    report = warning(
                        fault.slug, fault.message + "; the entry has no effect", entry.origin, hint=fault.hint
                    )
                self.problems.append(report)

    def program(self, key: str) -> str | None:
        entry = self.settings.scalar(key)
        if entry.value is None:
            return None
        return next(self.collect((entry,), self.literal_path, opens=False), None)

    def literal_path(self, text: str, _: Origin) -> str:
        expanded = expand_rule_path(text, self.scope)
        if expanded.glob:
            raise BadEntry("path_glob_invalid", f"{text!r} is a pattern where one file is meant")
        return expanded.path


class BadEntry(ValueError):
    """Of an entry that is well written and cannot be used here."""

    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint
