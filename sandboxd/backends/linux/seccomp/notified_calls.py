"""The system calls that the helper is notified of (seccomp_unotify(2)). Data.

They wait until the helper has answered. A call on a descriptor (write, ftruncate, fchmod, futimens) is never among
them, but for an owner or a set-user-ID bit: its rights were settled when it was opened. filter.py turns the rows into a
program."""

from __future__ import annotations

from sandboxd.backends.linux.seccomp.syscall_table import (
    ALLOW,
    EOPNOTSUPP,
    EPERM,
    MACHINES,
    NEW_NAMESPACE,
    SYSCALLS,
    Action,
    Argument,
    ReturnValue,
    SyscallRule,
)

NOTIFY = Action(ReturnValue.NOTIFY)
SILENTLY = Action(ReturnValue.REFUSE)
"""Report success to the caller without an effect."""


def _row(calls: str, action: Action, why: str, *where: Argument) -> SyscallRule:
    return SyscallRule(tuple(calls.split()), action, why, where)


_AF_UNIX = 1
_CLONE_FILES, _CLONE_THREAD, _PR_SET_DUMPABLE, _SCTP = 0x400, 0x10000, 4, 132
_UNCHANGED = 0xFFFFFFFF  # the -1 of chown(2)
_REMOVEDIR = 0x200  # AT_REMOVEDIR
_S_ISUID = 0o4000
_INTENDS_TO_WRITE = 0x400243  # O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | __O_TMPFILE: the same on both machines

UNIX_SOCKETS_LISTED = (
    _row("socket socketpair", ALLOW,
        "where it connects or sends to is looked at: what was bound in the session, and what the policy opens",
        Argument(0, (_AF_UNIX,))),
    _row("clone", NOTIFY,
        "from then on no process counts as one that shares its descriptors with its threads only (leak checkers do)",
        Argument(0, (_CLONE_FILES,), _CLONE_FILES | _CLONE_THREAD | NEW_NAMESPACE)),
    _row("prctl", SILENTLY, "the helper looks at each socket, and refuses who cannot be looked at (ssh-agent)",
        Argument(0, (_PR_SET_DUMPABLE,)), Argument(1, (0,))),
    _row("setsockopt getsockopt", EOPNOTSUPP, "SCTP, which can only be handed in, binds and connects by them",
        Argument(1, (_SCTP,))),
)  # fmt: skip
"""Evaluated before all other rows."""

NAMES = (
    _row("open", ALLOW, "only reads", Argument(1, (0,), _INTENDS_TO_WRITE)),
    _row("openat", ALLOW, "only reads", Argument(2, (0,), _INTENDS_TO_WRITE)),
    _row("open openat", NOTIFY, "writes a file, or makes one"),
    _row("creat truncate", NOTIFY, "writes a file"),
    _row("mkdir mkdirat mknod mknodat link linkat symlink symlinkat", NOTIFY, "makes a name"),
    _row("rename renameat renameat2 unlink unlinkat rmdir", NOTIFY, "removes a name"),
)  # fmt: skip
"""The calls that write, make and remove: for reports, and where the helper does it for the command."""

CHANGES = (
    _row("utimensat", ALLOW, "without a path it is of a descriptor", Argument(1, (0,)), Argument(1, (0,), high=True)),
    _row("chmod fchmodat fchmodat2 chown lchown fchown fchownat utime utimes futimesat utimensat", NOTIFY,
        "changes what is known about a file"),
    _row("setxattr lsetxattr setxattrat removexattr lremovexattr removexattrat file_setattr", NOTIFY, "as above"),
)  # fmt: skip


def own_owner(user: int, group: int) -> tuple[SyscallRule, ...]:
    """Let `fchown` to the ids of the command go on, evaluated before `CHANGES`: each file of an archive has one."""
    same = (Argument(1, (user, _UNCHANGED)), Argument(2, (group, _UNCHANGED)))
    return (_row("fchown", ALLOW, "to an owner that exists inside, of a descriptor", *same),)


SET_USER_ID = (
    _row("chmod fchmod", NOTIFY, "the mode is set without the bit", Argument(1, (_S_ISUID,), _S_ISUID)),
    _row("fchmodat fchmodat2", NOTIFY, "as above", Argument(2, (_S_ISUID,), _S_ISUID)),
)  # fmt: skip
"""Evaluated before all other rows where writes are looked at."""

REMOVALS = (
    _row("rmdir", NOTIFY, "what keeps a name absent would fail to go, and git clean with it"),
    _row("unlinkat", NOTIFY, "as rmdir", Argument(2, (_REMOVEDIR,), _REMOVEDIR)),
)  # fmt: skip
"""For a filter without `NAMES`; removals of files are too frequent."""

_BTRFS = (0x5000940E, 0x50009401, 0x50009418, 0x50009417)  # BTRFS_IOC_{SUBVOL,SNAP}_CREATE{,_V2}

GUARD = (
    _row("umask", NOTIFY, "what the helper makes for the command has its mask"),
    _row("landlock_restrict_self", NOTIFY, "the helper lends nothing to a program that has confined itself"),
    _row("prctl", SILENTLY, "the helper looks at each path, and nothing is made for who cannot be looked at",
        Argument(0, (_PR_SET_DUMPABLE,)), Argument(1, (0,))),
    _row("ioctl", EPERM, "makes names past Landlock (BTRFS_IOC_SUBVOL_CREATE and the like)", Argument(1, _BTRFS)),
)  # fmt: skip
"""For names that the helper keeps absent: what decides how one is made, besides `NAMES`."""

READS = (_row("open openat", NOTIFY, "opens a file, which may be one that must not be read"),)
"""Evaluated before `NAMES`."""

CONNECTS = (_row("connect", NOTIFY, "waits until it is known whether the far end can be reached"),)


SERVERS = (_row("listen", NOTIFY, "other commands of the session are to reach the server"),)

SOCKETS_HANDED_IN = (
    _row("sendto", ALLOW, "without an address", Argument(5, (0,))),
    _row("sendto sendmsg sendmmsg bind listen", NOTIFY,
        "it may have an address (MSG_FASTOPEN); and a server outside may have handed in a socket of another network"),
)  # fmt: skip
"""For Unix sockets that are decided on one by one."""


def call_name(number: int, machine: str) -> str:
    """Return the name of a system call by its number on `machine`, else the number."""
    column = MACHINES[machine].column
    return next((name for name, numbers in SYSCALLS.items() if numbers[column] == number), str(number))
