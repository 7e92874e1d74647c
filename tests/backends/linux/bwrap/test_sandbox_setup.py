"""Set-up before a sandbox is complete: used where it fits, given up where the sandbox ends early."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from sandboxd.backends.base import Listeners
from sandboxd.backends.linux.bwrap.bwrap_options import BwrapOptions
from sandboxd.backends.linux.bwrap.sandbox_setup import RunningSetup, SandboxSetup
from sandboxd.backends.linux.network import netlink
from sandboxd.backends.linux.network.capture import Capture
from sandboxd.backends.linux.network.namespace_program import STREAM, Configure, OpenSocket, SocketUse
from sandboxd.backends.linux.network.netlink import Family
from sandboxd.backends.linux.session_overlays import SessionOverlays
from sandboxd.errors import LaunchError
from sandboxd.plan.filesystem.mounts import Mount, Operation
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


@contextmanager
def running(argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program that becomes `sleep`, or has it as a child."""
    with subprocess.Popen(argv) as process:
        try:
            wait_until(
                lambda: any(
                    Path(f"/proc/{one}/comm").read_text() == "sleep\n" for one in (process.pid, *children(process.pid))
                ),
                "it sleeps",
            )
            yield process
        finally:
            for one in children(process.pid) if process.poll() is None else ():
                os.kill(one, 9)
            process.kill()


@pytest.fixture
def bubblewrap() -> Iterator[subprocess.Popen[bytes]]:
    with running(SANDBOX) as process:
        yield process


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


def overlay_in(directory: Path) -> BwrapOptions:
    """An overlay over `directory/host`, with the changes of a session beside it."""
    (directory / "host").mkdir()
    mount = Mount(Operation.OVERLAY, str(directory / "host"), f"{directory}/over/tmp/upper")
    return BwrapOptions((), needs_file=False, overlays=(mount,))


def listeners_of(pid: int) -> Listeners:
    """Sockets that are never used, with the network namespace."""
    return Listeners(socket.socket(), socket.socket(), os.open(f"/proc/{pid}/ns/net", os.O_RDONLY))


async def completed(setup: RunningSetup, pid: int, around: int) -> None:
    listeners = listeners_of(pid)
    try:
        more = setup.complete(pid, around, listeners)
        if more is not None:
            await more
    finally:
        listeners.close()


async def test_the_first_overlay_is_made_while_bubblewrap_mounts(
    bubblewrap: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    [init] = children(bubblewrap.pid)
    options = overlay_in(tmp_path)
    async with namespace_worker() as worker:
        overlays = SessionOverlays(worker)
        setup = SandboxSetup(worker, overlays).of(options, CAPTURE, lambda lost: None)
        setup.born(init, bubblewrap.pid)
        await wait_until_async(lambda: overlays.are_kept(options.overlays), "it is made before all mounts are")
        await completed(setup, init, bubblewrap.pid)
        (tmp_path / "over/tmp/upper/changed").touch()
        assert os.listdir(f"/proc/{init}/root{tmp_path}/host") == ["changed"]
        assert os.listdir(tmp_path / "host") == []
        await overlays.aclose()


async def test_an_overlay_waits_for_the_ids_of_its_user_namespace(tmp_path: Path) -> None:
    options = overlay_in(tmp_path)
    with running(("unshare", "--user", "--net", "--mount", "sleep", "1000")) as process:
        async with namespace_worker() as worker:
            overlays = SessionOverlays(worker)
            setup = SandboxSetup(worker, overlays).of(options, CAPTURE, lambda lost: None)
            setup.born(process.pid, os.getpid())
            await wait_until_async(lambda: len(asyncio.all_tasks()) == 1, "the first attempt has ended")
            assert not overlays.are_kept(options.overlays)
            for kind, number in (("uid", os.geteuid()), ("gid", os.getegid())):
                if kind == "gid" and os.geteuid():
                    Path(f"/proc/{process.pid}/setgroups").write_text("deny")
                Path(f"/proc/{process.pid}/{kind}_map").write_text(f"0 {number} 1")
            entering = ("nsenter", "--target", str(process.pid), "--user", "--net", "--preserve-credentials")
            subprocess.run([*entering, "ip", "link", "set", "lo", "up"], check=True)
            await completed(setup, process.pid, os.getpid())
            (tmp_path / "over/tmp/upper/changed").touch()
            assert os.listdir(f"/proc/{process.pid}/root{tmp_path}/host") == ["changed"]
            await overlays.aclose()


async def test_a_launch_given_up_at_its_birth_leaves_no_descriptor(
    bubblewrap: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    [init] = children(bubblewrap.pid)
    async with namespace_worker() as worker:
        overlays = SessionOverlays(worker)
        setup = SandboxSetup(worker, overlays).of(overlay_in(tmp_path), CAPTURE, lambda lost: None)
        before = open_namespaces()
        setup.born(init, bubblewrap.pid)
        assert open_namespaces() > before
        setup.abandon()
        await wait_until_async(lambda: open_namespaces() == before, "its network namespace is let go of")
        await overlays.aclose()


def open_namespaces() -> int:
    return sum("/net:[" in os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd"))


async def test_an_overlay_of_another_namespace_is_dropped(bubblewrap: subprocess.Popen[bytes], tmp_path: Path) -> None:
    [init] = children(bubblewrap.pid)
    options = overlay_in(tmp_path)
    with running(SANDBOX) as other:
        async with namespace_worker() as worker:
            overlays = SessionOverlays(worker)
            setup = SandboxSetup(worker, overlays).of(options, CAPTURE, lambda lost: None)
            setup.born(children(other.pid)[0], other.pid)
            await wait_until_async(lambda: overlays.are_kept(options.overlays), "it is made")
            with pytest.raises(LaunchError, match="another process"):
                await completed(setup, init, bubblewrap.pid)
            setup.abandon()
            assert not overlays.are_kept(options.overlays)
            await overlays.aclose()


async def test_directories_are_not_made_after_their_session(tmp_path: Path) -> None:
    options = overlay_in(tmp_path)
    async with namespace_worker() as worker:
        overlays = SessionOverlays(worker)
        SandboxSetup(worker, overlays).of(options, CAPTURE, lambda lost: None).begin()
        await overlays.end(f"{tmp_path}/over")
        made = (tmp_path / "over/tmp/view").exists()
        shutil.rmtree(tmp_path / "over")
        await asyncio.sleep(0)
        assert made and not (tmp_path / "over").exists()
