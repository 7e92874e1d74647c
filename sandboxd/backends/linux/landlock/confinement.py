"""Landlock, the second layer for files: rights by version, and grants. Pure.

Mounts decide what can be written, and Landlock only adds to them, where they do not reach. A FIFO can be written on a
read-only mount. A file that was opened outside, as standard input, can be opened for writing through /proc/self/fd on
its original mount. The descriptor of a directory from a server outside leads to mounts of the host: names are made,
removed and moved below the granted places only. Landlock also confines signals: with a terminal a command shares the
process group of the shell's job. Source: landlock(7), Documentation/userspace-api/landlock.rst."""

from __future__ import annotations

import os
from dataclasses import replace
from enum import IntFlag

from sandboxd.backends.linux.helper.launch_configuration import Confinement, Guard
from sandboxd.plan.filesystem.mounts import FileView, writable_tops
from sandboxd_client.records import dataclass


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
    """Rename or link to another directory; every version refuses it unless granted."""
    TRUNCATE = 1 << 14


class Scope(IntFlag):
    SIGNAL = 1 << 1


class Quiet(IntFlag):
    """Flags of landlock_restrict_self(2), so that no command fills the audit log."""

    SAME_EXEC_OFF = 1 << 0
    SUBDOMAINS_OFF = 1 << 2


FILES = "landlock"
FILES_WEAKER = "landlock-weaker"
SIGNALS = "landlock-signals"


@dataclass(frozen=True, slots=True)
class LandlockVersion:
    """The rights that are used from a version of Landlock on."""

    version: int
    linux: str
    confinement: Confinement
    layers: tuple[str, ...]
    lacks: str = ""
    """The accesses that it does not confine, for messages."""


_NAMES = (
    Access.REMOVE_DIR | Access.REMOVE_FILE | Access.MAKE_CHAR | Access.MAKE_DIR | Access.MAKE_REG | Access.MAKE_SOCK
    | Access.MAKE_FIFO | Access.MAKE_BLOCK | Access.MAKE_SYM | Access.REFER
)  # fmt: skip
LENT = _NAMES & ~(Access.MAKE_SOCK | Access.REFER) | Access.WRITE_FILE | Access.TRUNCATE
"""The accesses that a command has in a zone by the helper only: a name that it makes can be read as a file, or as a
directory of files. A rename takes several of them."""
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
        (FILES,), "signals to other programs of the same job are not confined",
    ),
    LandlockVersion(
        2, "5.19", Confinement(_WRITE, granted=_WRITE),
        (FILES_WEAKER,),
        "a file given as standard input can be emptied; signals to other programs of the same job are not confined",
    ),
)  # fmt: skip
"""The first match counts. Version 1 is unusable: it refuses most renames."""


def row_for(version: int) -> LandlockVersion | None:
    return next((row for row in TABLE if version >= row.version), None)


@dataclass(frozen=True, slots=True)
class Landlock:
    """The Landlock of this machine; `confinement` is None where it is not used.

    `reason` says why, or which accesses are not confined. `slug` names a kernel that does not keep its promise."""

    confinement: Confinement | None = None
    layers: tuple[str, ...] = ()
    reason: str = ""
    version: int = 0
    slug: str = ""

    def confine(self, roots: tuple[bytes, ...]) -> Confinement | None:
        """Return the confinement for a sandbox where `roots` can be written."""
        return None if self.confinement is None else replace(self.confinement, roots=roots)

    def guard(self, view: FileView) -> Guard | None:
        """Return what the helper is told of guarded names: in their zones, only the helper makes any."""
        if not view.guards or self.confinement is None:
            return None
        zones, names = (tuple(map(os.fsencode, paths)) for paths in (view.zones, view.guards))
        return Guard(self.confinement.granted & ~LENT, zones, names)


NO_LANDLOCK = Landlock(reason="it was not probed")


def writable_roots(view: FileView) -> tuple[bytes, ...]:
    """Return the topmost writable places of a view that are no zones: with a zone at `/` those of devices, too."""
    return tuple(map(os.fsencode, writable_tops(view, frozenset(view.zones))))
