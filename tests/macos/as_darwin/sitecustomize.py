"""Makes a Python on Linux look like one on macOS, to code that asks it. In a directory of its own on PYTHONPATH, so
that every Python that is started from there gets it too.

The names that macOS lacks are gone, `/proc` is gone, the credentials of a peer come as LOCAL_PEERCRED. Code of the
tests keeps `/proc`. Of kqueue there is what tells of the end of a process. What differs without a name (limits,
signals, error numbers) is not imitated.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import struct
import sys
import time
import types
from collections.abc import Callable
from typing import Any

_TESTS = os.path.abspath(__file__).rsplit("/", 3)[0] + "/"
_ROOT = os.path.dirname(_TESTS[:-1])

_MISSING = {
    os: """pidfd_open memfd_create eventfd eventfd_read eventfd_write splice copy_file_range posix_fadvise
        posix_fallocate fdatasync sched_getaffinity sched_setaffinity sched_setscheduler sched_getscheduler
        sched_setparam sched_getparam sched_rr_get_interval getxattr setxattr listxattr removexattr setresuid setresgid
        getresuid getresgid pipe2 preadv2 pwritev2 getrandom unshare setns O_PATH O_TMPFILE O_DIRECT O_NOATIME O_RSYNC
        O_LARGEFILE SPLICE_F_MOVE SPLICE_F_NONBLOCK SPLICE_F_MORE MFD_CLOEXEC MFD_ALLOW_SEALING EFD_CLOEXEC
        EFD_NONBLOCK GRND_NONBLOCK CLONE_NEWNET CLONE_NEWUSER CLONE_NEWNS P_PIDFD RWF_NOWAIT SCHED_BATCH
        SCHED_IDLE SCHED_RESET_ON_FORK XATTR_CREATE XATTR_REPLACE""",
    socket: """SO_PEERCRED SO_PASSCRED SCM_CREDENTIALS SOCK_CLOEXEC SOCK_NONBLOCK MSG_CMSG_CLOEXEC MSG_NOSIGNAL
        MSG_ERRQUEUE MSG_MORE AF_NETLINK AF_PACKET AF_VSOCK AF_ALG AF_TIPC AF_CAN AF_RDS AF_QIPCRTR
        SO_BINDTODEVICE SO_MARK SO_DOMAIN SO_PROTOCOL SO_PEERSEC SO_PASSSEC TCP_USER_TIMEOUT TCP_QUICKACK TCP_CORK
        TCP_DEFER_ACCEPT IP_TRANSPARENT PF_PACKET""",
    select: "epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP EPOLLRDHUP EPOLLET EPOLLONESHOT EPOLLEXCLUSIVE EPOLL_CLOEXEC",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL SIGCLD",
    time: "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
}

_LOCAL, _LOCAL_PEERCRED, _LOCAL_PEERPID = 0, 1, 2


def _remove() -> None:
    low = {os: "posix", socket: "_socket", signal: "_signal"}
    for module, names in _MISSING.items():
        for name in names.split():
            for place in (module, sys.modules.get(low.get(module, ""))):
                if place is not None and hasattr(place, name):
                    delattr(place, name)


def _credentials() -> None:
    peercred = 17
    ask = socket.socket.getsockopt

    def getsockopt(self: socket.socket, level: int, name: int, *size: int) -> Any:
        if level != _LOCAL or self.family != socket.AF_UNIX:
            return ask(self, level, name, *size)
        pid, uid, gid = struct.unpack("3i", ask(self, socket.SOL_SOCKET, peercred, 12))
        if name == _LOCAL_PEERPID:
            return pid
        groups = [gid] + [0] * 15
        return struct.pack("=IIh2x16I", 0, uid, 1, *groups)[: size[0] if size else None]

    socket.socket.getsockopt = getsockopt  # type: ignore[method-assign, assignment]


class _Function:
    """With the attributes that ctypes has for types."""

    def __init__(self, call: Callable[..., int]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> int:
        return self._call(*arguments)


class _Library:
    """What the system library says about processes and their sandboxes. The stand-in for `sandbox-exec` marks its
    processes with variables."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.sandbox_check = _Function(_sandbox_check)
        self.proc_listpids = _Function(_list_pids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _sandbox_check(pid: int, operation: bytes | None, kind: int, *name: Any) -> int:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
    except OSError:
        return 0
    member = variables.get(b"SANDBOX_STUB_MEMBER")
    if operation is None or member is None:
        return int(member is not None)
    return int(name[0].value not in (member, b"dev.sandboxd.sandboxed"))


def _list_pids(kind: int, uid: int, buffer: Any, size: int) -> int:
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == uid]
    if buffer is None:
        return 4 * len(pids)
    shown = pids[: size // 4]
    buffer[: len(shown)] = shown
    return 4 * len(shown)


def _library() -> None:
    import ctypes

    load = ctypes.CDLL

    def library(name: str | None, *arguments: Any, **keywords: Any) -> Any:
        real = load(name, *arguments, **keywords)
        return _Library(real) if name is None else real

    ctypes.CDLL = library  # type: ignore[assignment, misc]


def _no_proc(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("open", "os.listdir", "os.scandir") or not arguments:
        return
    path = arguments[0]
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if isinstance(path, str) and (path == "/proc" or path.startswith("/proc/")):
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith((_ROOT,)):
            frame = frame.f_back  # type: ignore[assignment]
        if frame is None or not frame.f_code.co_filename.startswith(_TESTS):
            raise FileNotFoundError(2, "No such file or directory", path)


def _get_path() -> None:
    """F_GETPATH."""
    import fcntl

    ask = fcntl.fcntl

    def getpath(descriptor: Any, command: int, argument: Any = 0) -> Any:
        if command == 50:
            return os.fsencode(os.readlink(f"/proc/self/fd/{descriptor}")) + b"\0"
        return ask(descriptor, command, argument)

    fcntl.fcntl = getpath


def _kqueue() -> None:
    """One that waits for the end of one process."""
    open_process = os.pidfd_open

    class Queue:
        def control(self, events: list[int], limit: int) -> list[int]:
            self._descriptor = open_process(events[0])
            return []

        def fileno(self) -> int:
            return self._descriptor

        def close(self) -> None:
            os.close(self._descriptor)

    names: dict[str, Any] = {"kqueue": Queue, "kevent": lambda pid, *_: pid}
    for name in ("KQ_FILTER_PROC", "KQ_EV_ADD", "KQ_NOTE_EXIT"):
        names[name] = 0
    vars(select).update(names)


def _system_proxies() -> None:
    """What urllib asks about the system's settings."""
    module: Any = types.ModuleType("_scproxy")
    module._get_proxy_settings = module._get_proxies = dict
    sys.modules["_scproxy"] = module


_kqueue()
_remove()
_get_path()
_system_proxies()
vars(selectors).pop("EpollSelector", None)
selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc, assignment]
_credentials()
_library()
sys.platform = "darwin"
sys.addaudithook(_no_proc)
