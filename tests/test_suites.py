"""Parsers of ./dev suites: versions of sources, and logs of suites."""

from __future__ import annotations

from pathlib import Path

import pytest

from suites import SUITES, nearest, results

LOGS = {
    "node": "PASS: test-fs-open\nSKIP: test-fs-long-path\nFAIL: test-net-end\n",
    "postgres": """\
(using postmaster on Unix socket, default port)
============== running regression test queries        ==============
test tablespace                   ... ok          512 ms
parallel group (3 tests):  char boolean name
     boolean                      ... FAILED       71 ms
     char                         ... failed (ignored)       52 ms
test collate.icu.utf8             ... ok           12 ms
""",
    "git": "ok 1 - setup\nnot ok 2 - merge\nok 3 # skip no tool\n",
}


@pytest.mark.parametrize(
    ("installed", "version"),
    [
        ("20.20.2", "20.19.2+dfsg-1+deb13u3"),
        ("18.20.4", "18.20.4+dfsg-1~deb12u3"),
        ("22.1.0", "20.19.2+dfsg-1+deb13u3"),
    ],
)
def test_the_source_is_the_nearest_to_the_program(installed: str, version: str) -> None:
    versions = ["18.20.4+dfsg-1~deb12u2", "1:20.19.2+dfsg-1+deb13u3", "18.20.4+dfsg-1~deb12u3"]
    assert nearest(versions, installed).removeprefix("1:") == version


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("node", {"test-fs-open": "passed", "test-fs-long-path": "skipped", "test-net-end": "failed"}),
        ("postgres", {"tablespace": "passed", "boolean": "failed", "char": "failed", "collate.icu.utf8": "passed"}),
        ("git", {"t1.1": "passed", "t1.2": "failed", "t1.3": "skipped"}),
    ],
)
def test_a_log_tells_what_passed(tmp_path: Path, name: str, found: dict[str, str]) -> None:
    (tmp_path / "t1.log").write_text(LOGS[name])
    assert results(next(suite for suite in SUITES if suite.name == name), tmp_path) == found
