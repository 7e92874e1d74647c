"""What patterns match in a large cache: found, found again when it changes, and not claimed where there is too much."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sandboxd.host import cache_scan
from sandboxd.host.cache_scan import CacheScan

NOTHING: frozenset[str] = frozenset()


def seen(scan: CacheScan, apart: frozenset[str] = NOTHING) -> tuple[int, list[str], str]:
    """The version, all that was found, and what was not seen."""
    version = scan.refresh(apart)
    return version, sorted(path for paths in scan.found.values() for path in paths), scan.unseen


def made(top: Path, *names: str) -> None:
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("x")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**/.env", [".env", "a/.env", "a/b/.env"]),
        ("*.pem", ["x.pem"]),
        ("**/*.pem", ["a/y.pem", "x.pem"]),
        ("**/b/*", ["a/b/.env", "a/b/z"]),
        ("**/a/**/.env", ["a/.env", "a/b/.env"]),
        ("**/b", ["a/b"]),
        ("**/[!x].pem", ["a/y.pem"]),
        ("**/none", []),
    ],
)
def test_patterns_match_by_component(tmp_path: Path, pattern: str, found: list[str]) -> None:
    made(tmp_path, ".env", "a/.env", "a/b/.env", "a/b/z", "x.pem", "a/y.pem", "a/c/w")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    scan = CacheScan(str(tmp_path), [pattern, "**/other"])
    scan.refresh(NOTHING)
    assert [os.path.relpath(path, tmp_path) for path in scan.found[pattern]] == found and not scan.unseen


def test_what_comes_and_goes_makes_another_version(tmp_path: Path) -> None:
    made(tmp_path, "a/b/x")
    scan = CacheScan(str(tmp_path), ["**/.env"])
    first = seen(scan)
    assert seen(scan) == first and first[1:] == ([], "")
    made(tmp_path, "a/b/other")
    assert seen(scan) == first
    made(tmp_path, "a/b/.env", "new/deep/.env")
    second = seen(scan)
    assert second[0] != first[0] and len(second[1]) == 2
    (tmp_path / "a/b/.env").unlink()
    third = seen(scan)
    assert third[0] != second[0] and third[1] == [str(tmp_path / "new/deep/.env")]
    assert seen(scan, frozenset({str(tmp_path / "new")}))[1] == []


def test_a_cache_beyond_the_budget_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, *(f"d{number}/x" for number in range(20)))
    scan = CacheScan(str(tmp_path), ["**/.env"])
    monkeypatch.setattr(cache_scan, "MOST_DIRECTORIES", 10)
    assert "more than 10 directories" in seen(scan)[2]
    monkeypatch.setattr(cache_scan, "MOST_DIRECTORIES", 100)
    assert seen(scan)[2] == ""


def test_a_directory_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "closed/.env")
    scandir = os.scandir

    def refuse(path: str) -> object:
        """As the kernel does to all but root."""
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    scan = CacheScan(str(tmp_path), ["**/.env"])
    scan.refresh(NOTHING)
    assert "closed cannot be listed" in scan.unseen
