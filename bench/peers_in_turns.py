"""Runs the commands of `bench.peers` in turns, as the account that they are for: JSON on standard input and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from sandboxd_client import Client

EXPECTED = {"true": "", "500 files": "500\n"}
IN_A_ROW = 5
Start = Callable[[], "subprocess.CompletedProcess[Any] | Any"]


def _start(argv: list[str], changes: dict[str, str]) -> Start:
    environment = {**os.environ, **changes}
    return lambda: subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def _through(client: Client, line: str) -> Start:
    session = client.session_open(cwd=os.getcwd()).session_id
    argv = ["bash", "-c", line]
    return lambda: client.run(argv, cwd=os.getcwd(), session_id=session, capture_output=True, text=True)


def _ready(client: Client, start: Start) -> None:
    """Waits for a prepared sandbox. It ends when it is not used, so that a command may have to ask for another."""
    if not client.status().prepared:
        start()
    until = time.monotonic() + 30
    while not client.status().prepared:
        assert time.monotonic() < until, "no sandbox is prepared"
        time.sleep(0.01)


def main() -> None:
    asked = json.load(sys.stdin)
    failed: dict[str, str] = {}
    taken: dict[str, dict[str, list[float]]] = {}
    with Client(prepare=False) as plain, Client(prepare=True) as prepared:
        for work, line in asked["lines"].items():
            starts = {
                "sandboxd, client": _through(plain, line),
                "sandboxd, client, prepared": _through(prepared, line),
                **{
                    name: _start(command["argvs"][work], command.get("environment", {}))
                    for name, command in asked["commands"].items()
                },
            }
            for name, start in starts.items():
                done = start()
                if (done.returncode, done.stdout) != (0, EXPECTED[work]):
                    failed[name] = f"{work}: exit status {done.returncode}: {(done.stdout + done.stderr)[-200:]}"
            fit = [name for name in starts if name not in failed]
            for number in range(asked["rounds"] // IN_A_ROW):
                turn = number % len(fit)
                for name in (*fit[turn:], *fit[:turn]):
                    starts[name]()  # not counted: some make names in the project, which others then look at again
                    for _ in range(IN_A_ROW):
                        if name.endswith("prepared"):
                            _ready(prepared, starts[name])
                        begin = time.perf_counter()
                        starts[name]()
                        taken.setdefault(name, {}).setdefault(work, []).append(time.perf_counter() - begin)
    kept = {
        name: {work: sorted(taken[name][work]) for work in works} for name, works in taken.items() if name not in failed
    }
    json.dump({"taken": kept, "failed": failed}, sys.stdout)


if __name__ == "__main__":
    main()
