"""The order in which overlays and what they cover are mounted."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from sandboxd.backends.linux.network.namespace_program import LateMount, MountMethod, NamespaceProgram
from sandboxd.backends.linux.network.namespace_request import HeldDescriptor
from sandboxd.backends.linux.session_overlays import MOST_MOUNTS, SessionOverlays, close_all, cover, has_mounts
from sandboxd.errors import LaunchError
from sandboxd.plan.filesystem.mounts import Mount, Operation


def lines(*points: str) -> bytes:
    return b"".join(f"1 2 0:3 / {point} rw - ext4 none rw\n".encode() for point in points)


def overlays(*targets: str) -> list[Mount]:
    return [Mount(Operation.OVERLAY, target, f"/o/{number}/upper") for number, target in enumerate(targets)]


class OneNamespace:
    """A worker whose programs all succeed."""

    async def take(self, namespace: int, program: NamespaceProgram) -> list[HeldDescriptor]:
        return [HeldDescriptor(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)) for _ in range(2)]


async def test_directories_that_could_not_be_made_are_tried_again(tmp_path: Path) -> None:
    """The launch that began with them ended before it needed them, and the next one finds room."""
    lower, root = tmp_path / "lower", tmp_path / "missing" / "session" / "tmp"
    lower.mkdir()
    made = SessionOverlays(OneNamespace())  # type: ignore[arg-type]
    overlay = [Mount(Operation.OVERLAY, str(lower), f"{root}/upper")]
    made.make_directories(overlay)
    await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name().startswith("overlay-")])
    (tmp_path / "missing").mkdir()
    close_all(await made.trees(0, overlay, None))
    assert (root / "upper").is_dir()
    await made.aclose()


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
