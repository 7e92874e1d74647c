"""The path entries of a sandbox under construction, and the reasons for marks."""

from __future__ import annotations

import posixpath

from sandboxd.plan.filesystem.mounts import Mark, PathEntry
from sandboxd.plan.host_facts import Found, MountAliases, PathKind, PathObstacle, ResolvedPath, Symlink
from sandboxd.policy.model import PathRule
from sandboxd_client.records import dataclass, field

_CLOSES = Mark.DENY_READ | Mark.DENY_WRITE | Mark.PROTECTED | Mark.UNOPENABLE


@dataclass(frozen=True, slots=True)
class MarkReason:
    """The reason for a mark: the text of its rule, or words for a built-in one."""

    mark: Mark
    text: str
    rule: PathRule | None = None


@dataclass(slots=True)
class PathTable:
    """The path entries by path, and warnings about rules. `watched` as in `FileView`."""

    mount_aliases: MountAliases = field(default_factory=MountAliases)
    entries: dict[str, PathEntry] = field(default_factory=dict)
    reasons: dict[str, list[MarkReason]] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    watched: dict[tuple[str, ...], None] = field(default_factory=dict)
    missing: list[tuple[str, MarkReason]] = field(default_factory=list)
    """Absent paths of rules that open."""
    layers: list[str] = field(default_factory=list)
    """The labels of `/tmp` and the home directory."""
    tmp_size: int | None = None
    locked: set[str] = field(default_factory=set)
    """Directories that are denied because a name in them cannot be kept absent; no rule lifts that."""

    guards: bool = False
    """Names can be kept absent without placeholders."""
    managed_reads_only: bool = False
    """The field of the same name in `FilePolicy`."""

    searching: bool = False
    """Set while only what a search has found is added: another program may remove it at any time."""

    def warn(self, text: str) -> None:
        self.warnings[text] = None

    def add(
        self,
        path: str,
        kind: PathKind | None,
        reason: MarkReason,
        missing: tuple[str, ...] = (),
        *,
        exact: bool = False,
    ) -> None:
        """Mark a canonical path; a denial also marks all aliases of the path."""
        self._add(path, kind, reason, missing, exact)
        if reason.mark & _CLOSES:
            for other in self.mount_aliases.others(path):
                self._add(other, kind, reason, tuple(_moved(one, path, other) for one in missing), exact)

    def _add(self, path: str, kind: PathKind | None, reason: MarkReason, missing: tuple[str, ...], exact: bool) -> None:
        entry = self.entries.get(path)
        if entry is None or (entry.kind is None and kind is not None):
            marks = entry.marks if entry is not None else Mark.NONE
            pinned, searched = entry is not None and entry.pinned, entry is None or entry.searched
            entry = self.entries[path] = PathEntry(
                path, kind, marks, missing, pinned=pinned, exact=exact, searched=searched
            )
        entry.searched = entry.searched and self.searching
        entry.marks |= reason.mark
        self.reasons.setdefault(path, []).append(reason)

    def add_absent(
        self, resolved: ResolvedPath, reason: MarkReason, *, top_only: bool = False, file: bool = False
    ) -> None:
        """Deny an absent path: everything missing on the way becomes a placeholder.

        With `top_only` the first of them is denied as a whole. With `file` the last is an empty file."""
        if resolved.obstacle is PathObstacle.OWNED:
            why = "it cannot be searched" if resolved.problem else "nothing can be made in it"
            self.add(resolved.existing, PathKind.DIRECTORY, MarkReason(Mark.UNOPENABLE, why))
            return
        if resolved.obstacle is PathObstacle.ENTRY:
            self.pin(resolved.real, PathKind.OTHER)
            return
        if resolved.problem or resolved.obstacle is PathObstacle.FOREIGN:
            return  # no command can make it
        missing = _missing(resolved)
        if top_only:
            del missing[1:]
        path = missing[-1].rstrip("/")
        if file and path == resolved.real:
            missing[-1] = path
        self.add(path, None, reason, tuple(missing), exact=self.guards and resolved.exact)

    def add_watched(self, together: tuple[ResolvedPath, ...], reason: MarkReason) -> None:
        """Refuse what does harm when all of some names exist: the first that is absent, or else afterwards."""
        absent = next((one for one in together if one.kind is None and not one.problem and one.obstacle is None), None)
        if absent is not None and self.guards and absent.exact:
            self.add_absent(absent, reason)
        elif any(one.kind is None for one in together):
            self.watched[tuple(one.real for one in together)] = None

    def add_made(self, resolved: ResolvedPath, reason: MarkReason) -> None:
        """Open a directory that is made for the command, if the user can make it."""
        if not resolved.problem and resolved.obstacle is None:
            self.add(resolved.real, PathKind.DIRECTORY, reason, tuple(_missing(resolved)))

    def add_links(self, resolved: ResolvedPath, *, guard: bool, way: tuple[Symlink, ...] = ()) -> None:
        """Add the symlinks on the way to a path, without `way`; `guard` keeps them."""
        for link in resolved.links:
            if link not in way:
                entry = self._at(PathEntry(link.path, link=link.target))
                entry.guard = entry.guard or guard

    def pin(self, path: str, kind: PathKind = PathKind.DIRECTORY) -> None:
        """Keep a path from being moved, although nothing in it is mounted."""
        self._at(PathEntry(path, kind)).pinned = True

    def add_found(self, found: Found, reason: MarkReason, *, guard: bool) -> None:
        """Mark a match of a scan or pattern."""
        if found.kind is not None:
            self.add(found.real, found.kind, reason)
        elif found.closed and guard:
            self.add(found.closed, PathKind.DIRECTORY, reason)
            self.locked.add(found.closed)
            self.warn(f"{reason.text}: {found.closed} cannot be searched at the moment, so all of it is denied")
        for link in found.links:
            if guard:
                self.add_guard(link.path)
            elif link.path not in self.entries:
                self.entries[link.path] = PathEntry(link.path, link=link.target)

    def add_guard(self, path: str) -> None:
        """Add a symlink that must not be replaced."""
        self._at(PathEntry(path, link="")).guard = True

    def _at(self, new: PathEntry) -> PathEntry:
        """Return the entry of this path, which is the new one where there is none."""
        entry = self.entries.setdefault(new.path, new)
        entry.searched = self.searching and (entry is new or entry.searched)
        return entry


def _missing(resolved: ResolvedPath) -> list[str]:
    """Return what is missing on the way to a path, outermost first, as directories."""
    path, missing = resolved.existing, []
    for name in resolved.real[len(path) :].strip("/").split("/"):
        path = posixpath.join(path, name)
        missing.append(path + "/")
    return missing


def _moved(above: str, path: str, other: str) -> str:
    """Move a directory at or above `path` to the same level of the alias `other`."""
    tail = len(path) - len(above.rstrip("/"))
    return (other[:-tail] if tail else other) + ("/" if above.endswith("/") else "")
