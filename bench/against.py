"""Another revision beside this one, measured in turns within one run: figures that grew by more than 10 %."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.private_daemon import ROOT

ROUNDS = 3
USUAL = ("warm_command", "command_line", "wrap_round_trip")
QUICK = ("warm_command", "wrap_round_trip")
QUICK_S = 40.0
"""No round of the quick form begins after so long: it ends within a minute on two idle processors."""
GROWTH = 1.1
COMMITS = 100
"""So far back is compared with where there is no release."""

Figures = Mapping[str, tuple[float, str]]
"""Name of a row → figure and budget."""


def compare(revision: str, only: str, quick: bool) -> str:
    """Measures both revisions with the benchmark of this one; `only` chooses among the measurements.

    Without a revision, the last release is one, else a commit of some time ago."""
    begun = time.monotonic()
    revision = revision or last_release(ROOT)
    if not revision:
        return "There is no earlier revision in this clone: nothing was compared."
    found: dict[str, list[Figures]] = {"old": [], "new": []}
    with _installed(revision) as old, _installed(None) as new:
        for number in range(ROUNDS):
            if quick and number and time.monotonic() > begun + QUICK_S:
                break
            for name, tree in {"old": old, "new": new}.items():
                print(f"round {number + 1}, {name} …", file=sys.stderr, flush=True)
                found[name].append(_figures(tree, [only] if only else QUICK if quick else USUAL))
    rounds = f"{len(found['new'])} round{'s' * (len(found['new']) > 1)} in turns"
    return "\n".join((*lines(_medians(found["old"]), _medians(found["new"]), revision), rounds))


def last_release(repository: Path) -> str:
    """The newest tag before, else the commit so many ago, or the oldest of a shallow clone; "" for none."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    if tag := git("describe", "--tags", "--abbrev=0", "HEAD~1"):
        return tag
    earlier = git("rev-list", "--first-parent", f"--max-count={COMMITS}", "--abbrev-commit", "HEAD~1").split()
    return earlier[-1] if earlier else ""


def lines(old: Figures, new: Figures, revision: str) -> Iterator[str]:
    """A line for each figure that both have, those first that became worse."""
    grown: list[str] = []
    others: list[str] = []
    for name, (value, budget) in new.items():
        if name not in old:
            others.append(f"{name}: {value:.3g}, not measured in {revision}")
            continue
        before = old[name][0]
        worse, better = (before, value) if budget.startswith("≥") else (value, before)
        line = f"{name}: {before:.3g} → {value:.3g} ({value / before - 1:+.0%})" if before else f"{name}: {value:.3g}"
        (grown if worse > better * GROWTH else others).append(line)
    yield f"Grew by more than 10 % since {revision}: {'nothing' if not grown else ''}"
    yield from (f"  {line}" for line in grown)
    yield "The others:"
    yield from (f"  {line}" for line in others)


def _medians(rounds: Sequence[Figures]) -> Figures:
    names = dict.fromkeys(name for one in rounds for name in one)
    measured = {name: [one[name] for one in rounds if name in one] for name in names}
    return {name: (statistics.median(value for value, _ in rows), rows[0][1]) for name, rows in measured.items()}


@contextmanager
def _installed(revision: str | None) -> Iterator[Path]:
    """A tree of the revision, or this one, with an environment of its own and the benchmark of this one."""
    base = Path(tempfile.mkdtemp(prefix="sandboxd-bench-", dir="/var/tmp"))
    try:
        if revision is None:
            tree = ROOT
        else:
            tree = base / "tree"
            tree.mkdir()
            packed = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
            subprocess.run(["tar", "-x"], cwd=tree, input=packed, check=True)
            shutil.rmtree(tree / "bench", ignore_errors=True)
            shutil.copytree(ROOT / "bench", tree / "bench")
        _environment(base / "venv", tree)
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _environment(venv: Path, tree: Path) -> None:
    """The libraries of this interpreter with the code of a tree, and its command line."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = venv / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (venv / "bin").mkdir()
    python = os.path.realpath(sys.executable)
    for name in ("python", "python3"):
        (venv / "bin" / name).symlink_to(python)
    (venv / "pyvenv.cfg").write_text(f"home = {os.path.dirname(python)}\n")
    (packages / "tree.pth").write_text(f"{tree}\n{tree / 'client'}\n{sysconfig.get_path('purelib')}\n")
    shutil.copy(tree / "scripts" / "sandboxd", venv / "bin" / "sandboxd")


def _figures(base: Path, only: Sequence[str]) -> Figures:
    tree = base / "tree" if (base / "tree").exists() else ROOT
    found: dict[str, tuple[float, str]] = {}
    for word in only:
        result = base / "result.json"
        words = [str(base / "venv" / "bin" / "python"), "-m", "bench", "--quick", "--only", word, "--json", str(result)]
        with subprocess.Popen(words, cwd=tree, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as inner:
            try:
                _, said = inner.communicate()
            except BaseException:
                inner.terminate()  # and it ends its daemons
                raise
        if not result.exists():
            raise RuntimeError(f"{word}: {said.strip()[-400:]}")
        rows = json.loads(result.read_text())["rows"]
        found |= {row["name"]: (row["value"], row["budget"]) for row in rows if not row["error"]}
        for row in rows:
            if row["error"]:
                print(f"{row['name']}: {row['error']}", file=sys.stderr)
        result.unlink()
    return found
