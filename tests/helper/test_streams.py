"""Which descriptors may be standard streams of a command: what carries bytes and nothing else. All others are refused
before anything runs; and whatever is open besides 0, 1 and 2 stays outside."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pty
import select
import socket
import stat
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import Descriptors, Started

from .conftest import MACHINE, Launcher, configuration

_LIBC = ctypes.CDLL(None, use_errno=True)
_NUMBERS = {  # of calls that Python does not have: x86_64, aarch64
    "bpf": (321, 280), "epoll_create1": (291, 20), "fanotify_init": (300, 262), "fsopen": (430, 430),
    "inotify_init1": (294, 26), "io_uring_setup": (425, 425), "memfd_secret": (447, 447), "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "open_tree": (428, 428), "perf_event_open": (298, 241), "signalfd4": (289, 74), "timerfd_create": (283, 85),
    "userfaultfd": (323, 282), "landlock_create_ruleset": (444, 444),
}  # fmt: skip


_NOT_HERE = (errno.ENOSYS, errno.ENODEV, errno.EPERM, errno.EINVAL, errno.EACCES, errno.EOPNOTSUPP)


class Missing(Exception):
    """This kernel, or this container, makes no such descriptor."""


def _call(name: str, *arguments: object) -> int:
    number = _NUMBERS[name][MACHINE != "x86_64"]
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    words += [ctypes.c_long(0)] * (6 - len(words))
    descriptor = int(_LIBC.syscall(ctypes.c_long(number), *words))
    if descriptor < 0:
        if ctypes.get_errno() in _NOT_HERE:
            raise Missing(os.strerror(ctypes.get_errno()))
        raise OSError(ctypes.get_errno(), name)
    return descriptor


def _open(path: str, flags: int = os.O_RDONLY) -> Callable[[ExitStack], int]:
    def opened(stack: ExitStack) -> int:
        try:
            return os.open(path, flags)
        except OSError as error:
            raise Missing(str(error)) from None

    return opened


def _socket(family: int, kind: int, protocol: int = 0) -> Callable[[ExitStack], int]:
    def made(stack: ExitStack) -> int:
        try:
            return socket.socket(family, kind, protocol).detach()
        except OSError as error:
            raise Missing(str(error)) from None

    return made


def _connected_tcp(stack: ExitStack) -> int:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return stack.enter_context(socket.create_connection(listener.getsockname())).detach()


def _pair(kind: int) -> Callable[[ExitStack], int]:
    def made(stack: ExitStack) -> int:
        mine, other = socket.socketpair(socket.AF_UNIX, kind)
        stack.enter_context(other)
        return mine.detach()

    return made


def _listening_unix(stack: ExitStack) -> int:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # an abstract name that the kernel chooses
    listener.listen()
    return listener.detach()


def _pidfd(stack: ExitStack) -> int:
    return os.pidfd_open(os.getpid())


def _master(stack: ExitStack) -> int:
    master, slave = pty.openpty()
    stack.callback(os.close, slave)
    return master


def _block_device(stack: ExitStack) -> int:
    found = (Path("/dev") / name for name in os.listdir("/dev"))
    path = next((one for one in found if stat.S_ISBLK(one.lstat().st_mode)), None)
    if path is None:
        raise Missing("no block device")
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def _of_another_process(name: str, flags: int) -> Callable[[ExitStack], int]:
    def opened(stack: ExitStack) -> int:
        sleeper = subprocess.Popen(["sleep", "1000"])
        stack.callback(sleeper.wait)
        stack.callback(sleeper.kill)
        return os.open(f"/proc/{sleeper.pid}/{name}", flags)

    return opened


def _epoll(stack: ExitStack) -> int:
    return os.dup(stack.enter_context(select.epoll()).fileno())


def _bpf_map(stack: ExitStack) -> int:
    attributes = ctypes.create_string_buffer(struct.pack("<5I", 2, 4, 4, 1, 0), 128)
    return _call("bpf", 0, attributes, 128)


def _perf(stack: ExitStack) -> int:
    return _call("perf_event_open", ctypes.create_string_buffer(struct.pack("<IIQ", 1, 128, 0), 128), 0, -1, -1, 0)


def _queue(stack: ExitStack) -> int:
    name = ctypes.c_char_p(f"sandboxd-{os.getpid()}".encode())
    queue = _call("mq_open", name, os.O_RDWR | os.O_CREAT, 0o600, 0)
    _call("mq_unlink", name)  # else it stays for good, and a user may have few of them
    return queue


Factory = Callable[[ExitStack], int]

REFUSED: dict[str, tuple[Factory, str]] = {
    "tcp": (_socket(socket.AF_INET, socket.SOCK_STREAM), "a TCP socket"),
    "tcp6": (_socket(socket.AF_INET6, socket.SOCK_STREAM), "a TCP socket"),
    "tcp-connected": (_connected_tcp, "a TCP socket"),
    "mptcp": (_socket(socket.AF_INET, socket.SOCK_STREAM, 262), "a TCP socket"),
    "udp": (_socket(socket.AF_INET, socket.SOCK_DGRAM), "a UDP socket"),
    "udp6": (_socket(socket.AF_INET6, socket.SOCK_DGRAM), "a UDP socket"),
    "raw": (_socket(socket.AF_INET, socket.SOCK_RAW, 1), "a raw socket"),
    "netlink": (_socket(socket.AF_NETLINK, socket.SOCK_RAW), "a netlink socket"),
    "packet": (_socket(socket.AF_PACKET, socket.SOCK_RAW), "a packet socket"),
    "vsock": (_socket(socket.AF_VSOCK, socket.SOCK_STREAM), "a vsock socket"),
    "alg": (_socket(socket.AF_ALG, socket.SOCK_SEQPACKET), "a socket"),
    "unix-unconnected": (_socket(socket.AF_UNIX, socket.SOCK_STREAM), "an unconnected Unix socket"),
    "unix-listening": (_listening_unix, "a listening Unix socket"),
    "unix-datagram": (_socket(socket.AF_UNIX, socket.SOCK_DGRAM), "a datagram Unix socket"),
    "unix-datagram-pair": (_pair(socket.SOCK_DGRAM), "a datagram Unix socket"),
    "unix-seqpacket-pair": (_pair(socket.SOCK_SEQPACKET), "a seqpacket Unix socket"),
    "directory": (_open("/"), "a directory"),
    "directory-place": (_open("/", os.O_PATH), "a directory"),
    "file-place": (_open("/etc/hostname", os.O_PATH), "a mere place (O_PATH)"),
    "mount": (lambda stack: _call("open_tree", -100, ctypes.c_char_p(b"/"), 1), "a directory"),
    "file-system": (lambda stack: _call("fsopen", ctypes.c_char_p(b"tmpfs"), 0), "an object of the kernel"),
    "pidfd": (_pidfd, ""),
    "network-namespace": (_open("/proc/self/ns/net"), "a file of the kernel"),
    "user-namespace": (_open("/proc/self/ns/user"), "a file of the kernel"),
    "memory-read": (_of_another_process("mem", os.O_RDONLY), "a file of the kernel"),
    "memory": (_of_another_process("mem", os.O_RDWR), "a file of the kernel"),
    "environment": (_of_another_process("environ", os.O_RDONLY), "a file of the kernel"),
    "setting": (_open("/proc/sys/vm/swappiness", os.O_WRONLY), "a file of the kernel"),
    "cgroup": (_open("/sys/fs/cgroup/cgroup.procs", os.O_WRONLY), "a file of the kernel"),
    "epoll": (_epoll, "an object of the kernel"),
    "eventfd": (lambda stack: os.eventfd(0), "an object of the kernel"),
    "timerfd": (lambda stack: _call("timerfd_create", 1, 0), "an object of the kernel"),
    "signalfd": (
        lambda stack: _call("signalfd4", -1, ctypes.byref(ctypes.c_uint64(1)), 8, 0),
        "an object of the kernel",
    ),
    "inotify": (lambda stack: _call("inotify_init1", 0), "an object of the kernel"),
    "fanotify": (lambda stack: _call("fanotify_init", 0, 0), "an object of the kernel"),
    "io_uring": (lambda stack: _call("io_uring_setup", 4, ctypes.create_string_buffer(256)), "an object of the kernel"),
    "userfaultfd": (lambda stack: _call("userfaultfd", 1), "an object of the kernel"),
    "bpf": (_bpf_map, "an object of the kernel"),
    "perf": (_perf, "an object of the kernel"),
    "landlock": (
        lambda stack: _call("landlock_create_ruleset", ctypes.create_string_buffer(b"\x02", 8), 8, 0),
        "an object of the kernel",
    ),
    "memfd-secret": (lambda stack: _call("memfd_secret", 0), "a file of the kernel"),
    "queue": (_queue, "a file of the kernel"),
    "block-device": (_block_device, "a block device"),
    "terminal-master": (_master, "the master of a terminal"),
    "kernel-log": (_open("/dev/kmsg", os.O_WRONLY), "a device"),
    "tunnel": (_open("/dev/net/tun", os.O_RDWR), "a device"),
    "fuse": (_open("/dev/fuse", os.O_RDWR), "a device"),
    "kvm": (_open("/dev/kvm", os.O_RDWR), "a device"),
    "memory-device": (_open("/dev/mem"), "a device"),
}


def _file(stack: ExitStack) -> int:
    return os.dup(stack.enter_context(tempfile.TemporaryFile()).fileno())


def _pipe(stack: ExitStack) -> int:
    reader, writer = os.pipe()
    stack.callback(os.close, reader)
    return writer


def _fifo(stack: ExitStack) -> int:
    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "fifo"
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)


def _terminal(stack: ExitStack) -> int:
    master, slave = pty.openpty()
    stack.callback(os.close, master)
    return slave


def _closed_terminal(stack: ExitStack) -> int:
    master, slave = pty.openpty()
    os.close(master)
    return slave


def _closed_pair(stack: ExitStack) -> int:
    mine, other = socket.socketpair()
    other.close()
    return mine.detach()


def _accepted(stack: ExitStack) -> int:
    """As a service gets it from its manager."""
    path = f"{stack.enter_context(tempfile.TemporaryDirectory())}/s"
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(path)
    listener.listen()
    client = stack.enter_context(socket.socket(socket.AF_UNIX))
    client.connect(path)
    return listener.accept()[0].detach()


ALLOWED: dict[str, Factory] = {
    "file": _file,
    "pipe": _pipe,
    "fifo": _fifo,
    "memory-file": lambda stack: os.memfd_create("x"),
    "null": _open(os.devnull, os.O_RDWR),
    "zero": _open("/dev/zero", os.O_RDWR),
    "full": _open("/dev/full", os.O_RDONLY),
    "random": _open("/dev/random"),
    "urandom": _open("/dev/urandom"),
    "terminal": _terminal,
    "terminal-that-hung-up": _closed_terminal,
    "socketpair": _pair(socket.SOCK_STREAM),
    "socketpair-whose-peer-is-gone": _closed_pair,
    "accepted": _accepted,
    "about-the-machine": _open("/proc/cpuinfo"),
    "about-a-device": _open("/sys/kernel/mm/transparent_hugepage/enabled"),
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _made(factory: Factory, stack: ExitStack) -> int:
    try:
        descriptor = factory(stack)
    except Missing:
        return -1
    stack.callback(os.close, descriptor)
    return descriptor


def test_most_of_them_exist_here(stack: ExitStack) -> None:
    """The rest of this file would otherwise prove little."""
    missing = {name for name, (factory, _) in REFUSED.items() if _made(factory, stack) < 0}
    rare = {"vsock", "alg", "kvm", "fuse", "tunnel", "memory-device", "memfd-secret", "block-device", "mptcp", "perf",
            "bpf", "cgroup", "kernel-log", "packet", "raw", "userfaultfd", "queue", "landlock"}  # fmt: skip
    assert missing <= rare


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_other_powers_is_refused(launch: Launcher, stack: ExitStack, name: str) -> None:
    factory, kind = REFUSED[name]
    descriptor = _made(factory, stack)
    if descriptor < 0:  # `test_most_of_them_exist_here` counts these
        return
    for stream, said in (("stdin", "standard input"), ("stdout", "standard output"), ("stderr", "standard error")):
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        streams[stream] = descriptor
        status, out, err = launch.start(launch.words(), **streams).finish()
        assert (status, out) == (125, "")
        launch.listener.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            launch.listener.accept()
            pytest.fail("it has asked the daemon for a configuration")
        if stream != "stderr":
            lines = err.splitlines()
            assert len(lines) == 2 and lines[1].startswith("hint: "), err
            assert lines[0].startswith(f"sandboxd: {kind}") and f"cannot be {said}" in lines[0], err


def test_the_kernel_names_its_object(launch: Launcher, stack: ExitStack) -> None:
    _, _, err = launch.start(launch.words(), stdin=_made(REFUSED["eventfd"][0], stack)).finish()
    assert err.splitlines()[0] == "sandboxd: an object of the kernel cannot be standard input: anon_inode:[eventfd]"


@pytest.mark.parametrize("name", ALLOWED)
def test_what_carries_bytes_is_not(launch: Launcher, stack: ExitStack, name: str) -> None:
    descriptor = _made(ALLOWED[name], stack)
    assert descriptor >= 0
    for stream in ("stdin", "stdout", "stderr"):
        streams: dict[str, Any] = {stream: descriptor}
        sandbox = launch(["true"], **streams)
        sandbox.expect(Started())
        assert sandbox.finish()[0] == 0


def test_all_others_are_closed(launch: Launcher, stack: ExitStack) -> None:
    made = [_made(factory, stack) for factory in (*(one for one, _ in REFUSED.values()), *ALLOWED.values())]
    for descriptor in made:
        if descriptor >= 0:
            os.set_inheritable(descriptor, True)
    high = os.dup2(made[0], 900)
    stack.callback(os.close, high)
    sandbox = launch.start(launch.words(), close_fds=False)
    sandbox.accept()
    sandbox.send(configuration(["ls", "/proc/self/fd"]))
    sandbox.expect(Descriptors(0))
    assert sandbox.finish() == (0, "0\n1\n2\n3\n", "")  # 3 is the directory that ls reads


IN_THE_OTHER_END = """
import array, errno, os, socket, struct, sys
mine = socket.socket(fileno=0)
def tried(name, attempt):
    try: attempt()
    except OSError as error: print(name, errno.errorcode[error.errno])
    else: print(name, "done")
tried("anew", lambda: mine.connect(sys.argv[1]))
def unspecified():
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.connect(0, struct.pack("=H", 0), 2) < 0: raise OSError(ctypes.get_errno(), "connect")
tried("unspecified", unspecified)
tried("anew", lambda: mine.connect(sys.argv[1]))
tried("listen", mine.listen)
tried("elsewhere", lambda: mine.sendto(b"x", sys.argv[1]))
def peer():
    descriptor = struct.unpack("i", mine.getsockopt(socket.SOL_SOCKET, 77, 4))[0]  # SO_PEERPIDFD
    import signal
    signal.pidfd_send_signal(descriptor, 0)
tried("peer", peer)
tried("namespace", lambda: __import__("fcntl").ioctl(0, 0x894C))  # SIOCGSKNS
"""


def test_a_connected_stream_leads_to_its_other_end_only(launch: Launcher, stack: ExitStack) -> None:
    """It cannot be connected anew, listen or send to another address, nor does it give power over its peer."""
    path = str(launch.identity.workspace / "other")
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(path)
    os.chmod(path, 0o777)
    listener.listen()
    listener.setblocking(False)
    mine, other = socket.socketpair()
    stack.enter_context(mine)
    stack.enter_context(other)
    status, out, err = launch.python(IN_THE_OTHER_END, path, stdin=mine.fileno()).finish()
    assert status == 0, err
    assert [line for line in out.splitlines() if line.endswith("done")] == []
    assert len(out.splitlines()) == 7
    with pytest.raises(BlockingIOError):
        listener.accept()
    other.close()
