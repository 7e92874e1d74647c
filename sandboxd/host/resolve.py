"""Path resolution, link by link, with a record of every name it depends on."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from typing import Protocol

from sandboxd.errors import PolicyError
from sandboxd.host.placeholders.placeholder import is_placeholder
from sandboxd.host.watch.exact_names import compares_exactly
from sandboxd.paths import caseless
from sandboxd.plan.host_facts import PathKind, PathObstacle, ResolvedPath, Symlink

MAX_LINKS = 40
"""The kernel's limit (path_resolution(7))."""
OF_A_PROCESS = "it belongs to a process, and a sandbox has its own processes"
"""The problem of `/proc/self` and `/dev/fd`: they depend on the process."""


CLOSED_BY_MACOS = "macOS does not let the daemon look there"


class NameRecorder(Protocol):
    """The receiver of the names that an answer depends on (`host.watch.name_watch`)."""

    def visit(self, directory: str, name: str, contents: bool = False) -> None:
        """Record a name in a canonical directory, or a file to be read, beforehand."""

    def absent(self, path: str) -> None:
        """Record that nothing was there."""

    def access(self, directory: str) -> None:
        """Record a check of the permissions of a directory, before it is made."""


class NullNameRecorder:
    """A recorder for answers that are not kept."""

    def visit(self, directory: str, name: str, contents: bool = False) -> None:
        return

    def absent(self, path: str) -> None:
        return

    def access(self, directory: str) -> None:
        return


def kind_of(mode: int) -> PathKind:
    if stat.S_ISDIR(mode):
        return PathKind.DIRECTORY
    if stat.S_ISREG(mode):
        return PathKind.FILE
    return PathKind.DEVICE if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else PathKind.OTHER


def resolve(path: str, names: NameRecorder) -> ResolvedPath:
    """Return the target of an absolute path. Never raises: see `problem`."""
    todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    at = "/"
    kind: PathKind | None = PathKind.DIRECTORY
    hard_links = 1
    owner: int | None = None
    links: list[Symlink] = []
    while todo:
        name = todo.pop()
        if name == "..":
            at = os.path.dirname(at)
            continue
        if at == "/proc" and (name.isdecimal() or name in ("self", "thread-self")):
            rest = os.path.normpath("/".join([at, name, *reversed(todo)]))
            return ResolvedPath(rest, None, at, tuple(links), OF_A_PROCESS)
        names.visit(at, name)
        entry = at + name if at == "/" else f"{at}/{name}"
        try:
            state = os.lstat(entry)
            target = os.readlink(entry) if stat.S_ISLNK(state.st_mode) else ""
        except ValueError:
            return ResolvedPath(entry, None, at, tuple(links), "no name holds a zero byte")
        except OSError as error:
            rest = os.path.normpath("/".join([entry, *reversed(todo)]))
            if error.errno == errno.EACCES:
                closed = _obstacle(at, names) or PathObstacle.OWNED  # opened at this moment, with its content unseen
                return ResolvedPath(rest, None, at, tuple(links), _problem(error), obstacle=closed)
            if error.errno != errno.ENOENT:
                problem = CLOSED_BY_MACOS if ON_MACOS and error.errno == errno.EPERM else _problem(error)
                return ResolvedPath(rest, None, at, tuple(links), problem)
            names.absent(entry)
            return ResolvedPath(rest, None, at, tuple(links), obstacle=_obstacle(at, names), exact=compares_exactly(at))
        if stat.S_ISLNK(state.st_mode):
            links.append(Symlink(disk_path(entry), target))
            if len(links) > MAX_LINKS:
                return ResolvedPath(entry, None, at, tuple(links), "a loop of symlinks")
            todo += [part for part in reversed(target.split("/")) if part not in ("", ".")]
            if target.startswith("/"):
                at = "/"
            kind = PathKind.DIRECTORY
            continue
        if state.st_mode & stat.S_ISVTX and is_placeholder(entry, state):
            names.absent(entry)
            rest = os.path.normpath("/".join([entry, *reversed(todo)]))
            return ResolvedPath(rest, None, at, tuple(links), obstacle=_obstacle(at, names), exact=compares_exactly(at))
        if todo and not stat.S_ISDIR(state.st_mode):
            problem = f"{entry} is not a directory"
            return ResolvedPath(entry, None, at, tuple(links), problem, obstacle=PathObstacle.ENTRY)
        at, kind, hard_links = disk_path(entry), kind_of(state.st_mode), state.st_nlink
        owner = closing_owner(state)
    names_of_file = hard_links if kind is PathKind.FILE else 1
    return ResolvedPath(at, kind, at, tuple(links), "", names_of_file, owner=owner)


def closing_owner(state: os.stat_result) -> int | None:
    """Return the owner of a directory that root could not write without capabilities, as in a sandbox."""
    mode, root = state.st_mode, os.geteuid() == 0 and not ON_MACOS
    by_group = state.st_gid == 0 and mode & stat.S_IWGRP
    if not root or not stat.S_ISDIR(mode) or not state.st_uid or by_group or mode & stat.S_IWOTH:
        return None
    return state.st_uid


ON_MACOS = sys.platform == "darwin"
_F_GETPATH = 50
_O_EVTONLY, _O_SYMLINK = 0x8000, 0x200000  # <sys/fcntl.h> of macOS
_DATA_VOLUME = "/System/Volumes/Data"


def reject_closed(path: str, error: OSError | None = None, problem: str = "") -> None:
    """Raise `PolicyError` when macOS keeps a place from the daemon (EPERM): nothing in it would be protected."""
    if ON_MACOS and (problem == CLOSED_BY_MACOS or (error is not None and error.errno == errno.EPERM)):
        raise PolicyError(
            "full_disk_access",
            f"macOS does not let the daemon look at {path}, so that rules there cannot be enforced",
            hint=f"allow {sys.executable} in System Settings > Privacy & Security > Full Disk Access, then run: "
            "sandboxd restart",
            data={"path": path},
        )


def disk_path(entry: str) -> str:
    """Return an existing path as the disk spells its last name, which is what a Seatbelt rule sees.

    Volumes of macOS find `Documents` as `documents`, too. Of a file with several names F_GETPATH may return another."""
    if not ON_MACOS:
        return entry
    wanted = caseless(entry)
    try:
        descriptor = os.open(entry, _O_EVTONLY | _O_SYMLINK | os.O_NONBLOCK)
        try:
            found = os.fsdecode(fcntl.fcntl(descriptor, _F_GETPATH, bytes(1024)).partition(b"\0")[0])
        finally:
            os.close(descriptor)
        if caseless(found) in (wanted, wanted.removeprefix(caseless(_DATA_VOLUME))):
            return found
    except OSError:
        pass  # it may not be opened, or lies on a volume that cannot tell
    directory, name = os.path.split(entry)
    try:
        with os.scandir(directory) as listed:
            names = [one.name for one in listed if caseless(one.name) == caseless(name)]
    except OSError:
        return entry
    return entry if name in names or not names else os.path.join(directory, names[0])


def _obstacle(directory: str, names: NameRecorder) -> PathObstacle | None:
    names.access(directory)
    if os.access(directory, os.W_OK | os.X_OK):
        return None
    try:
        state, system = os.stat(directory), os.statvfs(directory)
    except OSError:
        return None
    owned = state.st_uid == os.geteuid() and not system.f_flag & os.ST_RDONLY
    return PathObstacle.OWNED if owned else PathObstacle.FOREIGN


def _problem(error: OSError) -> str:
    return (error.strerror or "unreadable").lower()
