"""A child in the foreground, in the place of this process.

It has the same terminal and process group, and its exit status becomes this process's. Signals:

- The terminal's keys (Ctrl-C, Ctrl-\\) reach the whole process group. This process waits for the command's reaction.
- kill(2) of this process, and a hangup, which the kernel sends to the session's leader alone, are forwarded. TERM, HUP,
  INT and QUIT start a grace period, then the whole tree is killed.
- What the command sends to its own process group arrives here too and is ignored. A sender in another pid namespace
  tells it apart.
- Ctrl-Z stops this process together with the command, and the shell's `fg` continues both.

All are blocked and taken with sigwaitinfo(2), which tells the sender. The child starts with the mask this process had.
Signals that were ignored at the start (nohup, a background job of a script) stay ignored by both.
"""

from __future__ import annotations

import os

from sandboxd_client.running import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Iterable, Mapping

    from sandboxd_client.running.relay import Relay
else:
    import _signal  # what `signal` wraps in enums, 4 ms cheaper to import

DEFAULT_GRACE_S = 5.0

_ENDING = frozenset(map(int, (_signal.SIGTERM, _signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT)))
_FORWARDED = _ENDING | {int(_signal.SIGUSR1), int(_signal.SIGUSR2)}
_SIGHUP = int(_signal.SIGHUP)
_SIGALRM = int(_signal.SIGALRM)
_SIGCHLD = int(_signal.SIGCHLD)
_PYTHON_IGNORES = tuple(getattr(_signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(_signal, name))


def signal_mask() -> frozenset[int]:
    """Return the signal mask of this process."""
    return frozenset(map(int, _signal.pthread_sigmask(_signal.SIG_BLOCK, ())))


def run_in_foreground(
    argv: list[str],
    environment: Mapping[str, str],
    grace_s: float = DEFAULT_GRACE_S,
    mask: Iterable[int] | None = None,
    relay: Relay | None = None,
) -> int:
    """Spawn `argv`, wait for its end, and return its exit status or 128+N.

    Raises OSError when it cannot be spawned. Call it in the main thread of a process that then ends: the signal mask
    stays changed, so that nothing interrupts the rest. `mask` is the command's, for a second call. `relay` has the
    descriptors that the child gets as 0, 1 and 2. Its remaining output is waited for, and a signal ends that wait as it
    would end the write."""
    if _signal.getsignal(_SIGCHLD) == _signal.SIG_IGN:  # inherited; children would leave no status
        _signal.signal(_SIGCHLD, _signal.SIG_DFL)
    forwarded = _unignored()
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, forwarded | {_SIGALRM, _SIGCHLD})
    mask = before if mask is None else mask
    streams = [] if relay is None else [(os.POSIX_SPAWN_DUP2, given, n) for n, given in enumerate(relay.passed)]
    pid = os.posix_spawnp(argv[0], argv, environment, setsigmask=mask, setsigdef=_PYTHON_IGNORES, file_actions=streams)
    waiting = _Waiting(pid, forwarded, grace_s)
    if relay is None:
        return waiting.status()
    relay.start()
    status = waiting.status()
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, forwarded.difference(mask))
    relay.finish(grace_s if waiting.is_ending else None)
    _signal.pthread_sigmask(_signal.SIG_BLOCK, forwarded)
    return status


def wait_on(pid: int, grace_s: float, number: int) -> int:
    """Pass a signal on to the command `pid`, wait for its end, and return its exit status.

    The signals that `run_in_foreground` blocks are blocked already."""
    waiting = _Waiting(pid, _unignored(), grace_s)
    waiting.forward(number)
    return waiting.status()


def _unignored() -> frozenset[int]:
    return frozenset(number for number in _FORWARDED if _signal.getsignal(number) != _signal.SIG_IGN)


class _Waiting:
    def __init__(self, pid: int, forwarded: Iterable[int], grace_s: float) -> None:
        self._pid = pid
        self._waited = frozenset(forwarded) | {_SIGALRM, _SIGCHLD}
        self._grace_s = grace_s
        self.is_ending = False

    def status(self) -> int:
        while True:
            number, is_forwarded = _next_signal(self._waited)
            if number == _SIGCHLD:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    code = os.waitstatus_to_exitcode(status)
                    return 128 - code if code < 0 else code
            elif number == _SIGALRM:
                processes.kill_command(self._pid)
                _signal.setitimer(_signal.ITIMER_REAL, 0.1)  # again, for a sandbox that was still being set up
            elif is_forwarded:
                self.forward(number)

    def forward(self, number: int) -> None:
        """Pass a signal on to the command, which begins the grace period if it is one to end."""
        processes.signal_command(self._pid, number)
        if number in _ENDING and not self.is_ending:
            self.is_ending = True
            _signal.setitimer(_signal.ITIMER_REAL, self._grace_s)


def _next_signal(waited: frozenset[int]) -> tuple[int, bool]:
    """Return the next signal and whether to forward it to the command."""
    if not hasattr(_signal, "sigwaitinfo"):  # macOS: no sender is known; most INTs are a terminal's Ctrl-C
        number = int(_signal.sigwait(waited))
        return number, number not in (int(_signal.SIGINT), int(_signal.SIGQUIT))
    info = _signal.sigwaitinfo(waited)
    if info.si_code > 0:  # sent by the kernel, unlike SI_USER, SI_QUEUE and SI_TKILL
        return info.si_signo, info.si_signo == _SIGHUP
    return info.si_signo, processes.in_this_namespace(info.si_pid) is not False
