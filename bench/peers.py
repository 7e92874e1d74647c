"""Other sandboxes beside ours: the start of one command, and work with 500 small files, in alternation.

The runtimes and their settings are those of `./dev matrix`. All run as an ordinary user when the bench runs as root."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.commands import BARE_BWRAP
from bench.private_daemon import ROOT
from bench.rows import Row
from bench.timing import ms, percentile

BARE = "bare bubblewrap"
LINES = {
    "true": "exec /bin/true",
    "500 files": "for i in {1..500}; do echo $i > bench-$i; done; cat bench-* | wc -l; rm bench-*",
}
PAGE = ROOT / "docs" / "performance.md"
MARKS = ("<!-- written by ./dev bench --peers DIR --write -->", "<!-- end of the part about peers -->")

Taken = Mapping[str, Mapping[str, list[float]]]
"""Runtime → work → seconds, sorted."""


def measure_peers(directory: Path, quick: bool, write: bool) -> Iterator[Row]:
    """Rows for each runtime that is installed in `directory` or by the system; `write` renews docs/performance.md."""
    print("measuring peers …", file=sys.stderr, flush=True)
    taken, versions, failed = _taken(directory, 6 if quick else 24)
    for name, works in taken.items():
        for work, seconds in works.items():
            bare = percentile(taken[BARE][work], 50)
            detail = {"median": ms(percentile(seconds, 50)), "10 %": ms(percentile(seconds, 10))}
            detail["90 %"] = ms(percentile(seconds, 90))
            yield Row(f"{name}: {work} ÷ {BARE}", percentile(seconds, 50) / bare, detail=detail)
    yield from (Row(f"{name}: not measured", 0.0, detail={"reason": reason}) for name, reason in failed.items())
    if write:
        before = PAGE.read_text() if PAGE.exists() else "# Performance\n"
        PAGE.write_text(with_part(before, "\n".join(_part(taken, versions))))


def _taken(directory: Path, rounds: int) -> tuple[Taken, dict[str, str], dict[str, str]]:
    """Measured seconds, versions, and the runtimes that could not do the work with the reason."""
    sys.path.insert(0, str(ROOT / "tests"))
    from matrix.runtimes import RUNTIMES, NotInstalled, subject_of

    base = Path(tempfile.mkdtemp(prefix="sandboxd-bench-", dir="/var/tmp"))
    base.chmod(0o755)
    versions, failed = {}, {}
    try:
        with ExitStack() as stack, subject_of("user", base, directory, ("localhost",)) as subject:
            project = str(subject.place.path("project"))
            bare = [*BARE_BWRAP[:-1], "--bind", project, project, "--", "bash", "-c"]
            commands: dict[str, Any] = {BARE: {"argvs": {work: [*bare, line] for work, line in LINES.items()}}}
            for name, set_up in RUNTIMES.items():
                if name == "bubblewrap":
                    continue
                try:
                    runtime = stack.enter_context(set_up(subject))
                except NotInstalled as error:
                    failed[name] = str(error)
                    continue
                versions[name] = runtime.version
                argvs = {work: runtime.words(line) for work, line in LINES.items()}
                commands[name] = {"argvs": argvs, "environment": dict(runtime.environment)}
            asked = {"rounds": rounds, "commands": commands, "lines": LINES}
            done = subject.identity.run(
                subject.identity.python("-m", "bench.peers_in_turns"),
                cwd=project,
                env=subject.environment(commands["sandboxd"]["environment"]),
                input=json.dumps(asked),
                timeout=1800,
            )
    finally:
        shutil.rmtree(base, ignore_errors=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-400:])
    said = json.loads(done.stdout)
    return said["taken"], versions, {**failed, **said["failed"]}


def with_part(page: str, part: str) -> str:
    """The page with the part between the marks renewed, or added at its end."""
    if MARKS[0] in page:
        before, _, rest = page.partition(MARKS[0])
        return f"{before}{MARKS[0]}\n{part}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"
    return f"{page}\n{MARKS[0]}\n{part}\n{MARKS[1]}\n"


def _part(taken: Taken, versions: Mapping[str, str]) -> Iterator[str]:
    processor = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    machine = f"{os.cpu_count()} processors ({processor.partition(': ')[2]}), Linux {platform.release()}"
    yield "## Beside other sandboxes"
    yield ""
    yield f"Measured on {datetime.date.today()}: {machine}, Python {platform.python_version()},"
    yield "as an ordinary user. Each runtime ran some times in a row, in many turns; the first of a turn is not"
    yield "counted, since some leave names in the project. Milliseconds: the median, and between which values 80 of"
    yield "100 runs lie."
    yield "The settings are those of [the comparison](comparison.md), which says how to install the programs in DIR."
    yield "`./dev bench --peers DIR --write` repeats it."
    yield ""
    yield f"| Runtime | Version | {' | '.join(f'{work} | ÷ bare' for work in LINES)} |"
    yield f"|---|---|{'---|---|' * len(LINES)}"
    for name, works in taken.items():
        cells = []
        for work in LINES:
            low, middle, high = (percentile(works[work], percent) * 1000 for percent in (10, 50, 90))
            ratio = percentile(works[work], 50) / percentile(taken[BARE][work], 50)
            cells += [f"{middle:.3g} ({low:.3g} to {high:.3g})", f"{ratio:.2f}"]
        version = versions.get(name, versions["sandboxd"] if name.startswith("sandboxd") else "")
        yield f"| {name} | {version} | {' | '.join(cells)} |"
    yield ""
    yield "`true` is the start and end of one command. `500 files` is a shell that makes, reads and removes 500 files"
    yield "in the project. `sandboxd` is `sandboxd run`, each time with a session of its own. The other two are its"
    yield "Python client with a running daemon, as agents use it. The others are started by their command line or,"
    yield "where they have only a library, by a program that uses it, as in the comparison."
