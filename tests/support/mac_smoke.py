"""Trying the macOS back end for real: what the cases in `mac_smoke_cases` say, and a report to send back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from sandboxd.app.macos import MacosDependencies
from sandboxd_client import Client
from support.daemon import surroundings
from support.mac_line import Line, whole_line
from support.origin import Origin, serve_origin
from support.waiting import wait_until_async

CASE_S = 90
LOG_S = 15.0
_TAIL = 1500


class Outcome(StrEnum):
    HOLDS = "ok"
    FAILS = "FAILED"
    NOT_HERE = "not here"


class Unexpected(Exception):
    """Something was not as it has to be."""


class NotHereError(Exception):
    """This machine has not what the case needs."""


@dataclass(frozen=True, slots=True)
class Violation:
    operation: str
    target: str


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    words: tuple[str, ...]
    status: int
    out: str
    err: str
    violations: tuple[Violation, ...]


@dataclass
class Trial:
    """What a case works with. `real` is false where stand-ins take the place of macOS."""

    line: Line
    origin: Origin
    real: bool
    done: list[Done] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.line.project

    @property
    def home(self) -> Path:
        return self.line.running.around.home

    async def run(self, *words: str) -> Done:
        """In the sandbox."""
        made = await asyncio.to_thread(self._run, words)
        self.done.append(made)
        return made

    def _run(self, words: tuple[str, ...]) -> Done:
        with Client(self.line.running.around.socket, autostart=False) as box:
            done = box.run(
                list(words), capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                cwd=str(self.project), env=self.line.environment, timeout=CASE_S,
            )  # fmt: skip
        found = tuple(Violation(one.operation, one.target) for one in done.violations)
        return Done(words, done.returncode, done.stdout, done.stderr, found)

    async def allowed(self, *words: str) -> str:
        """The output. Raises Unexpected."""
        done = await self.run(*words)
        if done.status != 0:
            raise Unexpected(f"should work, ended with status {done.status}")
        return done.out

    async def refused(self, *words: str) -> Done:
        """Raises Unexpected."""
        done = await self.run(*words)
        if done.status == 0:
            raise Unexpected("should be refused, succeeded")
        return done

    def outside(self, *words: str) -> bool:
        """Whether a command works without a sandbox."""
        try:
            done = subprocess.run(
                words, cwd=self.project, env=self.line.environment, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=60,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise Unexpected(otherwise)


@dataclass(frozen=True, slots=True)
class Case:
    """`real` cases need macOS itself; the others work with stand-ins too."""

    group: str
    name: str
    real: bool
    run: Callable[[Trial], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Group:
    """Cases with the same settings. `prepare` makes what they expect in the home directory and the project."""

    name: str
    settings: Mapping[str, Any]
    prepare: Callable[[Path, Path], None]
    cases: list[Case] = field(default_factory=list)

    def case(
        self, name: str, *, real: bool = False
    ) -> Callable[[Callable[[Trial], Awaitable[None]]], Callable[[Trial], Awaitable[None]]]:
        def add(run: Callable[[Trial], Awaitable[None]]) -> Callable[[Trial], Awaitable[None]]:
            self.cases.append(Case(self.name, name, real, run))
            return run

        return add


@dataclass(frozen=True, slots=True)
class Result:
    case: Case
    outcome: Outcome
    seconds: float
    why: str = ""
    done: tuple[Done, ...] = ()


async def try_groups(
    groups: list[Group],
    parts: MacosDependencies,
    *,
    real: bool,
    tools: str = "",
    log_s: float = LOG_S,
    tell: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """A daemon for each group. Cases that need macOS are left out where it is not there."""
    results = []
    for group in groups:
        async with surroundings() as around:
            group.prepare(around.home, around.project)
            with serve_origin() as origin:
                async with whole_line(parts, group.settings, around=around, tools=tools) as line:
                    await _until_logged(line, log_s)
                    for case in group.cases:
                        if real or not case.real:
                            results.append(await _try(case, Trial(line, origin, real)))
                            tell(results[-1])
    return results


async def _until_logged(line: Line, limit_s: float) -> None:
    """A case says whether it came: without a log the others still tell something."""
    with contextlib.suppress(AssertionError):
        await wait_until_async(lambda: "violation-log" in line.running.daemon.state.layers(), limit_s=limit_s)


async def _try(case: Case, trial: Trial) -> Result:
    began = time.monotonic()
    outcome, why = Outcome.HOLDS, ""
    try:
        async with asyncio.timeout(CASE_S):
            await case.run(trial)
    except NotHereError as error:
        outcome, why = Outcome.NOT_HERE, str(error)
    except Exception as error:  # a report is what this is for
        outcome, why = Outcome.FAILS, f"{type(error).__name__}: {error}"
    return Result(case, outcome, time.monotonic() - began, why, tuple(trial.done))


# The report


def facts() -> dict[str, str]:
    """What a maintainer has to know about the machine, and nothing about its owner."""
    return {
        "system": _said("sw_vers", "-productVersion") or platform.platform(),
        "build": _said("sw_vers", "-buildVersion"),
        "processor": platform.machine(),
        "integrity protection": _said("csrutil", "status"),
        "python": f"{platform.python_version()} {sys.implementation.name}",
        "commit": _said("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"),
    }


def _said(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def line_of(result: Result) -> str:
    return f"{result.outcome:8}  {result.case.group}: {result.case.name} ({result.seconds:.1f} s)"


def report(results: list[Result], about: Mapping[str, str]) -> str:
    """Text. Commands of a case that failed are there with their output and what was refused to them."""
    lines = ["sandboxd on macOS: report of a smoke test", ""]
    lines += [f"{name}: {value}" for name, value in about.items()]
    counts = {outcome: sum(one.outcome is outcome for one in results) for outcome in Outcome}
    lines += ["", ", ".join(f"{count} {outcome}" for outcome, count in counts.items()), ""]
    for result in results:
        lines.append(line_of(result))
        if result.why:
            lines.append(f"    {result.why}")
        if result.outcome is Outcome.FAILS:
            for done in result.done:
                lines += [f"    {line}" for line in _shown(done)]
    return "\n".join(lines) + "\n"


def _shown(done: Done) -> Iterator[str]:
    yield f"$ {' '.join(done.words)}  -> {done.status}"
    for name, text in (("out", done.out), ("err", done.err)):
        for line in text[-_TAIL:].splitlines():
            yield f"  {name}: {line}"
    for violation in done.violations:
        yield f"  refused: {violation.operation} {violation.target}"


# The programs of the cases on a real macOS. Its own, where it has them; names as those of the stand-ins.

_SCRIPTS = {
    "write": 'printf %s "$2" > "$1"',
    "append": 'printf %s "$2" >> "$1"',
    "connect": 'exec /usr/bin/nc -z -G 5 "$1" "$2"',
    "listen": f"exec '{sys.executable}' -c '"
    'import socket, sys; socket.create_server(("127.0.0.1", int(sys.argv[1])))\' "$1"',
    "fetch": 'body=$TMPDIR/body; code=$(/usr/bin/curl -sS --max-time 20 -o "$body" -w "%{http_code}" "$1") || exit\n'
    '[ "$code" = 200 ] && exec cat "$body"; echo "$code"; exit 22',
    "lookup": f"exec '{sys.executable}' -c '"
    "import ctypes, sys; library = ctypes.CDLL(None); port = ctypes.c_uint(); "
    'own = ctypes.c_uint.in_dll(library, "bootstrap_port"); '
    'sys.exit(library.bootstrap_look_up(own, sys.argv[1].encode(), ctypes.byref(port)) and 1)\' "$1"',
}


def write_tools(directory: Path) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in _SCRIPTS.items():
        file = directory / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    return str(directory)


@contextmanager
def listening_socket(path: Path) -> Iterator[None]:
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield
    os.unlink(path)
