"""Restart in place: the daemon executes its program again.

The process, its children and its descriptors stay, and the program changes. Before anything is released, a child tries
the new program: the same command line, with `$SANDBOXD_TRIAL`, only reads the settings and prints what state it can
read. So a broken installation, invalid settings and an incompatible version are found while the daemon runs.

The state passes through a memory file whose number is in `$SANDBOXD_HANDOVER` (memfd_create(2), execve(2))."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace

from sandboxd import __version__
from sandboxd.children import run_program
from sandboxd.daemon.lifecycle import SIGNALS
from sandboxd.errors import HostError
from sandboxd.handover.document import READABLE, VERSIONS, Incoming, Outgoing, read_document
from sandboxd_client import programs
from sandboxd_client.records import dataclass

TRIAL_S = 30.0
_THREADS_END_S = 1.0
_TRIAL = "SANDBOXD_TRIAL"
HANDOVER = "SANDBOXD_HANDOVER"
_MANAGER = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM")
_LISTED = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


@dataclass(frozen=True, slots=True)
class Restarted:
    """Result of the last restart.

    `cut` counts connections that could not be handed over, `lost` describes other losses, and `stall_s` is the time
    without service. After a crash (`crashed`) `cut` and `stall_s` are unknown."""

    from_version: str
    commands: int
    cut: int
    lost: tuple[str, ...]
    stall_s: float
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class DaemonProgram:
    """Command line and environment of this daemon, to execute again."""

    path: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def own(cls, environment: Mapping[str, str]) -> DaemonProgram:
        """Return the program of this process; needs the environment of the start."""
        kept = _without(environment, (*_LISTED, _TRIAL, HANDOVER))
        return cls(sys.executable, tuple(sys.orig_argv[1:]), kept)

    def of(self, interpreter: str) -> DaemonProgram:
        """Return the program of another installation.

        Raises HostError `restart_failed` where commands could write it."""
        if not interpreter:
            return self
        if not os.path.isabs(interpreter) or "\0" in interpreter:
            raise _failed("its interpreter is not an absolute path")
        directory, real = os.path.dirname(interpreter), os.path.realpath(interpreter)
        if directory == os.path.dirname(self.path) and real == os.path.realpath(self.path):
            return self
        if opened := programs.opened_place(
            _places((*_code_of(directory), *_code_of(os.path.dirname(real)), interpreter))
        ):
            raise _failed(
                f"commands could write {opened}, and {interpreter} uses code there",
                "restart from one outside all projects, made with: ./dev install, in a checkout of sandboxd",
            )
        serve = self.arguments.index("serve") if "serve" in self.arguments else len(self.arguments)
        return replace(self, path=interpreter, arguments=("-I", "-m", "sandboxd", *self.arguments[serve:]))

    async def tried(self) -> str:
        """Try the program and return its version. Raises HostError `restart_failed`."""
        try:
            done = await run_program(
                (self.path, *self.arguments),
                TRIAL_S,
                env={**_without(self.environment, _MANAGER), _TRIAL: "1"},
                cwd=None,
                errors=True,
            )
        except OSError as error:
            raise _failed(f"{self.path}: {error.strerror}") from error
        if done.status is None:
            raise _failed(f"it did not end within {TRIAL_S:g} s")
        if done.status:
            lines = done.errors.decode(errors="replace").strip().splitlines()
            raise _failed(lines[-1] if lines else f"status {done.status}")
        return _judge(done.output)

    def execute(self, outgoing: Outgoing) -> None:
        """Execute the program in place of this one. Does not return.

        An OSError means that nothing has changed. Signals stay blocked until this program or the next handles them
        (`lifecycle.signals_handled`)."""
        state = os.memfd_create("sandboxd-handover", os.MFD_CLOEXEC)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        _await_single_thread()
        try:
            with open(state, "wb", closefd=False) as file:
                file.write(outgoing.text())
            os.lseek(state, 0, os.SEEK_SET)
            if outgoing.ends_at_once():
                # stays pending; a signal for the process could reach another thread, and end with it
                signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            for descriptor in (state, *outgoing.descriptors):
                os.set_inheritable(descriptor, True)
            os.execve(self.path, [self.path, *self.arguments], {**self.environment, HANDOVER: str(state)})
        finally:
            for descriptor in outgoing.descriptors:
                os.set_inheritable(descriptor, False)
            os.close(state)


def _code_of(directory: str) -> Iterator[str]:
    """Yield where an interpreter in `directory` finds code, without running it.

    That is its prefix, the packages in its libraries, and the directories that `.pth` files and the finders of editable
    installations name there."""
    prefix = os.path.dirname(directory)
    yield prefix
    for library in glob.iglob(os.path.join(glob.escape(prefix), "lib*", "python3*", "*-packages")):
        with contextlib.suppress(OSError):
            for name in os.listdir(library):
                path = os.path.join(library, name)
                if os.path.islink(path) or name in _PACKAGES:
                    yield path
                if name.endswith(".pth") or name.startswith("__editable__"):
                    with open(path, encoding="utf-8", errors="replace") as file:
                        text = file.read(_MOST_TEXT)
                    named = _QUOTED.findall(text) if name.endswith(".py") else text.splitlines()
                    yield from (os.path.join(library, one) for one in named if not one.startswith(("import", "#")))


_PACKAGES = ("sandboxd", "sandboxd_client")
_MOST_TEXT = 1 << 20
_QUOTED = re.compile(r"""['"](/[^'"\n]+)['"]""")


def _places(paths: Iterable[str]) -> Iterator[str]:
    """Yield all places on these paths, with the links in between."""
    for path in paths:
        yield path
        with contextlib.suppress(OSError):  # what does not exist is not imported
            yield from (place for place, _ in programs.places_on(path))


def _await_single_thread() -> None:
    """Wait for other threads to end, as signals to them would be lost."""
    deadline = time.monotonic() + _THREADS_END_S
    with contextlib.suppress(FileNotFoundError):  # macOS
        while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
            time.sleep(0.001)


def _without(environment: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


def _judge(output: bytes) -> str:
    try:
        answer = json.loads(output)
        version = str(answer["version"])
        for kind, number in VERSIONS.items():
            if number not in answer["reads"].get(kind, ()):
                raise _failed(f"version {version} does not read what this one ({__version__}) would hand over")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _failed("its answer cannot be read") from error
    return version


def _failed(reason: str, hint: str = "run: sandboxd check") -> HostError:
    return HostError(
        "restart_failed",
        f"the program that would take over does not start: {reason}",
        hint=f"{hint} (nothing was changed, and this daemon continues)",
    )


def take_trial(environment: MutableMapping[str, str]) -> bool:
    """Return whether this process is a trial, and remove the variable."""
    return environment.pop(_TRIAL, "") != ""


def answer_trial() -> str:
    """Return the answer of a tried program."""
    return json.dumps({"version": __version__, "reads": {kind: sorted(found) for kind, found in READABLE.items()}})


def take_handed_over(environment: MutableMapping[str, str]) -> Incoming | None:
    """Take the earlier program's state, if any. Raises HostError."""
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
    """Restart of one daemon.

    `supported` is whether its sandboxes can be handed over. `broken` returns why another daemon could not read its
    settings. `chosen` is the program that was tried last, and takes over."""

    def __init__(self, program: DaemonProgram | None, supported: bool, broken: Callable[[], str]) -> None:
        self._program = program
        self.chosen = program
        self.supported = supported
        self._broken = broken
        self._trials: dict[str, asyncio.Task[str]] = {}

    async def prepared(self, interpreter: str = "") -> str:
        """Try the program of an interpreter, and return its version. Raises HostError `restart_*`."""
        if self._program is None or not self.supported:
            raise HostError(
                "restart_unsupported",
                "this daemon cannot be restarted in place",
                hint="run: sandboxd stop (its commands end too); the next command starts another daemon",
            )
        if reason := self._broken():
            raise HostError(
                "restart_failed",
                f"settings are broken, and a restart begins with correct ones: {reason}",
                hint="run: sandboxd settings lint, correct the file, then restart",
            )
        program = self._program.of(interpreter)
        if program.path not in self._trials:  # one trial answers concurrent requests
            trial = asyncio.get_running_loop().create_task(program.tried(), name="restart-trial")
            self._trials[program.path] = trial
            trial.add_done_callback(lambda trial: self._tried(program.path, trial))
        version = await asyncio.shield(self._trials[program.path])
        self.chosen = program
        return version

    def _tried(self, path: str, trial: asyncio.Task[str]) -> None:
        del self._trials[path]
        if not trial.cancelled():
            trial.exception()  # the client may be gone
