"""Paths are resolved as the kernel resolves them, in trees of links that lead anywhere."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.host.resolve import NullNameRecorder, resolve
from sandboxd.plan.host_facts import PathKind
from support.fuzzing import examples

NAMES = ("a", "b", "c")
PARTS = st.sampled_from((*NAMES, *NAMES, "..", ".", "none", "f"))
TARGETS = st.tuples(st.booleans(), st.lists(PARTS, min_size=1, max_size=5))
PLACES = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
TREES = st.lists(st.tuples(PLACES, st.just(None) | st.just("f") | TARGETS), max_size=8)


@contextmanager
def tree_of(entries: list[tuple[str, object]]) -> Iterator[Path]:
    """A tree where what cannot be made is left out; None is a directory, a text a file, the rest a link."""
    top = Path(tempfile.mkdtemp())
    try:
        for place, kind in entries:
            path = top / place
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if kind is None:
                    path.mkdir()
                elif isinstance(kind, tuple):
                    absolute, parts = kind
                    path.symlink_to((f"{top}/" if absolute else "") + "/".join(parts))
                else:
                    path.touch(exist_ok=False)
            except (FileExistsError, NotADirectoryError, FileNotFoundError, OSError):
                continue
        yield top
    finally:
        shutil.rmtree(top)


def of_kernel(path: str) -> str | None:
    """Where the kernel gets to; None where it gets nowhere."""
    try:
        opened = os.open(path, os.O_PATH)
    except OSError:
        return None
    try:
        return os.readlink(f"/proc/self/fd/{opened}")
    finally:
        os.close(opened)


@settings(max_examples=examples(150))
@given(TREES, st.lists(PARTS, min_size=1, max_size=6))
def test_it_gets_where_the_kernel_gets(entries: list[tuple[str, object]], parts: list[str]) -> None:
    with tree_of(entries) as top:
        path = f"{top}/" + "/".join(parts)
        found, expected = resolve(path, NullNameRecorder()), of_kernel(path)
        if expected is not None:
            assert (found.real, found.kind is None) == (expected, False)
            assert (found.kind is PathKind.DIRECTORY) == os.path.isdir(path)
        elif found.kind is not None:  # a dot behind a file, which the kernel refuses
            assert found.kind is not PathKind.DIRECTORY and ({".", ".."} & set(parts) or len(found.links))
        else:
            assert os.path.lexists(found.existing) or found.problem


@pytest.mark.parametrize("count", [1, 39, 40, 41, 60])
def test_as_many_links_as_the_kernel_follows(tmp_path: Path, count: int) -> None:
    (tmp_path / "0").mkdir()
    for number in range(1, count + 1):
        (tmp_path / str(number)).symlink_to(str(number - 1))
    path = str(tmp_path / str(count))
    assert (resolve(path, NullNameRecorder()).kind is None) is (of_kernel(path) is None) is (count > 40)
