"""Signals, the service manager, and the limit of open files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
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


async def test_an_end_that_is_asked_for_during_a_restart_is_not_lost() -> None:
    stop = StopRequest()
    stop("asked", restart=True)
    stop("again", restart=True)
    assert (stop.restart, stop.overruled) == (True, False)
    stop("SIGTERM")
    assert (await stop.wait(), stop.restart, stop.overruled) == ("asked", True, True)


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
        service.reloading()
        service.stopping()
        service.cannot_start("no")
        assert manager.recv(100) == b"READY=1\nSTATUS=listening"
        assert re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+\nSTATUS=.+", manager.recv(100))
        assert manager.recv(100).startswith(b"STOPPING=1\n")
        assert manager.recv(100) == b"STATUS=no"


def watchdog_environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(tmp_path / "notify"), **variables}


async def test_the_watchdog_is_fed_while_the_loop_turns(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        environment = watchdog_environment(tmp_path, WATCHDOG_USEC="40000", WATCHDOG_PID=str(os.getpid()))
        service = ServiceManager(environment)
        assert (list(environment), service.watchdog_s) == ([], 0.04)
        loop = asyncio.get_running_loop()
        with service.watchdog_fed():
            heard = [await asyncio.wait_for(loop.sock_recv(manager, 100), 30) for _ in range(3)]
        assert heard == [b"WATCHDOG=1"] * 3
        with contextlib.suppress(BlockingIOError):
            while manager.recv(100):
                pass
        await asyncio.sleep(0.1)
        with pytest.raises(BlockingIOError):
            manager.recv(100)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-1"},
        {"WATCHDOG_USEC": "x"},
        {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_PID": "1"},
    ],
)
async def test_without_a_watchdog_there_is_no_timer(tmp_path: Path, variables: dict[str, str]) -> None:
    service = ServiceManager(watchdog_environment(tmp_path, **variables))
    with service.watchdog_fed():
        assert service.watchdog_s is None
        assert not asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]


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
