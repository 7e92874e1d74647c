"""The same measurements through another sandbox runtime, when its npm package is installed: BENCH_PEER=DIR."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.commands import BARE_BWRAP, FILES_OF_THE_BIG_TREE, TRUE, make_tree
from bench.rows import Row
from bench.through import INSIDE, compared, medians, origin, run_outside
from bench.timing import ms

PACKAGE = "@anthropic-ai/sandbox-runtime"


def measure_peer(directory: Path, quick: bool) -> Iterator[Row]:
    """`directory` is the package itself, or where `npm install` was run."""
    package = next((path for path in (directory / "node_modules" / PACKAGE, directory) if _is_package(path)), None)
    node = shutil.which("node")
    if package is None or node is None:
        missing = "node is not installed" if node is None else f"{PACKAGE} is not installed in {directory}"
        yield Row("peer", None, error=missing)
        return
    print("measuring the peer …", file=sys.stderr, flush=True)
    about = json.loads((package / "package.json").read_text())
    with tempfile.TemporaryDirectory(prefix="sandboxd-bench-", dir="/var/tmp") as base, origin() as port:
        trees = {"empty": Path(base, "empty"), "big": Path(base, "big")}
        make_tree(trees["empty"], 0)
        files = make_tree(trees["big"], FILES_OF_THE_BIG_TREE // (10 if quick else 1))
        inside = [sys.executable, "-I", INSIDE, "localhost", str(port), "01"[quick]]
        options = {
            "rounds": 15 if quick else 60,
            "bare": [*BARE_BWRAP, TRUE],
            "cli": str(package / about["bin"]["srt"]),
            "trees": {name: str(path) for name, path in trees.items()},
            "inside": {"rounds": 1 if quick else 3, "command": shlex.join(inside)},
        }
        done = subprocess.run(
            [node, str(Path(__file__).with_name("peer.mjs")), str(package / about["main"]), json.dumps(options)],
            cwd=trees["empty"],
            capture_output=True,
            text=True,
            timeout=900,
        )
        outside = [run_outside(port, quick) for _ in range(1 if quick else 3)]
    if done.returncode != 0:
        yield Row("peer", None, error=" | ".join(done.stderr.splitlines()[-6:]) or f"exit status {done.returncode}")
        return
    result = json.loads(done.stdout.splitlines()[-1])
    name = f"peer {about['version']}"
    warm, bare, floor = result["warm"], result["bare"], result["node"] + result["bare"]
    yield Row(f"{name}: warm command ÷ bare bubblewrap", warm / bare, detail={"peer": ms(warm), "bare": ms(bare)})
    yield Row(
        f"{name}: its command line ÷ (node + bare bubblewrap)",
        result["cli"] / floor,
        detail={"peer": ms(result["cli"]), "node": ms(result["node"])},
    )
    yield Row(f"{name}: wrap, p50", result["wrap"] * 1000, "ms")
    yield Row(
        f"{name}: wrap in {files:,} files ÷ in none",
        result["wrap_big"] / result["wrap_empty"],
        detail={"big": ms(result["wrap_big"]), "empty": ms(result["wrap_empty"])},
    )
    yield from compared(name, medians(result["figures"]), medians(outside))


def _is_package(path: Path) -> bool:
    try:
        return bool(json.loads((path / "package.json").read_text()).get("name") == PACKAGE)
    except (OSError, ValueError):
        return False
