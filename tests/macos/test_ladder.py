"""Steps 2 to 6 of the first run, tried with the evaluator in the place of macOS."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.mac_ladder import compiled, library, order, primitives, steps
from support.sbpl import SbplError, Semantics, compile_profile, file
from support.seatbelt import every_switch


def evaluator(without: str = "", semantics: Semantics = Semantics.LAST_MATCH):  # type: ignore[no-untyped-def]
    """A `sandbox-exec` that has not one word of the language, and decides on what `cat` reads."""

    def run(text: str, parameters: Mapping[str, str], command: tuple[str, ...]) -> tuple[int, str]:
        try:
            profile = compile_profile(text, parameters)
        except SbplError as error:
            return 65, str(error)
        if without and without in text:
            return 65, f"unbound variable: {without}"
        if command[0].endswith("cat"):
            return int(not profile.decide_by(semantics, file("file-read-data", command[1])).allowed), ""
        return 0, ""

    return run


def test_what_compiles() -> None:
    lines = list(compiled(evaluator(), *every_switch()))
    assert len(lines) > 5 and all(line.endswith("accepted") for line in lines)


@pytest.mark.parametrize(
    ("word", "named"),
    [("ipc-sysv-sem", "(allow ipc-sysv-sem)"), ("preference-domain", 'preference-domain "com.apple.security"'),
     ("iokit-user-client-class", 'iokit-user-client-class "IOSurfaceSendRight"')],
)  # fmt: skip
def test_a_refused_word_is_found_by_its_rule_and_filter(word: str, named: str) -> None:
    lines = list(compiled(evaluator(word), *every_switch()))
    assert any("a whole profile: REFUSED (65)" in line for line in lines)
    assert any(named in line for line in lines) and lines[-1].endswith("1 rules are refused"), lines


@pytest.mark.parametrize("semantics", Semantics)
def test_the_order_of_rules_is_recognised(semantics: Semantics) -> None:
    assert list(order(evaluator(semantics=semantics), "/x")) == [f"order of rules: {semantics.value}"]


def test_each_primitive_compiles_and_is_told(tmp_path: Path) -> None:
    lines = list(primitives(evaluator(), tmp_path))
    assert len(lines) == 24 and not any("(65)" in line for line in lines), lines
    assert any(line.startswith("a rule on an existing file: allowed (0)") and "UNEXPECTED" in line for line in lines)


def test_no_step_ends_another(tmp_path: Path) -> None:
    """There is no `log` and no `sandbox-exec` here."""
    text = steps(evaluator(), tmp_path, every_switch(), log=str(tmp_path / "none"))
    for title in ("2. what compiles", "3. the order of rules", "4. primitives", "5. the system library", "6. the log"):
        assert title in text
    assert "ENDED: FileNotFoundError" in text and "sandbox_check: MISSING" in text and list(library())


ROOT = Path(__file__).resolve().parents[2]


def test_every_step_of_the_workflow_runs_whatever_failed_before(tmp_path: Path) -> None:
    """And is one of the script, which tells what is missing and goes on."""
    text = (ROOT / ".github" / "workflows" / "macos.yml").read_text()
    steps_ = re.findall(r"if: always\(\)\n +run: \.ci/macos ([a-z-]+)\n", text)
    assert len(steps_) == text.count("run: .ci/macos") == 7 and "upload-artifact" in text
    script = ROOT / ".ci" / "macos"
    usage = subprocess.run([script, "none"], capture_output=True, text=True)
    assert usage.returncode == 2 and set(steps_) == set(usage.stderr.split()[-1].split("|"))
    done = subprocess.run([script, "facts"], env={**os.environ, "OUT": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1 and "--- sw_vers" in done.stdout and "--- launchctl managername" in done.stdout
    assert (tmp_path / "facts.txt").read_text() == done.stdout
