"""The matrix: its cases say what can be checked, its checks can fail, and a run of it measures a real sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.cases_of import read_cases
from matrix.checks import CHECKS, UNENDED, Seen, failed_check
from matrix.report import SETTINGS, Column, dumped, merged, page
from matrix.runtimes import RUNTIMES
from matrix.trial import FAIL, PASS, Result

NOTHING = Seen(0, "", {}, {}, lambda name: None, frozenset(), {"home/key": "secret-1"}, False, 0.1)


def test_cases_are_many_and_their_twins_exist() -> None:
    cases = read_cases()
    assert len(cases) >= 200
    assert {case.kind for case in cases} == {"attack", "work"}
    assert {check for case in cases for check in case.checks} <= set(CHECKS)


@pytest.mark.parametrize(
    "text",
    [
        '[[case]]\nname="a"\nkind="work"\nrun="true"\nexti=0',
        '[[case]]\nname="a"\nkind="play"\nrun="true"\nexit=0',
        '[[case]]\nname="a"\nkind="work"\nrun="true"',
        '[[case]]\nname="a"\nkind="work"\nrun="true"\nexit=0\nneeds=["luck"]',
        '[[case]]\nname="a"\nkind="work"\nrun="true"\nexit=0\ntwin="b"',
        '[[case]]\nname="a"\nkind="work"\nrun="true"\nexit=0\n[[case]]\nname="a"\nkind="work"\nrun="true"\nexit=1',
    ],
)
def test_a_case_that_says_something_unknown_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "group.toml").write_text(text)
    with pytest.raises(ValueError):
        read_cases(tmp_path)


def test_each_check_holds_and_fails() -> None:
    changed = replace(NOTHING, before={"out/a": "1"}, after={"out/a": "2", "home/new": "1"})
    rows = {
        "unchanged": (["out"], NOTHING, changed),
        "hidden": (["home/key"], NOTHING, replace(NOTHING, output="x secret-1")),
        "quiet": (["tcp"], NOTHING, replace(NOTHING, reached=frozenset({"tcp"}))),
        "reached": (["tcp"], replace(NOTHING, reached=frozenset({"tcp"})), NOTHING),
        "exit": (0, NOTHING, replace(NOTHING, status=1)),
        "fails": (True, replace(NOTHING, status=1), NOTHING),
        "output": ("hello", replace(NOTHING, output="hello\n"), NOTHING),
        "output_lacks": ("hello", NOTHING, replace(NOTHING, output="hello\n")),
        "made": ({"project/a": "x"}, replace(NOTHING, contents=lambda name: "x\n"), NOTHING),
        "no_process": (True, NOTHING, replace(NOTHING, stays=True)),
        "no_litter": (["home"], NOTHING, changed),
        "within": (5, NOTHING, replace(NOTHING, seconds=6)),
    }
    assert set(rows) == set(CHECKS)
    for name, (argument, good, bad) in rows.items():
        assert failed_check({name: argument}, good) is None, name
        assert failed_check({name: argument}, bad), name
    assert failed_check({"fails": True}, replace(NOTHING, status=UNENDED)) == "did not end"


def test_the_page_names_first_what_another_runtime_passes() -> None:
    one, two = read_cases()[:2]
    ours = Column("sandboxd", "1", "user", [Result(one, FAIL, "bad"), Result(two, FAIL, "worse")])
    other = Column("srt", "2", "user", [Result(one, FAIL, ""), Result(two, PASS)])
    text = page([ours, other])
    assert text.index("worse (another runtime passes)") < text.index("bad (no other runtime passes)")
    assert "| sandboxd (user) | 1 |" in text


def test_parts_of_the_cases_become_one_table() -> None:
    one, two = cases = read_cases()[:2]
    parts = [
        [Column("srt", "1", "user", [Result(one, FAIL, "bad")])],
        [Column("srt", "1", "user", [Result(two, PASS)])],
    ]
    together = Column("srt", "1", "user", [Result(one, FAIL, "bad"), Result(two, PASS)])
    assert merged([dumped(part) for part in parts], cases) == [together]


def test_the_settings_of_each_runtime_are_told() -> None:
    assert set(SETTINGS) == set(RUNTIMES)


def test_a_run_measures_a_real_sandbox() -> None:
    words = [
        "--only",
        "sandboxd",
        "--case",
        "files / write a file in the",
        "--case",
        "ipc / connect to a socket of the host by",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "matrix", *words], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300
    )
    if os.geteuid() != 0:
        assert done.returncode == 2 and "sudo ./dev matrix" in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        f"sandboxd ({account})      attacks refused 4 of 4, works 1 of 1" for account in ("user", "root")
    ]
