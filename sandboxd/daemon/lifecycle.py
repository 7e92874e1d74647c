"""How the daemon lives with its surroundings: signals, the service manager, and the limit of open files.

It stays in the foreground and logs to stderr (daemon(7), "new-style daemons"). SIGTERM and SIGINT end it in good order,
SIGHUP reloads the settings. Nothing here runs on a timer unless the service manager asks for a watchdog: a daemon
nobody uses does not wake up.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TURNS = 10
"""Of an event loop, from the byte of a signal in its pipe to the call of the handler: three with asyncio's own."""


class StopRequest:
    """The wish to end, from a signal, the `shutdown` method or the service manager. The first reason is kept."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""
        self.grace_s: float | None = None
        """How long running commands have between TERM and KILL; None for the usual."""
        self.restart = False
        """Whether another daemon goes on with everything."""
        self.overruled = False
        """Whether the end was asked for as well, while that was under way."""

    def __call__(self, reason: str, grace_s: float | None = None, *, restart: bool = False) -> None:
        if not self._event.is_set():
            self.reason, self.grace_s, self.restart = reason, grace_s, restart
            self._event.set()
        elif not restart:
            self.overruled = True

    @property
    def made(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> str:
        """Return the reason once there is one."""
        await self._event.wait()
        return self.reason


@contextlib.contextmanager
def signals_handled(
    stop: Callable[[str], None], reload: Callable[[], None], goes_on: Callable[[], bool] = bool
) -> Iterator[None]:
    """While the context lasts, SIGTERM and SIGINT ask to stop and SIGHUP to reload. A repeated signal changes nothing:
    the end is on its way, and a second one must not interrupt the clean-up. When it `goes_on` with another program,
    `stop` hears of what comes after that too, from outside of any event loop; nothing is reloaded any more."""
    loop = asyncio.get_running_loop()
    actions: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: lambda: stop("SIGTERM"),
        signal.SIGINT: lambda: stop("SIGINT"),
        signal.SIGHUP: reload,
    }
    for number, action in actions.items():
        loop.add_signal_handler(number, action)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, actions)  # the program before has left them waiting (`restarting`)
    try:
        yield
    finally:
        late = goes_on()
        for number in actions:
            loop.remove_signal_handler(number)
            if late and number is signal.SIGHUP:
                signal.signal(number, lambda *_: None)  # that program reads the settings anyway
            elif late:
                signal.signal(number, lambda received, _: stop(signal.Signals(received).name))


async def signals_heard() -> None:
    """Return when the actions of `signals_handled` have been called for all that came until now. What comes later waits
    until somebody handles it again, in this program or in the next. asyncio learns of a signal by a byte in a pipe, and
    what that says is lost with the event loop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class ServiceManager:
    """sd_notify(3): tells the service manager what state we are in. Without $NOTIFY_SOCKET it says nothing."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        # Removed from the environment, so that no child can speak for us.
        self.address = environment.pop("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog(environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", ""))
        """After how long a silence it takes us for hung, sd_watchdog_enabled(3); None when it does not look."""

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def cannot_start(self, reason: str) -> None:
        """What `systemctl status` and `sandboxd service` then say, also where a user may not read the journal."""
        self._send(f"STATUS={reason}")

    def reloading(self) -> None:
        """To be followed by `ready`. The time tells the manager which of its requests is being answered."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}", "STATUS=reading the settings")

    def restarting(self, in_another_process: bool) -> None:
        """For the manager only a process that ends is stopping."""
        if in_another_process:
            self._send("STOPPING=1", "STATUS=handing over to the next daemon")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=ending sessions and their commands")

    @contextlib.contextmanager
    def watchdog_fed(self) -> Iterator[None]:
        """While the context lasts, the event loop says that it turns, twice in the time that the manager allows. Not
        asked for it is no timer at all. A loop that hangs is ended with SIGABRT: then the log has where it was."""
        if self.watchdog_s is None or not self.address:
            yield
            return
        loop, period = asyncio.get_running_loop(), self.watchdog_s / 2
        next_time: asyncio.TimerHandle

        def feed() -> None:
            nonlocal next_time
            self._send("WATCHDOG=1")
            next_time = loop.call_later(period, feed)

        faulthandler.enable()
        feed()
        try:
            yield
        finally:
            next_time.cancel()

    def _send(self, *lines: str) -> None:
        if not self.address:
            return
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        # The manager going away is no reason to stop serving.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.setblocking(False)
            manager.sendto("\n".join(lines).encode(), address)


def _watchdog(microseconds: str, pid: str) -> float | None:
    meant = pid in ("", str(os.getpid()))
    return int(microseconds) / 1e6 if meant and microseconds.isdecimal() and int(microseconds) > 0 else None


def raise_descriptor_limit() -> int:
    """Lift the soft limit of open files to the hard one, and return it: a thousand tunnels need some four thousand.
    Children are not affected, for a client spawns its commands itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


async def stop_when_idle(
    seconds: float, is_busy: Callable[[], bool], uses: Callable[[], int], stop: Callable[[str], None]
) -> None:
    """Ask for the end after `seconds` without use; it takes up to twice as long.

    `uses` counts the uses since the start, so that one that begins and ends between two checks counts too.
    """
    while True:
        before = uses()
        await asyncio.sleep(seconds)
        if uses() == before and not is_busy():
            stop(f"idle for {seconds:g} s")
            return
