"""`./dev soak`: daemons under a mixed load for as long as you like, and whether anything of it stays behind.

    ./dev soak [--minutes N] [--quick]     a mixed load; prints what drifts
    ./dev soak --loop NUMBER               beside it, so many prepared commands; as an ordinary user, where this is root
    ./dev soak --write                     the report goes to docs/soak.md
    ./dev soak --idle [SECONDS]            how often an idle daemon wakes up (60 s)

The daemons are its own. After each round everything is at rest, and memory, descriptors, threads, processes and files
are those of the round before, or something leaks. Exit status 1 when it does, when an answer was wrong, and for --idle
when the daemon woke up.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.kernel_counters import Footprint, wake_ups
from bench.network import child
from bench.private_daemon import private_daemon
from bench.soak.load import SECURE, Load
from bench.soak.looks import MEMORY_RATIO, MEMORY_RATIO_QUICK, WARM_UP_ROUNDS, Sample, drift, sample
from bench.soak.loop import Loop, started_loop
from bench.soak.page import PAGE, Report
from bench.through import origin

LOOP_SHARE = 0.93
"""Of the time, for the loop of prepared commands: it ends with the rounds."""


@contextmanager
def _load(quick: bool) -> Iterator[Load]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sandboxd-bench-"))
        [secure_port], _ = stack.enter_context(child("bench.tls", "origin", directory))
        os.environ["SSL_CERT_FILE"] = str(Path(directory, "origin.pem"))  # of the daemons
        stack.callback(os.environ.pop, "SSL_CERT_FILE")
        restarted = stack.enter_context(private_daemon())
        bench = stack.enter_context(private_daemon({"sandbox": {"network": SECURE}}))
        (bench.project / "note").touch()
        yield Load(bench, restarted, stack.enter_context(origin()), secure_port, quick)


def soak(minutes: float, quick: bool, prepared: int, write: bool) -> int:
    with _load(quick) as load, started_loop(prepared, minutes * 60 * LOOP_SHARE) as loop:
        asyncio.run(load.warm_up(200 if quick else 1200))
        begun = time.monotonic()
        samples: dict[str, list[Sample]] = {"mixed load": [], "restarted": []}
        end = begun + minutes * 60
        while len(samples["restarted"]) <= WARM_UP_ROUNDS or time.monotonic() < end:
            _round(load, samples, loop)
        report = Report(begun, load.done, load.seconds, samples, loop.ended())
    problems = list(load.wrong[:20])
    if Path("/etc/left").exists():
        problems.append("a command wrote /etc/left")
    for name, looks in report.samples.items():
        lines, leaks = drift(looks, MEMORY_RATIO_QUICK if quick else MEMORY_RATIO)
        print(f"{name}:", *lines, sep="\n")
        problems += [f"{name}: {leak}" for leak in leaks]
    problems += loop.problems()
    print(*report.summary(), *(f"! {problem}" for problem in problems), sep="\n")
    if write:
        PAGE.write_text("\n".join(report.lines(problems)) + "\n")
    return 1 if problems else 0


def _round(load: Load, samples: dict[str, list[Sample]], loop: Loop) -> None:
    begin = time.monotonic()
    asyncio.run(load.round())
    samples["restarted"].append(sample(load.restarted))
    samples["mixed load"].append(sample(load.bench))
    now = samples["mixed load"][-1].counts
    counts = "  ".join(f"{count:g} {name}" for name, count in now.items())
    print(f"round {len(samples['restarted']):>3}  {time.monotonic() - begin:5.1f} s  {counts}", flush=True)
    if said := loop.said():
        print(f"    loop: {said}", flush=True)


def idle(seconds: float) -> int:
    with _load(quick=True) as load:
        bench = load.bench
        asyncio.run(load.round())  # idle is a daemon that has worked, not only one that was started
        sample(bench)
        time.sleep(3)  # what ends with a delay may do so
        memory = Footprint.of(bench.pid).memory_kb
        before, begin = wake_ups(bench.pid), time.monotonic()
        time.sleep(seconds)
        after = wake_ups(bench.pid)
        woken = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name)}
        print(
            f"{sum(woken.values())} wake-ups in {time.monotonic() - begin:.0f} s of {len(after)} threads; "
            f"memory {memory} → {Footprint.of(bench.pid).memory_kb} KB"
        )
        for name, count in woken.items():
            print(f"! {name}: {count}")
        for problem in load.wrong:
            print(f"! {problem}")
        return 1 if woken or load.wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10, metavar="N", help="how long (10)")
    parser.add_argument("--quick", action="store_true", help="smaller rounds")
    parser.add_argument("--loop", type=int, default=0, metavar="NUMBER", help="prepared commands beside it (0)")
    parser.add_argument("--write", action="store_true", help="write docs/soak.md")
    parser.add_argument(
        "--idle", type=float, nargs="?", const=60, metavar="SECONDS", help="measure an idle daemon instead"
    )
    options = parser.parse_args()
    tempfile.tempdir = "/var/tmp"
    if options.idle is not None:
        return idle(options.idle)
    return soak(options.minutes, options.quick, options.loop, options.write)


if __name__ == "__main__":
    sys.exit(main())
