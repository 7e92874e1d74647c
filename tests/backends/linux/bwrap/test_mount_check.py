"""Where a sandbox's mounts lie, read from proc_pid_mountinfo(5)."""

from __future__ import annotations

import pytest

from sandboxd.backends.linux.bwrap.mount_check import expected_mounts, misplaced
from sandboxd.plan.filesystem.mounts import Mount, Operation

HOST = b"""\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 8:2 /volumes/w /w rw - ext4 /dev/sdb1 rw
22 20 0:30 /@home /home rw shared:3 - btrfs /dev/sdc1 rw
"""


def line(device: str, root: str, point: str, kind: str = "ext4") -> bytes:
    return f"90 20 {device} {root} {point} ro,nosuid - {kind} none rw\n".encode()


def bind(path: str, source: str | None = None) -> Mount:
    return Mount(Operation.WRITABLE, path, source or path)


@pytest.mark.parametrize(
    ("mount", "shown"),
    [
        (bind("/srv/a"), line("8:1", "/srv/a", "/srv/a")),
        (bind("/w"), line("8:2", "/volumes/w", "/w")),
        (bind("/w/a"), line("8:2", "/volumes/w/a", "/w/a")),
        (bind("/home/p/x y"), line("0:30", "/@home/p/x\\040y", "/home/p/x\\040y")),
        (bind("/home/p/x\r1 \x0b\x85y"), line("0:30", "/@home/p/x\r1\\040\x0b\x85y", "/home/p/x\r1\\040\x0b\x85y")),
        (bind("/tmp", "/var/t"), line("8:1", "/tmp", "/tmp") + line("8:1", "/var/t", "/tmp")),
        (bind("/"), b""),
        (Mount(Operation.MASK_FILE, "/w/f", "/var/denied"), line("8:1", "/var/denied", "/w/f")),
        (Mount(Operation.MASK_DIRECTORY, "/w/d"), line("0:99", "/", "/w/d", "tmpfs")),
        (Mount(Operation.REFUSE_NAME, "/w/.x"), line("0:99", "/", "/w/.x", "tmpfs")),
        (Mount(Operation.DEVICES, "/dev"), b""),
        (Mount(Operation.REMOUNT_READ_ONLY, "/w/d"), b""),
    ],
)
def test_where_it_should_be(mount: Mount, shown: bytes) -> None:
    assert misplaced(expected_mounts([mount], HOST), shown) is None


@pytest.mark.parametrize(
    ("mount", "shown"),
    [
        (bind("/w/a"), b""),
        (bind("/w/a"), line("8:2", "/volumes/w/a", "/w/b")),
        (bind("/w/a"), line("8:1", "/etc", "/w/a")),
        (bind("/w/a"), line("8:1", "/volumes/w/a", "/w/a")),
        (bind("/w/a"), line("8:2", "/volumes/w/a", "/w/a") + line("8:1", "/etc", "/w/a")),
        (bind("/w/a"), line("8:2", "/volumes/w/a//deleted", "/w/a")),
        (bind("/tmp", "/var/t"), line("8:1", "/tmp", "/tmp")),
        (Mount(Operation.MASK_FILE, "/w/f", "/var/denied"), line("8:2", "/volumes/w/f", "/w/f")),
        (Mount(Operation.MASK_DIRECTORY, "/w/d"), line("8:2", "/volumes/w/d", "/w/d")),
        (Mount(Operation.REFUSE_NAME, "/w/.x"), line("0:99", "/below", "/w/.x", "tmpfs")),
    ],
)
def test_elsewhere(mount: Mount, shown: bytes) -> None:
    assert misplaced(expected_mounts([bind("/"), mount], HOST), shown) == mount.target
