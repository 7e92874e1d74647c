"""Where the socket is looked for, and which directories are trusted."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd_client.wire.location import LocationError, check_path, check_place, make_directory, socket_path

OTHER_UID = 54321
SUPPORT = "Library/Application Support/sandboxd/sandboxd.sock"


@pytest.mark.parametrize(
    ("environment", "platform", "path"),
    [
        ({"SANDBOXD_SOCKET": "/a/b.sock", "XDG_RUNTIME_DIR": "/run/user/7"}, "linux", "/a/b.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "linux", "/run/user/7/sandboxd/sandboxd.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/7/"}, "linux", "/run/user/7/sandboxd/sandboxd.sock"),
        ({"XDG_RUNTIME_DIR": "relative"}, "linux", "/tmp/sandboxd-7/sandboxd.sock"),
        ({"SANDBOXD_SOCKET": "", "XDG_RUNTIME_DIR": ""}, "linux", "/tmp/sandboxd-7/sandboxd.sock"),
        ({"TMPDIR": "/var/x"}, "linux", "/tmp/sandboxd-7/sandboxd.sock"),
        ({"HOME": "/home/x"}, "linux", "/tmp/sandboxd-7/sandboxd.sock"),
        ({"HOME": "/Users/x/", "TMPDIR": "/var/folders/x/"}, "darwin", f"/Users/x/{SUPPORT}"),
        ({"HOME": "/Users/x", "XDG_RUNTIME_DIR": "/run/x"}, "darwin", "/run/x/sandboxd/sandboxd.sock"),
        ({"HOME": "/Volumes/" + "x" * 43}, "darwin", f"/Volumes/{'x' * 43}/{SUPPORT}"),
        ({"HOME": "/Volumes/" + "x" * 44}, "darwin", "/tmp/sandboxd-7/sandboxd.sock"),
        ({}, "darwin", "/tmp/sandboxd-7/sandboxd.sock"),
    ],
)
def test_where_it_is(environment: dict[str, str], platform: str, path: str) -> None:
    assert socket_path(environment, uid=7, platform=platform) == path


@pytest.mark.parametrize("path", ["relative.sock", "/" + "x" * 200, "/a\0b", "./x"])
def test_paths_that_can_be_none(path: str) -> None:
    with pytest.raises(LocationError) as caught:
        socket_path({"SANDBOXD_SOCKET": path})
    assert caught.value.slug == "socket_path_invalid"
    assert "SANDBOXD_SOCKET" in caught.value.message and caught.value.hint


def test_the_longest_path() -> None:
    assert check_path("/" + "x" * 102)
    with pytest.raises(LocationError):
        check_path("/" + "é" * 60)  # it is bytes that count


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "d"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def listening(directory: Path) -> Iterator[str]:
    path = str(directory / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        yield path


def test_a_good_place(listening: str) -> None:
    assert check_place(listening)


def test_nothing_there_is_no_error(directory: Path) -> None:
    assert not check_place(str(directory / "s"))
    assert not check_place(str(directory / "missing" / "s"))


def refused(path: str, slug: str) -> None:
    with pytest.raises(LocationError) as caught:
        check_place(path)
    assert caught.value.slug == slug
    assert caught.value.hint


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777, 0o1777])
def test_a_directory_open_to_others(listening: str, mode: int) -> None:
    os.chmod(os.path.dirname(listening), mode)
    refused(listening, "directory_not_private")


def test_nobody_is_told_to_close_a_directory_that_has_other_uses(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o755)
    with pytest.raises(LocationError) as caught:
        check_place(str(tmp_path / "d" / "s"))
    assert str(tmp_path) not in caught.value.hint
    with pytest.raises(LocationError) as caught:
        check_place("/etc/passwd")
    assert caught.value.slug == "socket_path_occupied"


def test_a_link_to_a_directory(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(directory)
    refused(str(tmp_path / "link" / "s"), "directory_unusable")


def test_a_file_instead_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(str(tmp_path / "file" / "s"), "directory_unusable")


def test_a_directory_of_somebody_else(listening: str) -> None:
    with pytest.raises(LocationError) as caught:
        check_place(listening, uid=OTHER_UID)
    assert caught.value.slug == "directory_foreign"


def test_a_file_instead_of_a_socket(directory: Path) -> None:
    (directory / "s").touch()
    refused(str(directory / "s"), "socket_path_occupied")


def test_the_directory_is_made_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_directory(str(tmp_path / "new" / "s"))
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    make_directory(str(tmp_path / "new" / "s"))


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(LocationError) as caught:
        make_directory(str(tmp_path / "a" / "b" / "s"))
    assert caught.value.slug == "directory_unusable"
    assert str(tmp_path / "a" / "b") in caught.value.message
