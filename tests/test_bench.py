"""The measurements: budgets are read as written, and the bench still runs. No figure is asserted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import MEASURES, load
from bench.against import last_release, lines
from bench.kernel_counters import Footprint
from bench.peers import with_part
from bench.rows import Row, table
from bench.soak.looks import Sample, drift
from bench.soak.loop import Loop
from bench.soak.page import Report
from support.users import SYSTEM_PATH, Identity


@pytest.mark.parametrize(
    ("value", "budget", "ok"),
    [
        (1.6, "≤ 1.6", True), (1.61, "≤ 1.6", False), (0.85, "≥ 0.85", True), (0.84, "≥ 0.85", False),
        (0.0, "= 0", True), (1.0, "= 0", False), (99.0, "", True), (None, "≤ 1.6", False), (None, "", False),
    ],
)  # fmt: skip
def test_a_budget_is_read_as_written(value: float | None, budget: str, ok: bool) -> None:
    assert Row("x", value, budget=budget).ok is ok


def test_what_could_not_be_measured_is_said() -> None:
    rows = [Row("a", 1.234, "ms", "≤ 2"), Row("b", None, error="RuntimeError: no daemon"), Row("c", 3.0, "", "≤ 2")]
    lines = table(rows).splitlines()
    assert "1.23 ms" in lines[1] and "ok" in lines[1]
    assert "failed" in lines[2] and "MISSED" in lines[2] and "no daemon" in lines[2]
    assert "MISSED" in lines[3]


def test_it_runs(identity: Identity) -> None:
    """With a daemon of its own, from the checkout, as any user: the shortest of the measurements."""
    result = identity.temporary / "result.json"
    argv = identity.python("-m", "bench", "--quick", "--only", "wrap_round_trip", "--json", str(result))
    done = identity.run(argv, env={**identity.environment(), "PATH": SYSTEM_PATH})
    assert done.returncode == 0, done.stderr + done.stdout
    rows = json.loads(result.read_text())["rows"]
    assert [row["name"] for row in rows] == ["wrap round trip, p50", "wrap round trip, p99"]
    assert all(row["value"] > 0 for row in rows)


def test_the_part_of_a_page_is_renewed_in_its_place() -> None:
    page = with_part("# Performance\n\nBefore.\n", "one")
    assert page.startswith("# Performance\n\nBefore.\n") and "\none\n" in page
    renewed = with_part(page + "\n## After\n", "two")
    assert renewed == page.replace("\none\n", "\ntwo\n") + "\n## After\n"


def test_what_grew_by_more_than_a_tenth_is_said_first() -> None:
    old = {"time": (1.0, "≤ 2"), "speed": (1.0, "≥ 0.85"), "same": (1.0, ""), "faster": (1.0, "≤ 2")}
    new = {
        "time": (1.11, "≤ 2"),
        "speed": (0.9, "≥ 0.85"),
        "same": (1.09, ""),
        "faster": (0.5, "≤ 2"),
        "new": (1.0, ""),
    }
    said = "\n".join(lines(old, new, "v1"))
    grown, others = said.split("The others:")
    assert "time: 1 → 1.11 (+11%)" in grown and "speed: 1 → 0.9 (-10%)" in grown
    assert all(name in others for name in ("same", "faster", "new: 1, not measured in v1"))


def test_the_last_release_is_a_tag_or_some_commits_ago(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.test")
        done = subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    assert last_release(tmp_path) == "", "no commit"
    git("commit", "-q", "--allow-empty", "-m", "one")
    first = git("rev-parse", "--short", "HEAD")
    git("tag", "v2")
    assert last_release(tmp_path) == "", "a tag of this commit is this release"
    git("tag", "-d", "v2")
    git("commit", "-q", "--allow-empty", "-m", "two")
    assert last_release(tmp_path) == first
    git("tag", "v1", "HEAD~1")
    assert last_release(tmp_path) == "v1"


def samples(*changes: dict[str, Any]) -> list[Sample]:
    """Looks at a daemon; what is left out is as at first."""
    usual = {
        "memory_kb": 1000,
        "threads": 3,
        "processes": 1,
        "descriptors": {"socket": 4},
        "files": ["a"],
        "sessions": 0,
    }
    found = []
    for change in ({}, {}, *changes):
        now = {**usual, **change}
        footprint = Footprint(now["memory_kb"], now["threads"], now["processes"], now["descriptors"])
        found.append(Sample(footprint, frozenset(now["files"]), now["sessions"]))
    return found


@pytest.mark.parametrize(
    ("end", "leak"),
    [
        ({}, None),
        ({"memory_kb": 1099}, None),
        ({"memory_kb": 1101}, "memory"),
        ({"memory_kb": 500, "files": [], "descriptors": {"socket": 3}}, None),
        ({"descriptors": {"socket": 5}}, "1 more of socket"),
        ({"descriptors": {"socket": 3, "pipe": 1}}, None),
        ({"threads": 100}, "threads"),
        ({"processes": 2}, "processes"),
        ({"files": ["b"]}, "file: b"),
        ({"sessions": 1}, "sessions"),
    ],
)
def test_a_soak_finds_what_stays_behind(end: dict[str, Any], leak: str | None) -> None:
    lines, leaks = drift(samples({}, end, end, end))
    assert bool(leaks) is (leak is not None), leaks
    assert leak is None or any(leak in found for found in leaks)
    assert any("LEAK" in line for line in lines) is bool(leaks)


def test_a_descriptor_that_is_opened_once_is_no_leak() -> None:
    journal, more = ({"descriptors": {"socket": 4, "launches": number}} for number in (1, 2))
    assert drift(samples(journal, journal, journal, journal))[1] == []
    assert drift(samples(journal, journal, journal, more))[1] != []


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        ({}, None),
        ({"memory, KB": 1101}, "memory"),
        ({"descriptors": 5}, "descriptors: 4 → 5"),
        ({"files": 2}, "files: 1 → 2"),
        ({"processes in sandboxes": 1}, "processes in sandboxes"),
        ({"wrong": 1}, "wrong"),
        ({"prepared": 99}, "99 prepared commands of 100"),
    ],
)
def test_a_loop_finds_what_stays_behind(end: dict[str, float], problem: str | None) -> None:
    usual = {**samples()[0].counts, "prepared": 100, "commands": 101, "wrong": 0, "p50 ms": 5.0}
    looks = [usual, {**usual, "files": 9, "processes in sandboxes": 4}, {**usual, **end}]
    with subprocess.Popen(["true"], text=True) as ended:
        found = list(Loop(100, ended, looks).problems())
    assert bool(found) is (problem is not None) and all(str(problem) in one for one in found), found
    unfinished = Loop(100, ended, looks[:1])
    assert list(unfinished.problems()) == ["loop: it ended with status 0 after 1 looks"]


def test_the_report_of_a_soak_has_start_half_and_end() -> None:
    looks = samples({}, {"memory_kb": 1050}, {"memory_kb": 1060})
    seconds = {"command": [(float(end), end / 1000) for end in range(101, 501)]}
    loop = [{**looks[0].counts, "prepared": 7 * n, "commands": 7 * n, "p50 ms": n + 1.0} for n in range(4)]
    report = Report(100.0, {"commands": 1234}, seconds, {"mixed load": looks}, loop)
    text = "\n".join(report.lines(["mixed load: files: 1 → 2"]))
    assert "- mixed load: files: 1 → 2\n" in text and "| commands | 1,234 |" in text
    assert "| mixed load | memory, KB | 1,000 | 1,000 | 1,060 |" in text
    assert "| command | 150.5 | 250.5 | 350.5 | 450.5 | 400 |" in text
    assert "| prepared `true` of the loop | 21 of 21 |" in text
    assert "Nothing stayed behind" in "\n".join(report.lines([]))


def test_every_measurement_exists() -> None:
    assert all(callable(load(module, function)) for module, function, _ in MEASURES)
