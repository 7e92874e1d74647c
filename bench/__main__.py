"""`./dev bench [--json FILE] [--quick] [--only WORD]`: prints a table, and the same as JSON.

Exit status 0 when everything could be measured, 1 when a row failed or a count is wrong. A missed time budget alone is
printed and is no failure: machines differ. `--peers DIR` measures other sandboxes beside ours and nothing else.
`--against [REVISION]` measures in turns with another revision, or the last release, and prints which figures grew by
more than 10 %; with `--quick` in a minute.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import importlib
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench.against import compare
from bench.peers import measure_peers
from bench.private_daemon import ROOT, Bench, private_daemon
from bench.rows import Row, table

Measure = Callable[[Bench | None, bool], Iterable[Row]]

# In the order of the table: module, function, and whether it needs a daemon.
MEASURES: tuple[tuple[str, str, bool], ...] = (
    ("bench.commands", "warm_command", True),
    ("bench.commands", "audited_command", True),
    ("bench.commands", "command_line", True),
    ("bench.commands", "hook", True),
    ("bench.commands", "wrap_round_trip", True),
    ("bench.commands", "wrap_in_a_big_tree", True),
    ("bench.commands", "crowd", True),
    ("bench.builds", "reporting", True),
    ("bench.builds", "absent_names", True),
    ("bench.builds", "watching", True),
    ("bench.builds", "event_latency", True),
    ("bench.sockets", "sockets", True),
    ("bench.network", "throughput", False),
    ("bench.network", "connect_cost", False),
    ("bench.network", "closed_by_origin", False),
    ("bench.network", "under_load", False),
    ("bench.tls", "ended_tls", False),
    ("bench.questions", "gate_decision", False),
    ("bench.questions", "question_to_connection", True),
    ("bench.through", "through_a_sandbox", True),
    ("bench.captured", "captured_connections", True),
    ("bench.captured", "captured_command", True),
    ("bench.captured", "between_commands", True),
    ("bench.restarts", "restarts", True),
    ("bench.floods", "floods", False),
    ("bench.growth", "growth", False),
)


def load(module: str, function: str) -> Measure:
    found: Measure = getattr(importlib.import_module(module), function)
    return found


def measure(module: str, function: str, needs_daemon: bool, quick: bool) -> Iterator[Row]:
    """The rows of one measurement, each with a fresh daemon; a row with an error in place of what failed."""
    print(f"measuring {function.replace('_', ' ')} …", file=sys.stderr, flush=True)
    try:
        action = load(module, function)
        with private_daemon() if needs_daemon else contextlib.nullcontext() as bench:
            yield from action(bench, quick)
    except Exception as error:
        yield Row(function.replace("_", " "), None, error=f"{type(error).__name__}: {error}".replace("\n", " | ")[:400])


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller trees")
    parser.add_argument("--only", default="", metavar="WORD", help="only measurements with this in their name")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="compare with sandboxes installed there")
    parser.add_argument("--write", action="store_true", help="with --peers: renew docs/performance.md")
    parser.add_argument(
        "--against", nargs="?", const="", metavar="REVISION", help="compare with a revision (the last release)"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what it has started and made goes with it
    if arguments.against is not None:
        print(compare(arguments.against, arguments.only, arguments.quick))
        return 0
    # As an installed program is: compiled once, whatever the environment says about writing bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for package in (ROOT / "sandboxd", ROOT / "client"):
        compileall.compile_dir(package, quiet=2)
    rows: list[Row] = []
    for module, function, needs_daemon in MEASURES if not arguments.peers else ():
        if arguments.only in function:
            rows += measure(module, function, needs_daemon, arguments.quick)
    if arguments.peers:
        rows += measure_peers(arguments.peers, arguments.quick, arguments.write)
    print(table(rows))
    result = {
        "machine": {"system": platform.release(), "arch": platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "as_root": os.geteuid() == 0,
        "quick": arguments.quick,
        "rows": [row.as_json() for row in rows],
    }
    text = json.dumps(result, ensure_ascii=False, indent=2)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(text + "\n")
    else:
        print(text)
    return 1 if any(row.error or (row.budget.startswith("=") and not row.ok) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
