"""Host queries: the questions that a policy and a place raise. Pure."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from sandboxd.errors import PolicyError
from sandboxd.plan.request import DEFAULT_SHELLS, Place
from sandboxd.plan.trust import SYSTEM_BUNDLES
from sandboxd.policy.model import FilePolicy, Missing, NetworkPolicy, PathRule, Policy
from sandboxd.policy.paths.protected_names import (
    SKIPPED_DIRECTORIES,
    ProtectedIn,
    begun_names,
    login_directory,
    rows,
)
from sandboxd.policy.paths.rule_paths import quoted
from sandboxd.policy.sockets.control_sockets import FINDABLE, usual_places
from sandboxd_client.records import dataclass

ALWAYS_EXCLUDED = ("/proc", "/sys", "/dev")
"""Never scanned: no rule can name a file in them."""
MOST_ROOTS = 2_000
"""In each root every protected name is searched and guarded. More take seconds for each command."""
_MAGIC = re.compile(r"[*?\[]")
_QUOTED = re.compile(r"\[([*?\[])\]")
BARE_NAMES = ("HEAD", "refs", "objects")
"""A directory with all three is a bare repository for git, which obeys its `config`."""


@dataclass(frozen=True, slots=True)
class ScanQuery:
    """A search for protected names in `root` and `depth` levels of directories below.

    `follow_worktree`: commands are started there, so follow a `.git` that leads elsewhere and is confirmed from there,
    and find the repository around the root."""

    root: str
    depth: int
    follow_worktree: bool = False


@dataclass(frozen=True, slots=True)
class BoundedNeed:
    """A search for patterns relative to a directory, within a budget."""

    directory: str
    patterns: tuple[str, ...]

    def whole(self, pattern: str) -> str:
        """Return the absolute pattern, the key of the answer."""
        return f"{quoted(self.directory).rstrip('/')}/{pattern}"


@dataclass(frozen=True, slots=True)
class HostQueries:
    """`paths` to resolve, `globs` to expand and `scans` to make.

    A name to scan for has one or more parts; the last may hold `*`. `excluded` are directories that no scan and no glob
    enters; `skipped` are names of directories that no scan enters."""

    paths: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    scans: tuple[ScanQuery, ...] = ()
    names: tuple[str, ...] = ()
    git_names: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ALWAYS_EXCLUDED
    skipped: frozenset[str] = SKIPPED_DIRECTORIES
    bounded: tuple[BoundedNeed, ...] = ()


def list_needs(policy: Policy, place: Place, shells: tuple[str, ...] = DEFAULT_SHELLS) -> HostQueries:
    """List all queries of a plan. Raises PolicyError for too many directories."""
    files = files_in(policy.files, place)
    roots = writable_roots(files, place)
    if len(roots) > MOST_ROOTS:
        lists = Counter((rule.origin.key, rule.origin.file) for rule in (*files.allow_write, *place.allow_write))
        ((key, file), _), *_ = lists.most_common(1)
        raise PolicyError(
            "mounts_too_many",
            f"these rules name {len(roots):,} writable directories, of {MOST_ROOTS:,} that can be looked after; "
            f"most are entries of {key}" + (f" in {file}" if file else ""),
            hint="name a directory above them instead of each of them",
            data={"directories": len(roots)},
        )
    rules = tuple(all_rules(files, place))
    places = [place.cwd, place.project_root, place.home, "/tmp"]
    places += [place.temporary_base, place.runtime_dir, *place.private]
    places += [path for path, _ in place.name_files if place.captured]
    if policy.network.tls_terminate:
        places += [place.trust_directory, *SYSTEM_BUNDLES]
    places += [mask.path for mask in policy.network.masks if mask.path]
    places += _socket_paths(policy.network, place)
    of_login = login_directory(place.uid)
    at_home = [posixpath.join(place.home, row.name) for row in rows(ProtectedIn.HOME)]
    at_home += [of_login, *(posixpath.join(of_login, row.name) for row in rows(ProtectedIn.RUNTIME))]
    at_top = [posixpath.join(root, name) for root in roots for name in top_names()]
    return HostQueries(
        paths=_unique(
            [
                *(split_pattern(rule.path)[0] if rule.glob else rule.path for rule in rules),
                *places, *place.daemon_paths, *files.settings_files, *at_home, *at_top, *shells,
            ]
        ),
        globs=_unique(
            [*(rule.path for rule in rules if rule.glob and not rule.bounded), *_socket_patterns(policy.network)]
        ),
        scans=tuple(
            ScanQuery(root, files.protected_search_depth, root in (place.project_root, place.cwd)) for root in roots
        ),
        names=tuple(row.name for row in rows(ProtectedIn.WORKSPACE)),
        git_names=tuple(row.name for row in rows(ProtectedIn.GIT_DIR)),
        excluded=_unique([*ALWAYS_EXCLUDED, place.runtime_dir, place.temporary_base, *place.private]),
        bounded=_bounded(rules),
    )  # fmt: skip


def split_pattern(pattern: str) -> tuple[str, tuple[str, ...]]:
    """Split an absolute pattern into a literal path and the remaining components."""
    parts = [part for part in pattern.split("/") if part]
    names: list[str] = []
    while parts and (name := literal_name(parts[0])) is not None:
        names.append(name)
        del parts[0]
    return "/" + "/".join(names), tuple(parts)


def literal_name(part: str) -> str | None:
    """Return the name of a component without magic; quoted magic is `[*]`."""
    if _MAGIC.search(_QUOTED.sub("", part)):
        return None
    return _QUOTED.sub(r"\1", part)


def top_names() -> tuple[str, ...]:
    """Return the names whose presence or absence at the top of a workspace matters."""
    literal = (row.name for row in rows(ProtectedIn.WORKSPACE) if "*" not in row.name)
    return (*literal, *begun_names(), ".git", *BARE_NAMES)


def files_in(files: FilePolicy, place: Place) -> FilePolicy:
    """Return the file rules of a place, with its denials that name no directory.

    These hold below each directory that commands may write, or that a rule names as readable. Below directories of a
    preset the search has a budget: caches may have so many directories that each command would be delayed."""
    named = [quoted(path) for path in (place.project_root, place.cwd)]
    named += [
        rule.path if rule.glob else quoted(rule.path)
        for rule in (*files.allow_write, *place.allow_write, *files.allow_read, *place.allow_read)
        if rule.missing is Missing.TELL
    ]
    presets = [rule.path for rule in files.allow_write if rule.missing is not Missing.TELL and not rule.glob]
    return replace(
        files,
        deny_write=_spread(files.deny_write, named, presets),
        deny_read=_spread(files.deny_read, named, presets),
    )


def _spread(rules: tuple[PathRule, ...], directories: list[str], presets: list[str]) -> tuple[PathRule, ...]:
    found: dict[tuple[str, bool], PathRule] = {}
    for rule in rules:
        found.setdefault((rule.path, rule.glob), rule)
        if not rule.unanchored:
            continue
        for directory in directories:
            path = f"{directory.rstrip('/')}/{rule.unanchored}"
            found.setdefault((path, True), replace(rule, path=path, glob=True))
        for preset in presets:
            path = BoundedNeed(preset, ()).whole(rule.unanchored)
            found.setdefault((path, True), replace(rule, path=path, glob=True, bounded=preset))
    return tuple(found.values())


def _bounded(rules: Iterable[PathRule]) -> tuple[BoundedNeed, ...]:
    found: dict[str, dict[str, None]] = {}
    for rule in rules:
        if rule.bounded:
            found.setdefault(rule.bounded, {})[rule.unanchored] = None
    return tuple(BoundedNeed(directory, tuple(patterns)) for directory, patterns in found.items())


def all_rules(files: FilePolicy, place: Place) -> Iterator[PathRule]:
    """Yield every path rule of a place."""
    for rules in (files.allow_write, files.deny_write, files.deny_read, files.allow_read):
        yield from rules
    yield from place.allow_write
    yield from place.allow_read


def writable_roots(files: FilePolicy, place: Place) -> tuple[str, ...]:
    """Return the writable directories by their names in the policy, without patterns."""
    named = (rule.path for rule in (*files.allow_write, *place.allow_write) if not rule.glob)
    return _unique([place.project_root, place.cwd, *named])


def _socket_paths(network: NetworkPolicy, place: Place) -> tuple[str, ...]:
    """Return the listed sockets; with every socket allowed, also the denied ones."""
    closed = closed_sockets(network, place) if network.allow_all_unix_sockets else ()
    return (*(rule.path for rule in network.allow_unix_sockets), *closed)


def closed_sockets(network: NetworkPolicy, place: Place) -> tuple[str, ...]:
    """Return the absolute paths of sockets that act outside the sandbox."""
    return (*network.control_sockets, *usual_places(place.home, place.uid))


def _socket_patterns(network: NetworkPolicy) -> tuple[str, ...]:
    return FINDABLE if network.allow_all_unix_sockets else ()


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
