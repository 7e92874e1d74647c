"""Whether git tracks a file, compared with git itself."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxd.sources.tracking import MAX_ENTRIES, MAX_INDEX, index_lists, tracked_by_git

NAME = ".claude/settings.local.json"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / ".claude").mkdir(parents=True)
    git(root, "init", "-q", ".")
    (root / NAME).write_text("{}")
    (root / ".claude" / "settings.json").write_text("{}")
    return root


def git(root: Path, *arguments: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.test")
    subprocess.run(["git", *identity, *arguments], cwd=root, env=environment, check=True, capture_output=True)


def test_a_file_outside_any_repository_is_not_tracked(tmp_path: Path) -> None:
    assert not tracked_by_git(str(tmp_path / NAME))


def test_a_new_repository_tracks_nothing(repository: Path) -> None:
    assert not tracked_by_git(str(repository / NAME))


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_all_index_versions(repository: Path, version: str) -> None:
    for name in ("a", ".claude/a", ".claude/settings.local.jsonx", "z/z", "é" * 40, "x" * 200):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("x")
    git(repository, "add", "--intent-to-add", "a")  # an extended entry, which version 3 exists for
    git(
        repository,
        "add",
        ".claude/a",
        ".claude/settings.json",
        ".claude/settings.local.jsonx",
        "z",
        "é" * 40,
        "x" * 200,
    )
    git(repository, "update-index", "--index-version", version)
    assert not tracked_by_git(str(repository / NAME))
    assert tracked_by_git(str(repository / ".claude/settings.json"))
    assert tracked_by_git(str(repository / "z/z"))
    assert tracked_by_git(str(repository / ("é" * 40)))
    git(repository, "add", NAME)
    git(repository, "update-index", "--index-version", version)
    assert tracked_by_git(str(repository / NAME))
    git(repository, "commit", "-q", "-m", "x")
    assert tracked_by_git(str(repository / NAME))


@pytest.mark.parametrize("place", [".git", ".git/index"])
def test_a_named_pipe_is_not_waited_for(tmp_path: Path, place: str) -> None:
    """What a project, or a command in it, has put there would otherwise hold the daemon for ever."""
    (tmp_path / ".claude").mkdir()
    (tmp_path / place).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / place)
    code = "import sys; from sandboxd.sources.tracking import tracked_by_git; print(tracked_by_git(sys.argv[1]))"
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / NAME)],
        env={"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, timeout=60, text=True,
    )  # fmt: skip
    assert said.stdout.strip() == "True"


def test_an_index_that_takes_long_to_read_is_not_read(tmp_path: Path) -> None:
    """Every doubt is answered with "tracked"; where the name does not even occur there is none."""
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".git").mkdir()
    index = tmp_path / ".git" / "index"
    head = struct.pack(">4sII", b"DIRC", 4, MAX_ENTRIES + 1)
    index.write_bytes(head + bytes(100))
    assert tracked_by_git(str(tmp_path / NAME))
    head = struct.pack(">4sII", b"DIRC", 2, MAX_ENTRIES + 1)
    index.write_bytes(head + bytes(100))
    assert not tracked_by_git(str(tmp_path / NAME))
    for listed in (NAME, ".claude/"):
        index.write_bytes(head + bytes(100) + listed.encode() + b"\0")
        assert tracked_by_git(str(tmp_path / NAME))
    with index.open("r+b") as file:
        file.truncate(MAX_INDEX + 1)
    assert tracked_by_git(str(tmp_path / NAME))


def test_a_worktree_has_its_own_index(repository: Path, tmp_path: Path) -> None:
    git(repository, "add", NAME)
    git(repository, "commit", "-q", "-m", "x")
    git(repository, "worktree", "add", "-q", str(tmp_path / "other"))
    assert tracked_by_git(str(tmp_path / "other" / NAME))
    git(tmp_path / "other", "rm", "-q", "--cached", NAME)
    assert not tracked_by_git(str(tmp_path / "other" / NAME))
    assert tracked_by_git(str(repository / NAME))


def test_a_directory_below_the_root(repository: Path) -> None:
    below = repository / "web" / ".claude"
    below.mkdir(parents=True)
    (below / "settings.local.json").write_text("{}")
    assert not tracked_by_git(str(below / "settings.local.json"))
    git(repository, "add", "web")
    assert tracked_by_git(str(below / "settings.local.json"))


def test_a_link_counts_by_its_name_and_by_its_target(repository: Path, tmp_path: Path) -> None:
    below = repository / "sub"
    below.mkdir()
    (tmp_path / "link").symlink_to(below)
    (below / ".claude").mkdir()
    (below / ".claude/settings.local.json").symlink_to("../../evil.json")
    (repository / "evil.json").write_text("{}")
    assert not tracked_by_git(str(tmp_path / "link" / NAME))
    git(repository, "add", "evil.json")
    assert tracked_by_git(str(tmp_path / "link" / NAME))
    git(repository, "rm", "-q", "--cached", "evil.json")
    git(repository, "add", "sub")
    assert tracked_by_git(str(tmp_path / "link" / NAME))
    assert tracked_by_git(str(below / NAME))


def test_every_doubt_means_tracked(repository: Path) -> None:
    git(repository, "add", ".claude/settings.json")
    index = repository / ".git" / "index"
    good = index.read_bytes()
    for bad in (b"", b"DIRC", b"JUNK" + good[4:], good[:4] + b"\0\0\0\x09" + good[8:], good[:40]):
        index.write_bytes(bad)
        assert tracked_by_git(str(repository / NAME)), bad
    index.unlink()
    index.mkdir()
    assert tracked_by_git(str(repository / NAME))
    index.rmdir()
    os.mkfifo(index)
    assert tracked_by_git(str(repository / NAME))
    index.unlink()
    git(repository, "add", ".claude/settings.json")
    git(repository, "update-index", "--split-index")
    assert tracked_by_git(str(repository / NAME))


def test_a_pointer_that_points_nowhere(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("nonsense")
    assert tracked_by_git(str(tmp_path / NAME))
    (tmp_path / ".git").write_text("gitdir: /nonexistent\n")
    assert tracked_by_git(str(tmp_path / NAME))


def test_another_format_is_an_error() -> None:
    with pytest.raises(ValueError):
        index_lists(b"DIRC\0\0\0\x05\0\0\0\0", b"a")
