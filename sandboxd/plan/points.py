"""Points: from the rules of a policy and the facts of a host to canonical paths with marks.

Here symlinks, absent paths, globs and the sandbox's own places are settled. What meets what, and in which order it is
mounted, is decided in `plan.mounts` alone.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxd.errors import PolicyError
from sandboxd.plan.facts import Facts, Found, Kind, Link, Resolved, Scan, Worktree
from sandboxd.plan.mounts import Mark, Mount, Operation, Point, Shows, is_below
from sandboxd.plan.needs import BARE_NAMES, writable_roots
from sandboxd.plan.request import Place
from sandboxd.policy.policy import FilePolicy, PathRule
from sandboxd.policy.protected import BARE_PLANT, Absent, ProtectedName, Where, may_lift, rows

TMP = "/tmp"
DEVICES = "/dev"
PROCESSES = "/proc"
BASIC_DEVICES = frozenset({"null", "zero", "full", "random", "urandom", "tty", "ptmx", "shm", "pts", "fd",
                           "stdin", "stdout", "stderr", "core", "console"})  # fmt: skip
_DENIES = Mark.DENY_READ | Mark.DENY_WRITE


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a point has a mark: a rule as its author wrote it, or the reason in a row of the protected table."""

    mark: Mark
    text: str
    rule: PathRule | None = None


@dataclass(slots=True)
class PointMap:
    """The points by path, with the reasons for their marks, and what has to be said about the rules."""

    points: dict[str, Point] = field(default_factory=dict)
    reasons: dict[str, list[Reason]] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    watched: dict[str, None] = field(default_factory=dict)

    def warn(self, text: str) -> None:
        self.warnings[text] = None

    def add(self, path: str, kind: Kind | None, reason: Reason, missing: tuple[str, ...] = ()) -> None:
        point = self.points.get(path)
        if point is None or (point.kind is None and kind is not None):
            marks = point.marks if point is not None else Mark.NONE
            point = self.points[path] = Point(path, kind, marks, missing)
        point.marks |= reason.mark
        self.reasons.setdefault(path, []).append(reason)


def make_points(files: FilePolicy, place: Place, facts: Facts) -> PointMap:
    """Every point of a sandbox's file system. Raises `PolicyError` for what cannot be enforced."""
    found = PointMap()
    own = _OwnPlaces(place, facts)
    for mark, rules in (
        (Mark.ALLOW_WRITE, (*files.allow_write, *place.allow_write)),
        (Mark.DENY_WRITE, files.deny_write),
        (Mark.DENY_READ, files.deny_read),
        (Mark.ALLOW_READ, (*files.allow_read, *place.allow_read)),
    ):
        for rule in rules:
            _add_rule(found, own, facts, mark, rule)
    _add_working_directories(found, place, facts)
    _add_protected(found, files, place, facts)
    _add_lifted(found, files, place, facts)
    own.add_to(found)
    return found


class _OwnPlaces:
    """The sandbox's own places, which no rule reaches into."""

    def __init__(self, place: Place, facts: Facts) -> None:
        self.session = facts.paths[place.session_tmp].real
        self.base = facts.paths[place.temporary_base].real
        self.runtime = facts.paths[place.runtime_dir].real
        self.tmp = facts.paths[TMP].real
        cwds = (facts.paths[place.cwd].real, facts.paths[place.project_root].real)
        self.tmp_is_the_hosts = self.tmp in cwds
        self._runtime_exists = facts.paths[place.runtime_dir].kind is Kind.DIRECTORY

    def covers(self, path: str) -> bool:
        return any(is_below(path, own) for own in (self.session, self.base, self.runtime))

    def add_to(self, found: PointMap) -> None:
        points = found.points
        points.setdefault("/", Point("/"))
        _fix(points, DEVICES, Mount(Operation.DEVICES, DEVICES), Shows.PRIVATE)
        _fix(points, PROCESSES, Mount(Operation.PROCESSES, PROCESSES), Shows.PRIVATE)
        for path in [path for path in points if self.covers(path)]:
            del points[path]
        for masked in (self.base, self.runtime):
            if masked != self.runtime or self._runtime_exists:
                points[masked] = Point(masked, shows=Shows.NOTHING)
        if self.tmp_is_the_hosts:
            found.warn(f"{self.tmp} is the working directory, so the sandbox sees the host's {self.tmp}")
            points[self.session] = Point(
                self.session, fixed=Mount(Operation.WRITABLE, self.session, self.session), shows=Shows.PRIVATE
            )
        else:
            _fix(points, self.tmp, Mount(Operation.WRITABLE, self.tmp, self.session), Shows.PRIVATE)
            # a link and not a second bind: renaming between the two names has to work, and a bind costs more
            points[self.session] = Point(self.session, link=self.tmp)


def _fix(points: dict[str, Point], path: str, mount: Mount, shows: Shows) -> None:
    point = points.setdefault(path, Point(path))
    point.fixed, point.shows, point.kind = mount, shows, Kind.DIRECTORY


def _add_rule(found: PointMap, own: _OwnPlaces, facts: Facts, mark: Mark, rule: PathRule) -> None:
    reason = Reason(mark, rule.text or rule.path, rule)
    if rule.glob:
        for match in facts.globs[rule.path]:
            if not _special(found, own, match.real, mark, rule):
                _mark_found(found, match, reason)
        return
    resolved = facts.paths[rule.path]
    if _special(found, own, resolved.real, mark, rule):
        return
    if resolved.kind is not None:
        found.add(resolved.real, resolved.kind, reason)
        if mark & _DENIES and resolved.kind is Kind.FILE and resolved.hard_links > 1:
            found.warn(f"{resolved.real} has {resolved.hard_links} names (hard links); only this one is denied")
    elif mark & _DENIES:
        _add_absent(found, resolved, reason)
    elif resolved.problem:
        found.warn(f"{reason.text}: ignored, the path cannot be followed ({resolved.problem})")
    else:
        found.warn(f"{reason.text}: {resolved.real} does not exist, so nothing was opened")
    _add_links(found, resolved, guard=bool(mark & _DENIES))


def _special(found: PointMap, own: _OwnPlaces, real: str, mark: Mark, rule: PathRule) -> bool:
    """Whether a path belongs to the sandbox itself, so that the rule is settled here."""
    if own.covers(real):
        found.warn(f"{rule.text or rule.path}: ignored, it lies in the daemon's own directories")
        return True
    if real == own.tmp and not own.tmp_is_the_hosts:
        if mark & (Mark.ALLOW_WRITE | Mark.ALLOW_READ):
            found.warn(f"{rule.text or rule.path}: {TMP} inside is the session's own directory, not the host's")
        return True
    if is_below(real, PROCESSES):
        if mark & Mark.DENY_READ and real.startswith("/proc/") and not real.split("/")[2].isdecimal():
            found.points[real] = Point(real, Kind.FILE, mark, force=True)
        return True
    if is_below(real, DEVICES):
        return _device(found, real, mark, rule)
    return False


def _device(found: PointMap, real: str, mark: Mark, rule: PathRule) -> bool:
    text = rule.text or rule.path
    if real == DEVICES:
        if mark & Mark.ALLOW_WRITE:
            raise PolicyError(
                "devices_all",
                f"{text}: {DEVICES} cannot be opened as a whole",
                hint="list the devices that are needed one by one",
                data={"rule": text},
            )
        return True
    if mark & _DENIES and real.split("/")[2] in BASIC_DEVICES:
        raise PolicyError(
            "device_basic",
            f"{text}: the sandbox has its own {real}, which cannot be denied",
            hint="remove the rule; the sandbox never sees the host's device directory",
            data={"rule": text},
        )
    return not mark & Mark.ALLOW_WRITE


def _mark_found(found: PointMap, match: Found, reason: Reason) -> None:
    if match.kind is not None:
        found.add(match.real, match.kind, reason)
    if match.is_link and reason.mark & _DENIES:
        found.points.setdefault(match.path, Point(match.path, link="", guard=True))


def _add_absent(found: PointMap, resolved: Resolved, reason: Reason, *, top_only: bool = False) -> None:
    """A path that is denied and does not exist: every missing directory on the way becomes a placeholder."""
    if resolved.problem:
        return
    missing = []
    path = resolved.existing
    for name in resolved.real[len(path) :].strip("/").split("/"):
        path = posixpath.join(path, name)
        missing.append(path)
        if top_only:
            break
    found.add(path, None, reason, tuple(missing))


def _add_links(found: PointMap, resolved: Resolved, *, guard: bool, way: tuple[Link, ...] = ()) -> None:
    for link in resolved.links:
        if link in way:
            continue
        point = found.points.setdefault(link.path, Point(link.path, link=link.target))
        point.guard = point.guard or guard


def _add_working_directories(found: PointMap, place: Place, facts: Facts) -> None:
    root, cwd = facts.paths[place.project_root], facts.paths[place.cwd]
    for resolved, name in ((root, place.project_root), (cwd, place.cwd)):
        if resolved.kind is not Kind.DIRECTORY:
            raise PolicyError(
                "cwd_missing",
                f"the working directory {name} {'does not exist' if resolved.kind is None else 'is not a directory'}",
                hint="start the command in a directory that exists",
                data={"path": name},
            )
    for resolved, mark in ((root, Mark.ALLOW_WRITE), (cwd, Mark.WORKING)):
        if resolved.real == "/":
            found.warn("the working directory is /, which is not made writable; list what is needed in allowWrite")
        elif is_below(resolved.real, DEVICES) or is_below(resolved.real, PROCESSES):
            raise PolicyError(
                "cwd_special", f"{resolved.real} cannot be a working directory", hint="start the command elsewhere"
            )
        else:
            found.add(resolved.real, Kind.DIRECTORY, Reason(mark, "it is the working directory"))
            _add_links(found, resolved, guard=False)


def _add_protected(found: PointMap, files: FilePolicy, place: Place, facts: Facts) -> None:
    for path in place.daemon_paths:
        resolved = facts.paths[path]
        if resolved.kind is not None:
            found.add(resolved.real, resolved.kind, Reason(Mark.PROTECTED, "the daemon's own files"))
    for path in files.settings_files:
        _protect(found, facts.paths[path], "it is a settings file of sandboxd", Absent.REFUSE_TOP)
    home = facts.paths[place.home]
    if home.kind is Kind.DIRECTORY:
        for row in rows(Where.HOME):
            _protect(found, facts.paths[posixpath.join(place.home, row.name)], row.why, row.absent, home.links)
    for root in writable_roots(files, place):
        if facts.paths[root].kind is Kind.DIRECTORY and is_workspace(facts.paths[root].real):
            _protect_workspace(found, root, facts)
    git_rows = {row.name: row for row in rows(Where.GIT_DIR, allow_git_config=files.allow_git_config)}
    for scan in facts.scans.values():
        _protect_scanned(found, scan, git_rows)
        if scan.worktree is not None:
            is_root = scan.root == facts.paths[place.project_root].real
            _add_worktree(found, scan.worktree, Mark.ALLOW_WRITE if is_root else Mark.WORKING)


def _protect_workspace(found: PointMap, root: str, facts: Facts) -> None:
    """The names at the top of a workspace, whether they exist or not."""
    way = facts.paths[root].links
    for row in rows(Where.WORKSPACE):
        if "*" not in row.name:
            _protect(found, facts.paths[posixpath.join(root, row.name)], row.why, row.absent, way)
    if facts.paths[posixpath.join(root, ".git")].kind is None:
        absent = [name for name in BARE_NAMES if facts.paths[posixpath.join(root, name)].kind is None]
        if absent:
            name = BARE_PLANT.name if BARE_PLANT.name in absent else absent[0]
            _protect(found, facts.paths[posixpath.join(root, name)], BARE_PLANT.why, BARE_PLANT.absent, way)


def _protect_scanned(found: PointMap, scan: Scan, git_rows: Mapping[str, ProtectedName]) -> None:
    for name in scan.names:
        _protect_found(found, name, "editors, agents or git obey it")
    for entry in scan.git_entries:
        _protect_found(found, entry, "git takes the repository it names")
    for git_dir in scan.git_dirs:
        for name_asked, resolved in git_dir.names:
            row = git_rows.get(name_asked)
            if row is None:
                continue
            _protect(found, resolved, row.why, row.absent)
            if resolved.kind is None and row.absent is Absent.LEAVE:
                found.watched[resolved.real] = None
        for referenced in git_dir.referenced:
            _protect_found(found, referenced, "the configuration of git names it")
    for directory in scan.unreadable:
        found.add(directory, Kind.DIRECTORY, Reason(Mark.PROTECTED, "it cannot be searched for protected names"))
        found.warn(f"{directory} cannot be listed, so it is read-only in the sandbox")


def _add_worktree(found: PointMap, worktree: Worktree, mark: Mark) -> None:
    """The repository that the working directory belongs to, when it lies elsewhere: git has to write there."""
    if worktree.refused:
        found.warn(f"{worktree.root}/.git is not followed: {worktree.refused}")
    else:
        found.add(worktree.common, Kind.DIRECTORY, Reason(mark, "it is the repository of the working directory"))


def _protect(
    found: PointMap, resolved: Resolved, why: str, absent: Absent, way: tuple[Link, ...] = ()
) -> None:
    """`way` are the links that lead to the place itself: they are not part of the name."""
    reason = Reason(Mark.PROTECTED, why)
    if resolved.kind is not None:
        found.add(resolved.real, resolved.kind, reason)
    elif absent is not Absent.LEAVE:
        _add_absent(found, resolved, reason, top_only=absent is Absent.REFUSE_TOP)
    _add_links(found, resolved, guard=True, way=way)


def _protect_found(found: PointMap, name: Found, why: str) -> None:
    if name.kind is not None:
        found.add(name.real, name.kind, Reason(Mark.PROTECTED, why))
    if name.is_link:
        found.points.setdefault(name.path, Point(name.path, link="")).guard = True


def is_workspace(root: str) -> bool:
    """A directory that a person would open as a project: not one that stands below a hidden directory, as caches do."""
    return not any(part.startswith(".") for part in root.split("/"))


def _add_lifted(found: PointMap, files: FilePolicy, place: Place, facts: Facts) -> None:
    """A rule that names a protected path, or one inside it, takes the protection back there."""
    for rule in (*files.allow_write, *place.allow_write):
        point = found.points.get(facts.paths[rule.path].real) if may_lift(rule) else None
        if point is not None and point.link is None and _protected_above(found, point.path):
            point.marks |= Mark.LIFTED


def _protected_above(found: PointMap, path: str) -> bool:
    """Whether this path or a directory above it, below any writable root, is protected."""
    while path != "/":
        point = found.points.get(path)
        if point is not None and point.marks & Mark.PROTECTED:
            return True
        path = posixpath.dirname(path)
    return False
