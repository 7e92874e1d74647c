"""Becomes a process of a container, then a command: `python containers.py KIND UID WORDS...`. Standard library only.

KIND is `capabilities` (root that has none, nor can get any) or `namespaces` (a user namespace in which no other can be
made)."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWUSER = 0x10000000
PR_CAPBSET_DROP = 24
ACCOUNTS = 65536
_libc = ctypes.CDLL(None, use_errno=True)


def drop_capabilities() -> None:
    """Take every capability out of the bounding set: none is left after the next execve, as with capsh --drop=all."""
    for number in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        _succeed(_libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0))


def leave_namespaces() -> None:
    """Enter a user namespace of all accounts, and forbid others in it."""
    above, entered = os.getpid(), os.pipe()
    child = os.fork()
    if not child:
        os.close(entered[1])
        os.read(entered[0], 1)  # the other one is in its namespace
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{above}/{name}").write_text(f"0 0 {ACCOUNTS}\n")
        os._exit(0)
    os.close(entered[0])
    _succeed(_libc.unshare(CLONE_NEWUSER))
    os.close(entered[1])
    if os.waitpid(child, 0)[1] != 0:
        raise OSError("the accounts could not be mapped")
    Path("/proc/sys/user/max_user_namespaces").write_text("0\n")


def become(kind: str, uid: int, words: Sequence[str]) -> None:
    {"capabilities": drop_capabilities, "namespaces": leave_namespaces}[kind]()
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.execv(words[0], list(words))


def _succeed(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    become(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
