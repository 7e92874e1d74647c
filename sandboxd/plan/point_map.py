"""The points of a sandbox under construction, with the reasons for their marks."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from sandboxd.plan.facts import Found, Kind, Link, Obstacle, Resolved, Twins
from sandboxd.plan.mounts import Mark, Point
from sandboxd.policy.policy import PathRule

_CLOSES = Mark.DENY_READ | Mark.DENY_WRITE | Mark.PROTECTED | Mark.LOCKED


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a point has a mark: the rule as its author wrote it, or words for what is built in (then without `rule`)."""

    mark: Mark
    text: str
    rule: PathRule | None = None


@dataclass(slots=True)
class PointMap:
    """The points by path, and what has to be said about the rules. `watched` as in `FileView`."""

    twins: Twins = field(default_factory=Twins)
    points: dict[str, Point] = field(default_factory=dict)
    reasons: dict[str, list[Reason]] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    watched: dict[tuple[str, ...], None] = field(default_factory=dict)
    missing: list[tuple[str, Reason]] = field(default_factory=list)
    """Paths that were to be opened and do not exist."""
    locked: set[str] = field(default_factory=set)
    """Directories in which a name cannot be kept absent otherwise than by closing them: no rule takes that back."""

    managed_reads_only: bool = False
    """As in `FilePolicy`, for explanations."""

    def warn(self, text: str) -> None:
        self.warnings[text] = None

    def add(self, path: str, kind: Kind | None, reason: Reason, missing: tuple[str, ...] = ()) -> None:
        """A mark on a canonical path; one that closes, on every path of what is there."""
        self._add(path, kind, reason, missing)
        if reason.mark & _CLOSES:
            for other in self.twins.others(path):
                self._add(other, kind, reason, tuple(_moved(one, path, other) for one in missing))

    def _add(self, path: str, kind: Kind | None, reason: Reason, missing: tuple[str, ...]) -> None:
        point = self.points.get(path)
        if point is None or (point.kind is None and kind is not None):
            marks = point.marks if point is not None else Mark.NONE
            pinned = point is not None and point.pinned
            point = self.points[path] = Point(path, kind, marks, missing, pinned=pinned)
        point.marks |= reason.mark
        self.reasons.setdefault(path, []).append(reason)

    def add_absent(self, resolved: Resolved, reason: Reason, *, top_only: bool = False, file: bool = False) -> None:
        """A path that is closed and does not exist: everything missing on the way becomes a placeholder. With
        `top_only` the first of them is closed as a whole. `file`: the last is an empty file."""
        if resolved.obstacle is Obstacle.OWN:
            why = "it cannot be searched" if resolved.problem else "nothing can be made in it"
            self.add(resolved.existing, Kind.DIRECTORY, Reason(Mark.LOCKED, why))
            return
        if resolved.obstacle is Obstacle.ENTRY:
            self.pin(resolved.real, Kind.OTHER)
            return
        if resolved.problem or resolved.obstacle is Obstacle.FOREIGN:
            return  # nobody inside can make it either
        missing = _missing(resolved)
        if top_only:
            del missing[1:]
        path = missing[-1].rstrip("/")
        if file and path == resolved.real:
            missing[-1] = path
        self.add(path, None, reason, tuple(missing))

    def add_made(self, resolved: Resolved, reason: Reason) -> None:
        """A directory that is opened and made for it, where the user can make it."""
        if not resolved.problem and resolved.obstacle is None:
            self.add(resolved.real, Kind.DIRECTORY, reason, tuple(_missing(resolved)))

    def add_links(self, resolved: Resolved, *, guard: bool, way: tuple[Link, ...] = ()) -> None:
        """The symlinks on the way to a path. `guard`: they must not be replaced. `way`: links that lead to the place
        the name stands in, and are no part of it."""
        for link in resolved.links:
            if link not in way:
                point = self.points.setdefault(link.path, Point(link.path, link=link.target))
                point.guard = point.guard or guard

    def pin(self, path: str, kind: Kind = Kind.DIRECTORY) -> None:
        """A directory, or a file where there must be no directory, that must not be moved away, although nothing in it
        is mounted."""
        self.points.setdefault(path, Point(path, kind)).pinned = True

    def add_found(self, found: Found, reason: Reason, *, guard: bool) -> None:
        """Something a scan or a pattern found."""
        if found.kind is not None:
            self.add(found.real, found.kind, reason)
        elif found.closed and guard:
            self.add(found.closed, Kind.DIRECTORY, reason)
            self.locked.add(found.closed)
            self.warn(f"{reason.text}: {found.closed} cannot be searched at the moment, so all of it is closed")
        for link in found.links:
            if guard:
                self.add_guard(link.path)
            elif link.path not in self.points:
                self.points[link.path] = Point(link.path, link=link.target)

    def add_guard(self, path: str) -> None:
        """A symlink that must not be replaced."""
        self.points.setdefault(path, Point(path, link="")).guard = True


def _missing(resolved: Resolved) -> list[str]:
    """What would have to be made for a path to exist, outermost first, each with a slash at its end."""
    path, missing = resolved.existing, []
    for name in resolved.real[len(path) :].strip("/").split("/"):
        path = posixpath.join(path, name)
        missing.append(path + "/")
    return missing


def _moved(above: str, path: str, other: str) -> str:
    """A directory on the way to `path`, or that itself, on the way to `other`, which ends alike."""
    tail = len(path) - len(above.rstrip("/"))
    return (other[:-tail] if tail else other) + ("/" if above.endswith("/") else "")
