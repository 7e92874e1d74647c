"""Signals, the service manager, and the limit of open files."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from pathlib import Path

import pytest

from sandboxd.daemon.lifecycle import ServiceManager, StopRequest, raise_descriptor_limit, signals_handled


async def test_the_first_wish_to_stop_counts() -> None:
    stop = StopRequest()
    made = [stop.made]
    stop("SIGTERM", grace_s=3)
    stop("again")
    assert [*made, stop.made] == [False, True]
    assert await stop.wait() == "SIGTERM"
    assert stop.grace_s == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_ask_to_stop_however_often_they_come(number: signal.Signals) -> None:
    stop, before = StopRequest(), signal.getsignal(number)
    with signals_handled(stop, lambda: None):
        for _ in range(3):
            os.kill(os.getpid(), number)
            await asyncio.wait_for(stop.wait(), 30)
        assert stop.reason == number.name
    assert signal.getsignal(number) in (before, signal.SIG_DFL, signal.default_int_handler)


async def test_a_hang_up_reloads() -> None:
    reloaded = asyncio.Event()
    with signals_handled(lambda reason: None, reloaded.set):
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(reloaded.wait(), 30)


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_hears_of_each_step(tmp_path: Path, abstract: bool) -> None:
    name = f"\0sandboxd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        manager.settimeout(30)
        environment = {"NOTIFY_SOCKET": name.replace("\0", "@"), "HOME": "/"}
        service = ServiceManager(environment)
        assert environment == {"HOME": "/"}  # no child can speak for us
        service.ready("listening")
        service.stopping()
        assert manager.recv(100) == b"READY=1\nSTATUS=listening"
        assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": "/no/such/socket"}])
def test_without_a_service_manager_nothing_happens(environment: dict[str, str]) -> None:
    service = ServiceManager(environment)
    service.ready("x")
    service.stopping()


def test_the_limit_of_open_files_is_lifted() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        assert raise_descriptor_limit() == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
