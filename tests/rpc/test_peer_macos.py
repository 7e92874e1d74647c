"""Who is calling, on macOS: the kernel's record is read as it is laid out there, and other callers are refused."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys

import pytest

from sandboxd.errors import CallerError
from sandboxd.rpc import peer
from sandboxd.rpc.peer import Identity, identify
from sandboxd.rpc.peer_macos import check_peer, is_sandboxed, parse_credentials


def record(version: int = 0, uid: int = 501, groups: tuple[int, ...] = (20, 12)) -> bytes:
    """`struct xucred`: two words, a short, padding, sixteen words."""
    return struct.pack("=IIhxx16I", version, uid, len(groups), *groups, *([0] * (16 - len(groups))))


def test_credentials() -> None:
    assert len(record()) == 76
    assert parse_credentials(record()) == (501, 20)


@pytest.mark.parametrize("data", [b"", record()[:-1], record(version=1), record(groups=())])
def test_credentials_that_are_not_understood(data: bytes) -> None:
    with pytest.raises(OSError, match="credentials of"):
        parse_credentials(data)


class Connection:
    """Answers the two options as the kernel does."""

    def __init__(self, credentials: bytes, pid: int) -> None:
        self.credentials, self.pid = credentials, pid

    def getsockopt(self, level: int, option: int, size: int = 0) -> bytes | int:
        assert level == 0
        if option == 1:
            assert size == 76
            return self.credentials
        assert (option, size) == (2, 0)
        return self.pid


def checked(credentials: bytes = record(), pid: int = 4711, sandboxed: bool = False) -> tuple[int, int, int]:
    return check_peer(Connection(credentials, pid), 501, sandboxed=lambda _: sandboxed)  # type: ignore[arg-type]


def test_the_same_user_is_served() -> None:
    assert checked() == (501, 20, 4711)


@pytest.mark.parametrize(
    ("keywords", "slug"),
    [
        ({"credentials": record(uid=502)}, "peer_other_user"),
        ({"credentials": record(uid=0)}, "peer_other_user"),
        ({"credentials": b""}, "peer_unknown"),
        ({"pid": 0}, "peer_unknown"),
        ({"sandboxed": True}, "peer_other_namespace"),
    ],
)
def test_who_is_turned_away(keywords: dict[str, object], slug: str) -> None:
    with pytest.raises(CallerError) as caught:
        checked(**keywords)  # type: ignore[arg-type]
    assert caught.value.slug == slug


def test_without_the_system_s_word_everybody_counts_as_sandboxed() -> None:
    """Here there is no sandbox_check."""
    assert is_sandboxed(os.getpid())


def test_the_question_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one of sandboxd: sandboxed, may look its own name up, may not look another one up."""

    class Check:
        argtypes: object = None

        def __init__(self, sandboxed: bool, names: set[bytes] | None) -> None:
            self.sandboxed, self.names = sandboxed, names

        def __call__(self, pid: int, operation: bytes | None, kind: int, *name: object) -> int:
            if operation is None:
                return int(self.sandboxed)
            assert (operation, kind) == (b"mach-lookup", 0x40000002)
            return 0 if self.names is None or name[0].value in self.names else 1  # type: ignore[attr-defined]

    for check, expected in (
        (Check(False, None), False),
        (Check(True, {b"dev.sandboxd.sandboxed"}), True),
        (Check(True, set()), False),
        (Check(True, None), False),  # another program's sandbox that allows every look-up
    ):
        library = type("Library", (), {"sandbox_check": check})
        monkeypatch.setattr(ctypes, "CDLL", lambda _, library=library: library)
        assert is_sandboxed(1) is expected


def test_the_platform_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(peer, "check_peer", lambda connection, uid: (uid, 20, 7))
    own = Identity.own()
    assert own == Identity(os.geteuid(), ())
    with socket.socket(socket.AF_UNIX) as connection:
        caller = identify(connection, own)
    assert (caller.uid, caller.gid, caller.pid) == (os.geteuid(), 20, 7)
