"""The smoke test for a Mac, tried with stand-ins: what it finds, and that it would find what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.mac_line import stub_parts
from support.mac_smoke import Group, NotHereError, Outcome, Trial, report, try_groups, write_tools
from support.mac_smoke_cases import GROUPS
from support.mac_stubs import install_stubs

SMOKE = Path(__file__).parent / "smoke.py"


HERE = {group.name: [case for case in group.cases if not case.real] for group in GROUPS}
"""The cases that need no Mac."""


def test_most_groups_have_cases_that_need_no_mac() -> None:
    assert sum(map(len, HERE.values())) >= 20 and sum(map(bool, HERE.values())) >= 6


@pytest.mark.parametrize("group", [group for group in GROUPS if HERE[group.name]], ids=lambda group: group.name)
async def test_every_case_that_needs_no_mac_holds(tmp_path: Path, group: Group) -> None:
    results = await try_groups([group], stub_parts(install_stubs(tmp_path / "state")), real=False)
    assert not [one for one in results if one.outcome is not Outcome.HOLDS], report(results, {})
    assert [one.case for one in results] == HERE[group.name]


async def test_a_sandbox_that_refuses_nothing_is_found_out(tmp_path: Path) -> None:
    """The probe is fooled too: it refuses what the probe tries and nothing else."""
    stubs = install_stubs(tmp_path / "state")
    program = tmp_path / "sandbox-exec"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *sandboxd-probe-*) exit 1;; esac\n'
        f'PATH={tmp_path}/bin:$PATH; while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'
    )
    program.chmod(0o755)
    write_tools(tmp_path / "bin")
    parts = stub_parts(stubs, sandbox_exec=str(program))
    results = await try_groups(GROUPS[:2], parts, real=False, log_s=0.5)  # a log that never comes
    failed = {one.case.name for one in results if one.outcome is Outcome.FAILS}
    assert len(failed) >= 6 and "nothing else is" in failed, failed
    text = report(results, {"system": "none"})
    assert "should be refused, succeeded" in text and "system: none" in text and "$ cat a.pem  -> 0" in text


async def test_what_a_report_says(tmp_path: Path) -> None:
    group = Group("group", {}, lambda home, project: None)

    @group.case("works")
    async def _(trial: Trial) -> None:
        await trial.allowed("true")

    @group.case("is missing")
    async def _(trial: Trial) -> None:
        raise NotHereError("no such thing")

    @group.case("breaks")
    async def _(trial: Trial) -> None:
        await trial.allowed("sh", "-c", "write ../x y || { echo more >&2; exit 3; }")

    @group.case("needs a mac", real=True)
    async def _(trial: Trial) -> None:
        raise AssertionError

    results = await try_groups([group], stub_parts(install_stubs(tmp_path / "state")), real=False)
    assert [one.outcome for one in results] == [Outcome.HOLDS, Outcome.NOT_HERE, Outcome.FAILS]
    text = report(results, {})
    assert "1 ok, 1 FAILED, 1 not here" in text and "no such thing" in text
    assert "should work, ended with status 3" in text and "err: more" in text and "refused: file-write-create" in text


def test_elsewhere_it_says_that_it_needs_a_mac(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SMOKE)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "") and "needs macOS" in done.stderr
    assert not list(tmp_path.iterdir())
    listed = subprocess.run([sys.executable, str(SMOKE), "--list"], capture_output=True, text=True, timeout=60)
    assert listed.returncode == 0 and "network: no connection of its own" in listed.stdout.splitlines()


@pytest.mark.parametrize("name", ["write", "append", "fetch", "connect", "listen", "lookup"])
def test_the_programs_for_a_mac_are_scripts_that_a_shell_takes(tmp_path: Path, name: str) -> None:
    tools = write_tools(tmp_path)
    assert subprocess.run(["sh", "-n", f"{tools}/{name}"], timeout=20).returncode == 0
    if name in ("write", "append"):
        subprocess.run([f"{tools}/{name}", str(tmp_path / "x"), "text"], check=True, timeout=20)
        assert (tmp_path / "x").read_text() == "text"
