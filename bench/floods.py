"""Floods of one command or client, and another session's `run -- true` beside each."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from bench.commands import TRUE
from bench.flooding import ATTACKS, CLIENTS, COMPANIONS, CONTROL, options, settings
from bench.private_daemon import Bench, private_daemon
from bench.rows import Row
from bench.timing import median, ms
from sandboxd_client import Client

FLOODING = Path(__file__).with_name("flooding")
MOST_MB = 100


def floods(_bench: Bench | None, quick: bool, only: str = "") -> Iterator[Row]:
    """Each with a daemon of its own.

    The flood runs at the lowest priority, so that it is the daemon that is measured, and not who gets the
    processors. All stay in one session: the kernel may group processes by it (sched(7), autogroup), and priorities
    order those of one group only. The control are as many processes that take processor time and nothing else: what
    is more than with them is the daemon's."""
    for attack in ATTACKS | CLIENTS:
        if only in attack and attack not in (CONTROL, *COMPANIONS.values()):
            try:
                yield from _one(attack, 10 if quick else 30)
            except Exception as error:
                yield Row(f"flood: {attack.replace('_', ' ')}", None, error=f"{type(error).__name__}: {error}"[:300])


def _one(attack: str, rounds: int) -> Iterator[Row]:
    name = f"flood: {attack.replace('_', ' ')}"
    with private_daemon(settings(attack)) as bench, Client(timeout=120) as box:

        def measured() -> list[float]:
            return [_true(box, bench) for _ in range(rounds)]

        measured()  # to warm up
        quiet = measured()
        with _flooding(bench, attack) as processes:
            busy = measured()
        with _flooding(bench, CONTROL, str(processes)):
            control = measured()
        quiet += measured()  # again, in case that the machine has more or less to do by now
        memory = bench.memory_mb()
        detail = {
            "times control": median(busy) / median(control),
            "flooded": ms(median(busy)),
            "quiet": ms(median(quiet)),
            "control": f"{ms(median(control))} of {processes}",
            "worst": ms(max(busy)),
            "memory": f"{memory:.0f} MB",
            "log": f"{(bench.base / 'daemon.log').stat().st_size >> 10} KiB",
        }
        yield Row(name, median(busy) / median(quiet), "times quiet", "≤ 3", detail)
        if memory > MOST_MB:
            yield Row(f"{name}: memory", memory, "MB", f"≤ {MOST_MB}")


def _true(box: Client, bench: Bench) -> float:
    begin = time.perf_counter()
    done = box.run([TRUE], cwd=str(bench.project), capture_output=True, start_new_session=False)
    if done.returncode != 0:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr!r}")
    return time.perf_counter() - begin


@contextmanager
def _flooding(bench: Bench, attack: str, *arguments: str) -> Iterator[int]:
    """Flood; give the number of processes that this takes."""
    other = bench.base / attack
    shutil.copytree(FLOODING, other / FLOODING.name)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    floods: list[subprocess.Popen[bytes]] = []
    try:
        for what in filter(None, (attack, COMPANIONS.get(attack))):
            nice = ["nice", "-n", "19", "/usr/bin/python3", "-m", FLOODING.name, what, *arguments]
            run = [sys.executable, "-P", "-m", "sandboxd", "run", *options(what, port), "--"]
            flood = subprocess.Popen(
                nice if what in CLIENTS else [*run, *nice],
                cwd=other,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "FLOODING_PORT": str(port)},
            )
            floods.append(flood)
            assert flood.stdout is not None
            if not flood.stdout.readline().endswith(b"flooding\n"):  # one attack writes before it
                flood.kill()
                raise RuntimeError(f"the flood did not begin: {flood.wait()}")
            threading.Thread(target=_drain, args=(flood.stdout,), name="drain", daemon=True).start()
        before = _ticks_below(floods)
        time.sleep(1.0)
        after = _ticks_below(floods)
        yield max(1, sum(ticks - before.get(pid, ticks) > 1 for pid, ticks in after.items()))
    finally:
        for flood in floods:
            flood.kill()
            flood.wait()
            if flood.stdout is not None:
                flood.stdout.close()


def _ticks_below(floods: list[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Return the processor time of their processes, with that of ended children (proc_pid_stat(5))."""
    ticks: dict[int, int] = {}
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
            below.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [flood.pid for flood in floods]
    for pid in found:
        found += below.get(pid, [])
    return {pid: ticks[pid] for pid in found if pid in ticks}


def _drain(stream: IO[bytes]) -> None:
    """Read the output of a flood, so that it goes on."""
    with suppress(OSError, ValueError):  # closed at the end
        while stream.read(1 << 16):
            pass


if __name__ == "__main__":
    from bench.rows import table

    rows = []
    for row in floods(None, True, sys.argv[1] if len(sys.argv) > 1 else ""):
        rows.append(row)
        print(table([row]).splitlines()[1], flush=True)
