"""Test suites of other projects, run bare and inside with default settings, and what differs: docs/compatibility.md.

    ./dev suites [cpython]

The bare run has a frame as well: everything is read-only but a new directory, in which both run. Only what passes bare
and not inside is a difference; what fails in both says nothing of the sandbox."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).resolve().parents[1] / "docs" / "compatibility.md"
MOST_S = 1500
HEAD = """# Compatibility

What test suites of other projects notice of a sandbox with default settings. `./dev suites` runs each twice, bare and
inside, and writes this page. A test differs when it passes bare and does not pass inside.

"""


@dataclass(frozen=True)
class Suite:
    """A suite; `line` writes JUnit's XML to `report.xml` in its directory. `needs` is a file of `package`."""

    name: str
    package: str
    needs: str
    version: str
    line: str


_CPYTHON = """test_fcntl test_os test_pathlib test_posix test_selectors test_shutil test_socket test_socketserver
    test_tarfile test_tempfile"""
SUITES = (
    Suite(
        "cpython",
        "libpython3.11-testsuite",
        "/usr/lib/python3.11/test/test_socket.py",
        "/usr/bin/python3.11 -V",
        f"/usr/bin/python3.11 -m test --timeout 300 --junit-xml report.xml {' '.join(_CPYTHON.split())}",
    ),
)


def _results(report: Path) -> dict[str, str]:
    """Return `passed`, `failed` or `skipped` for each test of a report."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        name = f"{case.get('classname', '')} {case.get('name', '')}"
        found[name] = "skipped" if "skipped" in kinds else "failed" if kinds & {"failure", "error"} else "passed"
    return found


def _run(frame: Sequence[str], suite: Suite, directory: Path) -> tuple[dict[str, str], float]:
    directory.mkdir()
    began = time.monotonic()
    words = [*frame, "sh", "-c", suite.line]
    with (directory / "log").open("w") as log:
        subprocess.run(words, cwd=directory, stdout=log, stderr=log, timeout=MOST_S, check=False)
    return _results(directory / "report.xml"), time.monotonic() - began


def compare(suite: Suite, sandboxd: str) -> str:
    """Return the section of a suite. Raises OSError where a run left no report."""
    base = Path(tempfile.mkdtemp(prefix="suites-", dir="/var/tmp"))
    frame = ["bwrap", "--ro-bind", "/", "/", "--bind", str(base), str(base), "--dev", "/dev", "--proc", "/proc",
             "--tmpfs", "/tmp", "--die-with-parent"]  # fmt: skip
    try:
        bare, bare_s = _run(frame, suite, base / "bare")
        inside, inside_s = _run([sandboxd, "run", "--"], suite, base / "inside")
    finally:
        shutil.rmtree(base, ignore_errors=True)
    version = subprocess.run(suite.version.split(), capture_output=True, text=True, check=True).stdout.strip()
    rows = [f"| {how} | {bare_count} | {inside_count} |" for how in ("passed", "failed", "skipped")
            for bare_count, inside_count in [[list(one.values()).count(how) for one in (bare, inside)]]]  # fmt: skip
    differ = sorted(name for name, how in bare.items() if how == "passed" and inside.get(name) != "passed")
    classes = Counter((name.split()[-1].rpartition(".")[0], inside.get(name, "not run")) for name in differ)
    listed = "\n".join(f"- `{name}`: {count} {how}" for (name, how), count in sorted(classes.items())) or "None."
    system = f"Linux {platform.release().split('-')[0]}, {'root' if os.getuid() == 0 else 'an ordinary user'}"
    return "\n".join((
        f"## {suite.name}", "",
        f"{version}, {system}; run time inside ÷ bare: {inside_s / bare_s:.2f}.", "",
        "| | bare | inside |", "| --- | --- | --- |", *rows, "",
        f"Tests that differ: {len(differ)}", "", listed, "",
    ))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare test suites bare and inside.")
    parser.add_argument("suites", nargs="*", choices=[[], *(suite.name for suite in SUITES)], help="all by default")
    wanted = parser.parse_args().suites
    sandboxd = str(Path(sys.executable).parent / "sandboxd")
    sections = []
    for suite in SUITES:
        if wanted and suite.name not in wanted:
            continue
        if not os.path.exists(suite.needs):
            raise SystemExit(f"suites: {suite.name} is not installed\nhint: apt-get install {suite.package}")
        sections.append(compare(suite, sandboxd))
    PAGE.write_text(HEAD + "\n".join(sections))


if __name__ == "__main__":
    main()
