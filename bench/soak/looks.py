"""Looks at daemons at rest, and what grew between two of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.kernel_counters import Footprint, directories_held, files_below
from bench.private_daemon import Bench
from sandboxd_client import Client

MEMORY_RATIO, MEMORY_RATIO_QUICK = 1.1, 1.25
"""How much more the daemon may hold at the end than at half-time; quick: when it is not yet warm, quite."""
WARM_UP_ROUNDS = 3
REST_S = 10.0
"""Seconds until a daemon is at rest; what remains then counts as left behind."""


def places(bench: Bench) -> tuple[Path, ...]:
    """Where a daemon has something while it works: its home and project, and the temporary directory it has locked."""
    return bench.base, *directories_held(bench.pid, f"/var/tmp/sandboxd-{os.getuid()}/")


@dataclass(frozen=True, slots=True)
class Sample:
    """A daemon at one time; `sandboxes` are the processes that have mounts of its directories."""

    footprint: Footprint
    files: frozenset[str]
    sessions: int
    sandboxes: int = 0

    @property
    def counts(self) -> dict[str, float]:
        """The numbers that a report shows, by name."""
        return {
            "memory, KB": self.footprint.memory_kb, "descriptors": self.footprint.open,
            "threads": self.footprint.threads, "processes": self.footprint.processes,
            "processes in sandboxes": self.sandboxes, "files": len(self.files), "sessions": self.sessions,
        }  # fmt: skip


def sample(bench: Bench, rest_s: float = REST_S) -> Sample:
    """The daemon at rest: waits until there are no sessions, and two looks in a row are alike."""
    deadline = time.monotonic() + rest_s
    before: Sample | None = None
    while True:
        footprint, files = Footprint.of(bench.pid), frozenset(files_below(*places(bench)))
        with Client(bench.socket, autostart=False) as box:
            now = Sample(footprint, files, len(box.status().sessions), sandboxes_below(bench.base))
        settled = before is not None and (now.files, now.footprint.open) == (before.files, before.footprint.open)
        if (settled and now.sessions == 0 and now.sandboxes == 0) or time.monotonic() > deadline:
            return now
        before = now
        time.sleep(0.2)


def sandboxes_below(base: Path) -> int:
    """The number of processes on the machine that have a mount of something below a directory."""
    word, found = os.fsencode(base), 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += word in Path(f"/proc/{pid}/mountinfo").read_bytes()
        except OSError:
            continue
    return found


def drift(samples: Sequence[Sample], memory_ratio: float = MEMORY_RATIO) -> tuple[list[str], list[str]]:
    """Lines of a table, and what leaks.

    Compared are the first sample after the warm-up and the end; for the memory half-time and the end, since what is
    kept of commands, rules and questions fills up to its bounds in many rounds. A leak of descriptors exceeds both: a
    file that is opened once is none."""
    first, last = warm(samples), samples[-1]
    half = half_way(samples).footprint.memory_kb
    most_open = max(one.footprint.open for one in (first, half_way(samples)))
    memory = statistics.median(one.footprint.memory_kb for one in samples[-3:])
    threads = max(one.footprint.threads for one in samples)
    most = 1 + min(32, (os.cpu_count() or 1) + 4) + 4  # the pool of asyncio.to_thread, and a few of libraries
    lines, leaks = [f"{'':<22} {'warm':>10} {'end':>10}"], []
    for name, begin, end, leak in (
        ("memory, KB", half, memory, memory > memory_ratio * half),
        ("threads", first.footprint.threads, threads, threads > most),
        _row("descriptors", first, last, lambda _, end: end > most_open),
        _row("processes", first, last, lambda begin, end: end > begin),
        *(_row(name, first, last, lambda _, end: end > 0) for name in ("processes in sandboxes", "sessions")),
        _row("files", first, last, lambda _begin, _end: not last.files <= first.files),
    ):
        lines.append(f"{name:<22} {begin:>10g} {end:>10g}  {'LEAK' if leak else 'ok'}")
        leaks += [f"{name}: {begin:g} → {end:g}"] if leak else []
    leaks += [f"file: {path}" for path in sorted(last.files - first.files)[:10]]
    if last.footprint.open > most_open:  # one may be another than before: only the sum tells of a leak
        more = {
            kind: count - first.footprint.descriptors.get(kind, 0) for kind, count in last.footprint.descriptors.items()
        }
        leaks += [f"descriptor: {count} more of {kind}" for kind, count in more.items() if count > 0]
    return lines, leaks


def warm(samples: Sequence[Sample]) -> Sample:
    """The first sample after the warm-up."""
    return samples[min(WARM_UP_ROUNDS, len(samples)) - 1]


def half_way(samples: Sequence[Sample]) -> Sample:
    return samples[max(min(WARM_UP_ROUNDS, len(samples)), len(samples) // 2) - 1]


def _row(
    name: str, first: Sample, last: Sample, leaks: Callable[[float, float], bool]
) -> tuple[str, float, float, bool]:
    begin, end = first.counts[name], last.counts[name]
    return name, begin, end, leaks(begin, end)
