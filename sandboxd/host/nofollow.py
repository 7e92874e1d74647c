"""File operations in places that a sandbox may write, which follow no symlink.

A running command can put a symlink in the place of a directory while the daemon works there, and so redirect the
operation. So a directory is opened by openat2(2) with RESOLVE_NO_SYMLINKS, and everything in it is done relative to
that descriptor."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_libc = ctypes.CDLL(None, use_errno=True)
_SYS_OPENAT2 = 437  # on every architecture
_AT_FDCWD = -100
_RESOLVE_NO_SYMLINKS = 4
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Hold a descriptor (O_PATH) of a directory. Raises OSError."""
    how = struct.pack("QQQ", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS)
    descriptor: int = _libc.syscall(_SYS_OPENAT2, _AT_FDCWD, os.fsencode(path), how, len(how))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def made_accessible(path: str) -> Iterator[None]:
    """Make a directory writable, and those above it searchable, where the owner can.

    The modes are restored afterwards. Raises OSError where another user has closed a directory."""
    step = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    way = [os.open("/", step)]
    modes: list[tuple[int, int]] = []

    def open_up_last() -> None:
        mode = open_up(way[-1])
        if mode is None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        modes.append((way[-1], mode))

    try:
        for name in filter(None, path.split("/")):
            try:
                way.append(os.open(name, step, dir_fd=way[-1]))
            except PermissionError:
                open_up_last()
                way.append(os.open(name, step, dir_fd=way[-1]))
        if not os.access(f"/proc/self/fd/{way[-1]}", os.W_OK | os.X_OK):
            open_up_last()
        yield
    finally:
        for directory, mode in reversed(modes):
            set_mode(directory, mode)
        for directory in way:
            os.close(directory)


def open_up(directory: int) -> int | None:
    """Let the owner list and change a directory; return its old mode, else None."""
    state = os.fstat(directory)
    if state.st_uid != os.geteuid():
        return None
    mode = stat.S_IMODE(state.st_mode)
    set_mode(directory, mode | stat.S_IRWXU)
    return mode


def set_mode(directory: int, mode: int) -> None:
    os.chmod(f"/proc/self/fd/{directory}", mode)  # fchmod(2) takes no O_PATH


def mode_of(directory: int, name: str) -> int:
    """Return type and permissions of an entry (inode(7)), 0 when it does not exist."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except OSError:
        return 0


def read(directory: int, name: str, limit: int) -> str | None:
    """Return at most `limit` bytes and one of a regular file's text, or None."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_THERE or error.errno == errno.EACCES:
            return None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        return None
    with open(file, "rb") as stream:
        return os.fsdecode(stream.read(limit + 1))


def create(directory: int, name: str, text: str) -> None:
    """Create a file. Raises FileExistsError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o644, dir_fd=directory), "wb") as stream:
        stream.write(os.fsencode(text))


def move_aside(directory: int, name: str) -> str | None:
    """Rename an entry so that no program obeys it; return its new name.

    None when it is gone. Missing write permission is added: a command may have removed it to prevent this step."""
    aside = f"{name}.refused-{secrets.token_hex(4)}"
    try:
        try:
            os.rename(name, aside, src_dir_fd=directory, dst_dir_fd=directory)
        except PermissionError:
            if open_up(directory) is None:
                raise
            os.rename(name, aside, src_dir_fd=directory, dst_dir_fd=directory)
    except FileNotFoundError:
        return None
    return aside
