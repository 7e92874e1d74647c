"""The kinds of file systems, in a mount namespace of its own, and by a list of mounts of servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxd.host.watch.file_systems import FileSystemKinds, is_remote, remote_devices

SCRIPT = """
import ctypes, os, sys
from sandboxd.host.watch.file_systems import is_in_memory, is_remote
libc, place = ctypes.CDLL(None, use_errno=True), sys.argv[1].encode()
seen = [is_in_memory(place.decode())]
assert libc.mount(b"t", place, b"tmpfs", 0, None) == 0, os.strerror(ctypes.get_errno())
seen.append(is_in_memory(place.decode()))
if os.fork() == 0:
    libc.umount2(place, 0)
    os._exit(is_in_memory(place.decode()))
seen.append(os.waitstatus_to_exitcode(os.wait()[1]) == 0)
seen.append(is_in_memory(place.decode()))
print(*seen, is_remote(place.decode()), is_in_memory("/nowhere"))
"""
IN_NO_MEMORY = "/sys"
"""A file system of the kernel's own: any other place may be in a tmpfs."""


def test_a_mount_that_comes_or_goes_is_noticed() -> None:
    words = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", SCRIPT, IN_NO_MEMORY]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "True", "True", "False", "False", "False"], done


@pytest.mark.parametrize(
    ("kind", "remote"),
    [("nfs4", True), ("cifs", True), ("9p", True), ("fuse.sshfs", True), ("virtiofs", True), ("ext4", False)],
)
def test_the_file_systems_of_servers_are_known(
    kind: str, remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of mounts has the place on such a one: a real one needs a server."""
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts.write_text(f"20 1 0:999 / /other rw - tmpfs nfs rw\n21 1 {number} / {tmp_path} rw shared:1 - {kind} x rw\n")
    descriptor = os.open(mounts, os.O_RDONLY)
    try:
        assert remote_devices(descriptor) == ({device} if remote else set())
    finally:
        os.close(descriptor)
    opened = os.open

    def open_ours(path: str, *rest: int) -> int:
        return opened(str(mounts) if path == "/proc/self/mountinfo" else path, *rest)

    monkeypatch.setattr(os, "open", open_ours)
    monkeypatch.setattr("sandboxd.host.watch.file_systems._kinds", FileSystemKinds())
    assert is_remote(str(tmp_path)) is remote
