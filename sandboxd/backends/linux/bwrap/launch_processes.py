"""The two processes by which a launch can be ended: bubblewrap, and process 1 of its sandbox once that has spoken.
Either takes the other along, and the whole namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

from sandboxd.backends.linux.bwrap.orphans import end_orphans

_STRAGGLES_AFTER_S = 0.1


class LaunchProcesses:
    """Owns a pidfd of each. `straggled` hears which processes were ended that bubblewrap had left behind."""

    def __init__(self, bubblewrap: int, pidfd: int, straggled: Callable[[tuple[int, ...]], None]) -> None:
        self.bubblewrap = bubblewrap
        self.pidfd = pidfd
        self.init: int | None = None
        """The process number of process 1."""
        self.init_pidfd = -1
        self._straggled = straggled
        self._end_awaited = False
        self._loop = asyncio.get_running_loop()

    def resume(self, init: int | None, init_pidfd: int) -> None:
        """What an earlier daemon knew of process 1."""
        self.init, self.init_pidfd = init, init_pidfd

    def watch(self) -> None:
        """Hear of the end of bubblewrap."""
        self._loop.add_reader(self.pidfd, self._bubblewrap_ended)

    def heard_from(self, pid: int) -> None:
        """That process has sent something. 0: it did so before anybody asked who it is, so it is not process 1, which
        waits for us."""
        if self.init_pidfd < 0 and pid not in (self.bubblewrap, 0):
            self.init = pid
            with contextlib.suppress(ProcessLookupError):
                self.init_pidfd = os.pidfd_open(pid)

    def _bubblewrap_ended(self) -> None:
        """Process 1 ends with bubblewrap, once it is there. What bubblewrap has forked before may wait for ever."""
        self._loop.remove_reader(self.pidfd)
        if self.init_pidfd < 0:
            self._loop.call_later(_STRAGGLES_AFTER_S, self._end_straggler)

    def _end_straggler(self) -> None:
        if self.pidfd >= 0 and self.init_pidfd < 0 and not self._end_awaited and (pids := end_orphans()):
            self._straggled(pids)

    def await_end(self, gone: Callable[[], None]) -> None:
        """`gone` is called when process 1 is, or bubblewrap where nobody has spoken as process 1."""
        self._end_awaited = True
        last = self.init_pidfd if self.init_pidfd >= 0 else self.pidfd

        def ended() -> None:
            self._loop.remove_reader(last)
            gone()

        self._loop.add_reader(last, ended)

    @property
    def ends(self) -> tuple[int, ...]:
        """The pidfds of both, as far as there are any."""
        return tuple(number for number in (self.init_pidfd, self.pidfd) if number >= 0)

    @property
    def is_closed(self) -> bool:
        return self.pidfd < 0

    def kill(self) -> None:
        for pidfd in self.ends:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def pause(self) -> None:
        """Hear of nothing more."""
        for pidfd in self.ends:
            self._loop.remove_reader(pidfd)

    def let_go(self) -> None:
        """Somebody else has the descriptors now."""
        self.pause()
        self.pidfd = self.init_pidfd = -1

    def close(self) -> None:
        for pidfd in self.ends:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self.pidfd = self.init_pidfd = -1
