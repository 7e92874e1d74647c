"""A loop of prepared commands, split over a time: a program of its own, as an ordinary user where root runs the soak.

python -m bench.soak.loop NUMBER SECONDS     prints looks as JSON, the last when its clients closed
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.private_daemon import ROOT, Bench, private_daemon
from bench.soak.looks import MEMORY_RATIO, REST_S, sample
from sandboxd_client import Client

CLIENTS = 6
LOOKS = 40
WARM_UP = 500
PAUSES_S = 0.01, 0.3
"""The least and the most after a command, in which its client prepares the next sandbox."""


# the program


@dataclass(slots=True)
class _Turns:
    """Commands that several clients run, each at its time."""

    number: int
    seconds: float
    begun: float = field(default_factory=time.monotonic)
    taken: int = 0
    ready: int = 0
    wrong: int = 0
    latest: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_over(self) -> bool:
        return self.ready >= self.number or time.monotonic() > self.begun + self.seconds

    def work(self, bench: Bench) -> None:
        with Client(bench.socket, prepare=True) as box:
            session = box.session_open(cwd=str(bench.project)).session_id
            pause = PAUSES_S[0]
            while not self.is_over:
                with self.lock:
                    due = self.begun + self.taken * self.seconds / self.number
                    self.taken += 1
                time.sleep(max(pause, due - time.monotonic()))
                begin = time.perf_counter()
                done = box.run(["true"], session_id=session, cwd=str(bench.project), capture_output=True)
                taken = time.perf_counter() - begin
                was_ready = done.wrap is not None and done.wrap.prepared
                pause = min(max(pause * (0.95 if was_ready else 1.5), PAUSES_S[0]), PAUSES_S[1])
                with self.lock:
                    self.wrong += done.returncode != 0 or bool(done.stdout or done.stderr)
                    self.ready += was_ready
                    if was_ready:
                        self.latest.append(taken)


def _said(turns: _Turns, bench: Bench, rest_s: float) -> None:
    """Print a look; without `rest_s` it is one at work."""
    latest, turns.latest = sorted(turns.latest), []
    look = sample(bench, rest_s)
    figures = {"commands": turns.taken, "prepared": turns.ready, "wrong": turns.wrong, **look.counts}
    if latest:
        figures["p50 ms"] = round(statistics.median(latest) * 1000, 2)
        figures["p99 ms"] = round(latest[int(len(latest) * 0.99)] * 1000, 2)
    print(json.dumps(figures), flush=True)


def _run(number: int, seconds: float) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with private_daemon() as bench:
        _work(bench, _Turns(min(number, WARM_UP), seconds / LOOKS))
        _said(_Turns(0, 0.0), bench, REST_S)
        turns = _Turns(number, seconds)
        _work(bench, turns, lambda: _said(turns, bench, 0.0))
        _said(turns, bench, REST_S)


def _work(bench: Bench, turns: _Turns, look: Callable[[], None] | None = None) -> None:
    threads = [threading.Thread(target=turns.work, args=(bench,), daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    while look and any(thread.is_alive() for thread in threads):
        threads[0].join(max(1.0, turns.seconds / LOOKS))
        look()
    for thread in threads:
        thread.join()


# how a soak uses it


@dataclass(slots=True)
class Loop:
    """The program at work, and what it said."""

    number: int
    process: subprocess.Popen[str] | None = None
    looks: list[dict[str, float]] = field(default_factory=list)
    reader: threading.Thread | None = None

    def said(self) -> dict[str, float] | None:
        """Return the latest look."""
        return self.looks[-1] if self.looks else None

    def ended(self) -> Sequence[dict[str, float]]:
        """Return all looks, once it has ended."""
        if self.process is not None and self.reader is not None:
            self.process.wait()
            self.reader.join()
        return self.looks

    def problems(self) -> Iterator[str]:
        """Problems of the looks: the first is one at rest after some commands, the last at the end."""
        if self.process is None:
            return
        if self.process.returncode or len(self.looks) < 3:
            yield f"loop: it ended with status {self.process.returncode} after {len(self.looks)} looks"
            return
        first, half, last = self.looks[0], self.looks[len(self.looks) // 2], self.looks[-1]
        if last["prepared"] < self.number:
            yield f"loop: {last['prepared']:.0f} prepared commands of {self.number}"
        if last["memory, KB"] > MEMORY_RATIO * half["memory, KB"]:
            yield f"loop: memory, KB: {half['memory, KB']:.0f} → {last['memory, KB']:.0f}"
        for name in ("descriptors", "processes", "files"):
            if last[name] > first[name]:
                yield f"loop: {name}: {first[name]:.0f} → {last[name]:.0f}"
        for name in ("wrong", "processes in sandboxes", "sessions"):
            if last[name]:
                yield f"loop: {name}: {last[name]:.0f}"


@contextmanager
def started_loop(number: int, seconds: float) -> Iterator[Loop]:
    """Starts the program, unless the number is 0."""
    if not number:
        yield Loop(0)
        return
    base = Path(tempfile.mkdtemp(prefix="sandboxd-loop-", dir="/var/tmp"))
    base.chmod(0o755)
    try:
        words = ("-m", "bench.soak.loop", str(number), str(seconds))
        process = subprocess.Popen(
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **_as_a_user(base, words)
        )
        assert process.stdout is not None
        loop = Loop(number, process)
        loop.reader = threading.Thread(
            target=lambda: loop.looks.extend(json.loads(line) for line in process.stdout or ()), daemon=True
        )
        loop.reader.start()
        try:
            yield loop
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _as_a_user(base: Path, words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of Popen."""
    if os.geteuid() != 0:
        return {"args": [sys.executable, *words], "cwd": ROOT}
    sys.path.insert(0, str(ROOT / "tests"))
    from support.users import SYSTEM_PATH, code_for, make_identity

    identity = make_identity("user", base / "user", code_for("user", base / "code"))
    environment = {**identity.environment(), "PATH": SYSTEM_PATH}
    return {"args": identity.python(*words), "cwd": "/", "env": environment, **identity.popen_keywords()}


if __name__ == "__main__":
    _run(int(sys.argv[1]), float(sys.argv[2]))
