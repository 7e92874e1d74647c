"""`hello`, `status`, `check` and `shutdown`."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from sandboxd import __version__
from sandboxd.rpc.dispatch import METHODS
from support.daemon import RunningDaemon
from support.fake_runtime import FakeMachine
from support.rpc import RawClient


async def test_hello_is_optional_and_tells_the_methods(client: RawClient) -> None:
    result = await client.result("hello", {"client": "test", "version": "9"})
    assert (result["server"], result["version"], result["pid"]) == ("sandboxd", __version__, os.getpid())
    assert set(result["methods"]) == set(METHODS)
    assert await client.result("hello")


@pytest.mark.parametrize("protocol", [1, 2, 99])
async def test_a_newer_client_is_served(client: RawClient, protocol: int) -> None:
    assert (await client.result("hello", {"protocol": protocol}))["protocol"] == 1


async def test_a_client_that_is_too_old_is_told(client: RawClient) -> None:
    error = await client.error("hello", {"protocol": 0})
    assert error["data"]["slug"] == "wrong_version"
    assert error["data"]["protocol_oldest"] == 1
    assert error["data"]["hint"]


async def test_status(client: RawClient, running: RunningDaemon, machine: FakeMachine) -> None:
    await client.result("wrap", {"command": "x", "cwd": str(running.around.project)})
    status = await client.result("status")
    assert status["socket"] == str(running.around.socket)
    assert status["pid"] == os.getpid()
    assert abs(status["started_at"] - time.time()) < 600
    assert status["enabled"] is True
    assert status["layers"] == ["filesystem", "fake"]
    assert (len(status["sessions"]), status["commands"]) == (1, 1)
    assert {f["source"] for f in status["settings"]} == {"managed", "local", "user"}
    assert status["warnings"] == []
    assert [phase["name"] for phase in status["startup"]] == ["directories", "settings", "back end", "socket"]
    assert all(0 <= phase["seconds"] < 600 for phase in status["startup"])
    assert status["activated"] is False


@pytest.mark.parametrize("method", ["status", "check", "session.list", "settings.reload", "shutdown"])
@pytest.mark.parametrize("params", [{"x": 1}, ["x"]])
async def test_methods_without_parameters_take_none(client: RawClient, method: str, params: Any) -> None:
    assert (await client.error(method, params))["data"]["slug"] == "invalid_params"


async def test_check_shows_every_step_with_its_remedy(client: RawClient, machine: FakeMachine) -> None:
    result = await client.result("check")
    assert result["ok"] is True
    assert [(s["name"], s["ok"], s["remedy"]) for s in result["steps"]] == [
        ("kernel", True, ""),
        ("capture", False, "load nf_tables"),
    ]
    assert result["layers"] == ["filesystem", "fake"]
    machine.backend.unavailable = "no user namespaces"
    result = await client.result("check")
    assert result["ok"] is False
    assert result["layers"] == []
    status = await client.result("status")
    assert status["layers"] == [], "nothing is said to be enforced that is not"
    assert status["unavailable"] == {
        "slug": "sandbox_unavailable", "message": "no user namespaces", "hint": "run: sandboxd check",
    }  # fmt: skip
    machine.backend.unavailable = ""
    assert (await client.result("status"))["unavailable"] is None


async def test_shutdown_asks_for_the_end(client: RawClient, running: RunningDaemon, machine: FakeMachine) -> None:
    await client.result("wrap", {"command": "x", "cwd": str(running.around.project)})
    assert await client.result("shutdown", {"grace_s": 0.5}) == {"pid": os.getpid(), "commands": 1}
    assert running.stop.made
    assert running.stop.grace_s == 0.5
    assert f"pid {os.getpid()}" in running.stop.reason
