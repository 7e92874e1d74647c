"""What a command has left in repositories that did not exist when it started, and that a git on the host would obey.

Mounts close the hooks and the configuration of the repositories that a sandbox finds. One that is made inside (`git
init`, `git clone`, a submodule, a directory that is given the shape of a repository, a `.git` file that leads to one)
is looked through when the command has ended: hooks that would run are given another name, a configuration with anything
but harmless settings is replaced by its harmless part, the original kept beside it.

Whoever may only search a directory, neither list nor write it, has a git that obeys what is in it. So directories that
a command has closed that way are opened up for the look.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping

from sandboxd.host import without_links
from sandboxd.host.git import confirmed_worktree, pointer_of
from sandboxd.host.git_config import cleaned
from sandboxd.plan.facts import Facts, GitDir, Kind, Neutralised

_LARGEST_CONFIG = 1 << 20
_CONFIGURATIONS = ("config", "config.worktree")
_IN_USE = frozenset(
    {errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY}
)


def neutralise(before: Facts, after: Facts, could_write: Callable[[str], bool]) -> Neutralised:
    """Takes the effect of everything planted in repositories that are in `after` and not in `before`. `could_write`:
    whether the command could write at a path, since a link to a repository elsewhere makes that none of its own."""
    known = {git_dir.path for scan in before.scans.values() for git_dir in scan.git_dirs}
    found = {git_dir.path: git_dir for scan in after.scans.values() for git_dir in scan.git_dirs}
    for path in _behind_files(before, after):
        found.setdefault(path, GitDir(path))
    roots = [scan.root.rstrip("/") for scan in before.scans.values()]
    moved: list[str] = []
    failed: OSError | None = None
    for path, git_dir in found.items():
        if path in known or not could_write(path) or not any(f"{path}/".startswith(f"{root}/") for root in roots):
            continue
        for look in _LOOKS:
            try:
                for one in look(git_dir):
                    moved.append(one)
            except OSError as error:
                if error.errno not in _IN_USE:  # gone meanwhile, or somebody else's
                    failed = error
    return Neutralised(tuple(moved), failed)


def open_up(path: str) -> int | None:
    """Let a directory that a command has closed be looked into: the mode it had, None when it is not ours, or gone."""
    try:
        with without_links.opened(path) as directory:
            return without_links.open_up(directory)
    except OSError:
        return None


def close_again(modes: Mapping[str, int]) -> None:
    for path, mode in modes.items():
        with contextlib.suppress(OSError), without_links.opened(path) as directory:
            if os.fstat(directory).st_uid == os.geteuid():
                without_links.set_mode(directory, mode)


def _behind_files(before: Facts, after: Facts) -> Iterator[str]:
    """Git directories that new `.git` files name."""
    known = {entry.path for scan in before.scans.values() for entry in scan.git_entries}
    for scan in after.scans.values():
        for entry in scan.git_entries:
            if entry.kind is Kind.FILE and entry.path not in known and (named := pointer_of(entry.real)) is not None:
                yield named


def _commondir(git_dir: GitDir) -> Iterator[str]:
    with without_links.opened(git_dir.path) as directory:
        if without_links.mode_of(directory, "commondir") and not _is_linked(git_dir):
            yield from _move(directory, git_dir.path, "commondir")


def _is_linked(git_dir: GitDir) -> bool:
    """That of a linked worktree, which names the repository it stands in and no other."""
    if git_dir.worktree is None:
        return False
    with without_links.opened(git_dir.path) as directory:
        text = without_links.read(directory, "commondir", 4096)
    common = os.path.dirname(os.path.dirname(git_dir.path))
    return text is not None and os.path.normpath(os.path.join(git_dir.path, text.rstrip("\n"))) == common


def _configuration(git_dir: GitDir, name: str = "config") -> Iterator[str]:
    path = git_dir.path
    with without_links.opened(path) as directory:
        mode = without_links.mode_of(directory, name)
        if not mode or stat.S_ISDIR(mode):  # git obeys no directory
            return
        text = without_links.read(directory, name, _LARGEST_CONFIG)
        if text is None or len(text) > _LARGEST_CONFIG:  # a link, something else, or more than anybody writes
            yield from _move(directory, path, name)
            return
        rest = cleaned(text, worktree=confirmed_worktree(path))
        if rest is None:
            return
        moved = list(_move(directory, path, name))
        if moved:
            without_links.create(directory, name, rest)
        yield from moved


def _worktree_configuration(git_dir: GitDir) -> Iterator[str]:
    return _configuration(git_dir, "config.worktree")


def _hooks(git_dir: GitDir) -> Iterator[str]:
    with without_links.opened(git_dir.path) as directory:
        mode = without_links.mode_of(directory, "hooks")
        if stat.S_ISLNK(mode):
            yield from _move(directory, git_dir.path, "hooks")
        if not stat.S_ISDIR(mode):
            return
    inside = os.path.join(git_dir.path, "hooks")
    with without_links.opened(inside) as hooks:
        for name in sorted(_names(hooks)):
            if not name.endswith(".sample") and _would_run(hooks, name):
                yield from _move(hooks, inside, name)


def _names(directory: int) -> list[str]:
    listed = f"/proc/self/fd/{directory}"
    try:
        return os.listdir(listed)
    except PermissionError:
        if without_links.open_up(directory) is None:
            raise
        return os.listdir(listed)


_LOOKS = (_commondir, _worktree_configuration, _configuration, _hooks)
"""Each by itself: what one of them cannot do keeps no other from its part."""


def _would_run(directory: int, name: str) -> bool:
    mode = without_links.mode_of(directory, name)
    return stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and bool(mode & 0o111))


def _move(directory: int, path: str, name: str) -> Iterator[str]:
    if ".refused-" not in name and without_links.move_aside(directory, name) is not None:
        yield os.path.join(path, name)
