"""Sockets from launchd: launch_activate_socket(3), as sd_listen_fds(3) on Linux."""

from __future__ import annotations

import ctypes
from typing import Any

from sandboxd.errors import HostError

SOCKET_NAME = "rpc"
"""The key below `Sockets` in the agent's property list."""
_ENOENT, _ESRCH = 2, 3


def activated_sockets(name: str = SOCKET_NAME, library: Any = None) -> tuple[int, ...]:
    """Return the descriptors that launchd has opened, if any.

    Raises HostError `passed_socket_unusable`."""
    library = ctypes.CDLL(None) if library is None else library
    try:
        activate = library.launch_activate_socket
        free = library.free
    except AttributeError:
        return ()
    activate.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.POINTER(ctypes.c_int)), ctypes.POINTER(ctypes.c_size_t)]
    activate.restype = ctypes.c_int
    free.argtypes = [ctypes.c_void_p]
    descriptors, count = ctypes.POINTER(ctypes.c_int)(), ctypes.c_size_t()
    code = activate(name.encode("ascii"), ctypes.byref(descriptors), ctypes.byref(count))
    if code in (_ESRCH, _ENOENT):  # not started by launchd, or no socket of that name
        return ()
    if code != 0:
        raise HostError("passed_socket_unusable", f"launchd does not hand its socket over (error {code})")
    try:
        return tuple(descriptors[index] for index in range(count.value))
    finally:
        free(ctypes.cast(descriptors, ctypes.c_void_p))
