"""Network namespaces like those of sandboxes, without one, and the daemon's worker for them."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker
from sandboxd.host.helper_program import find_helper


@contextmanager
def network_namespace() -> Iterator[int]:
    """A descriptor of a network namespace with a user namespace of its own, as bubblewrap makes them, loopback up."""
    made = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--net", "/bin/sh", "-c", "ip link set lo up; echo; exec sleep 1000"],
        stdout=subprocess.PIPE,
    )
    try:
        assert made.stdout is not None and made.stdout.read(1)
        descriptor = os.open(f"/proc/{made.pid}/ns/net", os.O_RDONLY)
        yield descriptor
        os.close(descriptor)
    finally:
        made.kill()
        made.communicate()


@asynccontextmanager
async def namespace_worker(*, alone: bool = True) -> AsyncIterator[NamespaceWorker]:
    """Fails when it leaves its process behind, or where it is `alone`, descriptors."""
    logged: list[Any] = []
    worker = NamespaceWorker(find_helper(name="namespaces"), lambda event, **values: logged.append(event))
    worker.open()
    pid = worker.pid
    before = len(os.listdir("/proc/self/fd"))
    try:
        yield worker
        await asyncio.sleep(0)
        assert not alone or len(os.listdir("/proc/self/fd")) <= before, "descriptors are left over"
    finally:
        await worker.aclose()
    assert pid is not None and not os.path.exists(f"/proc/{pid}")
