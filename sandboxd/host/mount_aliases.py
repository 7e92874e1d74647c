"""Mount aliases: files and directories with several canonical paths.

A bind mount, or a file system that is mounted twice (a subvolume and the whole of it, say), gives its content a second
name, as a symlink does. A path that is closed under one name must not be open under the other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from sandboxd.paths import is_below, mount_field
from sandboxd.plan.host_facts import MountAliases

_PRIVATE = ("/proc", "/dev")
"""A sandbox has its own there."""


def aliases_by_mounts() -> MountAliases:
    """Return all pairs of which this user can reach both sides."""
    if sys.platform == "darwin":  # macOS: skip mount-alias detection, rules are by path
        return MountAliases()
    places: dict[str, dict[str, list[str]]] = {}
    mounted: set[str] = set()
    for line in filter(None, Path("/proc/self/mountinfo").read_bytes().split(b"\n")):
        device, root, point = (mount_field(line, number) for number in (2, 3, 4))
        mounted.add(point)
        if root.startswith("/") and not any(is_below(point, private) for private in _PRIVATE):
            places.setdefault(device, {}).setdefault(root, []).append(point)
    pairs = {
        (min(pair), max(pair)): None
        for roots in places.values()
        if sum(map(len, roots.values())) > 1
        for pair in _candidates(roots)
        if pair[0] != pair[1] and _are_one(*pair)
    }
    return MountAliases.of(pairs, mounted)


def _candidates(roots: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield, for each mount, the paths where other mounts of its file system show it."""
    for root, points in roots.items():
        above = root
        while True:
            below = root[len(above) :].strip("/")
            for other in roots.get(above, ()):
                for point in points:
                    yield point, os.path.join(other, below).rstrip("/") or "/"
            if above == "/":
                break
            above = os.path.dirname(above)


def _are_one(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:  # hidden by another mount, or unreadable
        return False
