"""Link trust: the rules that open a path and are followed through symlinks.

A symlink in a directory that a command can write may have been made by an earlier command, at the very name that a rule
opens. Following it would open a path that the command chose. So a rule is followed only through links in other
directories, whatever a link is for: a link of the user cannot be told from a command's. Denials are always followed."""

from __future__ import annotations

import posixpath
from collections.abc import Container, Iterable, Iterator

from sandboxd.paths import is_below
from sandboxd.plan.filesystem.mounts import at_and_above
from sandboxd.plan.host_facts import Facts, PathKind, Symlink
from sandboxd.plan.request import Place
from sandboxd.policy.model import FilePolicy, PathRule
from sandboxd.policy.paths.wide_places import is_system_directory
from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class _LinkedRule:
    """A rule or match that leads through links; `at` is its name in the rule."""

    rule: PathRule
    at: str
    real: str
    links: tuple[Symlink, ...]
    opens_writing: bool


def is_in_session(place: Place, facts: Facts) -> bool:
    """Return whether the working directory lies in the directory of the session.

    A model or a project may have chosen it, so elsewhere it is writable only where a rule says so."""
    root, cwd = facts.paths[place.project_root], facts.paths[place.cwd]
    return root.real == cwd.real or (root.real != "/" and is_below(cwd.real, root.real))


class LinkTrust:
    """The link trust of one place, without regard to denials."""

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
        """Return whether a rule opens its target; with `at`, one match of a pattern."""
        return (rule.path, at or rule.path) not in self._names

    def can_change(self, links: Iterable[Symlink]) -> Symlink | None:
        """Return the first link that a command could have made."""
        return next((link for link in links if self.is_writable(posixpath.dirname(link.path))), None)

    def is_writable(self, path: str) -> bool:
        return _is_in(path, self._writable)

    def _changeable(self, ways: list[_LinkedRule]) -> set[_LinkedRule]:
        """Return the rules that are not followed.

        First those whose links a command can write whatever they open, then those whose links lie in targets of the
        remaining ones: the target of a command's link must not distrust others."""
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
