"""Keeps `log stream` running and hands what it says to the commands it is about.

The log is slow, folds what repeats, and may not be there at all: `log` refuses to run inside a sandbox (status 64), can
be missing, die or say nothing. So its state is reported, it is started again after a pause that grows, and nobody waits
for it. No refusals is never the same as nothing was refused: see `state`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sandboxd.backends.base import Observer
from sandboxd.backends.macos.log_lines import Denial, LogLines
from sandboxd.backends.macos.refusals import refusal_of
from sandboxd.backends.macos.spawning import PIPE, end, spawn

LOG = "/usr/bin/log"
PAUSES_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Before each further start, the last one from then on."""
STEADY_S = 60.0
"""A stream that lasted so long starts the pauses from the beginning."""
REMEMBERED = 4096
"""Launches whose refusals still find their way."""
_CHUNK = 64 * 1024
_REASON = 300

# The stream ends with us, also when we are killed: our end of its standard input closes then.
_TIED = (
    'exec 3<&0; "$@" </dev/null 3<&- & log=$!; { read -r _ <&3; kill "$log"; } 2>/dev/null & watch=$!; '
    'wait "$log"; status=$?; kill "$watch" 2>/dev/null; exit "$status"'
)


class MonitorState(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    """Runs and has said nothing yet, so nothing is known."""
    RUNNING = "running"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class MonitorStatus:
    """`reason` says why it is unavailable. The counts are since the daemon began: refusals that were handed on, dropped
    as noise, of commands that are forgotten; and lines that were not ours."""

    state: MonitorState
    reason: str
    starts: int
    refusals: int
    noise: int
    unknown: int
    ignored: int


def stream_command(suffix: str, log: str = LOG) -> tuple[str, ...]:
    """Only messages that end with our suffix, which is text of our own making."""
    return (log, "stream", "--style", "compact", "--predicate", f'(eventMessage ENDSWITH "{suffix}")')


class LogMonitor:
    """`command` gets the suffix and says what to run. Use as an async context manager."""

    def __init__(
        self,
        log: Callable[..., None],
        command: Callable[[str], Sequence[str]] = stream_command,
        *,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self.suffix = secrets.token_hex(8)
        self.state = MonitorState.STOPPED
        self._log = log
        self._command = command
        self._pauses = tuple(pauses_s)
        self._reason = ""
        self._starts = self._refusals = self._unknown = 0
        self._lines = LogLines(self.suffix)
        self._observers: OrderedDict[str, Observer] = OrderedDict()
        self._waiting: dict[str, asyncio.Event] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LogMonitor:
        self._task = asyncio.get_running_loop().create_task(self._keep_running(), name="log-monitor")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.state = MonitorState.STOPPED

    @property
    def status(self) -> MonitorStatus:
        lines = self._lines
        return MonitorStatus(
            self.state, self._reason, self._starts, self._refusals, lines.noise, self._unknown, lines.ignored
        )

    def expect(self, launch_id: str, observer: Observer) -> None:
        """From now on refusals with this launch's tag go to the observer."""
        self._observers[launch_id] = observer
        while len(self._observers) > REMEMBERED:
            self._observers.popitem(last=False)

    async def settle(self, launch_id: str, longest_s: float) -> None:
        """Return at the first refusal of a launch that comes from now on, after `longest_s` at the latest, and at once
        while the stream does not run."""
        if self.state is not MonitorState.RUNNING:
            return
        event = self._waiting[launch_id] = asyncio.Event()
        try:
            async with asyncio.timeout(longest_s):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            del self._waiting[launch_id]

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            self.state = MonitorState.STARTING
            self._reason = ""
            reason = await self._run_once()
            if loop.time() - began >= STEADY_S:
                failures = 0
            pause = self._pauses[min(failures, len(self._pauses) - 1)]
            failures += 1
            self.state, self._reason = MonitorState.UNAVAILABLE, reason
            self._log("log_monitor_unavailable", reason=reason, again_in_s=pause)
            await asyncio.sleep(pause)

    async def _run_once(self) -> str:
        """Run the stream to its end; why it ended."""
        words = self._command(self.suffix)
        self._starts += 1
        try:
            process = await spawn(
                "/bin/sh", "-c", _TIED, "sh", *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=_CHUNK
            )
        except OSError as error:
            return f"{words[0]} cannot be started: {error.strerror}"
        assert process.stdout is not None and process.stderr is not None
        complaints = asyncio.get_running_loop().create_task(process.stderr.read(), name="log-monitor-stderr")
        try:
            while data := await process.stdout.read(_CHUNK):
                if self.state is MonitorState.STARTING:
                    self.state = MonitorState.RUNNING
                    self._log("log_monitor_running")
                for denial in self._lines.feed(data):
                    self._deliver(denial)
            status = await process.wait()
            return _why(words[0], status, await complaints)
        finally:
            complaints.cancel()
            await end(process)

    def _deliver(self, denial: Denial) -> None:
        observer = self._observers.get(denial.launch_id)
        if observer is None:
            self._unknown += denial.count
            return
        self._refusals += denial.count
        observer.refused(refusal_of(denial))
        waiting = self._waiting.get(denial.launch_id)
        if waiting is not None:
            waiting.set()


def _why(program: str, status: int, complaints: bytes) -> str:
    said = complaints.decode("utf-8", "replace").strip().splitlines()
    words = f": {said[-1][:_REASON]}" if said else ""
    if status == 64:
        return f"{program} refuses to run inside a sandbox (status 64){words}"
    if status in (126, 127):
        return f"{program} cannot be run (status {status}){words}"
    if status < 0:
        return f"{program} was ended by signal {-status}{words}"
    return f"{program} ended with status {status}{words}"
