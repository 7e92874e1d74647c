"""Mounts in a sandbox that has been set up and does not run yet: what bubblewrap cannot do, or only slowly.

- A symlink is mounted on itself, so that nobody can replace it. mount(2), which bubblewrap uses, follows the link;
  open_tree(2) and move_mount(2) do not, and a mount point can neither be removed nor renamed (EBUSY).
- Mounts beyond the number that bubblewrap takes (`splitting`): copies of a mask that it has made already, and
  directories and files mounted on themselves.

Targets are opened by openat2(2) without following any symlink, so nothing lands where another sandbox leads it.

This is done from outside: the user who owns the sandbox's user namespace holds every capability in it, the sandboxed
side holds none. A program of its own, started with `python -I -S`, because setns(2) into a user namespace needs a
process with one thread. The standard library only. Argument: the pid of the sandbox's process 1. Standard input: what
`encode` gives. Exit status 0 when everything is done; else one line on standard error says what is not, and the sandbox
must not be started.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

_NS_GET_USERNS = 0xB701
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_OPEN_TREE_CLONE = 1
_O_PATH = os.O_PATH | os.O_CLOEXEC  # without O_NOFOLLOW, which would open a symlink at the end
_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_MOVE_MOUNT_F_EMPTY_PATH = 0x04
_MOVE_MOUNT_T_EMPTY_PATH = 0x40
_READ_ONLY_ATTRIBUTE = struct.pack("QQQQ", 1, 0, 0, 0)
_RESOLVE_NO_SYMLINKS = 4
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_OPENAT2 = 437
_SYS_MOUNT_SETATTR = 442
"""The same numbers on every architecture (they were added after the tables were unified)."""

_libc = ctypes.CDLL(None, use_errno=True)


class How(Enum):
    """What is mounted on a path."""

    LINK = b"link"
    """The symlink that stands there."""
    SAME = b"same"
    """What is there."""
    READ_ONLY = b"read-only"
    """What is there, read-only."""
    COPY = b"copy"
    """What is mounted at the source."""


class LateMount(NamedTuple):
    """One mount. `source` is that of a COPY."""

    how: How
    target: str
    source: str = ""


class LateMountError(Exception):
    """Something could not be mounted; the text says what and why."""


def command_line(python: str, pid: int) -> tuple[str, ...]:
    """How to start this program."""
    return (python, "-I", "-S", __file__, str(pid))


def encode(mounts: Iterable[LateMount]) -> bytes:
    """Three texts for each mount, NUL after each."""
    words = (word for mount in mounts for word in (mount.how.value, *map(os.fsencode, mount[1:])))
    return b"".join(word + b"\0" for word in words)


def decode(text: bytes) -> list[LateMount]:
    words = text.split(b"\0")[:-1]
    return [
        LateMount(How(how), os.fsdecode(target), os.fsdecode(source))
        for how, target, source in zip(*[iter(words)] * 3, strict=True)
    ]


def mount_all(pid: int, mounts: Iterable[LateMount]) -> None:
    """Enter the mount namespace of a process and make the mounts, in order. Leaves the caller in that namespace. Raises
    `LateMountError`."""
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    # not /proc/PID/ns/user: with --dev bubblewrap runs the command in a second user namespace, which does not own the
    # mounts (ioctl_ns(2))
    owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    _call("enter the user namespace", _libc.setns, owner, _CLONE_NEWUSER)
    _call("enter the mount namespace", _libc.setns, namespace, _CLONE_NEWNS)
    sources: dict[str, int] = {}
    for mount in mounts:
        if mount.how is How.LINK:
            _pin(mount.target)
            continue
        target = _open(mount.target)
        source = target
        if mount.how is How.COPY:
            if mount.source not in sources:
                sources[mount.source] = _open(mount.source)
            source = sources[mount.source]
        flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE
        tree = _call(f"copy the mount for {mount.target}", _libc.syscall, _SYS_OPEN_TREE, source, b"", flags)
        if mount.how is How.READ_ONLY:
            flags = _AT_EMPTY_PATH | _AT_RECURSIVE
            attribute = _READ_ONLY_ATTRIBUTE
            what = f"make {mount.target} read-only"
            _call(what, _libc.syscall, _SYS_MOUNT_SETATTR, tree, b"", flags, attribute, len(attribute))
        flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
        _call(f"mount {mount.target}", _libc.syscall, _SYS_MOVE_MOUNT, tree, b"", target, b"", flags)
        os.close(tree)
        os.close(target)


def _pin(path: str) -> None:
    """A symlink has no descriptor to mount on, so its directory is opened, and its name is not followed."""
    directory, name = os.path.split(path)
    parent = _open(directory, path)
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_SYMLINK_NOFOLLOW
    tree = _call(f"open {path}", _libc.syscall, _SYS_OPEN_TREE, parent, os.fsencode(name), flags)
    to = os.fsencode(name)
    _call(f"mount {path}", _libc.syscall, _SYS_MOVE_MOUNT, tree, b"", parent, to, _MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)
    os.close(parent)


def _open(path: str, meant: str = "") -> int:
    how = struct.pack("QQQ", _O_PATH, 0, _RESOLVE_NO_SYMLINKS)
    return _call(f"open {meant or path}", _libc.syscall, _SYS_OPENAT2, _AT_FDCWD, os.fsencode(path), how, len(how))


def _call(what: str, function: ctypes._NamedFuncPointer, *arguments: int | bytes) -> int:
    result: int = function(*arguments)
    if result < 0:
        raise LateMountError(f"cannot {what}: {os.strerror(ctypes.get_errno())}")
    return result


def main(pid: int, text: bytes) -> int:
    try:
        mount_all(pid, decode(text))
    except (LateMountError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.stdin.buffer.read()))
