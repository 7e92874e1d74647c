"""Which rules that open something are followed to where they lead.

A symlink in a place that a command can write may be one that an earlier command has put there, at the very name that a
rule opens. Followed, it would open to the next command whatever the first one chose. So a rule is followed through
links in other places only. It does not matter what a link is for: nothing tells a person's from a planted one.

Denies are followed always.
"""

from __future__ import annotations

import posixpath
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from sandboxd.paths import is_below
from sandboxd.plan.filesystem.mounts import at_and_above
from sandboxd.plan.host_facts import Facts, PathKind, Symlink
from sandboxd.plan.request import Place
from sandboxd.policy.model import FilePolicy, PathRule
from sandboxd.policy.paths.wide_places import is_system_directory


@dataclass(frozen=True, slots=True)
class _LinkedRule:
    """One rule, or one match of a pattern, that leads through links. `at` is the name by which the rule has it."""

    rule: PathRule
    at: str
    real: str
    links: tuple[Symlink, ...]
    opens_writing: bool


def is_in_session(place: Place, facts: Facts) -> bool:
    """Whether the working directory of a command really lies in the directory of its session. A model or a project may
    have chosen it, so elsewhere it is writable only where a rule says so."""
    root, cwd = facts.paths[place.project_root], facts.paths[place.cwd]
    return root.real == cwd.real or (root.real != "/" and is_below(cwd.real, root.real))


class LinkTrust:
    """For one place. Without regard to what denies take back, so in doubt a link counts as one a command can change."""

    def __init__(self, files: FilePolicy, place: Place, facts: Facts) -> None:
        self._writable: dict[str, None] = {}
        for root in (place.project_root, place.cwd) if is_in_session(place, facts) else (place.project_root,):
            real = facts.paths[root].real
            if facts.paths[root].kind is PathKind.DIRECTORY and real != "/" and not is_system_directory(real):
                self._add(facts, real)
        for scan in facts.scans.values():
            if scan.worktree is not None and not scan.worktree.refused:
                self._add(facts, scan.worktree.common)
        ways = []
        for rules, writing in (
            ((*files.allow_write, *place.allow_write), True),
            ((*files.allow_read, *place.allow_read), False),
        ):
            for way in _ways(rules, facts, writing):
                if way.links:
                    ways.append(way)
                elif writing:
                    self._add(facts, way.real)
        self._refused = self._changeable(ways)
        for way in ways:
            if way.opens_writing and way not in self._refused:
                self._add(facts, way.real)
        self._names = {(way.rule.path, way.at) for way in self._refused}

    def _add(self, facts: Facts, path: str) -> None:
        self._writable[path] = None
        self._writable |= dict.fromkeys(facts.mount_aliases.others(path))

    def opens(self, rule: PathRule, at: str = "") -> bool:
        """Whether a rule opens what it leads to; with `at` one match of a pattern."""
        return (rule.path, at or rule.path) not in self._names

    def can_change(self, links: Iterable[Symlink]) -> Symlink | None:
        """The first link that a command could have made."""
        return next((link for link in links if self.is_writable(posixpath.dirname(link.path))), None)

    def is_writable(self, path: str) -> bool:
        return _is_in(path, self._writable)

    def _changeable(self, ways: list[_LinkedRule]) -> set[_LinkedRule]:
        """First those that stand where a command can write whatever they open, then those that stand where another of
        the rest leads: what a planted link leads to must close nothing."""
        refused: set[_LinkedRule] = set()
        for among_each_other in (False, True):
            while True:
                rest = [way for way in ways if way not in refused]
                opened = [way.real for way in rest if way.opens_writing] if among_each_other else []
                roots = {*self._writable, *opened}
                more = {way for way in rest if any(_is_in(posixpath.dirname(link.path), roots) for link in way.links)}
                if not more:
                    break
                refused |= more
        return refused


def _is_in(path: str, roots: Container[str]) -> bool:
    return any(at in roots for at in at_and_above(path))


def _ways(rules: Iterable[PathRule], facts: Facts, writing: bool) -> Iterator[_LinkedRule]:
    for rule in rules:
        if rule.glob:
            for match in facts.globs[rule.path]:
                if match.kind is not None:
                    yield _LinkedRule(rule, match.path, match.real, match.links, writing)
        else:
            resolved = facts.paths[rule.path]
            yield _LinkedRule(rule, rule.path, resolved.real, resolved.links, writing)
