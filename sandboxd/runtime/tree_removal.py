"""Removal of directory trees that commands could write.

Works by directory descriptors with no-follow throughout, so that a name swapped for a symlink never leads outside.
Modes that forbid listing are changed first. A tree deeper than the descriptors that a process may hold is flattened as
it is removed: a directory below `_DEEPEST` is moved to the top and removed from there."""

from __future__ import annotations

import contextlib
import os
import secrets

_DEEPEST = 32
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str) -> None:
    """Remove `path` and all below it.

    Missing is fine, also when another process removes it at the same time; what cannot be removed (a mount point,
    another user's file) is left, and raises the OSError that says why."""
    try:
        top = _open_directory(path, None)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(path)
        return
    try:
        while names := os.listdir(top):
            for name in names:
                _remove(top, top, name, 1)
    finally:
        os.close(top)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


def _remove(top: int, parent: int, name: str, depth: int) -> None:
    try:
        os.unlink(name, dir_fd=parent)
        return
    except FileNotFoundError:
        return
    except OSError:  # EISDIR on Linux, EPERM by POSIX: a directory
        pass
    if depth > _DEEPEST:
        os.close(_open_directory(name, parent))  # moving a directory needs the right to write it: its ".." changes
        os.rename(name, secrets.token_hex(8), src_dir_fd=parent, dst_dir_fd=top)
        return
    try:
        directory = _open_directory(name, parent)
    except FileNotFoundError:
        return
    try:
        for inner in os.listdir(directory):
            _remove(top, directory, inner, depth + 1)
    finally:
        os.close(directory)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent)


def _open_directory(name: str, parent: int | None) -> int:
    """Open the directory, and make it listable and writable for its owner."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=parent)
    except PermissionError:
        _open_up(name, parent)
        descriptor = os.open(name, _OPEN, dir_fd=parent)
    if os.fstat(descriptor).st_mode & 0o300 != 0o300:
        os.fchmod(descriptor, 0o700)
    return descriptor


def _open_up(name: str, parent: int | None) -> None:
    """Change a mode without following a symlink.

    By a path-only descriptor on Linux, whose fchmodat would follow; directly where the system has one that does not."""
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        return
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)
