"""Executing ourselves anew, in place: the process, its children's parent and its descriptors stay, the program changes.

Before anything is let go of, the program that would take over is tried in a child: the same command line, told by
`$SANDBOXD_TRIAL` to go only as far as reading the settings, and then to say what it can read. A broken installation,
settings that do not hold and a program that is too old or too new are found there, and the daemon goes on as it is.

The state goes through a memory file, whose number is in `$SANDBOXD_HANDOVER` (memfd_create(2), execve(2)).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass

from sandboxd import __version__
from sandboxd.daemon.lifecycle import SIGNALS
from sandboxd.errors import HostError
from sandboxd.handover.document import READABLE, VERSIONS, Incoming, Outgoing, read_document

TRIAL_S = 30.0
_THREADS_END_S = 1.0
_TRIAL = "SANDBOXD_TRIAL"
HANDOVER = "SANDBOXD_HANDOVER"
_MANAGER = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM")
_LISTED = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


@dataclass(frozen=True, slots=True)
class Restarted:
    """What came of the last restart. `cut` counts connections that could not be handed over, `lost` says in words what
    else could not; `stall_s` is how long nobody was served. After a crash (`crashed`) nobody knows either."""

    from_version: str
    commands: int
    cut: int
    lost: tuple[str, ...]
    stall_s: float
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class DaemonProgram:
    """How this daemon was started: what to execute again."""

    path: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def own(cls, environment: Mapping[str, str]) -> DaemonProgram:
        """`environment` as it was at the start: later some of it is taken away."""
        kept = _without(environment, (*_LISTED, _TRIAL, HANDOVER))
        return cls(sys.executable, tuple(sys.orig_argv[1:]), kept)

    async def tried(self) -> str:
        """The version of the program that would take over. Raises HostError `restart_failed` when it could not."""
        try:
            process = await asyncio.create_subprocess_exec(
                self.path,
                *self.arguments,
                env={**_without(self.environment, _MANAGER), _TRIAL: "1"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise _failed(f"{self.path}: {error.strerror}") from error
        try:
            async with asyncio.timeout(TRIAL_S):
                said, errors = await process.communicate()
        except TimeoutError:
            raise _failed(f"it said nothing within {TRIAL_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines()
            raise _failed(lines[-1] if lines else f"status {process.returncode}")
        return _judge(said)

    def execute(self, outgoing: Outgoing) -> None:
        """Become that program. Does not return. Raises OSError, and then nothing has changed. Signals wait until
        somebody handles them again (`lifecycle.signals_handled`), here or there."""
        state = os.memfd_create("sandboxd-handover", os.MFD_CLOEXEC)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        _be_the_only_thread()
        try:
            with open(state, "wb", closefd=False) as file:
                file.write(outgoing.text())
            os.lseek(state, 0, os.SEEK_SET)
            if outgoing.ends_at_once():
                # waits, too: one for the process would reach another thread, and end with that
                signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            for descriptor in (state, *outgoing.descriptors):
                os.set_inheritable(descriptor, True)
            os.execve(self.path, [self.path, *self.arguments], {**self.environment, HANDOVER: str(state)})
        finally:
            for descriptor in outgoing.descriptors:
                os.set_inheritable(descriptor, False)
            os.close(state)


def _be_the_only_thread() -> None:
    """A signal that another thread takes is lost when this one becomes the next program. The threads of the event loop
    have been waited for, but take a moment to be gone."""
    deadline = time.monotonic() + _THREADS_END_S
    with contextlib.suppress(FileNotFoundError):  # macOS
        while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
            time.sleep(0.001)


def _without(environment: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


def _judge(said: bytes) -> str:
    try:
        answer = json.loads(said)
        version = str(answer["version"])
        for kind, number in VERSIONS.items():
            if number not in answer["reads"].get(kind, ()):
                raise _failed(f"version {version} does not read what this one ({__version__}) would hand over")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _failed("it gave no answer that makes sense") from error
    return version


def _failed(reason: str) -> HostError:
    return HostError(
        "restart_failed",
        f"the program that would take over does not start: {reason}",
        hint="nothing was changed and this daemon goes on; see: sandboxd check",
    )


def take_trial(environment: MutableMapping[str, str]) -> bool:
    """Whether this process is to try only. Takes the variable away."""
    return environment.pop(_TRIAL, "") != ""


def answer_trial() -> str:
    """What a program says of itself when it was tried."""
    return json.dumps({"version": __version__, "reads": {kind: sorted(found) for kind, found in READABLE.items()}})


def take_handed_over(environment: MutableMapping[str, str]) -> Incoming | None:
    """What the program that was executed before in this process has left; None at an ordinary start. Takes the variable
    away. Raises HostError `handover_unreadable`."""
    number = environment.pop(HANDOVER, "")
    if not number.isascii() or not number.isdecimal():
        return None
    try:
        with open(int(number), "rb") as file:
            incoming = read_document(file.read())
    except OSError as error:
        raise HostError("handover_unreadable", f"descriptor {number} cannot be read: {error.strerror}") from error
    for part in incoming.parts:
        for descriptor in part.descriptors:
            os.set_inheritable(descriptor, False)
    return incoming


class Restarting:
    """The restart of one daemon. `supported` says whether its sandboxes can be handed over; `broken` why its settings
    could not be read by another one."""

    def __init__(self, program: DaemonProgram | None, supported: bool, broken: Callable[[], str]) -> None:
        self._program = program
        self.supported = supported
        self._broken = broken
        self._trial: asyncio.Task[str] | None = None

    async def prepared(self) -> str:
        """The version of the program that would take over. Raises HostError `restart_unsupported`, `restart_failed`."""
        if self._program is None or not self.supported:
            raise HostError(
                "restart_unsupported",
                "this daemon cannot be restarted in place",
                hint="end it with: sandboxd stop (its commands end too); the next command starts another one",
            )
        if reason := self._broken():
            raise HostError(
                "restart_failed",
                f"settings are broken, and only this process knows the last good ones: {reason}",
                hint="mend the file (sandboxd settings lint), then restart",
            )
        if self._trial is None:  # else several asked at once, and one trial answers them
            self._trial = asyncio.get_running_loop().create_task(self._program.tried(), name="restart-trial")
            self._trial.add_done_callback(self._tried)
        return await asyncio.shield(self._trial)

    def _tried(self, trial: asyncio.Task[str]) -> None:
        self._trial = None
        if not trial.cancelled():
            trial.exception()  # whoever asked may be gone
