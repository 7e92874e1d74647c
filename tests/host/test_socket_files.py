"""Unix sockets that are found below directories: all of them, by what they are, and no more than is looked through."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxd.host import socket_files
from sandboxd.host.socket_files import find_sockets
from sandboxd.plan.host_facts import SocketsAtStart

Listen = Callable[[str], os.stat_result]


@pytest.fixture
def listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listen]:
    made: list[socket.socket] = []
    monkeypatch.chdir(tmp_path)

    def bind(name: str) -> os.stat_result:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        one = socket.socket(socket.AF_UNIX)
        one.bind(name)
        made.append(one)
        return os.stat(name)

    yield bind
    for one in made:
        one.close()


def names(found: SocketsAtStart) -> set[str]:
    return {one.path for one in found.found}


def test_sockets_at_and_below_a_path(tmp_path: Path, listen: Listen) -> None:
    """Not other files, and nothing by a symbolic link."""
    status = listen("a/b/c/deep")
    for name in ("a/near", "alone", "elsewhere/x"):
        listen(name)
    Path("a/file").touch()
    os.mkfifo("a/fifo")
    os.symlink("../elsewhere", "a/link")
    os.symlink("../alone", "a/to-a-socket")
    os.symlink("elsewhere", "linked")
    here = str(tmp_path)
    found = find_sockets(
        [(f"{here}/a", "/w"), (f"{here}/alone", "/one"), (f"{here}/linked", "/l"), (f"{here}/absent", "/n")]
    )
    assert found.complete and names(found) == {"/w/b/c/deep", "/w/near", "/one"}
    [deep] = [one.file for one in found.found if one.path == "/w/b/c/deep"]
    assert (deep.inode, deep.device) == (status.st_ino, (os.major(status.st_dev), os.minor(status.st_dev)))


def test_a_socket_keeps_its_identity_over_links_and_renames(tmp_path: Path, listen: Listen) -> None:
    inode = listen("a").st_ino

    def look() -> SocketsAtStart:
        return find_sockets([(str(tmp_path), "/")])

    [before] = look().found
    os.link("a", "b")
    os.rename("a", "c")
    os.chmod("b", 0o600)
    assert {one.file for one in look().found} == {before.file} and names(look()) == {"/b", "/c"}
    os.unlink("b")
    os.unlink("c")
    for number in range(64):
        if listen(f"n{number}").st_ino == inode:
            break
    assert look().found and before.file not in {one.file for one in look().found}


@pytest.mark.parametrize(("limit", "value"), [("MOST_ENTRIES", 5), ("MOST_SOCKETS", 3), ("MOST_SECONDS", 0.0)])
def test_more_than_is_looked_through(
    tmp_path: Path, listen: Listen, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    for number in range(4):
        listen(f"s{number}")
    assert find_sockets([(str(tmp_path), "/")]).complete
    for number in range(4, 8):
        listen(f"s{number}")
    monkeypatch.setattr(socket_files, limit, value)
    found = find_sockets([(str(tmp_path), "/")])
    assert not found.complete and len(found.found) <= 5
