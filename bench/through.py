"""The network as a command inside a sandbox has it: tunnels from inside, beside direct connections."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.private_daemon import PINNED_NAME, ROOT, Bench
from bench.rows import Row
from sandboxd_client import Client

INSIDE = str(Path(__file__).with_name("inside.py"))
Figures = dict[str, float]


def through_a_sandbox(bench: Bench, quick: bool) -> Iterator[Row]:
    with origin() as port, Client() as box:
        argv = [sys.executable, "-I", INSIDE, PINNED_NAME, str(port), "01"[quick]]

        def ours() -> str:
            overrides = {"allow_domains": [f"{PINNED_NAME}:{port}"]}
            done = box.run(argv, cwd=str(bench.project), overrides=overrides, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"exit {done.returncode}: {done.stderr}")
            return str(done.stdout)

        inside, outside = [], []
        for _ in range(1 if quick else 3):
            inside.append(json.loads(ours()))
            outside.append(run_outside(port, quick))
    yield from compared("", medians(inside), medians(outside))


def run_outside(port: int, quick: bool) -> Figures:
    """What `inside.py` says without any sandbox."""
    argv = [sys.executable, "-I", INSIDE, "127.0.0.1", str(port), "01"[quick]]
    figures: Figures = json.loads(subprocess.run(argv, env={}, check=True, capture_output=True, text=True).stdout)
    return figures


def compared(who: str, inside: Figures, outside: Figures) -> Iterator[Row]:
    """The rows for a pair of figures; only ours (`who` empty) have budgets."""
    ours, prefix = not who, f"{who}: " if who else ""
    speed = {"inside": f"{inside['down'] / 1e9:.2f} GB/s", "direct": f"{outside['down'] / 1e9:.2f} GB/s"}
    yield Row(f"{prefix}throughput from inside ÷ direct", inside["down"] / outside["down"], "",
              "≥ 0.85" if ours else "", speed)  # fmt: skip
    connects = {"inside": f"{inside['connect'] * 1e3:.3g} ms", "direct": f"{outside['connect'] * 1e3:.3g} ms"}
    yield Row(f"{prefix}connect from inside ÷ direct", inside["connect"] / outside["connect"], "",
              "≤ 4" if ours else "", connects)  # fmt: skip
    yield Row(f"{prefix}{inside['transfers']:.0f} transfers of 1 MB from inside: incomplete", inside["short"], "",
              "= 0" if ours else "")  # fmt: skip


def medians(runs: list[Figures]) -> Figures:
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {**medians, "short": sum(run["short"] for run in runs), "transfers": sum(run["transfers"] for run in runs)}


@contextmanager
def origin() -> Iterator[int]:
    """The origin of bench.network in a process of its own; yields its port."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.network", "origin"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        yield int(child.stdout.readline())
    finally:
        child.stdin.close()
        child.wait(20)
        child.stdout.close()
