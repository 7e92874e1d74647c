"""The path entries of a policy for Seatbelt. Pure.

They are those of Linux, with two differences:

- Patterns stay patterns. Only a match on the way to a literal path becomes an entry, so that the rule of the literal
  path comes in the right order (`spine`). A symlink that a pattern matches is followed: Seatbelt looks at real paths
  only, and its target need not match.
- macOS has no private `/tmp`, `/dev` and `/proc`: the session's directory stays where it is."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sandboxd.backends.macos.seatbelt.path_patterns import Glob, parse_glob
from sandboxd.paths import is_below
from sandboxd.plan.filesystem.link_trust import LinkTrust
from sandboxd.plan.filesystem.mounts import Mark, PathEntry, Visibility
from sandboxd.plan.filesystem.path_entries import DEVICES, PROCESSES, TMP, make_path_table
from sandboxd.plan.filesystem.path_table import PathTable
from sandboxd.plan.host_facts import Facts, Found, ResolvedPath, session_directory
from sandboxd.plan.host_queries import split_pattern
from sandboxd.plan.request import Place
from sandboxd.policy.model import FilePolicy, PathRule
from sandboxd_client.records import dataclass

_OPENS = Mark.ALLOW_WRITE | Mark.ALLOW_READ


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of one of the four lists, with its real literal beginning."""

    glob: Glob
    mark: Mark
    rule: PathRule

    @property
    def denies(self) -> bool:
        return bool(self.mark & (Mark.DENY_READ | Mark.DENY_WRITE))


def list_patterns(files: FilePolicy, place: Place, facts: Facts) -> tuple[Pattern, ...]:
    """List the patterns. Raises `PolicyError` for an impossible one."""
    return tuple(_patterns(files, place, facts))


def _patterns(files: FilePolicy, place: Place, facts: Facts) -> Iterator[Pattern]:
    followed = LinkTrust(files, place, facts)
    for mark, rules in (
        (Mark.ALLOW_WRITE, (*files.allow_write, *place.allow_write)),
        (Mark.DENY_WRITE, files.deny_write),
        (Mark.DENY_READ, files.deny_read),
        (Mark.ALLOW_READ, (*files.allow_read, *place.allow_read)),
    ):
        for rule in rules:
            if not rule.glob:
                continue
            denies = not mark & _OPENS
            glob = parse_glob(rule.path, folded=denies)
            base = facts.paths.get(glob.base)
            if not denies and base is not None and followed.can_change(base.links):
                continue  # as on Linux: a command could have made the link
            if base is not None:
                glob = glob.rebased(base.real, base.existing if denies and base.kind is None else None)
            yield Pattern(glob, mark, rule)


def make_seatbelt_points(
    files: FilePolicy, place: Place, facts: Facts, patterns: tuple[Pattern, ...], *, matches: bool = False
) -> PathTable:
    """Make the entries. Raises `PolicyError` for what cannot be enforced.

    With `matches`, also of what the patterns match: for explanations, not for rules."""
    found = make_path_table(files, place, _without_linux(facts, place, matches))
    entries = found.entries
    for path in [path for path in entries if is_below(path, DEVICES) or is_below(path, PROCESSES)]:
        if not entries[path].marks:
            del entries[path]
        else:
            entries[path].fixed = entries[path].shows = None
    session = session_directory(place, facts)
    entries[session] = PathEntry(session, shows=Visibility.PRIVATE)
    for path, mark in _spine(entries, patterns):
        entry = entries.setdefault(path, PathEntry(path))
        entry.marks |= mark
    return found


def _without_linux(facts: Facts, place: Place, matches: bool) -> Facts:
    """Return the facts for macOS.

    `/tmp` inside is the session's directory itself. Of the matches only those remain that no expression finds: links,
    and paths through a link behind the literal beginning."""
    globs = facts.globs
    if not matches:
        globs = {pattern: tuple(_through_links(pattern, found, facts)) for pattern, found in globs.items()}
    return replace(facts, paths={**facts.paths, TMP: ResolvedPath(session_directory(place, facts))}, globs=globs)


def _through_links(pattern: str, matches: tuple[Found, ...], facts: Facts) -> Iterator[Found]:
    base = facts.paths.get(split_pattern(pattern)[0])
    way = len(base.links) if base is not None else 0
    return (match for match in matches if len(match.links) > way)


def _spine(entries: Mapping[str, PathEntry], patterns: tuple[Pattern, ...]) -> list[tuple[str, Mark]]:
    """Return the matches of the patterns at or above an entry."""
    if not patterns:
        return []
    ways = {way for path in entries for way in at_and_above(path)}
    return [
        (way, pattern.mark)
        for pattern in patterns
        for way in sorted(ways)
        if is_below(way, pattern.glob.base) and pattern.glob.meets(way).exact
    ]


def at_and_above(path: str) -> Iterator[str]:
    while path != "/":
        yield path
        path = posixpath.dirname(path)
    yield "/"
