"""Orphans: the search for processes that a killed bubblewrap leaves behind.

bubblewrap forks a child for the new namespaces, and the child waits on an eventfd until the parent has mapped its user.
When the parent is killed in between (a client that is interrupted just after it has started a command), the eventfd is
never written. The child waits for ever, `--die-with-parent` or not, and the helper, which would notice, has not been
started in it yet. Nothing has run in such a sandbox. (Seen with 0.8: one in five, when killed within its first 4 ms.)

Two marks identify such a child: it holds the helper as descriptor 4 and is not yet the helper; and the process behind
descriptor 6, a pidfd of bubblewrap, is no longer its parent."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Sequence

_HELPER = "/apply-seccomp"
_ENDED_WITHIN_MS = 2000
"""A killed process may stay in an uninterruptible system call for any time."""


def end_orphans() -> tuple[int, ...]:
    """Kill every orphan of this user; return the process numbers.

    Looks through /proc once. A child whose parent has just died and that is not stuck is killed too: the helper in it
    would end for the same reason."""
    return tuple(pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _end_if_orphan(pid))


def _end_if_orphan(pid: int) -> bool:
    try:
        if not _is_orphan(pid):
            return False
        pidfd = os.pidfd_open(pid)
    except OSError:  # gone, or another user's
        return False
    try:
        # Check again: another process may have got the number before the pidfd was opened.
        if _is_orphan(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return True
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return False


def _is_orphan(pid: int) -> bool:
    """Raise OSError when the process is gone or its descriptors cannot be read."""
    if not os.readlink(f"/proc/{pid}/fd/4").endswith(_HELPER) or os.readlink(f"/proc/{pid}/exe").endswith(_HELPER):
        return False
    bubblewrap = _number(f"/proc/{pid}/fdinfo/6", "Pid:")
    # -1: dead. A bubblewrap that has not forked yet holds a pidfd of itself.
    return bubblewrap is not None and bubblewrap not in (pid, _number(f"/proc/{pid}/status", "PPid:"))


def _number(path: str, key: str) -> int | None:
    with open(path, encoding="ascii", errors="replace") as file:
        return next((int(line[len(key) :]) for line in file if line.startswith(key)), None)


def end_processes(pidfds: Sequence[int]) -> None:
    """Kill processes, and wait until they and all in their namespaces are gone."""
    for pidfd in pidfds:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    for pidfd in pidfds:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(_ENDED_WITHIN_MS)
