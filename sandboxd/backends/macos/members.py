"""Which processes are in a sandbox, and ending all of them.

macOS has no pid namespace whose end takes everything along, and a process leaves its group and session at will. It
never leaves its sandbox. Each profile allows looking up one service name that belongs to this launch and that nobody
registers; whether a process may look a name up can be asked of the system (`sandbox_check`). A process that is in some
sandbox, may look up our name and may not look up another one is in ours.
"""

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
    """Who is in the sandbox of this name. Raises OSError."""

    def find(self, name: str) -> Iterable[int]: ...


class SeatbeltMembers:
    """Asks libsandbox and libproc, which are parts of the system library. `sandbox_check` is not documented by Apple;
    browsers use it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        # The fixed arguments only: the rest is variadic, and passed in another way on Apple's processors.
        self._library.sandbox_check.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
        self._library.sandbox_check.restype = ctypes.c_int
        self._library.proc_listpids.argtypes = [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int]
        self._library.proc_listpids.restype = ctypes.c_int

    def find(self, name: str) -> Iterable[int]:
        own = os.getpid()
        return [pid for pid in self._pids() if pid != own and self._is_member(pid, name)]

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
    """Kill everybody in the sandbox, again until nobody is left: a process may fork while it is looked for. Whether it
    succeeded."""
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
