"""Signals, service manager, limit of open files, and the end of an idle daemon.

The daemon stays in the foreground and logs to stderr (daemon(7), "new-style daemons"). SIGTERM and SIGINT end it,
SIGHUP reloads the settings. An idle daemon has no timer, except for a watchdog or `serve --idle-exit`."""

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
"""Turns of the event loop until a signal's handler runs; asyncio needs three."""


class StopRequest:
    """Request to end; the first reason is kept."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""
        self.grace_s: float | None = None
        """Seconds between TERM and KILL for commands; None for the default."""
        self.restart = False
        """True where another daemon continues everything."""
        self.overruled = False
        """True where a request to end came during a restart."""

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
        """Wait for the request and return its reason."""
        await self._event.wait()
        return self.reason


@contextlib.contextmanager
def signals_handled(
    stop: Callable[[str], None], reload: Callable[[], None], goes_on: Callable[[], bool] = bool
) -> Iterator[None]:
    """Handle SIGTERM and SIGINT as requests to stop, and SIGHUP as a reload.

    A repeated signal must not interrupt the clean-up. When another program continues (`goes_on`), `stop` also gets
    later signals, from outside of any event loop, and nothing is reloaded."""
    loop = asyncio.get_running_loop()
    actions: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: lambda: stop("SIGTERM"),
        signal.SIGINT: lambda: stop("SIGINT"),
        signal.SIGHUP: reload,
    }
    for number, action in actions.items():
        loop.add_signal_handler(number, action)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, actions)  # the earlier program blocked them (`restarting`)
    try:
        yield
    finally:
        late = goes_on()
        for number in actions:
            loop.remove_signal_handler(number)
            if late and number is signal.SIGHUP:
                signal.signal(number, lambda *_: None)  # the next program reads the settings anyway
            elif late:
                signal.signal(number, lambda received, _: stop(signal.Signals(received).name))


async def signals_heard() -> None:
    """Wait until the handlers of all signals so far have run.

    asyncio learns of a signal by a byte in a pipe, which is lost with the event loop. Later signals stay blocked until
    this program or the next handles them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class ServiceManager:
    """Notifications to the service manager, sd_notify(3); none without an address."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        # Removed from the environment, so that no child can notify in the daemon's name.
        self.address = environment.pop("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog(environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", ""))
        """Seconds of silence that the manager permits, sd_watchdog_enabled(3)."""

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def cannot_start(self, reason: str) -> None:
        """Report why the daemon cannot start, for users who cannot read the journal."""
        self._send(f"STATUS={reason}")

    def reloading(self) -> None:
        """Report a reload with its time, which identifies it. `ready` has to follow."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}", "STATUS=reading the settings")

    def restarting(self, in_another_process: bool) -> None:
        """Report the end of this process. A restart in place is none."""
        if in_another_process:
            self._send("STOPPING=1", "STATUS=handing over to the next daemon")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=ending sessions and their commands")

    @contextlib.contextmanager
    def watchdog_fed(self) -> Iterator[None]:
        """Notify the manager twice in each period that it allows, while the loop turns.

        The manager ends a hanging loop with SIGABRT, and the log shows its place. Without a watchdog there is no timer.
        """
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
        # The daemon also serves without its manager.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.setblocking(False)
            manager.sendto("\n".join(lines).encode(), address)


def _watchdog(microseconds: str, pid: str) -> float | None:
    meant = pid in ("", str(os.getpid()))
    return int(microseconds) / 1e6 if meant and microseconds.isdecimal() and int(microseconds) > 0 else None


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it.

    A thousand tunnels need about four thousand. Commands are children of clients, so theirs does not change."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


async def stop_when_idle(
    seconds: float, is_busy: Callable[[], bool], uses: Callable[[], int], stop: Callable[[str], None]
) -> None:
    """Ask for the end after `seconds` without use; it takes up to twice as long.

    `uses` counts the uses since the start, so that one that begins and ends between two checks counts too."""
    while True:
        before = uses()
        await asyncio.sleep(seconds)
        if uses() == before and not is_busy():
            stop(f"idle for {seconds:g} s")
            return
