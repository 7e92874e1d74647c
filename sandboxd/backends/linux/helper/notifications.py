"""Reports and questions of the helper about system calls, as frame payloads.

Pure; docs/helper.md. Names and paths come from untrusted programs: any bytes but zero."""

from __future__ import annotations

import struct
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address

from sandboxd.plan.host_facts import SocketFile
from sandboxd_client.records import dataclass

REFUSED, LOST, CONNECT, LISTENS = 7, 8, 9, 10
"""Types of frames (bridge_protocol.FrameType)."""

AGAIN = b"Q"
"""Control byte: ask again about every connect that waits, for a daemon that has taken over the connection."""

_REFUSED = struct.Struct("<6I16s")
_LOST = struct.Struct("<I")
_CONNECT = struct.Struct("<4I16s")
_FILE = struct.Struct("<3QqQ")
_SECOND = 1_000_000_000
_ANSWER = struct.Struct("<cII")
_CUT = 1
_MADE = 4
"""The access of a report that a command has made a name; an inode stands in place of the error."""
_MAX_ERRNO = 4095
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10


class ReportedAccess(IntEnum):
    READ = 1
    WRITE = 2
    UNIX_SOCKET = 3


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A call that the sandbox refuses: a mount, or a Unix socket of a closed kind.

    `call` is its number on this architecture, `errno` its result, `pid` and `process` the first caller, `count` the
    number of times. `path` is absolute and without symbolic links as far as it exists; `is_cut`: only its start."""

    access: ReportedAccess
    call: int
    errno: int
    pid: int
    process: str
    path: str
    count: int = 1
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The number of refused calls that were not reported, because of their rate."""

    count: int


@dataclass(frozen=True, slots=True)
class Connecting:
    """A connect that waits for an answer; addresses as in `ConnectAttempt`."""

    question: int
    family: int
    address: str
    port: int
    pid: int
    process: str
    file: SocketFile | None = None


@dataclass(frozen=True, slots=True)
class Listens:
    """A program has made a socket of a network listen."""


@dataclass(frozen=True, slots=True)
class MadeName:
    """A command has made a name that git looks for, or moved a directory to this path.

    `inode` are the lower 32 bits of the number of a directory that it has made, else 0."""

    path: str
    inode: int


Notification = RefusedCall | MadeName | Lost | Connecting | Listens


def encode_answer(question: int, errno: int) -> bytes:
    """Encode the answer to a question: fail with `errno`, or go on with 0."""
    return _ANSWER.pack(b"R", question, errno if 0 <= errno <= _MAX_ERRNO else 13)


def encode_notification(event: Notification) -> tuple[int, bytes]:
    """Encode frame type and payload as the helper does, for tests and fakes."""
    match event:
        case RefusedCall(access, call, errno, pid, process, path, count, is_cut):
            head = _REFUSED.pack(access, call, errno, pid, count, is_cut * _CUT, _bytes(process))
            return REFUSED, head + _bytes(path)
        case MadeName(path, inode):
            return REFUSED, _REFUSED.pack(_MADE, 0, inode, 0, 1, 0, b"") + _bytes(path)
        case Lost(count):
            return LOST, _LOST.pack(count)
        case Listens():
            return LISTENS, b""
        case Connecting(question, family, address, port, pid, process, file):
            which = b"" if file is None else _pack_file(file)
            head = _CONNECT.pack(question, family, len(which) or port, pid, _bytes(process))
            return CONNECT, head + which + _pack_address(family, address)


def decode_notification(kind: int, payload: bytes) -> Notification | None:
    """Decode a payload; None for other frame types.

    Raises ValueError or struct.error for a malformed payload."""
    match kind:
        case 7:
            access, call, errno, pid, count, flags, process = _REFUSED.unpack_from(payload)
            path = payload[_REFUSED.size :]
            if not count or flags & ~_CUT or not path or b"\0" in path:
                raise ValueError("a malformed report")
            if access == _MADE:
                return MadeName(_text(path), errno)
            if not 0 < errno <= _MAX_ERRNO:
                raise ValueError(f"error {errno}")
            return RefusedCall(
                ReportedAccess(access), call, errno, pid, _name(process), _text(path), count, bool(flags)
            )
        case 8:
            (count,) = _LOST.unpack(payload)
            if not count:
                raise ValueError("nothing was lost")
            return Lost(count)
        case 10:
            struct.unpack("", payload)
            return Listens()
        case 9:
            question, family, port, pid, process = _CONNECT.unpack_from(payload)
            if port > 0xFFFF:
                raise ValueError(f"port {port}")
            rest, file = payload[_CONNECT.size :], None
            if family == _AF_UNIX and port == _FILE.size <= len(rest):
                file, rest, port = _unpack_file(rest), rest[_FILE.size :], 0
            return Connecting(question, family, _unpack_address(family, rest), port, pid, _name(process), file)
    return None


def _pack_file(file: SocketFile) -> bytes:
    return _FILE.pack(*file.device, file.inode, *divmod(file.made_ns, _SECOND))


def _unpack_file(data: bytes) -> SocketFile:
    major, minor, inode, seconds, nanoseconds = _FILE.unpack_from(data)
    return SocketFile((major, minor), inode, seconds * _SECOND + nanoseconds)


def _pack_address(family: int, address: str) -> bytes:
    if family == _AF_UNIX:
        return _bytes(address)
    return (IPv4Address if family == _AF_INET else IPv6Address)(address).packed


def _unpack_address(family: int, address: bytes) -> str:
    if family == _AF_INET and len(address) == 4:
        return str(IPv4Address(address))
    if family == _AF_INET6 and len(address) == 16:
        return str(IPv6Address(address))
    if family == _AF_UNIX and address.startswith(b"/") and b"\0" not in address:
        return _text(address)
    raise ValueError(f"{len(address)} bytes as address of family {family}")


def _name(padded: bytes) -> str:
    """Decode a process name (proc_pid_comm(5)), padded with zero bytes."""
    return _text(padded.partition(b"\0")[0])


def _text(data: bytes) -> str:
    """Decode as os.fsdecode does (PEP 383), so that no byte is lost."""
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
