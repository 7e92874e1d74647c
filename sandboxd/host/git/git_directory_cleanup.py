"""Making one git directory harmless: hooks get another name, a configuration is replaced by its harmless part.

Each thing that git would obey there is put to a test, `IsFromCommand`, first: what a person has made stays as it is.
What is moved is kept beside its old place.

Whoever may only search a directory, neither list nor write it, has a git that obeys what is in it. So directories that
a command has closed that way are opened up for the look.
"""

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
"""Whether a command may have left what is at a path."""
MOST_HOOKS = 2_000
"""In one directory. git knows thirty; a directory with more is moved as a whole."""
LARGEST_ITEM = 1 << 20
_LARGEST_CONFIG = 1 << 20
_LONGEST_POINTER = 8192
_CONFIGURATIONS = ("config", "config.worktree")
_GONE = frozenset({errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Somebody still works there; what they leave is looked at when they have ended."""

Signature = tuple[int, ...]
_NEVER = 1 << 62
"""A change time that counts as new."""


def open_up(path: str) -> int | None:
    """Let a directory that a command has closed be looked into: the mode it had, None when it is not ours, or gone."""
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
    """The files in a git directory that git obeys, and links and directories that stand in their places."""
    for name in ("commondir", *_CONFIGURATIONS):
        if os.path.lexists(path := os.path.join(git_dir, name)):
            yield path
    yield from hooks_in(os.path.join(git_dir, "hooks"))


def hooks_in(directory: str) -> Iterator[str]:
    """What git would run in a directory of hooks, or the directory itself when it is a link or cannot be listed."""
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
    """Where the `commondir` of a git directory leads, physically, as git goes there; None when there is none. Empty
    when the file is not one that git itself would write."""
    path = os.path.join(git_dir, "commondir")
    if not os.path.lexists(path):
        return None
    text = text_of(path, _LONGEST_POINTER + 1)
    if text is None or len(text) > _LONGEST_POINTER or "\0" in text:
        return ""
    return physical(os.path.join(git_dir, text.rstrip("\r\n")))


def is_linked(git_dir: str, common: str) -> bool:
    """Whether `common` is the repository that the git directory of a linked worktree stands in."""
    above = os.path.dirname(physical(git_dir))
    return os.path.basename(above) == "worktrees" and os.path.dirname(above) == common


def links_to_modules(directory: str) -> list[str]:
    """Symlinks in a directory by which git would get to the git directories of submodules."""
    links = [os.path.join(directory, "modules")]
    if _is_in_modules(directory):
        with contextlib.suppress(OSError):
            links = [entry.path for entry in os.scandir(directory)]
    elif not os.path.lexists(os.path.join(directory, "HEAD")):
        return []
    # one that leads nowhere may lead somewhere for another process
    return [one for one in links if os.path.islink(one) and not os.path.isfile(one) and not one.endswith("/HEAD")]


def _is_in_modules(path: str) -> bool:
    while path != "/":
        path, name = os.path.split(path)
        if name == "modules" and os.path.lexists(os.path.join(path, "HEAD")):
            return True
    return False


def make_harmless(git_dir: str, is_from_command: IsFromCommand) -> tuple[list[str], OSError | None]:
    """What was moved aside, and what kept something from being moved. Each part by itself: what cannot be done about
    one keeps no other from its turn."""
    moved: list[str] = []
    failed: OSError | None = None
    for look in (_commondir, _worktree_configuration, _configuration, _own_hooks):
        try:
            for one in look(git_dir, is_from_command):
                moved.append(one)
        except OSError as error:
            if error.errno not in _GONE:
                failed = error
    return moved, failed


def runs_something(git_dir: str) -> bool:
    """Whether git would run a hook of a git directory, or its configuration has a dangerous part."""
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
    """Give what a directory holds under a name another one."""
    try:
        with nofollow.opened(path) as directory:
            return list(_move(directory, path, name))
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return []


def make_obeyed_harmless(obeyed: GitConfigTarget, is_from_command: IsFromCommand) -> Iterator[str]:
    """The same for what the configuration of git names. Raises OSError."""
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
        if text is None or len(text) > _LARGEST_CONFIG:  # a link, something else, or more than anybody writes
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


def _own_hooks(git_dir: str, is_from_command: IsFromCommand) -> Iterator[str]:
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
    """Device, inode, change time, mode and contents (their digest) of what is at a path, and for a link of what it
    leads to as well. Empty when nothing is there."""
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
