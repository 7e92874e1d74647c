"""The order in which overlays and what they cover are mounted."""

from __future__ import annotations

import pytest

from sandboxd.backends.linux.network.namespace_program import LateMount, MountMethod
from sandboxd.backends.linux.session_overlays import MOST_MOUNTS, cover, has_mounts
from sandboxd.errors import LaunchError
from sandboxd.plan.filesystem.mounts import Mount, Operation


def lines(*points: str) -> bytes:
    return b"".join(f"1 2 0:3 / {point} rw - ext4 none rw\n".encode() for point in points)


def overlays(*targets: str) -> list[Mount]:
    return [Mount(Operation.OVERLAY, target, f"/o/{number}/upper") for number, target in enumerate(targets)]


def test_topmost_mounts_below_are_taken_and_put_again() -> None:
    points = ("/", "/proc", "/tmp", "/tmpx", "/tmp/w", "/tmp/w/.git", "/tmp/a\\040b", "/tmp/gone//deleted", "/home/u/p")
    inside = lines(*points)
    steps = cover(overlays("/tmp", "/home/u"), inside)
    assert steps == [
        *(LateMount(MountMethod.TAKE, path) for path in ("/home/u/p", "/tmp/a b", "/tmp/w")),
        LateMount(MountMethod.PUT, "/home/u", tree=1, if_there=True),
        LateMount(MountMethod.PUT, "/home/u/p", tree=2, if_there=True),
        LateMount(MountMethod.PUT, "/tmp", tree=0, if_there=True),
        LateMount(MountMethod.PUT, "/tmp/a b", tree=3, if_there=True),
        LateMount(MountMethod.PUT, "/tmp/w", tree=4, if_there=True),
    ]


@pytest.mark.parametrize(
    ("point", "found"),
    [("/tmp/x", True), ("/tmp/a\\040b/c", True), ("/tmp", False), ("/tmpx/y", False), ("/srv/tmp/x", False)],
)
def test_mounts_of_the_host_in_a_directory(point: str, found: bool) -> None:
    others = b"1 2 0:3 /tmp/root /srv rw - ext4 none rw\n" + lines("/", "/home")
    assert has_mounts("/tmp", others + lines(point)) is found
    assert not has_mounts("/tmp", others)


def test_mounts_of_the_host_in_a_directory_with_a_blank() -> None:
    assert has_mounts("/home/a b", lines("/home/a\\040b/c"))
    assert not has_mounts("/home/a b", lines("/home/a"))


def test_an_overlay_in_another_follows_it() -> None:
    steps = cover(overlays("/tmp", "/tmp/h"), lines("/tmp", "/tmp/h/p", "/tmp/h/p/q"))
    assert [(one.how, one.target) for one in steps if isinstance(one, LateMount)] == [
        (MountMethod.TAKE, "/tmp/h/p"),
        *((MountMethod.PUT, path) for path in ("/tmp", "/tmp/h", "/tmp/h/p")),
    ]


def test_places_for_mounts_are_made_in_an_empty_directory() -> None:
    steps = cover([Mount(Operation.OVERLAY, "/tmp", "/o/tmp/alone")], lines("/tmp", "/tmp/a/b"))
    at = [step.target if isinstance(step, LateMount) else step.arguments[1] for step in steps[1:]]  # type: ignore[union-attr]
    assert at == ["/tmp", "/tmp/a", "/tmp/a/b", "/tmp/a/b"]


def test_too_many_mounts_are_an_error() -> None:
    with pytest.raises(LaunchError, match="501 paths in /tmp"):
        cover(overlays("/tmp"), lines(*(f"/tmp/{number}" for number in range(MOST_MOUNTS + 1))))
