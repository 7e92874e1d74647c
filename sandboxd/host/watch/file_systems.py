"""The kinds of mounted file systems that make a difference: on a server, and in memory."""

from __future__ import annotations

import os
import select
import sys
import threading

_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse", "virtiofs", "afs", "ceph", "lustre", "gfs2", "ocfs2", "vboxsf", "drvfs")
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def is_remote(directory: str) -> bool:
    """Return whether a check of an existing directory may wait for a server."""
    return _kinds.has(directory, _REMOTE)


def is_in_memory(directory: str) -> bool:
    """Return whether a file there keeps its times when written by mmap (tmpfs(5))."""
    return _kinds.has(directory, _IN_MEMORY)


def remote_devices(mountinfo: int) -> frozenset[int]:
    """Return devices of file systems that may change elsewhere.

    Reading to the end also arms the next notification of poll(2) (proc_pid_mountinfo(5))."""
    return _devices(_read(mountinfo), _REMOTE)


class FileSystemKinds:
    """The devices of each kind, read anew when the kernel says that a mount has changed."""

    def __init__(self) -> None:
        self._mountinfo = -1
        self.forget()

    def forget(self) -> None:
        """Begin anew, as after a fork: the child may be among other mounts."""
        if self._mountinfo >= 0:
            os.close(self._mountinfo)
        self._lock = threading.Lock()
        self._mountinfo = -1
        self._poll = select.poll() if sys.platform != "darwin" else None
        self._devices: dict[tuple[str, ...], frozenset[int]] = {}

    def has(self, directory: str, kinds: tuple[str, ...]) -> bool:
        """Return whether a directory is on a file system of these kinds; False where that cannot be told."""
        if self._poll is None:
            return False
        try:
            with self._lock:
                if self._mountinfo < 0:
                    self._mountinfo = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
                    self._poll.register(self._mountinfo, select.POLLPRI)
                if self._poll.poll(0) or not self._devices:
                    text = _read(self._mountinfo)
                    self._devices = {kinds: _devices(text, kinds) for kinds in (_REMOTE, _IN_MEMORY)}
                devices = self._devices[kinds]
            return os.stat(directory).st_dev in devices
        except OSError:
            return False


def _read(mountinfo: int) -> str:
    os.lseek(mountinfo, 0, os.SEEK_SET)
    text = b""
    while part := os.read(mountinfo, 1 << 20):
        text += part
    return text.decode("utf-8", "surrogateescape")


def _devices(mountinfo: str, kinds: tuple[str, ...]) -> frozenset[int]:
    found = set()
    for line in mountinfo.split("\n"):
        left, _, right = line.partition(" - ")
        if right.startswith(kinds):
            major, _, minor = left.split()[2].partition(":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)


_kinds = FileSystemKinds()
os.register_at_fork(after_in_child=_kinds.forget)
