"""What is done to a sandbox after bubblewrap and before its command: its mounts are checked, the late ones are made,
and its network is set up, by another process and meanwhile."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable
from weakref import WeakKeyDictionary

from sandboxd.backends.base import Listeners
from sandboxd.backends.linux import late_mounts
from sandboxd.backends.linux.bwrap import BwrapOptions
from sandboxd.backends.linux.capture import Capture
from sandboxd.backends.linux.late_mounts import LateMount
from sandboxd.backends.linux.netns import NamespaceHold, NamespaceWorker
from sandboxd.backends.linux.placement import Expected, expected_mounts, misplaced
from sandboxd.errors import LaunchError

_expected: WeakKeyDictionary[BwrapOptions, tuple[bytes, tuple[Expected, ...]]] = WeakKeyDictionary()
"""For the mounts of the host that it was worked out from."""


def complete(
    pid: int,
    bubblewrap: int,
    listeners: Listeners,
    *,
    options: BwrapOptions,
    worker: NamespaceWorker,
    capture: Capture | None,
) -> Awaitable[None] | None:
    """What is to be done to a sandbox before its command may start; `pid` is its process 1. Raises LaunchError."""
    capturing = capture.begin(worker, listeners.namespace) if capture is not None else None
    listeners.inside, listeners.namespace = NamespaceHold(worker, listeners.namespace), -1
    try:
        _check_mounts(pid, bubblewrap, options)
    except LaunchError:
        if capturing is not None:
            capturing.cancel()
        raise
    if capture is None or capturing is None:
        return _mount_late(pid, options.late) if options.late else None
    return _finish(pid, options.late, listeners, capture, capturing)


async def _finish(
    pid: int,
    late: tuple[LateMount, ...],
    listeners: Listeners,
    capture: Capture,
    capturing: asyncio.Future[list[socket.socket]],
) -> None:
    capture.hand_over(await capturing, listeners)
    if late:
        await _mount_late(pid, late)


def _check_mounts(pid: int, bubblewrap: int, options: BwrapOptions) -> None:
    try:
        inside, outside = _read(f"/proc/{pid}/mountinfo"), _read(f"/proc/{bubblewrap}/mountinfo")
    except OSError as error:
        raise LaunchError("launch_failed", f"the sandbox ended before it was complete: {error.strerror}") from error
    known = _expected.get(options)
    if known is None or known[0] != outside:
        known = _expected[options] = outside, expected_mounts(options.mounts, outside)
    if (wrong := misplaced(known[1], inside)) is not None:
        raise LaunchError(
            "mount_misplaced",
            f"{wrong} was moved or replaced while the sandbox was made",
            hint="try again; when it happens again, a command that still runs in the same place does this",
            data={"path": wrong},
        )


def _read(path: str) -> bytes:
    """In one piece, as the kernel makes it."""
    with open(path, "rb", buffering=0) as file:
        return file.readall()


async def _mount_late(pid: int, mounts: tuple[LateMount, ...]) -> None:
    process = await asyncio.create_subprocess_exec(
        *late_mounts.command_line(sys.executable, pid),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, words = await process.communicate(late_mounts.encode(mounts))
    if process.returncode:
        why = words.decode(errors="replace").strip() or f"status {process.returncode}"
        raise LaunchError("mount_failed", why, hint="try again; if it stays, remove what stands at that path")
