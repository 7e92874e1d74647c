"""A second network namespace, in which the servers of other machines listen.

Runtimes refuse names that lead to addresses of the machine itself, so those servers need addresses of another one."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESSES = ("1.2.3.4", "1.2.3.5", "169.254.169.254")
_CLONE_NEWNET = 0x40000000


@contextmanager
def far_network() -> Iterator[int]:
    """A descriptor of the namespace, connected with this process' own by a pair of interfaces."""
    sleeper = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 100000"], stdout=subprocess.PIPE)
    try:
        assert sleeper.stdout is not None and sleeper.stdout.read(1)
        inside = ["nsenter", f"--net=/proc/{sleeper.pid}/ns/net"]
        for words in (
            ["ip", "link", "set", "lo", "up"],
            ["ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(sleeper.pid)],
            ["ip", "address", "add", "1.2.3.1/24", "dev", "near"],
            ["ip", "link", "set", "near", "up"],
            ["ip", "route", "add", "169.254.169.254/32", "dev", "near"],
            [*inside, "ip", "link", "set", "lo", "up"],
            [*inside, "ip", "link", "set", "far", "up"],
            *([*inside, "ip", "address", "add", f"{address}/24", "dev", "far"] for address in ADDRESSES),
        ):
            subprocess.run(words, check=True)
        descriptor = os.open(f"/proc/{sleeper.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        yield descriptor
        os.close(descriptor)
    finally:
        sleeper.kill()
        sleeper.communicate()


@contextmanager
def entered(descriptor: int) -> Iterator[None]:
    """The namespace as that of this thread: sockets that are made meanwhile belong to it (setns(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for step in (descriptor, back):
            if libc.setns(step, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            if step == descriptor:
                yield
    finally:
        os.close(back)
