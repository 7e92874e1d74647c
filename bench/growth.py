"""How costs grow: the exponent of a cost between the two largest sizes, 0 for flat and 1 for linear."""

from __future__ import annotations

import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE

from bench.commands import TRUE, make_tree
from bench.kernel_counters import Footprint
from bench.private_daemon import PINNED_NAME, Bench, private_daemon
from bench.rows import Row
from bench.through import INSIDE, origin
from bench.timing import in_turns, median
from sandboxd_client import Client, Process

Costs = dict[str, float]
"""Seconds or megabytes by name."""


def growth(_: Bench | None, quick: bool) -> Iterator[Row]:
    """Rows for all that a daemon can have much of; each size has a daemon of its own."""
    parts: tuple[tuple[str, Callable[[int], Costs], tuple[int, ...], tuple[int, ...]], ...] = (
        ("sessions", _sessions, (1, 10, 100, 1000), (1, 20)),
        ("rules", _rules, (10, 1000, 10_000, 100_000), (10, 500)),
        ("files", _files, (100, 10_000, 100_000, 1_000_000), (100, 5_000)),
        ("mounts", _mounts, (1, 10, 100, 1000), (1, 20)),
        ("open tunnels", _tunnels, tuple(sorted({1, 10, 100, 1000, _most_tunnels()})), (1, 20)),
        ("violations", _violations, (10, 100, 1000, 10_000), (10, 100)),
        ("commands in flight", _in_flight, (1, 10, 100, 500), (1, 10)),
    )
    for name, measure, sizes, few in parts:
        costs = {size: measure(size) for size in (few if quick else sizes)}
        less, most = sorted(costs)[-2:]  # among small sizes, what does not grow hides what does
        for cost in costs[most]:
            exponent = math.log(costs[most][cost] / costs[less][cost]) / math.log(most / less)
            budget = "≤ 0.1" if (name, cost) in (("sessions", "wrap ms"), ("files", "wrap ms")) else "≤ 1"
            detail = {str(size): found[cost] for size, found in costs.items()}
            yield Row(f"growth of {cost} with {name}", exponent, "", budget, detail)


def _costs(bench: Bench, box: Client, session: str, begun: float) -> Costs:
    """Return what a wrap takes now and took at first, and the memory of the daemon."""
    first = time.perf_counter()
    box.wrap(argv=[TRUE], session_id=session)
    ready = time.perf_counter() - begun
    first = time.perf_counter() - first
    time.sleep(_CREDIT_S)
    wrap = median(in_turns({"wrap": lambda: box.wrap(argv=[TRUE], session_id=session)}, 20)["wrap"])
    return {
        "wrap ms": wrap * 1000, "first wrap ms": first * 1000, "start ms": ready * 1000,
        "memory MB": bench.memory_mb("VmRSS"),
    }  # fmt: skip


_CREDIT_S = 0.3
"""After so long a client has credit for the wraps that are measured, which then wait for no turn (rpc/shares.py)."""


def _sessions(size: int) -> Costs:
    begun = time.perf_counter()
    with private_daemon() as bench, ExitStack() as stack:
        sessions: list[tuple[Client, str]] = []
        while len(sessions) < size:
            box = stack.enter_context(Client())
            most = min(size - len(sessions), _OF_ONE_CONNECTION)
            sessions += [(box, box.session_open(cwd=str(bench.project)).session_id) for _ in range(most)]
        return _costs(bench, *sessions[0], begun)


_OF_ONE_CONNECTION = 200
"""Sessions; 256 are the most."""


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


def _mounts(size: int) -> Costs:
    with tempfile.TemporaryDirectory(prefix="sandboxd-mounts-", dir="/var/tmp") as base:
        places = [Path(base, f"m{number}") for number in range(size)]
        for place in places:
            place.mkdir()
        settings = {"sandbox": {"filesystem": {"allowWrite": list(map(str, places))}}}
        with private_daemon(settings) as bench, Client(prepare=False) as box:
            session = box.session_open(cwd=str(bench.project)).session_id
            return {**_costs(bench, box, session, time.perf_counter()), "run ms": _run_ms(box, session)}


def _run_ms(box: Client, session: str) -> float:
    def run() -> None:
        done = box.run([TRUE], session_id=session, capture_output=True)
        assert done.returncode == 0, done

    return median(in_turns({"run": run}, 10)["run"]) * 1000


_OF_ONE_COMMAND = 500
"""Tunnels: a command may have as many as it leaves to the others (proxy/limits.py)."""


def _most_tunnels() -> int:
    """Return how many a daemon permits with the descriptors that it may have here, but ten thousand at most."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = hard * 3 // 8 - _OF_ONE_COMMAND if hard > 0 else 10_000
    return min(most // _OF_ONE_COMMAND * _OF_ONE_COMMAND, 10_000)


def _tunnels(size: int) -> Costs:
    numbers = [min(_OF_ONE_COMMAND, size - first) for first in range(0, size, _OF_ONE_COMMAND)]
    with private_daemon() as bench, origin() as port, ExitStack() as stack:
        begun = time.perf_counter()
        holding = [stack.enter_context(_holding(bench, port, number)) for number in numbers]
        for one in holding:
            assert one.stdout is not None and one.stdout.readline() == b"open\n", "not all tunnels are open"
        opened = time.perf_counter() - begun
        assert Footprint.of(bench.pid).descriptors["socket"] >= 2 * size, "tunnels were closed again"
        box = stack.enter_context(Client(prepare=False))
        session = box.session_open(cwd=str(bench.project)).session_id
        costs = _costs(bench, box, session, time.perf_counter())
        for one in holding:
            assert one.stdin is not None
            one.stdin.close()
    return {**costs, "open ms": opened * 1000}


@contextmanager
def _holding(bench: Bench, port: int, number: int) -> Iterator[Process]:
    """A command that opens tunnels and holds them until its input ends, in a session of its own."""
    with Client(prepare=False) as box:
        session = box.session_open(cwd=str(bench.project)).session_id
        argv = [sys.executable, "-I", INSIDE, PINNED_NAME, str(port), "hold", str(number)]
        overrides = {"allow_domains": [f"{PINNED_NAME}:{port}"]}
        with box.spawn(argv, session_id=session, overrides=overrides, stdin=PIPE, stdout=PIPE) as command:
            yield command


def _violations(size: int) -> Costs:
    line = f"i=0; while [ $i -lt {size} ]; do : > /etc/refused-$i; i=$((i + 1)); done"
    with private_daemon() as bench, Client(prepare=False) as box:
        session = box.session_open(cwd=str(bench.project)).session_id
        box.run([TRUE], session_id=session)
        begun = time.perf_counter()
        box.run(f"{{ {line}; }} 2>/dev/null", session_id=session)
        taken = time.perf_counter() - begun
        return {**_costs(bench, box, session, time.perf_counter()), "run ms": taken * 1000}


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
