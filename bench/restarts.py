"""Restarts under load: what is lost, and how long clients wait."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from bench.private_daemon import Bench
from bench.rows import Row
from bench.timing import ms
from sandboxd_client import Client, SandboxdError

WORKERS = 3


class _Load:
    """Counts of a run.

    `lost` are commands that did not do what they should, `refused` connections to the daemon that failed, `stall_s`
    the longest time that a client waited for an answer."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stop = threading.Event()
        self.done = self.lost = self.refused = 0
        self.stall_s = 0.0
        self._threads = [threading.Thread(target=self._commands) for _ in range(WORKERS)]
        self._threads.append(threading.Thread(target=self._connections))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def _commands(self) -> None:
        with Client(autostart=False) as box:
            while not self._stop.is_set():
                try:
                    ended = box.run(["sh", "-c", "exit 3"], cwd=str(self._bench.project), capture_output=True)
                    self.lost += ended.returncode != 3
                except SandboxdError:
                    self.lost += 1
                self.done += 1

    def _connections(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                with Client(autostart=False) as box:
                    box.hello()
            except SandboxdError:
                self.refused += 1
            self.stall_s = max(self.stall_s, time.monotonic() - begun)
            self._stop.wait(0.005)


def restarts(bench: Bench, quick: bool) -> Iterator[Row]:
    number = 5 if quick else 20
    load = _Load(bench)
    stalls = []
    cut = lost = 0
    with Client(autostart=False) as box:
        with load.running():
            for _ in range(number):
                before = load.done
                box.restart()
                status = box.status()
                assert status.restarted is not None, status
                stalls.append(status.restarted.stall_s)
                cut += status.restarted.cut
                lost += len(status.restarted.lost)
                while load.done < before + 2 * WORKERS:
                    time.sleep(0.01)
    shown = {"commands": load.done, "longest_without_a_daemon": ms(max(stalls))}
    yield Row(f"{number} restarts under load: commands lost", load.lost + lost, "", "= 0", shown)
    yield Row(f"{number} restarts under load: connections refused", load.refused, "", "= 0", {"connections_cut": cut})
    yield Row("longest wait of a client over a restart", load.stall_s, "s", "≤ 1")
