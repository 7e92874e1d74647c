"""Attribution of a refusal at a path: the rule, its origin, the reason. Pure.

The enforcer reports the operation and the path. The rule is computed from the path entries of the mounts, so it belongs
to the policy of the launch. A refusal of what the policy allows comes from the host."""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from itertools import takewhile

from sandboxd.plan.filesystem.effective_access import effective_access_at
from sandboxd.plan.filesystem.mounts import Mark, PathEntry, Visibility, settle, settled_at
from sandboxd.plan.filesystem.path_table import PathTable
from sandboxd.plan.host_facts import ResolvedPath
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.display import neutralise
from sandboxd.policy.paths.path_decisions import decide_path

_CLOSES = Mark.PROTECTED | Mark.UNOPENABLE | Mark.DENY_READ | Mark.DENY_WRITE
_MOVES = (Visibility.HOST_WRITABLE, Visibility.PRIVATE, Visibility.OVERLAY)
_PATH_MAX = 4096  # limits.h: open(2) accepts no longer path


class Attribution:
    """The attribution of one layout, quick enough for every report.

    Decisions are equal between two path entries, so one is cached for each entry and the region below it. The cache
    does not grow with the paths that a command asks for."""

    def __init__(self, table: PathTable) -> None:
        self._table = table
        self._known: dict[tuple[str, bool], Decision] = {}
        self._order: list[str] = []
        self._writable: tuple[str, ...] | None = None

    def decide(self, path: str, *, write: bool) -> Decision:
        """Decide on a path without symlinks; the text may name a directory above it."""
        at = self._nearest(path)
        known = self._known.get((at, write))
        if known is None:
            known = self._known[at, write] = decide_path(
                effective_access_at(self._table, at, ResolvedPath(at)), write=write
            )
        return known

    def decide_removal(self, path: str) -> Decision:
        """Decide on the removal of a name, by unlink(2), rmdir(2) or rename(2).

        A writable path cannot be moved when it is a mount point (EBUSY), because a path in it is denied, or when it is
        a symlink at a denied name."""
        decision = self.decide(path, write=True)
        kept = self._kept_at(path) if decision.allowed else None
        if kept is None:
            return decision
        shown = neutralise(kept)
        if kept == path:
            text = f"{shown} stays where it is"
            link = self._table.entries[path].link is not None
            why = "a symbolic link at a protected or denied name" if link else "it was opened as a whole"
            return Decision(Behavior.DENY, Reason.PATH_KEPT, text, hint=f"{why}: change it outside the sandbox")
        closed = [one.text for one in self._table.reasons.get(kept, ()) if one.mark & _CLOSES]
        why = f" ({neutralise(closed[0])})" if closed else ""
        text = f"it stays where it is because {shown} in it is closed{why}"
        how = "stays absent" if _is_absent(self._table.entries[kept]) else "is kept in its place"
        hint = f"{shown} in it {how}{why}: move what else is in it, or do it outside the sandbox"
        return Decision(Behavior.DENY, Reason.PATH_KEPT, text, hint=hint)

    def closed_at(self, path: str) -> str:
        """Return the path of the rule that denies reading this one, or an empty text."""
        at = self._nearest(path)
        cause = effective_access_at(self._table, at, ResolvedPath(at)).read_denied
        return "" if cause is None else cause.path

    def is_private_socket(self, path: str) -> bool:
        """Return whether a socket is the session's: in its `/tmp` or directory, or `/dev/shm`.

        In an overlay no socket of the host can be connected to."""
        if path.startswith(("/dev/", "/proc/")) and not path.startswith("/dev/shm/"):
            return False
        return self._shows(path) in (Visibility.PRIVATE, Visibility.OVERLAY)

    def can_change(self, path: str) -> bool:
        """Return whether the command could have made what is at a path."""
        return self._shows(posixpath.dirname(path)) in _MOVES

    def can_bring(self, path: str) -> bool:
        """Return whether the command could have put a socket at a path or its aliases."""
        return any(self._shows(one) in _MOVES for one in (path, *self._table.mount_aliases.others(path)))

    def is_name_of(self, resolved: ResolvedPath, path: str) -> bool:
        """Return whether a host path leads to another one by trusted links only."""
        real, trusted = self.leads_to(resolved)
        return trusted and path in (real, *self._table.mount_aliases.others(real))

    def writable(self) -> tuple[str, ...]:
        """List what the command can write, by all canonical host paths. Slow if many."""
        if self._writable is None:
            tops = [
                node.entry.path
                for node in settle(self._table.entries)
                if node.shows is Visibility.HOST_WRITABLE
                and (node.parent is None or node.parent.shows is not node.shows)
            ]
            self._writable = tuple(
                dict.fromkeys(one for top in tops for one in (top, *self._table.mount_aliases.others(top)))
            )
        return self._writable

    def leads_to(self, resolved: ResolvedPath) -> tuple[str, bool]:
        """Return the end of a rule's path, and whether all links on the way are trusted."""
        return resolved.real, not any(self.can_change(link.path) for link in resolved.links)

    def _kept_at(self, path: str) -> str | None:
        """Return what keeps a writable path in place: itself or a path in it."""
        entries = self._table.entries
        entry = entries.get(path)
        if entry is not None and entry.link is not None and entry.guard:
            return path
        if (
            entry is not None
            and entry.link is None
            and settled_at(entries, posixpath.dirname(path))[-1].shows not in _MOVES
        ):
            return path
        if not self._order:
            self._order = sorted(entries)
        below = self._order[bisect_left(self._order, path + "/") :]
        absent = None  # is named only where nothing that is there keeps the path
        for at in takewhile(lambda one: one.startswith(path + "/"), below):
            entry = entries[at]
            if _is_absent(entry) and absent is not None:
                continue
            if entry.guard or (entry.link is None and settled_at(entries, at)[-1].shows not in _MOVES):
                if not _is_absent(entry):
                    return at
                absent = at
        return absent

    def _shows(self, path: str) -> Visibility:
        return settled_at(self._table.entries, self._nearest(path))[-1].shows

    def _nearest(self, path: str) -> str:
        entries = self._table.entries
        if not path.startswith("/") or len(path) > _PATH_MAX:
            return "/"
        while path not in entries and path != "/":
            path = posixpath.dirname(path)
        return path


def _is_absent(entry: PathEntry) -> bool:
    return entry.kind is None and entry.link is None
