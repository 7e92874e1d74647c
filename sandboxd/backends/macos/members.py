"""The processes of a sandbox, and their end.

macOS has no pid namespace whose end takes all processes along, and a process leaves its group and session at will. It
never leaves its sandbox. Each profile allows the look-up of one unregistered service name of this launch, and
`sandbox_check` says whether a process may look a name up. A sandboxed process that may look up this name and not
another one is a member."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from typing import Protocol

PREFIX = "dev.sandboxd.member."
DECOY = "dev.sandboxd.nobody"
ROUNDS = 60
PAUSE_S = 0.02

_FILTER_NONE = 0
_FILTER_GLOBAL_NAME = 2
_NO_REPORT = 0x40000000
_UID_ONLY = 4  # PROC_UID_ONLY of <libproc.h>


class Members(Protocol):
    """The processes of the sandbox with this name. Raises OSError."""

    def find(self, name: str) -> Iterable[int]: ...


class SeatbeltMembers:
    """Queries of libsandbox and libproc, parts of the system library.

    Apple does not document `sandbox_check`; browsers use it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        # Only the fixed arguments: Apple's processors pass variadic ones in another way.
        self._library.sandbox_check.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
        self._library.sandbox_check.restype = ctypes.c_int
        self._library.proc_listpids.argtypes = [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int]
        self._library.proc_listpids.restype = ctypes.c_int

    def find(self, name: str) -> Iterable[int]:
        daemon = os.getpid()
        return [pid for pid in self._pids() if pid != daemon and self._is_member(pid, name)]

    def _pids(self) -> list[int]:
        uid, width = os.getuid(), ctypes.sizeof(ctypes.c_int)
        size = self._library.proc_listpids(_UID_ONLY, uid, None, 0)
        if size <= 0:
            raise OSError(ctypes.get_errno(), "proc_listpids")
        buffer = (ctypes.c_int * (size // width + 64))()
        size = self._library.proc_listpids(_UID_ONLY, uid, buffer, ctypes.sizeof(buffer))
        if size <= 0:
            raise OSError(ctypes.get_errno(), "proc_listpids")
        return [pid for pid in buffer[: size // width] if pid > 1]

    def _is_member(self, pid: int, name: str) -> bool:
        if self._library.sandbox_check(pid, None, _FILTER_NONE) != 1:
            return False
        return self._may_look_up(pid, name) and not self._may_look_up(pid, DECOY)

    def _may_look_up(self, pid: int, name: str) -> bool:
        kind = _FILTER_GLOBAL_NAME | _NO_REPORT
        text = ctypes.c_char_p(name.encode("ascii"))
        return bool(self._library.sandbox_check(pid, b"mach-lookup", kind, text) == 0)


async def end_members(members: Members, name: str, log: Callable[..., None]) -> bool:
    """Kill all members until none is left, and return whether that succeeded.

    Again, because a process may fork during the search."""
    for _ in range(ROUNDS):
        try:
            found = list(await asyncio.to_thread(members.find, name))
        except OSError as error:
            log("members_unknown", member=name, error=str(error))
            return False
        if not found:
            return True
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(PAUSE_S)
    log("members_left", member=name)
    return False
