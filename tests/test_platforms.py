"""`./dev platforms`: its attacks work where nothing refuses them, and a row replaces only its own line of the page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from platforms.__main__ import BEGIN, END, HEAD, PAGE, with_line
from platforms.rows import ROWS, SMOKE, Seen, smoke_of


def test_each_attack_works_without_a_sandbox(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SMOKE), str(tmp_path / "bare")], capture_output=True, text=True, check=True
    )
    results = json.loads(done.stdout.removeprefix("SMOKE "))["results"]
    assert not [name for name, result in results.items() if result == "pass"], results
    seen = " ".join(results.values())
    for effect in (
        "written outside", "secret was read", "protected name was written", "socket of the host was reached",
        "datagram reached the host", "process of the host was ended", "for reading was written",
        "for reading was emptied",
    ):  # fmt: skip
        assert effect in seen, results


def test_a_row_replaces_its_own_line_only() -> None:
    first, second = ROWS[:2]
    page = f"before\n{BEGIN}{HEAD}{END}after\n"
    page = with_line(page, second, "not run", Seen("no mirror"))
    page = with_line(page, first, "run", Seen("12 of 12 hold"))
    page = with_line(page, second, "run", Seen("11 of 12 hold", ["root: writes: fail"]))
    lines = page.splitlines()
    assert lines[0] == "before" and lines[-1] == "after"
    assert [line.rsplit("`", 2)[1] for line in lines if line.startswith(f"| {first.system[:6]}")] == [
        first.name, second.name,
    ]  # fmt: skip
    assert "no mirror" not in page and "fails: 1" in page


def test_what_is_open_and_told_is_no_failure_and_is_said() -> None:
    report = {"ok": True, "uid": 0, "failed": {"landlock": ("landlock_limited", "none")}}
    told = smoke_of([{**report, "results": {"writes": "pass", "given_file": "told"}}])
    assert not told.failures and "1 open as told" in told.text and "landlock_limited" in told.text
    silent = smoke_of([{**report, "results": {"writes": "fail: written outside"}}])
    assert silent.failures


def test_each_line_of_the_page_is_that_of_a_row() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].removeprefix(HEAD)
    names = [line.rsplit("`", 2)[1] for line in table.splitlines()]
    assert names == [row.name for row in ROWS if row.name in names] and len(names) > 10
