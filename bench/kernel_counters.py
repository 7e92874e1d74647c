"""Kernel counters of a process tree: wake-ups, memory, threads, descriptors.

The process itself is not asked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def with_children(pid: int) -> list[int]:
    """`pid` and every process below it."""
    found = [pid]
    for one in found:
        for task in _entries(f"/proc/{one}/task"):
            found += [int(child) for child in _read(f"/proc/{one}/task/{task}/children").split()]
    return found


def wake_ups(pid: int) -> dict[str, int]:
    """The number of times that each thread was put on a processor, by `name/thread id`.

    By a wake-up (voluntary switches before it), or again after another had its turn."""
    counts: dict[str, int] = {}
    for one in with_children(pid):
        for task in _entries(f"/proc/{one}/task"):
            lines = dict(
                line.split(":", 1) for line in _read(f"/proc/{one}/task/{task}/status").splitlines() if ":" in line
            )
            if "Name" in lines:
                counts[f"{lines['Name'].strip()}/{task}"] = int(lines["voluntary_ctxt_switches"])
    return counts


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one process: `memory_kb` is anonymous memory (RssAnon), `descriptors` are counted by kind."""

    memory_kb: int
    threads: int
    processes: int
    descriptors: dict[str, int]

    @classmethod
    def of(cls, pid: int) -> Footprint:
        lines = dict(line.split(":", 1) for line in _read(f"/proc/{pid}/status").splitlines() if ":" in line)
        kinds: dict[str, int] = {}
        for name in _entries(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            kind = target.split(":[")[0] if ":[" in target else target
            kinds[kind] = kinds.get(kind, 0) + 1
        return cls(int(lines["RssAnon"].split()[0]), int(lines["Threads"]), len(with_children(pid)), kinds)

    @property
    def open(self) -> int:
        return sum(self.descriptors.values())


def files_below(*places: Path) -> set[str]:
    """The path of everything that is there.

    What goes while we look is not there."""
    return {
        os.path.join(folder, name)
        for place in places
        for folder, folders, files in os.walk(place)
        for name in (*folders, *files)
    }


def directories_held(pid: int, below: str) -> list[Path]:
    """The directories below `below` in which the process has a file open."""
    found = set()
    for name in _entries(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith(below) and "/" in target[len(below) :]:
            found.add(Path(target).parent)
    return sorted(found)


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
