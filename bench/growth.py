"""How costs grow: the exponent of a cost between sizes, 0 for flat and 1 for linear."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from bench.commands import TRUE, make_tree
from bench.private_daemon import Bench, private_daemon
from bench.rows import Row
from bench.timing import in_turns, median
from sandboxd_client import Client

Costs = dict[str, float]
"""Seconds or megabytes by name."""


def growth(_: Bench | None, quick: bool) -> Iterator[Row]:
    """Rows for sessions, rules, files, and commands in flight; each size has a daemon of its own."""
    parts: tuple[tuple[str, Callable[[int], Costs], tuple[int, ...], tuple[int, ...]], ...] = (
        ("sessions", _sessions, (1, 10, 200), (1, 20)),
        ("rules", _rules, (10, 1000, 10_000), (10, 500)),
        ("files", _files, (100, 10_000, 100_000), (100, 5_000)),
        ("commands in flight", _in_flight, (1, 10, 100), (1, 10)),
    )
    for name, measure, sizes, few in parts:
        costs = {size: measure(size) for size in (few if quick else sizes)}
        least, most = min(costs), max(costs)
        for cost in costs[least]:
            exponent = math.log(costs[most][cost] / costs[least][cost]) / math.log(most / least)
            budget = "≤ 0.1" if (name, cost) in (("sessions", "wrap ms"), ("files", "wrap ms")) else "≤ 1"
            detail = {str(size): found[cost] for size, found in costs.items()}
            yield Row(f"growth of {cost} with {name}", exponent, "", budget, detail)


def _costs(bench: Bench, box: Client, session: str, begun: float) -> Costs:
    """Return what a wrap takes now and took at first, and the memory of the daemon."""
    first = time.perf_counter()
    box.wrap(argv=[TRUE], session_id=session)
    ready = time.perf_counter() - begun
    first = time.perf_counter() - first
    wrap = median(in_turns({"wrap": lambda: box.wrap(argv=[TRUE], session_id=session)}, 50)["wrap"])
    return {
        "wrap ms": wrap * 1000, "first wrap ms": first * 1000, "start ms": ready * 1000,
        "memory MB": bench.memory_mb("VmRSS"),
    }  # fmt: skip


def _sessions(size: int) -> Costs:
    begun = time.perf_counter()
    with private_daemon() as bench, Client() as box:
        sessions = [box.session_open(cwd=str(bench.project)).session_id for _ in range(size)]
        return _costs(bench, box, sessions[0], begun)


def _rules(size: int) -> Costs:
    begun = time.perf_counter()
    hosts = {"sandbox": {"network": {"deniedDomains": [f"h{number}.example.org" for number in range(size)]}}}
    with private_daemon(hosts) as bench, Client() as box:
        return _costs(bench, box, box.session_open(cwd=str(bench.project)).session_id, begun)


def _files(size: int) -> Costs:
    with private_daemon() as bench, Client() as box:
        make_tree(bench.base / "tree", size)
        session = box.session_open(cwd=str(bench.base / "tree")).session_id
        return _costs(bench, box, session, time.perf_counter())


def _in_flight(size: int) -> Costs:
    with private_daemon() as bench, Client(prepare=False) as box:
        session = box.session_open(cwd=str(bench.project)).session_id
        begun = time.perf_counter()
        running = [box.spawn(["sleep", "600"], session_id=session) for _ in range(size)]
        try:
            return _costs(bench, box, session, begun)
        finally:
            for one in running:
                one.kill()
            for one in running:
                one.wait()
