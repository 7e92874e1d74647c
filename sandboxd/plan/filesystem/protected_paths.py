"""Protected names as path entries, both existing and absent ones."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sandboxd.paths import is_below
from sandboxd.plan.filesystem.link_trust import LinkTrust, is_in_session
from sandboxd.plan.filesystem.mounts import Mark, Visibility, at_and_above, settled_at
from sandboxd.plan.filesystem.path_table import MarkReason, PathTable
from sandboxd.plan.host_facts import Facts, GitConfigTarget, GitDir, PathKind, ResolvedPath, Scan, Symlink, Worktree
from sandboxd.plan.host_queries import BARE_NAMES, writable_roots
from sandboxd.plan.request import Place
from sandboxd.policy.model import FilePolicy
from sandboxd.policy.paths.protected_names import (
    SETTINGS_FILE,
    Absent,
    ProtectedIn,
    ProtectedName,
    login_directory,
    may_lift,
    names_around,
    names_begun_by,
    rows,
)
from sandboxd.policy.paths.wide_places import is_system_directory

MOST_WORKTREES = 16
"""The number of worktrees of a repository that are guarded one by one, with two mounts each."""


def add_guards(table: PathTable, files: FilePolicy, place: Place, facts: Facts, link_trust: LinkTrust) -> None:
    """Add the protected names of a place, and what the user's rules lift."""
    reason = MarkReason(Mark.PROTECTED, "the daemon's own files")
    for path in place.daemon_paths:
        resolved = facts.paths[path]
        if resolved.kind is not None:
            table.add(resolved.real, resolved.kind, reason)
        else:
            table.add_absent(resolved, reason, file=True)
        table.add_links(resolved, guard=True)
    for path in files.settings_files:
        _protect(table, facts.paths[path], SETTINGS_FILE)
    for where, path in ((ProtectedIn.HOME, place.home), (ProtectedIn.RUNTIME, login_directory(place.uid))):
        if facts.paths[path].kind is PathKind.DIRECTORY:
            for row in rows(where):
                _protect(table, facts.paths[posixpath.join(path, row.name)], row, facts.paths[path].links)
    for root in writable_roots(files, place):
        if facts.paths[root].kind is PathKind.DIRECTORY:
            if is_workspace(root, facts):
                _protect_workspace(table, root, facts)
            _protect_by_name(table, root, facts)
    git_rows = {row.name: row for row in rows(ProtectedIn.GIT_DIR, allow_git_config=files.allow_git_config)}
    linked = {one.path: one for scan in facts.scans.values() for one in scan.git_dirs if one.worktree is not None}
    writable = [facts.paths[root].real for root in writable_roots(files, place)]
    _protect_linked(table, tuple(linked.values()), writable, git_rows)
    for scan in facts.scans.values():
        _protect_scanned(table, scan, git_rows)
        if scan.worktree is not None:
            is_root = scan.root == facts.paths[place.project_root].real
            if (is_root or is_in_session(place, facts)) and not is_system_directory(scan.root):
                _add_worktree(table, scan.worktree, Mark.ALLOW_WRITE if is_root else Mark.WORKING)
    for obeyed in facts.git_config_targets:
        _protect_obeyed(table, obeyed)
    _add_lifted(table, files, place, facts, link_trust)
    _lift_project_repository(table, place, facts)
    _warn_of_closed_directories(table, place, facts)


def _protect_by_name(table: PathTable, root: str, facts: Facts) -> None:
    """Protect a writable directory that has a protected name, or begins one."""
    resolved = facts.paths[root]
    for rest, row in (*names_begun_by(root), *names_begun_by(resolved.real)):
        _protect(table, facts.paths[posixpath.join(root, rest)], row, resolved.links)
    for path, row in names_around(resolved.real):
        table.add(path, PathKind.DIRECTORY, MarkReason(Mark.PROTECTED, row.why))
    if any(path == root for path, _ in names_around(root)):
        table.add(resolved.real, PathKind.DIRECTORY, MarkReason(Mark.PROTECTED, "it has a protected name"))


def _lift_project_repository(table: PathTable, place: Place, facts: Facts) -> None:
    """Lift a repository in a protected place that the user opened as a session."""
    scan = facts.scans.get(place.project_root)
    if scan is None or not scan.top:
        return
    around = [path for path, _ in names_around(scan.root)]
    if around and all(is_below(scan.top, path) and scan.top != path for path in around):
        table.add(scan.root, PathKind.DIRECTORY, MarkReason(Mark.LIFTED, "it belongs to a separate repository"))


def warn_of_visited_directory(table: PathTable, place: Place, facts: Facts) -> None:
    """Warn that a working directory is read-only, once all entries are there."""
    root, cwd = facts.paths[place.project_root].real, facts.paths[place.cwd].real
    for path in dict.fromkeys((root, cwd)):
        if is_system_directory(path) and settled_at(table.entries, path)[-1].shows is Visibility.HOST_READ_ONLY:
            table.warn(
                f"the working directory {path} is read-only, since programs of the system lie there or obey what does: "
                "work in another directory"
            )
    for path, owner in ((one.real, one.owner) for one in (facts.paths[place.project_root], facts.paths[place.cwd])):
        if owner is not None and settled_at(table.entries, path)[-1].shows is Visibility.HOST_WRITABLE:
            table.warn(
                f"{path} belongs to the user {owner}, and root in a sandbox has no power over files of others: "
                f"chown -R root {shlex.quote(path)}, or run sandboxd as that user"
            )
    visited = not is_in_session(place, facts) and not is_system_directory(cwd)
    if not visited or settled_at(table.entries, cwd)[-1].shows is not Visibility.HOST_READ_ONLY:
        return
    table.warn(
        f"the working directory {cwd} is read-only, since it lies outside the session's directory {root}; if commands "
        f"may write it: sandboxd allow path {shlex.quote(cwd)}"
    )


def _warn_of_closed_directories(table: PathTable, place: Place, facts: Facts) -> None:
    for path in dict.fromkeys((facts.paths[place.project_root].real, facts.paths[place.cwd].real)):
        if path in table.entries and settled_at(table.entries, path)[-1].protected:
            reasons = (one for at in at_and_above(path) for one in table.reasons.get(at, ()))
            why = next((one.text for one in reasons if one.mark & Mark.PROTECTED), "it is protected")
            table.warn(
                f"the working directory {path} is read-only, since programs outside the sandbox obey what is in it "
                f"({why}): work in another directory"
            )
        elif path in table.entries and table.entries[path].marks & Mark.UNOPENABLE:
            table.warn(
                f"the working directory {path} is read-only in the sandbox, as it is outside: nothing can be made in "
                f"it; if it is to be written: chmod u+w {shlex.quote(path)}"
            )


def _protect_workspace(table: PathTable, root: str, facts: Facts) -> None:
    """Protect the names at the top of a workspace, existing or not."""
    way = facts.paths[root].links
    for row in rows(ProtectedIn.WORKSPACE):
        if "*" not in row.name:
            _protect(table, facts.paths[posixpath.join(root, row.name)], row, way)
    if facts.paths[posixpath.join(root, ".git")].kind is None:
        bare = tuple(facts.paths[posixpath.join(root, name)] for name in BARE_NAMES)
        table.add_watched(bare, MarkReason(Mark.PROTECTED, "git takes a directory with it for a repository"))


def _protect_scanned(table: PathTable, scan: Scan, git_rows: Mapping[str, ProtectedName]) -> None:
    for name in scan.names:
        table.searching = _is_deep(name.path, scan.root)
        table.add_found(name, MarkReason(Mark.PROTECTED, "editors, agents or git obey it"), guard=True)
    for entry in scan.git_entries:
        table.searching = _is_deep(entry.path, scan.root)
        reason = MarkReason(Mark.PROTECTED, "git takes the repository it names")
        if entry.kind is PathKind.FILE:
            table.add_found(entry, reason, guard=True)
        else:
            for link in entry.links:
                table.add_guard(link.path)
    own = scan.worktree.common if scan.worktree is not None else ""
    for git_dir in scan.git_dirs:
        table.searching = _is_deep(git_dir.path, scan.root) and git_dir.path != own
        if git_dir.worktree is None:
            _protect_git_dir(table, git_dir, git_rows)
    table.searching = True
    for obeyed in scan.git_config_targets:
        _protect_obeyed(table, obeyed)
    for directory in scan.unreadable:
        table.searching = _is_deep(directory, scan.root)
        table.add(
            directory, PathKind.DIRECTORY, MarkReason(Mark.PROTECTED, "it cannot be searched for protected names")
        )
        table.warn(f"{directory} cannot be listed, so it is read-only in the sandbox")
    table.searching = False


def _is_deep(path: str, root: str) -> bool:
    """Return whether a path lies below a root, and not at its top."""
    above = root.rstrip("/") + "/"
    return path.startswith(above) and "/" in path[len(above) :]


def _protect_git_dir(table: PathTable, git_dir: GitDir, git_rows: Mapping[str, ProtectedName]) -> None:
    for name, resolved in git_dir.names:
        row = git_rows.get(name)
        gone = is_below(resolved.real, git_dir.path) and not is_below(resolved.existing, git_dir.path)
        if row is None or (gone and table.searching):
            continue
        # a directory is cheaper to cover, and does no harm where git does not look
        _protect(table, resolved, row if git_dir.worktree_config else replace(row, file=False))
        if resolved.kind is None and row.absent is Absent.LEAVE:
            table.add_watched((resolved,), MarkReason(Mark.PROTECTED, row.why))
    for obeyed in git_dir.git_config_targets:
        _protect_obeyed(table, obeyed)


def _protect_obeyed(table: PathTable, obeyed: GitConfigTarget) -> None:
    """Protect a git config target; git fails at a directory in the place of a file."""
    reason, resolved = MarkReason(Mark.PROTECTED, "the configuration of git names it"), obeyed.resolved
    table.add_links(resolved, guard=True)
    if resolved.kind is not None:
        table.add(resolved.real, resolved.kind, reason)
    elif obeyed.directory:
        table.add_absent(resolved, reason)
    elif not obeyed.listed:
        table.add_absent(resolved, reason, file=True)
    elif posixpath.dirname(resolved.real) == resolved.existing:
        table.pin(resolved.existing)
        table.add_watched((resolved,), reason)
    else:
        table.add_absent(resolved, reason, top_only=True)


def _protect_linked(
    table: PathTable, linked: Sequence[GitDir], writable: Sequence[str], git_rows: Mapping[str, ProtectedName]
) -> None:
    """Protect the git directories of linked worktrees, which lie in `worktrees`.

    In each the files that redirect git are denied. The rest stays writable, because git locks every HEAD when it
    collects garbage. With very many, `worktrees` is denied as a whole, except for those whose working tree can be
    written."""
    reason = MarkReason(Mark.PROTECTED, "git reads the repository it names")
    together: dict[str, list[GitDir]] = {}
    for git_dir in linked:
        together.setdefault(posixpath.dirname(git_dir.path), []).append(git_dir)
    for directory, git_dirs in together.items():
        many = len(git_dirs) > MOST_WORKTREES
        if many:
            table.add(directory, PathKind.DIRECTORY, reason)
            table.warn(
                f"{directory} holds {len(git_dirs)} worktrees: in the sandbox none can be added, and git gc fails"
            )
        for git_dir in git_dirs:
            if many and not any(is_below(git_dir.worktree or "", root) for root in writable):
                continue
            if many:
                table.add(git_dir.path, PathKind.DIRECTORY, MarkReason(Mark.LIFTED, "its working tree can be written"))
            _protect_git_dir(table, git_dir, git_rows)


def _add_worktree(table: PathTable, worktree: Worktree, mark: Mark) -> None:
    """Open the repository of the working directory elsewhere, where git has to write."""
    if worktree.refused:
        table.warn(f"{worktree.root}/.git is not followed: {worktree.refused}")
    else:
        table.add(
            worktree.common, PathKind.DIRECTORY, MarkReason(mark, "it is the repository of the working directory")
        )


def _protect(table: PathTable, resolved: ResolvedPath, row: ProtectedName, way: tuple[Symlink, ...] = ()) -> None:
    """Protect a name; `way` are the links to its directory, which are no part of it."""
    reason = MarkReason(Mark.PROTECTED, row.why)
    if resolved.kind is not None:
        table.add(resolved.real, resolved.kind, reason)
    elif row.absent is Absent.REFUSE_UNSEEN and not (table.guards and resolved.exact):
        return
    elif row.absent is not Absent.LEAVE:
        table.add_absent(resolved, reason, top_only=row.absent is Absent.REFUSE_TOP, file=row.file)
    table.add_links(resolved, guard=True, way=way)


def is_workspace(root: str, facts: Facts) -> bool:
    """Return whether a root is outside hidden directories, or tops a repository."""
    if facts.paths[posixpath.join(root, ".git")].kind is not None:
        return True
    return not any(part.startswith(".") for part in facts.paths[root].real.split("/"))


def _add_lifted(table: PathTable, files: FilePolicy, place: Place, facts: Facts, link_trust: LinkTrust) -> None:
    """Lift the protection at and below a path that a rule of the user names."""
    own = [facts.paths[path].real for path in place.daemon_paths]
    for rule in (*files.allow_write, *place.allow_write):
        if not may_lift(rule) or facts.paths[rule.path].problem:
            continue  # a path that cannot be followed (`.git/hooks` where `.git` is a file)
        if any(is_below(facts.paths[rule.path].real, path) for path in own):
            continue  # no rule opens what the daemon executes
        if not link_trust.opens(rule):
            continue
        entry = table.entries.get(facts.paths[rule.path].real)
        if entry is not None and entry.path in table.locked:
            continue
        if entry is not None and entry.link is None and _protected_above(table, entry.path):
            entry.marks |= Mark.LIFTED


def _protected_above(table: PathTable, path: str) -> bool:
    """Return whether this path or a directory above it is protected."""
    while path != "/":
        entry = table.entries.get(path)
        if entry is not None and entry.marks & Mark.PROTECTED:
            return True
        path = posixpath.dirname(path)
    return False
