"""Whether the mounts of a sandbox lie where the plan wants them. Pure: the texts come from proc_pid_mountinfo(5).

Between the plan and bubblewrap's mount(2) another sandbox that may write in the same place can swap a directory for a
symlink, and mount(2) follows it, in the source and in the target: a place outside would become writable. So before the
command starts it is looked up what was mounted where. A mount shows the true path of its root, whatever led there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from sandboxd.plan.mounts import Mount, Operation

_BINDS = frozenset({Operation.READ_ONLY, Operation.WRITABLE, Operation.DEVICE, Operation.MASK_FILE})
_EMPTY = frozenset({Operation.MASK_DIRECTORY, Operation.SHELF, Operation.REFUSE_NAME})
_APART = ("/dev/", "/proc/")
"""The sandbox's own file systems: nobody else can change anything there."""

_Shown = tuple[bytes, bytes, bytes]
"""Device, path of the root in its file system, type of the file system."""


def misplaced(mounts: Iterable[Mount], inside: bytes, outside: bytes) -> str | None:
    """The target of a mount that is not there or shows something else; None when all is well. `inside` are the mounts
    of the sandbox, `outside` those of the process that became bubblewrap."""
    within, around = _table(inside), _table(outside)
    for mount in mounts:
        if mount.target == "/" or mount.target.startswith(_APART):
            continue
        shown = within.get(_escape(mount.target), [])
        if mount.operation in _EMPTY:
            right = any(root == b"/" and kind == b"tmpfs" for _, root, kind in shown)
        elif mount.operation in _BINDS:
            expected = _origin(_escape(mount.source), around)
            right = any(one[:2] == expected for one in shown)
            if mount.source == mount.target:  # also from a mount point of the host the same must be seen
                allowed = {expected, *(one[:2] for one in around.get(_escape(mount.target), []))}
                right = right and all(one[:2] in allowed for one in shown)
        else:
            continue
        if not right:
            return mount.target
    return None


def _table(text: bytes) -> dict[bytes, list[_Shown]]:
    found: dict[bytes, list[_Shown]] = {}
    for line in text.splitlines():
        fields, _, rest = line.partition(b" - ")
        _, _, device, root, point, *_ = fields.split(b" ")
        found.setdefault(point, []).append((device, root, rest.split(b" ", 1)[0]))
    return found


def _origin(path: bytes, table: dict[bytes, list[_Shown]]) -> tuple[bytes, bytes] | None:
    """Device and root that a bind mount of a canonical path shows."""
    point = path
    while True:
        if point in table:
            device, root, _ = table[point][-1]
            rest = path[len(point.rstrip(b"/")) :]
            return device, root.rstrip(b"/") + rest or b"/"
        if point == b"/":
            return None
        point = point.rpartition(b"/")[0] or b"/"


def _escape(path: str) -> bytes:
    text = os.fsencode(path)
    for character, code in ((b"\\", b"\\134"), (b" ", b"\\040"), (b"\t", b"\\011"), (b"\n", b"\\012")):
        text = text.replace(character, code)
    return text
