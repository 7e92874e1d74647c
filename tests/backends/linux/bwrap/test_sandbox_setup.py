"""What was begun for a sandbox that ends before it is complete is given up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from sandboxd.backends.base import Listeners
from sandboxd.backends.linux.bwrap.bwrap_options import BwrapOptions
from sandboxd.backends.linux.bwrap.sandbox_setup import SandboxSetup
from sandboxd.backends.linux.network import netlink
from sandboxd.backends.linux.network.capture import Capture
from sandboxd.backends.linux.network.namespace_program import STREAM, Configure, OpenSocket, SocketUse
from sandboxd.backends.linux.network.netlink import Family
from sandboxd.backends.linux.session_overlays import SessionOverlays
from support.namespaces import namespace_worker
from support.waiting import wait_until, wait_until_async

CAPTURE = Capture(
    Configure(netlink.everything_is_local((Family.V4,)), "add routes"),
    (OpenSocket(STREAM, IPv4Address("127.0.0.1"), 81, SocketUse.LISTEN, backlog=16),),
    1,
)
SANDBOX = (
    "bwrap", "--ro-bind", "/", "/", "--unshare-user", "--unshare-net", "--unshare-pid", "--as-pid-1", "sleep", "1000",
)  # fmt: skip


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.fixture
def bubblewrap() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SANDBOX) as process:
        wait_until(
            lambda: any(Path(f"/proc/{child}/comm").read_text() == "sleep\n" for child in children(process.pid)),
            "its process 1 runs",
        )
        yield process
        process.kill()


async def test_a_sandbox_that_ends_early_leaves_its_namespaces_empty(bubblewrap: subprocess.Popen[bytes]) -> None:
    [init] = children(bubblewrap.pid)
    async with namespace_worker() as worker:
        assert worker.pid is not None
        setup = SandboxSetup(worker, SessionOverlays(worker))
        completing = setup.of(BwrapOptions((), needs_file=False), CAPTURE, lambda lost: None)
        listeners = Listeners(namespace=os.open(f"/proc/{init}/ns/net", os.O_RDONLY))
        completing.born(init, bubblewrap.pid)
        resident = worker.pid
        await wait_until_async(lambda: len(children(resident)) == 1, "somebody is in there")
        bubblewrap.kill()
        os.kill(init, 9)
        bubblewrap.wait()
        await wait_until_async(lambda: not os.path.exists(f"/proc/{init}/ns/mnt"), "the sandbox has ended")
        with pytest.raises(Exception, match="ended before it was complete") as caught:
            completing.complete(init, bubblewrap.pid, listeners)
        # as long as the fault is looked at, which holds on to all that it was about
        await wait_until_async(lambda: children(resident) == [], "nobody is left in there")
        assert caught.value is not None
        assert listeners.inside is not None
        listeners.inside.close()
