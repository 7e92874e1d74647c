"""The mount check: compare a sandbox's mounts with the plan. Pure.

Between the plan and bubblewrap's mount(2) another sandbox that may write in the same place can swap a directory for a
symlink. mount(2) follows it, in source and target: a place outside would become writable. So the mounts are checked
before the command starts. proc_pid_mountinfo(5) shows the true path of a mount's root."""

from __future__ import annotations

import os
from collections.abc import Iterable

from sandboxd.plan.filesystem.mounts import Mount, Operation
from sandboxd_client.records import dataclass

_BINDS = frozenset({Operation.ENTRY, Operation.READ_ONLY, Operation.WRITABLE, Operation.DEVICE, Operation.MASK_FILE})
_EMPTY = frozenset({Operation.MASK_DIRECTORY, Operation.LISTABLE_DIRECTORY, Operation.REFUSE_NAME})
_APART = ("/dev/", "/proc/")
"""The sandbox's own file systems, which no other process can change."""

_Shown = tuple[bytes, bytes, bytes]
"""Device, path of the root in its file system, and the rest of the line."""


@dataclass(frozen=True, slots=True)
class ExpectedMount:
    """One mount as mountinfo has to show it.

    `shows` are (device, root) pairs of which one must be there, None for an empty file system of the sandbox. With
    `only` no other mount may be at that point."""

    target: str
    point: bytes
    shows: frozenset[tuple[bytes, bytes]] | None
    only: frozenset[tuple[bytes, bytes]] | None = None
    may_miss: bool = False


def expected_mounts(mounts: Iterable[Mount], outside: bytes) -> tuple[ExpectedMount, ...]:
    """Return the expected mounts of a sandbox with these mounts.

    `outside` are the mounts of the process that became bubblewrap. The result is valid for a place as long as `outside`
    is."""
    around = _table(outside)
    found = []
    for mount in mounts:
        if mount.target == "/" or mount.target.startswith(_APART):
            continue
        point = escaped(mount.target)
        if mount.operation in _EMPTY:
            found.append(ExpectedMount(mount.target, point, None))
        elif mount.operation in _BINDS:
            origin = _origin(escaped(mount.source), around)
            shows = frozenset() if origin is None else frozenset({origin})
            only = None
            if mount.source == mount.target:  # the same must appear, also at a mount point of the host
                only = shows.union(one[:2] for one in around.get(point, []))
            found.append(ExpectedMount(mount.target, point, shows, only, mount.operation is Operation.ENTRY))
    return tuple(found)


def misplaced(expected: Iterable[ExpectedMount], inside: bytes) -> str | None:
    """Return the target of a wrong or missing mount `inside` a sandbox, else None."""
    within = _table(inside)
    for one in expected:
        shown = within.get(one.point, ())
        if one.shows is None:
            right = any(root == b"/" and rest.partition(b" - ")[2].startswith(b"tmpfs ") for _, root, rest in shown)
        elif one.may_miss and not shown:
            right = True
        else:
            seen = {(device, root) for device, root, _ in shown}
            right = not one.shows.isdisjoint(seen) and (one.only is None or seen <= one.only)
        if not right:
            return one.target
    return None


def _table(text: bytes) -> dict[bytes, list[_Shown]]:
    found: dict[bytes, list[_Shown]] = {}
    for line in filter(None, text.split(b"\n")):  # the kernel escapes newlines only
        _, _, device, root, point, rest = line.split(b" ", 5)
        found.setdefault(point, []).append((device, root, rest))
    return found


def _origin(path: bytes, table: dict[bytes, list[_Shown]]) -> tuple[bytes, bytes] | None:
    """Return the device and root that a bind mount of a canonical path shows."""
    point = path
    while True:
        if point in table:
            device, root, _ = table[point][-1]
            rest = path[len(point.rstrip(b"/")) :]
            return device, root.rstrip(b"/") + rest or b"/"
        if point == b"/":
            return None
        point = point.rpartition(b"/")[0] or b"/"


def escaped(path: str) -> bytes:
    """Return a path as mountinfo shows it."""
    text = os.fsencode(path)
    for character, code in ((b"\\", b"\\134"), (b" ", b"\\040"), (b"\t", b"\\011"), (b"\n", b"\\012")):
        text = text.replace(character, code)
    return text
