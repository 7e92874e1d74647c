"""remove_tree removes whatever a command left, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxd.runtime.tree_removal import remove_tree


def test_modes_that_forbid_listing_and_writing(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "f").write_text("x")
    (tree / "a" / "b").chmod(0o000)
    (tree / "a").chmod(0o500)
    remove_tree(str(tree))
    assert not tree.exists()


def test_symlinks_are_removed_and_their_targets_kept(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "keep").write_text("x")
    tree = tmp_path / "t"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    (tree / "dangling").symlink_to("nowhere")
    remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "keep").read_text() == "x"
    assert outside.stat().st_mode & 0o777 == 0o755


def test_a_tree_deeper_than_any_path_or_descriptor_limit(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    tree.mkdir()
    here = os.open(tree, os.O_RDONLY)
    for depth in range(3000):
        os.mkdir("deeper", 0o700, dir_fd=here)
        if depth % 100 == 50:
            os.chmod(f"/proc/self/fd/{here}/deeper", 0o700)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    remove_tree(str(tree))
    assert not tree.exists()


@pytest.mark.parametrize("kind", ["missing", "file", "link"])
def test_what_is_not_a_directory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "p"
    if kind == "file":
        path.write_text("x")
    elif kind == "link":
        (tmp_path / "target").mkdir()
        path.symlink_to(tmp_path / "target")
    remove_tree(str(path))
    assert not os.path.lexists(path)
    assert kind != "link" or (tmp_path / "target").is_dir()


def test_special_files(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    tree.mkdir()
    os.mkfifo(tree / "fifo")
    remove_tree(str(tree))
    assert not tree.exists()
