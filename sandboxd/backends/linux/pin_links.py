"""Keeps symlinks from being replaced inside a sandbox that has been set up and does not run yet.

bubblewrap cannot do it: mount(2) follows a symlink. open_tree(2) and move_mount(2) do not, so the link is mounted on
itself, and a mount point can neither be removed nor renamed (EBUSY). This is done from outside: the user who owns the
sandbox's user namespace holds every capability in it, the sandboxed side holds none.

A program of its own, started with `python -I -S`, because setns(2) into a user namespace needs a process with one
thread. The standard library only. Arguments: the pid of the sandbox's process 1, then the links. Exit status 0 when all
are pinned; else one line on standard error says which is not, and the sandbox must not be started.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
from collections.abc import Sequence

_NS_GET_USERNS = 0xB701
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_OPEN_TREE_CLONE = 1
_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_MOVE_MOUNT_F_EMPTY_PATH = 4
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
"""The same numbers on every architecture (they were added after the tables were unified)."""

_libc = ctypes.CDLL(None, use_errno=True)


class PinError(Exception):
    """A link could not be pinned; the text says which and why."""


def command_line(python: str, pid: int, links: Sequence[str]) -> tuple[str, ...]:
    """How to start this program."""
    return (python, "-I", "-S", __file__, str(pid), *links)


def pin(pid: int, links: Sequence[str]) -> None:
    """Enter the mount namespace of a process and mount each link on itself. Leaves the caller in that namespace.
    Raises `PinError`."""
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    # not /proc/PID/ns/user: with --dev bubblewrap runs the command in a second user namespace, which does not own the
    # mounts (ioctl_ns(2))
    owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    _call("enter the user namespace", _libc.setns, owner, _CLONE_NEWUSER)
    _call("enter the mount namespace", _libc.setns, namespace, _CLONE_NEWNS)
    for link in links:
        path = os.fsencode(link)
        tree = _call(
            f"open {link}", _libc.syscall, _SYS_OPEN_TREE, _AT_FDCWD, path, _OPEN_TREE_CLONE | _AT_SYMLINK_NOFOLLOW
        )
        _call(f"pin {link}", _libc.syscall, _SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, path, _MOVE_MOUNT_F_EMPTY_PATH)
        os.close(tree)


def _call(what: str, function: ctypes._NamedFuncPointer, *arguments: int | bytes) -> int:
    result: int = function(*arguments)
    if result < 0:
        raise PinError(f"cannot {what}: {os.strerror(ctypes.get_errno())}")
    return result


def main(arguments: Sequence[str]) -> int:
    try:
        pin(int(arguments[0]), arguments[1:])
    except (PinError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
