"""The submodules that an index names, as the real git writes them in each version, and with anything in the file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.host.git.git_index import gitlinks

PATHS = ("a", "a-b/c", "deep/er/" + "x" * 300, "z")


def make(top: Path, version: int, algorithm: str) -> bytes:
    def git(*words: str, given: str = "") -> str:
        return subprocess.run(["git", *words], cwd=top, input=given, check=True, capture_output=True, text=True).stdout

    git("init", "-q", f"--object-format={algorithm}")
    blob = git("hash-object", "-w", "--stdin", given="text").strip()
    lines = [f"160000 {blob} 0\t{path}\n" for path in PATHS] + [f"100644 {blob} 0\ta/{n}\n" for n in range(20)]
    git("update-index", "--add", "--index-info", given="".join(line for line in lines if "\ta\n" not in line))
    git("update-index", f"--index-version={version}")
    return (top / ".git" / "index").read_bytes()


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
@pytest.mark.parametrize("version", [2, 3, 4])
def test_submodules_of_a_real_index(tmp_path: Path, version: int, algorithm: str) -> None:
    assert {*PATHS[1:]} <= {*gitlinks(make(tmp_path, version, algorithm))}


def test_a_broken_index_gives_what_stands_before_the_fault(tmp_path: Path) -> None:
    index = make(tmp_path, 2, "sha1")
    whole = list(gitlinks(index))
    for length in range(0, len(index), 7):
        assert {*gitlinks(index[:length])} <= {*whole}


@given(st.binary(max_size=200), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_anything_in_the_file(rest: bytes, version: int, count: int) -> None:
    list(gitlinks(b"DIRC" + version.to_bytes(4, "big") + count.to_bytes(4, "big") + rest))
