"""docs/soak.md, the report of the last soak."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.private_daemon import ROOT
from bench.soak.looks import Sample, half_way, warm

PAGE = ROOT / "docs" / "soak.md"
QUARTERS = 4
IN_THE_LOOP = "prepared `true` of the loop"
FIGURES = ("memory, KB", "descriptors", "threads", "processes", "processes in sandboxes", "files", "sessions")
HEAD = """\
# The last soak

`./dev soak --minutes 60 --loop 100000 --write` writes this page. Two daemons have a mixed load, round after round:
one has commands, violations, tunnels, TLS that ends in the proxy, settings that change, questions, killed clients,
connections that hang up and a client with prepared sandboxes, all at the same time; the other is restarted while
commands run. After each round both are at rest, and are looked at. A third daemon, of an ordinary user, has the
loop of prepared commands. The exit status is 1 when something stays behind, memory grows by more than a tenth after
half of the time, or an answer is wrong.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of a soak: `seconds` are the end and the duration of each measured action, by kind."""

    begun: float
    done: Mapping[str, int]
    seconds: Mapping[str, Sequence[tuple[float, float]]]
    samples: Mapping[str, Sequence[Sample]]
    loop: Sequence[Mapping[str, float]]

    def summary(self) -> Iterator[str]:
        """The amounts, and the loop, for a terminal."""
        yield ", ".join(f"{count} {what}" for what, count in sorted(self.done.items()))
        if self.loop:
            yield f"loop: {self.loop[-1]}"

    def lines(self, problems: Sequence[str]) -> Iterator[str]:
        yield HEAD
        yield from self._machine()
        yield ""
        yield "## Result"
        yield ""
        yield from (f"- {problem}" for problem in problems or ("Nothing stayed behind, and no answer was wrong.",))
        yield from ("", "## What was done", "", "| What | Number |", "| --- | --- |")
        yield from (f"| {what} | {count:,} |" for what, count in sorted(self.done.items()))
        if self.loop:
            yield f"| {IN_THE_LOOP} | {self.loop[-1]['prepared']:,.0f} of {self.loop[-1]['commands']:,.0f} |"
        yield from ("", "## At rest", "", "Start is after the warm-up.", "")
        yield "| Daemon | What | Start | Half | End |"
        yield "| --- | --- | --- | --- | --- |"
        for name, looks in self.samples.items():
            yield from _rows(name, [one.counts for one in (warm(looks), half_way(looks), looks[-1])])
        if self.loop:
            # At half of the time the loop is at work, at its start and end it is at rest.
            yield from _rows("loop", (self.loop[0], self.loop[len(self.loop) // 2], self.loop[-1]))
        yield from ("", "## Milliseconds by quarter of the time, medians", "")
        yield f"| What | {' | '.join(f'{number + 1}' for number in range(QUARTERS))} | Number |"
        yield f"| --- | {'--- | ' * QUARTERS}--- |"
        for kind, seconds in self.seconds.items():
            yield f"| {kind} | {' | '.join(self._quarters(seconds))} | {len(seconds):,} |"
        if self.loop:
            quarters = " | ".join(_of_the_loop(self.loop))
            yield f"| {IN_THE_LOOP} | {quarters} | {self.loop[-1]['prepared']:,.0f} |"

    def _machine(self) -> Iterator[str]:
        cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
        bubblewrap = _output("bwrap", "--version")
        minutes = (time.monotonic() - self.begun) / 60
        who = "root" if os.geteuid() == 0 else "an ordinary user"
        rounds = len(self.samples["mixed load"])
        yield f"- {datetime.date.today()}, {minutes:.0f} minutes, {rounds} rounds, as {who}, at niceness {os.nice(0)}"
        yield f"- {os.cpu_count()} processors ({cpu.partition(': ')[2]}), Linux {platform.release()}"
        yield f"- mean load of the last 15 minutes, other work included: {os.getloadavg()[2]:.1f}"
        commit = _output("git", "rev-parse", "--short=8", "HEAD")
        yield f"- Python {platform.python_version()}, {bubblewrap}, commit {commit}"

    def _quarters(self, seconds: Sequence[tuple[float, float]]) -> Iterator[str]:
        length = max(max(end for end, _ in one) for one in self.seconds.values()) - self.begun
        for number in range(QUARTERS):
            first, last = (self.begun + length * quarter / QUARTERS for quarter in (number, number + 1))
            found = [taken for end, taken in seconds if first < end <= last]
            yield f"{statistics.median(found) * 1000:.1f}" if found else ""


def _rows(name: str, looks: Sequence[Mapping[str, float]]) -> Iterator[str]:
    for figure in FIGURES:
        yield f"| {name} | {figure} | {' | '.join(f'{look[figure]:,.0f}' for look in looks)} |"


def _of_the_loop(looks: Sequence[Mapping[str, float]]) -> Iterator[str]:
    for number in range(QUARTERS):
        part = looks[len(looks) * number // QUARTERS : len(looks) * (number + 1) // QUARTERS]
        found = [look["p50 ms"] for look in part if "p50 ms" in look]
        yield f"{statistics.median(found):.1f}" if found else ""


def _output(*words: str) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
