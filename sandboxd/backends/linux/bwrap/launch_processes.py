"""The two processes of which each ends a launch: bubblewrap and process 1."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

from sandboxd.backends.linux.bwrap.orphans import end_orphans

_ORPHANS_AFTER_S = 0.1


class OrphanSearch:
    """Ends orphans soon after it is asked to: bubblewrap's end ends process 1, but not a child before it.

    A look reads all of /proc, so one is for all that have asked. `found` receives the processes that were ended."""

    def __init__(self, found: Callable[[tuple[int, ...]], None]) -> None:
        self._found = found
        self._timer: asyncio.TimerHandle | None = None
        self._again = False

    def ask(self) -> None:
        self._again = self._timer is not None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_ORPHANS_AFTER_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._again:  # for those that asked meanwhile it is too early
            self.ask()
        if pids := end_orphans():
            self._found(pids)

    def close(self) -> None:
        """Look now, if asked to, and never again."""
        if self._timer is not None:
            self._timer.cancel()
            self._again = False
            self._look()


class LaunchProcesses:
    """The pidfds of both; `ended_early` is called when bubblewrap has ended before process 1 was known."""

    def __init__(self, bubblewrap: int, pidfd: int, ended_early: Callable[[], None]) -> None:
        self.bubblewrap = bubblewrap
        self.pidfd = pidfd
        self.init: int | None = None
        """The init pid."""
        self.init_pidfd = -1
        self._ended_early = ended_early
        self._loop = asyncio.get_running_loop()

    def resume(self, init: int | None, init_pidfd: int) -> None:
        """Restore what an earlier daemon knew of process 1."""
        self.init, self.init_pidfd = init, init_pidfd

    def watch(self) -> None:
        """Watch for the end of bubblewrap."""
        self._loop.add_reader(self.pidfd, self._bubblewrap_ended)

    def heard_from(self, pid: int) -> None:
        """Note the sender of a message; 0, an unknown sender, is never process 1."""
        if self.init_pidfd < 0 and pid not in (self.bubblewrap, 0):
            self.init = pid
            with contextlib.suppress(ProcessLookupError):
                self.init_pidfd = os.pidfd_open(pid)

    def _bubblewrap_ended(self) -> None:
        self._loop.remove_reader(self.pidfd)
        if self.init_pidfd < 0:
            self._ended_early()

    def await_end(self, gone: Callable[[], None]) -> None:
        """Call `gone` when process 1 has ended, or bubblewrap if no process 1 is known."""
        last = self.init_pidfd if self.init_pidfd >= 0 else self.pidfd

        def ended() -> None:
            if last == self.pidfd:
                self._bubblewrap_ended()
            self._loop.remove_reader(last)
            gone()

        self._loop.add_reader(last, ended)

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the existing pidfds of both."""
        return tuple(number for number in (self.init_pidfd, self.pidfd) if number >= 0)

    @property
    def is_closed(self) -> bool:
        return self.pidfd < 0

    def kill(self) -> None:
        for pidfd in self.ends:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def pause(self) -> None:
        """Stop watching."""
        for pidfd in self.ends:
            self._loop.remove_reader(pidfd)

    def let_go(self) -> None:
        """Forget the descriptors, which another object owns now."""
        self.pause()
        self.pidfd = self.init_pidfd = -1

    def close(self) -> None:
        for pidfd in self.ends:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self.pidfd = self.init_pidfd = -1
