"""The clean-up of one git directory: rename hooks, reduce configurations.

`IsFromCommand` decides for each item that git would obey, so that what a person has made stays. A moved item stays
beside its old place.

A command can deny list and write permission in a directory that git still obeys. Such directories are reopened for the
clean-up."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping

from sandboxd.host import nofollow
from sandboxd.host.git.config_targets import text_of
from sandboxd.host.git.git_config import cleaned
from sandboxd.host.git.repositories import confirmed_worktree, physical
from sandboxd.plan.host_facts import GitConfigTarget

IsFromCommand = Callable[[str], bool]
"""Returns whether a command may have left the item at a path."""
MOST_HOOKS = 2_000
"""Limit for one directory: git knows thirty, and a directory with more is moved."""
LARGEST_ITEM = 1 << 20
_LARGEST_CONFIG = 1 << 20
_LONGEST_POINTER = 8192
_CONFIGURATIONS = ("config", "config.worktree")
_GONE = frozenset({errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""A command still works there; the clean-up at its end will follow."""

Signature = tuple[int, ...]
_NEVER = 1 << 62
"""A change time that counts as new."""


def open_up(path: str) -> int | None:
    """Reopen a directory of this user; return its old mode, None on failure."""
    try:
        with nofollow.opened(path) as directory:
            return nofollow.open_up(directory)
    except OSError:
        return None


def close_again(modes: Mapping[str, int]) -> None:
    for path, mode in modes.items():
        with contextlib.suppress(OSError), nofollow.opened(path) as directory:
            if os.fstat(directory).st_uid == os.geteuid():
                nofollow.set_mode(directory, mode)


def obeyed_items(git_dir: str) -> Iterator[str]:
    """Yield the files, links and directories of a git directory that git obeys."""
    for name in ("commondir", *_CONFIGURATIONS):
        if os.path.lexists(path := os.path.join(git_dir, name)):
            yield path
    yield from hooks_in(os.path.join(git_dir, "hooks"))


def hooks_in(directory: str) -> Iterator[str]:
    """Yield the hooks that git would run; or an unreadable or linked directory."""
    try:
        if os.path.islink(directory):
            yield directory
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        yield directory
        return
    if len(names) > MOST_HOOKS:
        yield directory
        return
    for name in names:
        if not name.endswith(".sample") and ".refused-" not in name:
            yield os.path.join(directory, name)


def common_of(git_dir: str) -> str | None:
    """Return the physical target of `commondir`: None without, empty for a bad one."""
    path = os.path.join(git_dir, "commondir")
    if not os.path.lexists(path):
        return None
    text = text_of(path, _LONGEST_POINTER + 1)
    if text is None or len(text) > _LONGEST_POINTER or "\0" in text:
        return ""
    return physical(os.path.join(git_dir, text.rstrip("\r\n")))


def is_linked(git_dir: str, common: str) -> bool:
    """Return whether a git directory is that of a linked worktree of `common`."""
    above = os.path.dirname(physical(git_dir))
    return os.path.basename(above) == "worktrees" and os.path.dirname(above) == common


def links_to_modules(directory: str) -> list[str]:
    """Return the symlinks by which git would reach git directories of submodules."""
    links = [os.path.join(directory, "modules")]
    if _is_in_modules(directory):
        with contextlib.suppress(OSError):
            links = [entry.path for entry in os.scandir(directory)]
    elif not os.path.lexists(os.path.join(directory, "HEAD")):
        return []
    # a dangling link may have a target for another process
    return [one for one in links if os.path.islink(one) and not os.path.isfile(one) and not one.endswith("/HEAD")]


def _is_in_modules(path: str) -> bool:
    while path != "/":
        path, name = os.path.split(path)
        if name == "modules" and os.path.lexists(os.path.join(path, "HEAD")):
            return True
    return False


def make_harmless(git_dir: str, is_from_command: IsFromCommand) -> tuple[list[str], OSError | None]:
    """Move aside each item that git would obey; return the paths and a failure."""
    moved: list[str] = []
    failed: OSError | None = None
    for look in (_commondir, _worktree_configuration, _configuration, _repository_hooks):
        try:
            for one in look(git_dir, is_from_command):
                moved.append(one)
        except OSError as error:
            if error.errno not in _GONE:
                failed = error
    return moved, failed


def runs_something(git_dir: str) -> bool:
    """Return whether a git directory has a hook or a dangerous configuration."""
    try:
        with nofollow.opened(git_dir) as directory:
            for name in _CONFIGURATIONS:
                if not nofollow.mode_of(directory, name):
                    continue
                text = nofollow.read(directory, name, _LARGEST_CONFIG)
                if text is None or len(text) > _LARGEST_CONFIG:
                    return True
                if cleaned(text, worktree=confirmed_worktree(git_dir)) is not None:
                    return True
    except OSError:
        return True
    return any(os.path.islink(hook) or os.access(hook, os.X_OK) for hook in hooks_in(os.path.join(git_dir, "hooks")))


def move(path: str, name: str) -> list[str]:
    """Rename an entry of a directory."""
    try:
        with nofollow.opened(path) as directory:
            return list(_move(directory, path, name))
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return []


def make_obeyed_harmless(obeyed: GitConfigTarget, is_from_command: IsFromCommand) -> Iterator[str]:
    """Move aside what a git config target names. Raises OSError."""
    path = obeyed.resolved.real
    if obeyed.directory:
        yield from _hooks(path, is_from_command)
    elif os.path.lexists(path) and is_from_command(path):
        above, name = os.path.split(path)
        with nofollow.opened(above) as directory:
            yield from _move(directory, above, name)


def _commondir(git_dir: str, is_from_command: IsFromCommand) -> Iterator[str]:
    common = common_of(git_dir)
    if (
        common is None
        or (common and is_linked(git_dir, common))
        or not is_from_command(os.path.join(git_dir, "commondir"))
    ):
        return
    with nofollow.opened(git_dir) as directory:
        yield from _move(directory, git_dir, "commondir")


def _configuration(git_dir: str, is_from_command: IsFromCommand, name: str = "config") -> Iterator[str]:
    with nofollow.opened(git_dir) as directory:
        mode = nofollow.mode_of(directory, name)
        if not mode or stat.S_ISDIR(mode) or not is_from_command(os.path.join(git_dir, name)):  # git obeys no directory
            return
        text = nofollow.read(directory, name, _LARGEST_CONFIG)
        if text is None or len(text) > _LARGEST_CONFIG:  # no regular file, or longer than any real one
            yield from _move(directory, git_dir, name)
            return
        rest = cleaned(text, worktree=confirmed_worktree(git_dir))
        if rest is None:
            return
        moved = list(_move(directory, git_dir, name))
        if moved:
            nofollow.create(directory, name, rest)
        yield from moved


def _worktree_configuration(git_dir: str, is_from_command: IsFromCommand) -> Iterator[str]:
    return _configuration(git_dir, is_from_command, "config.worktree")


def _repository_hooks(git_dir: str, is_from_command: IsFromCommand) -> Iterator[str]:
    with nofollow.opened(git_dir) as directory:
        mode = nofollow.mode_of(directory, "hooks")
        if stat.S_ISLNK(mode) and is_from_command(os.path.join(git_dir, "hooks")):
            yield from _move(directory, git_dir, "hooks")
    if stat.S_ISDIR(mode):
        yield from _hooks(os.path.join(git_dir, "hooks"), is_from_command)


def _hooks(inside: str, is_from_command: IsFromCommand) -> Iterator[str]:
    try:
        with nofollow.opened(inside) as hooks:
            names = sorted(_names(hooks))
            if len(names) <= MOST_HOOKS:
                for name in names:
                    if (
                        not name.endswith(".sample")
                        and _would_run(hooks, name)
                        and is_from_command(os.path.join(inside, name))
                    ):
                        yield from _move(hooks, inside, name)
                return
    except FileNotFoundError:
        return
    above, name = os.path.split(inside)
    if is_from_command(inside):
        with nofollow.opened(above) as directory:
            yield from _move(directory, above, name)


def _names(directory: int) -> list[str]:
    listed = f"/proc/self/fd/{directory}"
    try:
        return os.listdir(listed)
    except PermissionError:
        if nofollow.open_up(directory) is None:
            raise
        return os.listdir(listed)


def _would_run(directory: int, name: str) -> bool:
    mode = nofollow.mode_of(directory, name)
    return stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and bool(mode & 0o111))


def _move(directory: int, path: str, name: str) -> Iterator[str]:
    if ".refused-" not in name and nofollow.move_aside(directory, name) is not None:
        yield os.path.join(path, name)


def signature_of(path: str) -> Signature:
    """Return inode data and digest of a path and its target, empty when it is gone."""
    states: list[os.stat_result] = []
    try:
        states.append(os.lstat(path))
        if stat.S_ISLNK(states[0].st_mode):
            states.append(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        if not states:
            return ()
    except OSError:
        return (-1, -1, _NEVER, 0, 0)
    # a file in a tmpfs that is mapped into memory and written there keeps its times
    contents = bytes_of(path, LARGEST_ITEM) if stat.S_ISREG(states[-1].st_mode) else b""
    digest = int.from_bytes(hashlib.blake2b(contents, digest_size=8).digest(), "big")
    return tuple(n for one in states for n in (one.st_dev, one.st_ino, one.st_ctime_ns, one.st_mode, digest))


def bytes_of(path: str, most: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return file.read(most)
