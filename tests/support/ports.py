"""Port numbers of loopback, reserved meanwhile. One that was free a moment ago, the kernel may give to any
other test that listens or connects."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path


def _held() -> socket.socket:
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held


_HELD = _held()
_TURNS = itertools.count(os.getpid())


def closed_port() -> int:
    """A port on which nothing listens, and nothing will: it is this process's, which does not listen."""
    port: int = _HELD.getsockname()[1]
    return port


def free_port() -> int:
    """A port to listen at, outside of what the kernel gives to those who name none. Each worker of a run has its own,
    and takes them in turn. Where the kernel gives all there are, one that is free now."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    outside = [*range(max(1024, low // 2), low), *range(high + 1, 65536)]
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = outside[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))] or [0]
    for turn in itertools.islice(_TURNS, len(mine)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", mine[turn % len(mine)]))
                probe.listen()
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port
    raise AssertionError("every port is taken")
