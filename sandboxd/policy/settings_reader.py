"""Reader of settings entries with their origins; collects problems.

An unusable list entry that only *opens* something is left out with a warning, which is stricter than meant. One that
*closes* something cannot be left out, so the whole policy is refused."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sandboxd.policy.commands.command_patterns import CommandPatternError
from sandboxd.policy.hosts.host_patterns import HostPatternError
from sandboxd.policy.paths.rule_paths import PathScope, RulePathError, expand_rule_path, variables_in
from sandboxd.settings.layer import Entries, Placed
from sandboxd.settings.merge import Settings
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.problems import Problem, error, warning
from sandboxd.settings.rules import parse_rule
from sandboxd.settings.tools import Feeds, RuleList

T = TypeVar("T")


class SettingsReader:
    """Reader of the entries of settings; `problems` grows with what is read."""

    def __init__(self, settings: Settings, scope: PathScope) -> None:
        self.settings = settings
        self.scope = scope
        self.problems: list[Problem] = list(settings.problems)
        self.variables: set[str] = set()
        """Names of the variables in rules."""
        for ignored in settings.ignored:
            self.warn("settings_ignored", f"{ignored.key} is ignored: {ignored.reason}", ignored.origin)

    def scope_that_opens(self, text: str, origin: Origin) -> PathScope:
        """Return the scope for a path to open.

        The caller's variables count where the caller could as well name the path in a call: not in managed settings,
        nor in files of the project, nor where that is forbidden."""
        if not self._mentions(text) or not self._is_the_callers(origin):
            return self.scope
        return self.scope.of_caller()

    def scopes_that_close(self, text: str) -> tuple[PathScope, ...]:
        """Return the scopes for a path to close: both environments, if they differ."""
        if not self._mentions(text):
            return (self.scope,)
        lacking = any(not self.scope.environment.get(name) for name in variables_in(text))
        return (self.scope.of_caller(),) if lacking else (self.scope, self.scope.of_caller())

    def _mentions(self, text: str) -> bool:
        """Return whether a text has a variable that the caller has another value for."""
        names = variables_in(text) if "$" in text else set()
        self.variables |= names
        return any(self.scope.caller.get(name) for name in names)

    def _is_the_callers(self, origin: Origin) -> bool:
        if origin.source in (Source.MANAGED, Source.PROJECT) or not self.value("sandbox.allowOverrides"):
            return False
        of_project = posixpath.join(self.scope.project, ".claude")
        return posixpath.dirname(origin.file or "") != of_project or self.scope.project == self.scope.home

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

    def rules(self, kind: RuleList, feeds: Feeds) -> Iterator[Placed]:
        """Yield the contents of the permission rules with the meaning `feeds`."""
        for entry in self.settings.entries(f"permissions.{kind.value}"):
            for meaning, content in dict.fromkeys(parse_rule(entry.value).meanings(kind)):
                if meaning is feeds:
                    yield Placed(content, entry.origin)

    def collect(
        self, entries: Iterator[Placed] | tuple[Placed, ...], make: Callable[[Any, Origin], T], *, opens: bool
    ) -> Iterator[T]:
        """Convert entries; a fault is fatal where the entry would close something."""
        for entry in entries:
            try:
                yield make(entry.value, entry.origin)
            except (RulePathError, CommandPatternError, HostPatternError, BadEntry) as fault:
                report = error(fault.slug, fault.message, entry.origin, hint=fault.hint, fatal=not opens)
                if opens and fault.slug == "path_variable_unset":
                    hint = "set it for the command or where the daemon is started, or write the path in full"
                    message = fault.message + "; the entry has no effect"
                    report = warning(fault.slug, message, entry.origin, hint=hint)
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
    """A well-formed entry that cannot be used here."""

    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint
