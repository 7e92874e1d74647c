"""File rules as an ordered list, of which the last match wins. Pure.

The order is right under both known descriptions of the system (`tests/support/sbpl.py`):

1. Reading is allowed, except for devices.
2. The path entries of the policy, directories before their content, each with its effective access
   (`plan.filesystem.mounts.settle`, the four rules). A rule on a directory covers everything below it, so the patterns
   that can match below it are repeated after it.
3. Protected names that are not there yet, then patterns of `denyWrite`: these beat every `allowWrite`.
4. The daemon's own directories and the session's temporary one.
5. Symlinks that must stay, and every directory on the way to something guarded: they cannot be renamed or removed.

Rules about reading name `file-read*`, rules about writing `file-write*`, so a later one always beats an earlier one;
only number 5 names single operations, and nothing is allowed after it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

from sandboxd.backends.macos.seatbelt.absent_names import (
    absent_paths,
    hook_directories,
    inside_refs,
    skipped_directories,
    workspace_names,
)
from sandboxd.backends.macos.seatbelt.case_folding import quote
from sandboxd.backends.macos.seatbelt.path_patterns import END, Glob
from sandboxd.backends.macos.seatbelt.seatbelt_entries import Pattern, at_and_above
from sandboxd.paths import is_below
from sandboxd.plan.filesystem.mounts import Mark, MountNode, Visibility, settle
from sandboxd.plan.filesystem.path_table import PathTable
from sandboxd.plan.filesystem.protected_paths import is_workspace
from sandboxd.plan.host_facts import Facts, PathKind
from sandboxd.plan.host_queries import writable_roots
from sandboxd.plan.request import Place
from sandboxd.policy.model import FilePolicy
from sandboxd_client.records import dataclass

READ, WRITE = "file-read*", "file-write*"
MOVE = ("file-write-create", "file-write-unlink")
_HARMLESS_DEVICES = ("", "null", "zero", "random", "urandom", "dtracehelper", "autofs_nowait", "fd")
_DENIES = Mark.DENY_READ | Mark.DENY_WRITE | Mark.PROTECTED | Mark.UNOPENABLE


class PathFilter(StrEnum):
    """A filter of the profile language."""

    LITERAL = "literal"
    SUBPATH = "subpath"
    REGEX = "regex"


@dataclass(frozen=True, slots=True)
class Match:
    """A filter; with `absent_in`, its path is absent below this directory, and is refused in every spelling."""

    how: PathFilter
    text: str
    absent_in: str = ""


@dataclass(frozen=True, slots=True)
class FileRule:
    """A rule; `unless` are filters of exceptions."""

    allow: bool
    operations: tuple[str, ...]
    matches: tuple[Match, ...]
    unless: tuple[Match, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class _State:
    read: bool
    write: bool


@dataclass(slots=True)
class _Rules:
    """A list of rules that merges equal neighbours."""

    rules: list[FileRule]
    absent: dict[str, str]

    def match(self, how: PathFilter, path: str) -> Match:
        return Match(how, path, self.absent.get(path, ""))

    def add(self, rule: FileRule) -> None:
        last = self.rules[-1] if self.rules else None
        if last is not None and replace(last, matches=rule.matches) == rule:
            self.rules[-1] = replace(last, matches=(*last.matches, *rule.matches))
        else:
            self.rules.append(rule)

    def set(self, state: _State, match: Match, why: str) -> None:
        if state.read is state.write:
            self.add(FileRule(state.read, (READ, WRITE), (match,), why=why))
        else:
            self.add(FileRule(state.read, (READ,), (match,), why=why))
            self.add(FileRule(state.write, (WRITE,), (match,), why=why))


def list_file_rules(
    files: FilePolicy,
    place: Place,
    facts: Facts,
    found: PathTable,
    patterns: tuple[Pattern, ...],
    private: tuple[FileRule, ...] = (),
) -> tuple[FileRule, ...]:
    """List the rules, `private` ones among them. `found` are the entries of `make_seatbelt_points`.

    Raises `PolicyError` for what cannot be expressed."""
    nodes = settle(found.entries)
    harmless = tuple(Match(PathFilter.LITERAL, f"/dev/{name}" if name else "/dev") for name in _HARMLESS_DEVICES)
    rules = _Rules(
        [
            FileRule(True, (READ,), (), why="reading is open where nothing below closes it"),
            FileRule(False, (READ,), (Match(PathFilter.SUBPATH, "/dev"),), harmless, why="terminals and raw devices"),
        ],
        _absent(found, facts),
    )
    _add_points(rules, nodes, patterns)
    for rule in _protected(files, place, facts, nodes):
        rules.add(rule)
    for path in _refused_instead_of_watched(found, facts):
        why = "names that make git obey another configuration, and do not exist"
        rules.add(FileRule(False, (WRITE,), (rules.match(PathFilter.SUBPATH, path),), why=why))
    closed = [pattern.glob for pattern in patterns if pattern.mark & Mark.DENY_WRITE]
    if closed:
        why = "patterns of denyWrite beat every allowWrite"
        rules.add(FileRule(False, (WRITE,), tuple(map(_regex, closed)), why=why))
    for node in nodes:
        if node.entry.shows is not None:
            match = Match(PathFilter.SUBPATH, node.entry.path)
            rules.set(_state(node), match, "the daemon's and the session's own directories")
    for rule in private:
        rules.add(rule)
    _add_links(rules, nodes)
    _add_guards(rules, nodes, facts, patterns)
    return tuple(map(_expressed, rules.rules))


def _absent(found: PathTable, facts: Facts) -> dict[str, str]:
    """Return the absent paths of the policy, and those on the way to them, with the directory that exists."""
    bases = {one.real: one.existing for one in facts.paths.values() if one.kind is None and one.existing}
    for entry in found.entries.values():
        if entry.kind is None and entry.missing:
            above = posixpath.dirname(entry.missing[0].rstrip("/"))
            bases.update(dict.fromkeys((one.rstrip("/") for one in entry.missing), above))
    return bases


def _expressed(rule: FileRule) -> FileRule:
    """Return a refusal with expressions for its absent paths."""
    if rule.allow or not any(match.absent_in for match in rule.matches):
        return rule
    groups: dict[tuple[str, str], list[str]] = {}
    for match in rule.matches:
        if match.absent_in:
            end = END if match.how is PathFilter.SUBPATH else "$"
            groups.setdefault((match.absent_in, end), []).append(match.text)
    texts = [text for (base, end), paths in groups.items() for text in absent_paths(base, paths, end)]
    plain = tuple(match for match in rule.matches if not match.absent_in)
    return replace(rule, matches=(*plain, *(Match(PathFilter.REGEX, text) for text in texts)))


def private_rules(parents: tuple[str, ...], name: str) -> tuple[FileRule, ...]:
    """Return rules that open the session's own directories in those of confstr(3), and close those of others."""
    if not parents:
        return ()
    why = "the session's part of the user's directories for temporary files and caches"
    both = (READ, WRITE)
    others = tuple(Match(PathFilter.REGEX, f"^{quote(parent)}/sandboxd-d-[^/]*{END}") for parent in parents)
    own = tuple(Match(PathFilter.SUBPATH, f"{parent}/{name}") for parent in parents)
    return FileRule(False, both, others, why=why), FileRule(True, both, own, why=why)


_POINTS = "rules about paths, and the protected names that exist: directories before what lies in them"


def _add_points(rules: _Rules, nodes: list[MountNode], patterns: tuple[Pattern, ...]) -> None:
    has_allow_patterns = any(not pattern.denies for pattern in patterns)
    for node in nodes:
        entry = node.entry
        if entry.link is not None or entry.shows is not None:
            continue
        state = _state(node)
        above = _state(node.parent) if node.parent is not None else _State(True, False)
        if is_below(entry.path, "/dev") and (node.parent is None or not is_below(node.parent.entry.path, "/dev")):
            above = _State(False, False)
        if node.parent is None and state == above:
            stated = [(True, READ)]  # by the first rule
        elif state != above or (has_allow_patterns and entry.marks & _DENIES):
            match = rules.match(PathFilter.SUBPATH, entry.path)
            stated = _add_changed(rules, state, above, match, again=has_allow_patterns)
        else:
            continue
        for rule in _patterns_below(node, stated, patterns):
            rules.add(rule)


def _add_changed(rules: _Rules, state: _State, above: _State, match: Match, *, again: bool) -> list[tuple[bool, str]]:
    """Add the rules of a place whose access differs from the one above it.

    `again`: repeat what is closed as above, because a pattern may have opened it."""
    stated = [
        (allow, operation)
        for operation, allow, before in ((READ, state.read, above.read), (WRITE, state.write, above.write))
        if allow is not before or (again and not allow)
    ]
    if len(stated) == 2 and state.read is state.write:
        rules.add(FileRule(state.read, (READ, WRITE), (match,), why=_POINTS))
    else:
        for allow, operation in stated:
            rules.add(FileRule(allow, (operation,), (match,), why=_POINTS))
    return stated


def _patterns_below(
    node: MountNode, stated: list[tuple[bool, str]], patterns: tuple[Pattern, ...]
) -> Iterator[FileRule]:
    """Repeat the patterns that the last rule has covered.

    Where two patterns meet, the one with more components is the more specific; `**` has no number of them, so there a
    deny wins."""
    closed = node.write_denied or node.protected or bool(node.entry.marks & Mark.UNOPENABLE)
    found = [
        (pattern, glob)
        for pattern in patterns
        if not pattern.mark & Mark.DENY_WRITE
        for glob in pattern.glob.meets(node.entry.path).below
    ]
    opened = any(allow for allow, _ in stated) or any(not pattern.denies for pattern, _ in found)
    for pattern, glob in sorted(found, key=_specificity):
        if pattern.denies:
            if opened:
                yield FileRule(False, (READ, WRITE), (_regex(glob),), why=_POINTS)
            continue
        if (False, READ) in stated:
            yield FileRule(True, (READ,), (_regex(glob),), why=_POINTS)
        if pattern.mark & Mark.ALLOW_WRITE and not closed and not _state(node).write:
            yield FileRule(True, (WRITE,), (_regex(glob),), why=_POINTS)


def _specificity(item: tuple[Pattern, Glob]) -> tuple[int, int, bool]:
    pattern, glob = item
    if glob.is_deep:
        return (2 if pattern.denies else 0, 0, pattern.denies)
    return (1, glob.depth, pattern.denies)


def _regex(glob: Glob) -> Match:
    return Match(PathFilter.REGEX, glob.expression)


def _protected(files: FilePolicy, place: Place, facts: Facts, nodes: list[MountNode]) -> Iterator[FileRule]:
    lifted = tuple(Match(PathFilter.SUBPATH, node.entry.path) for node in nodes if node.entry.marks & Mark.LIFTED)
    writable = [root for root in writable_roots(files, place) if facts.paths[root].kind is PathKind.DIRECTORY]
    roots = {facts.paths[root].real for root in writable}
    why = "protected names that do not exist yet: what a program outside would obey"
    for root in _outermost({facts.paths[root].real for root in writable if is_workspace(root, facts)}):
        names = tuple(Match(PathFilter.REGEX, text) for text in workspace_names(root))
        yield FileRule(False, (WRITE,), names, (Match(PathFilter.REGEX, skipped_directories(root)), *lifted), why)
    for root in _outermost(roots):
        hooks = tuple(Match(PathFilter.REGEX, text) for text in hook_directories(root))
        yield FileRule(False, (WRITE,), hooks, (Match(PathFilter.REGEX, inside_refs(root)), *lifted), why)


def _refused_instead_of_watched(found: PathTable, facts: Facts) -> Iterator[str]:
    """Return the names to refuse that Linux watches and moves aside afterwards.

    A rule needs no placeholder. Of names that do harm only together, the one least likely to be wanted is enough."""
    # a way that ends early (`HEAD/refs` where `HEAD` is a file) says nothing about the place it ends at
    kinds = {resolved.real: resolved.kind for resolved in facts.paths.values() if not resolved.problem}
    for together in found.watched:
        absent = [path for path in together if kinds.get(path) is None]
        if absent:
            yield min(absent, key=lambda path: (posixpath.basename(path) != "HEAD", path))


def _outermost(paths: set[str]) -> list[str]:
    """Return the paths that lie in no other one."""
    return [path for path in sorted(paths) if not any(other != path and is_below(path, other) for other in paths)]


def _add_links(rules: _Rules, nodes: list[MountNode]) -> None:
    for node in nodes:
        entry, parent = node.entry, node.parent
        if entry.link is None or parent is None:
            continue
        match = Match(PathFilter.LITERAL, entry.path)
        if entry.link and not _state(parent).read:
            rules.add(FileRule(True, (READ,), (match,), why="symlinks on the way to what is opened"))
    for node in nodes:
        if node.entry.link is not None and node.entry.guard:
            match = Match(PathFilter.LITERAL, node.entry.path)
            rules.add(FileRule(False, MOVE, (match,), why="symlinks at guarded names: no command replaces them"))


def _add_guards(rules: _Rules, nodes: list[MountNode], facts: Facts, patterns: tuple[Pattern, ...]) -> None:
    by_path = {node.entry.path: node for node in nodes}
    guarded: dict[str, None] = {}
    for node in nodes:
        if node.entry.link is not None:
            if node.entry.guard:
                guarded.update(_writable_above(node.entry.path, by_path))
        elif not _state(node).write:
            guarded.update(_writable_above(node.entry.path, by_path))
        elif node.parent is None or not _state(node.parent).write:
            guarded[node.entry.path] = None
    for pattern in patterns:
        if pattern.denies:
            for match in facts.globs.get(pattern.rule.path, ()):
                guarded.update(_writable_above(match.path, by_path))
    if guarded:
        matches = tuple(rules.match(PathFilter.LITERAL, path) for path in sorted(guarded))
        why = "writable directories, and those on the way to something guarded, stay where they are"
        rules.add(FileRule(False, MOVE, matches, why=why))


def _writable_above(path: str, by_path: dict[str, MountNode]) -> dict[str, None]:
    """Return the writable directories above a path, where it could be renamed."""
    found: dict[str, None] = {}
    below: list[str] = []
    for directory in at_and_above(posixpath.dirname(path)):
        below.append(directory)
        node = by_path.get(directory)
        if node is not None and node.entry.link is None:
            if _state(node).write:
                found.update(dict.fromkeys(below))
            below.clear()
    return found


def _state(node: MountNode) -> _State:
    if node.entry.shows is not None:
        return _State(node.entry.shows is Visibility.PRIVATE, node.entry.shows is Visibility.PRIVATE)
    return _State(node.readable, node.write_open and not node.write_denied and not node.protected)
