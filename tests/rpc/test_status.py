"""`hello`, `status`, `check` and `shutdown`."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from sandboxd import __version__
from sandboxd.rpc.dispatch import METHODS
from support.daemon import RunningDaemon, running_daemon, surroundings
from support.fake_runtime import FakeMachine
from support.rpc import RawClient


@pytest.mark.parametrize(
    ("chosen", "mode", "why"),
    [
        ("scratch", 0o700, ""),
        ("scratch", 0o1777, ""),
        ("scratch", 0o777, "other users can change"),
        ("scratch/deep", 0o777, "other users can change"),
        ("absent", 0o700, "No such file"),
        ("link", 0o700, "without symbolic links"),
        ("relative", 0o700, "not an absolute path"),
        ("/tmp", 0o1777, "each sandbox has for itself"),
        ("home/project/tmp", 0o700, "commands could write"),
    ],
)
async def test_temporary_files_lie_where_the_environment_says(
    machine: FakeMachine, chosen: str, mode: int, why: str
) -> None:
    async with surroundings() as around:
        for name in ("scratch/deep", "home/project/tmp"):
            (around.base / name).mkdir(parents=True)
        (around.base / "scratch").chmod(mode)
        (around.base / "link").symlink_to(around.base / "scratch")
        async with running_daemon(around=around, assemble=machine.assemble) as running, running.client() as client:
            await client.result("session.open", {"cwd": str(around.project)})  # commands could write it from now on
        place = chosen if chosen in ("relative", "/tmp") else str(around.base / chosen)
        environment = {**around.config().environment, "CLAUDE_CODE_TMPDIR": place}
        async with running_daemon(around=around, assemble=machine.assemble, environment=environment) as running:
            async with running.client() as client:
                (warning,) = (await client.result("status"))["warnings"] or [""]
                used = running.daemon.temporary.path
                assert why in warning and bool(why) is bool(warning)
                assert used.startswith(str(around.base / "tmp") if why else place + "/sandboxd-")
        assert not list((around.base / "scratch").rglob("sandboxd*")) and around.left() == []


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
