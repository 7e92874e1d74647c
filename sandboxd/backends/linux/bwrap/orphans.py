"""Ends what bubblewrap leaves behind when it is killed at the wrong moment.

bubblewrap forks a child for the new namespaces, and the child waits on an eventfd until the parent has mapped its user.
When the parent is killed in between (a client that is interrupted just after it has started a command), nobody ever
writes to that eventfd: the child waits for ever, `--die-with-parent` or not, and the helper, which would notice, has
not been started in it yet. Nothing has run in such a sandbox; only the process is left. (Seen with 0.8: one in five,
when killed within its first 4 ms.)

Such a child can be told from all others: it holds the helper as descriptor 4 and is not yet the helper; and the process
behind descriptor 6, a pidfd of bubblewrap, is not its parent any more.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Sequence

_HELPER = "/apply-seccomp"
_ENDED_WITHIN_MS = 2000
"""A process that is killed in a system call which cannot be interrupted may take any time."""


def end_orphans() -> tuple[int, ...]:
    """Kills every such child that belongs to this user, whoever started it, and returns their process numbers.

    Looks through /proc once. A child whose parent has just died and that is not stuck is killed too: the helper in it
    would end for the same reason.
    """
    return tuple(pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _end_if_straggler(pid))


def _end_if_straggler(pid: int) -> bool:
    try:
        if not _is_straggler(pid):
            return False
        pidfd = os.pidfd_open(pid)
    except OSError:  # gone, or not ours
        return False
    try:
        # Once more: between the look and the pidfd the number may have passed to somebody else.
        if _is_straggler(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return True
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return False


def _is_straggler(pid: int) -> bool:
    """Raises OSError when the process is gone or its descriptors are not for us to see."""
    if not os.readlink(f"/proc/{pid}/fd/4").endswith(_HELPER) or os.readlink(f"/proc/{pid}/exe").endswith(_HELPER):
        return False
    bubblewrap = _number(f"/proc/{pid}/fdinfo/6", "Pid:")
    # -1: dead. A bubblewrap that has not forked yet holds a pidfd of itself.
    return bubblewrap is not None and bubblewrap not in (pid, _number(f"/proc/{pid}/status", "PPid:"))


def _number(path: str, key: str) -> int | None:
    with open(path, encoding="ascii", errors="replace") as file:
        return next((int(line[len(key) :]) for line in file if line.startswith(key)), None)


def end_processes(pidfds: Sequence[int]) -> None:
    """Kill these, and wait until they are gone: process 1 of a namespace is when all in it are."""
    for pidfd in pidfds:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    for pidfd in pidfds:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(_ENDED_WITHIN_MS)
