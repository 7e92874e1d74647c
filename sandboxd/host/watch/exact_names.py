"""Directories that compare names byte by byte, where a comparison keeps a name absent."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import sys

_EXACT = frozenset({
    0xEF53,  # ext2, ext3, ext4
    0x58465342,  # XFS
    0x9123683E,  # Btrfs
    0x01021994,  # tmpfs
    0xF2F52010,  # F2FS
    0x794C7630,  # overlayfs
})  # fmt: skip
"""statfs(2), <linux/magic.h>: local file systems. Others may fold case, normalise, or wait for another machine."""
_GET_FLAGS = 0x80086601  # FS_IOC_GETFLAGS
_CASEFOLD = 0x40000000
_STATFS_SIZE = 120
_libc = ctypes.CDLL(None, use_errno=True)


def compares_exactly(directory: str) -> bool:
    """Return whether an existing directory is of that kind; False in doubt."""
    if sys.platform != "linux":
        return False
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    if _libc.statfs(os.fsencode(directory), buffer):
        return False
    (kind,) = struct.unpack_from("l", buffer)
    return kind in _EXACT and not _folds_case(directory) and not _is_insensitive(directory)


def _folds_case(directory: str) -> bool:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        (flags,) = struct.unpack("L", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))
    except OSError as error:
        return error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS)
    finally:
        os.close(descriptor)
    return bool(flags & _CASEFOLD)


def _is_insensitive(directory: str) -> bool:
    """Return whether the directory is found by another spelling too (XFS made with ascii-ci)."""
    above, name = os.path.split(directory)
    try:
        return name.swapcase() != name and os.path.samefile(directory, os.path.join(above, name.swapcase()))
    except OSError:
        return False
