"""Caller identification on macOS: credentials of the peer from the kernel.

Source: LOCAL_PEERCRED and LOCAL_PEERPID in unix(4) and <sys/un.h>. There are no namespaces that would give a sandboxed
process away. What does is its sandbox: every profile of sandboxd allows looking up one name that nothing else would
(`dev.sandboxd.sandboxed`), and the system says of any process whether it may look a name up. The profile refuses the
connection in the first place; this is the second look."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Callable

from sandboxd.errors import CallerError

SANDBOXED = "dev.sandboxd.sandboxed"
DECOY = "dev.sandboxd.nobody"

_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1
_LOCAL_PEERPID = 2
_XUCRED = struct.Struct("=IIh2x16I")  # version, uid, number of groups, groups
_VERSION = 0
_FILTER_GLOBAL_NAME = 2
_NO_REPORT = 0x40000000


def read_peer(connection: socket.socket) -> tuple[int, int, int]:
    """Return uid, gid and pid of the process at the other end.

    Raises OSError."""
    data = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size)
    uid, gid = parse_credentials(data)
    return uid, gid, connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID)


def parse_credentials(data: bytes) -> tuple[int, int]:
    """Return uid and first group of a `struct xucred`.

    Raises OSError for one that is not understood."""
    if len(data) < _XUCRED.size:
        raise OSError(f"credentials of {len(data)} bytes")
    version, uid, count, *groups = _XUCRED.unpack_from(data)
    if version != _VERSION or not 1 <= count <= 16:
        raise OSError(f"credentials of version {version} with {count} groups")
    return uid, groups[0]


def check_peer(
    connection: socket.socket,
    own_uid: int,
    *,
    read: Callable[[socket.socket], tuple[int, int, int]] = read_peer,
    sandboxed: Callable[[int], bool] | None = None,
) -> tuple[int, int, int]:
    """Return uid, gid and pid of a caller; refuse others and sandboxed ones.

    Raises CallerError: `peer_other_user`, `peer_other_namespace`, `peer_unknown`."""
    try:
        uid, gid, pid = read(connection)
    except OSError as error:
        raise _unknown() from error
    if uid != own_uid:
        raise CallerError(
            "peer_other_user",
            f"this daemon serves uid {own_uid} only",
            hint="start your own with: sandboxd serve",
        )
    if pid <= 0:
        raise _unknown()
    if (sandboxed or is_sandboxed)(pid):
        raise CallerError(
            "peer_other_namespace", "sandboxed commands are not served", hint="call from outside the sandbox"
        )
    return uid, gid, pid


def is_sandboxed(pid: int) -> bool:
    """Return whether a process is in a sandbox of sandboxd.

    True when the system does not say: the caller is refused then."""
    try:
        check = ctypes.CDLL(None).sandbox_check
    except (OSError, AttributeError):
        return True
    # The fixed arguments only: the rest is variadic, and passed in another way on Apple's processors.
    check.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
    if check(pid, None, 0) == 0:
        return False
    return _may_look_up(check, pid, SANDBOXED) and not _may_look_up(check, pid, DECOY)


def _may_look_up(check: Callable[..., int], pid: int, name: str) -> bool:
    return check(pid, b"mach-lookup", _FILTER_GLOBAL_NAME | _NO_REPORT, ctypes.c_char_p(name.encode("ascii"))) == 0


def _unknown() -> CallerError:
    return CallerError("peer_unknown", "the calling process could not be identified", hint="connect again")
