"""Directories of the daemon: private, or refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxd.errors import HostError
from sandboxd.host.directories import ensure_private_directory, temporary_base

ME = os.geteuid()


def test_one_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "d"
    ensure_private_directory(str(path), ME)
    ensure_private_directory(str(path), ME)
    assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["open", "link", "file", "foreign", "no parent"])
def test_what_cannot_be_trusted(tmp_path: Path, what: str) -> None:
    path = tmp_path / ("none/d" if what == "no parent" else "d")
    uid = ME
    if what == "link":
        path.symlink_to(tmp_path)
    elif what == "file":
        path.write_text("")
    elif what != "no parent":
        path.mkdir(mode=0o700)
        path.chmod(0o750 if what == "open" else 0o700)
        uid = ME + 1 if what == "foreign" else ME
    with pytest.raises(HostError) as caught:
        ensure_private_directory(str(path), uid)
    slugs = {"open": "directory_not_private", "foreign": "directory_foreign"}
    assert caught.value.slug == slugs.get(what, "directory_unusable") and caught.value.hint


def test_another_place_when_the_usual_one_cannot_be_used(tmp_path: Path) -> None:
    """Another place when the usual one cannot be used."""
    base = temporary_base(ME, str(tmp_path), parent=str(tmp_path))
    assert (base.path, base.warning) == (f"{tmp_path}/sandboxd-{ME}", "")
    base = temporary_base(ME, str(tmp_path), parent=str(tmp_path / "none"))
    assert base.path == f"{tmp_path}/tmp" and "none" in base.warning
    with pytest.raises(HostError):
        temporary_base(ME, str(tmp_path / "none"), parent=str(tmp_path / "none"))
