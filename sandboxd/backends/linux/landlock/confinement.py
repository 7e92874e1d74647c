"""Landlock, the second layer of files: what each version of it can hold back, and where it grants what. Pure.

Mounts decide what can be written, and this only adds to them. It holds where they do not reach: a FIFO can be written
on a mount that is read-only, and a file that was opened outside, as standard input, is opened for writing through
/proc/self/fd on the mount that it came from. The descriptor of a directory that a server outside has handed in leads to
mounts of the host: names are made, removed and moved below the granted places only. And it keeps signals in: with a
terminal a command shares the process group of the shell's job. Source: landlock(7),
Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, replace
from enum import IntFlag

from sandboxd.backends.linux.helper.launch_configuration import Confinement
from sandboxd.plan.filesystem.mounts import FileView, Operation


class Access(IntFlag):
    """Accesses to files (LANDLOCK_ACCESS_FS_*)."""

    WRITE_FILE = 1 << 1
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    """To another directory, by rename or link. Where there is Landlock at all it is refused unless it is granted."""
    TRUNCATE = 1 << 14


class Scope(IntFlag):
    SIGNAL = 1 << 1


class Quiet(IntFlag):
    """Flags of landlock_restrict_self(2): a command could fill the host's audit log with what is refused to it."""

    SAME_EXEC_OFF = 1 << 0
    SUBDOMAINS_OFF = 1 << 2


FILES = "landlock"
FILES_WEAKER = "landlock-weaker"
SIGNALS = "landlock-signals"


@dataclass(frozen=True, slots=True)
class LandlockVersion:
    """What is asked of a kernel whose version of Landlock is at least `version`."""

    version: int
    linux: str
    confinement: Confinement
    layers: tuple[str, ...]
    lacks: str = ""
    """What it does not hold back, for people."""


_NAMES = (
    Access.REMOVE_DIR | Access.REMOVE_FILE | Access.MAKE_CHAR | Access.MAKE_DIR | Access.MAKE_REG | Access.MAKE_SOCK
    | Access.MAKE_FIFO | Access.MAKE_BLOCK | Access.MAKE_SYM | Access.REFER
)  # fmt: skip
_WRITE = Access.WRITE_FILE | _NAMES
_ALL = _WRITE | Access.TRUNCATE
TABLE: tuple[LandlockVersion, ...] = (
    LandlockVersion(
        7, "6.15", Confinement(_ALL, Scope.SIGNAL, Quiet.SAME_EXEC_OFF | Quiet.SUBDOMAINS_OFF, granted=_ALL),
        (FILES, SIGNALS),
    ),
    LandlockVersion(
        6, "6.12", Confinement(_ALL, Scope.SIGNAL, granted=_ALL),
        (FILES, SIGNALS),
    ),
    LandlockVersion(
        3, "6.2", Confinement(_ALL, granted=_ALL),
        (FILES,), "signals to other programs of the same job are not held back",
    ),
    LandlockVersion(
        2, "5.19", Confinement(_WRITE, granted=_WRITE),
        (FILES_WEAKER,),
        "a file given as standard input can be emptied; signals to other programs of the same job are not held back",
    ),
)  # fmt: skip
"""The first that fits counts. Version 1 refuses every rename to another directory, so it is of no use."""


def row_for(version: int) -> LandlockVersion | None:
    return next((row for row in TABLE if version >= row.version), None)


@dataclass(frozen=True, slots=True)
class Landlock:
    """What this machine has. `confinement` is None where it is not used, and `reason` says why; where less than
    everything is held back, `reason` says what is missing. `slug` names a kernel that promises and does not keep it."""

    confinement: Confinement | None = None
    layers: tuple[str, ...] = ()
    reason: str = ""
    version: int = 0
    slug: str = ""

    def confine(self, roots: tuple[bytes, ...]) -> Confinement | None:
        """What the helper is told for a sandbox where `roots` can be written."""
        return None if self.confinement is None else replace(self.confinement, roots=roots)


_WRITABLE = frozenset({Operation.WRITABLE, Operation.DEVICE, Operation.DEVICES, Operation.PROCESSES})


NO_LANDLOCK = Landlock(reason="it has not been looked for")


def writable_roots(view: FileView) -> tuple[bytes, ...]:
    """The topmost places of a view in which something can be written. What is read-only in one of them, mounts keep."""
    roots: list[str] = []
    kept: set[str] = set()
    for mount in view.mounts:  # parents come first
        if mount.operation in _WRITABLE and not any(above in kept for above in _at_and_above(mount.target)):
            kept.add(mount.target)
            roots.append(mount.target)
    return tuple(map(os.fsencode, roots))


def _at_and_above(path: str) -> list[str]:
    found = [path]
    while path != "/":
        path = posixpath.dirname(path)
        found.append(path)
    return found
