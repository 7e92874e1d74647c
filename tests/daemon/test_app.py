"""The daemon put together, and that its end leaves nothing, however far it had come."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandboxd.app.platform import BackendContext, Platform
from sandboxd.errors import HostError
from support.daemon import Surroundings, running_daemon, surroundings
from support.fake_runtime import FakeMachine
from support.waiting import wait_until_async


@pytest.fixture
async def around() -> AsyncIterator[Surroundings]:
    async with surroundings() as made:
        yield made


async def test_a_second_daemon_is_refused_and_changes_nothing(around: Surroundings) -> None:
    machine = FakeMachine()
    async with running_daemon(around=around, assemble=machine.assemble) as first:
        before = around.left()
        with pytest.raises(HostError) as error:
            async with running_daemon(around=around, assemble=machine.assemble):
                raise AssertionError
        assert error.value.slug == "daemon_running"
        assert around.left() == before
        async with first.client() as client:
            assert await client.result("status")
    assert around.left() == []


async def test_one_after_the_other(around: Surroundings) -> None:
    for _ in range(3):
        async with running_daemon(around=around, assemble=FakeMachine().assemble) as running:
            async with running.client() as client:
                await client.result("session.open", {"cwd": str(around.project)})
        assert around.left() == []


async def test_the_end_takes_sessions_and_commands_along(around: Surroundings) -> None:
    machine = FakeMachine()
    async with AsyncExitStack() as outside:
        async with running_daemon(around=around, assemble=machine.assemble) as running:
            client = await outside.enter_async_context(running.client())
            await client.result("wrap", {"command": "x", "cwd": str(around.project)})
            await client.result("wrap", {"command": "y", "cwd": str(around.project)})
            machine.backend.launches[0].start()
            temporary = machine.planner.asked[0][1].session_tmp
            assert os.path.isdir(temporary)
            assert stat.S_IMODE(os.stat(temporary).st_mode) == 0o700
        assert machine.backend.launches[0].log == ["terminate"]
        assert machine.backend.launches[1].log == ["cancel"]
        assert await client.receive() is None
        assert running.daemon.sessions.all() == []
        assert around.left() == []


async def test_the_end_gives_commands_the_time_that_was_asked_for(around: Surroundings) -> None:
    machine = FakeMachine()
    machine.backend.stubborn = True
    async with running_daemon(around=around, assemble=machine.assemble) as running:
        async with running.client() as client:
            await client.result("wrap", {"command": "x", "cwd": str(around.project)})
            machine.backend.launches[0].start()
            await client.result("shutdown", {"grace_s": 0})
    assert machine.backend.launches[0].log == ["terminate", "terminate", "kill"]


@pytest.mark.parametrize("real", [False, True], ids=["fake back end", "real back end"])
async def test_an_idle_daemon_has_nothing_to_wake_up_for(around: Surroundings, real: bool) -> None:
    machine = FakeMachine()
    async with running_daemon(around=around, assemble=None if real else machine.assemble) as running:
        async with running.client() as client:
            await client.result("status")
            await client.result("session.open", {"cwd": str(around.project)})
            if not real:
                await client.result("wrap", {"command": "x", "cwd": str(around.project)})
                machine.backend.launches[0].start()
                machine.backend.launches[0].end()
        await wait_until_async(lambda: not running.daemon.sessions.all(), "the sessions end")
        loop: Any = asyncio.get_running_loop()
        await wait_until_async(
            lambda: all(timer.cancelled() for timer in loop._scheduled), "the last turn of requests is over"
        )


async def test_a_machine_that_cannot_be_assembled_leaves_nothing(around: Surroundings) -> None:
    @asynccontextmanager
    async def broken(context: BackendContext) -> AsyncIterator[Platform]:
        if context.directory:
            raise HostError("helper_missing", "our helper is missing")
        yield FakeMachine().machine

    with pytest.raises(HostError):
        async with running_daemon(around=around, assemble=broken):
            raise AssertionError
    assert around.left() == []


async def test_files_that_were_removed_by_others_do_not_matter(around: Surroundings) -> None:
    async with running_daemon(around=around, assemble=FakeMachine().assemble):
        for path in around.directory.iterdir():
            path.unlink()
    assert around.left() == []


async def test_the_machine_stands_on_the_daemon_s_directories(around: Surroundings) -> None:
    grounds: list[BackendContext] = []
    machine = FakeMachine()

    @asynccontextmanager
    async def assemble(context: BackendContext) -> AsyncIterator[Platform]:
        grounds.append(context)
        async with machine.assemble(context) as assembled:
            yield assembled

    async with running_daemon(around=around, assemble=assemble, settings={"sandbox": {"enabled": True}}):
        (context,) = grounds
        assert context.directory == str(around.directory)
        assert stat.S_IMODE(os.stat(context.kept).st_mode) == 0o700
        assert context.kept.startswith(str(around.base / "tmp"))
        assert context.policy().enabled is True


async def test_an_unusable_temporary_place_is_replaced_and_reported(around: Surroundings, tmp_path: Path) -> None:
    taken = tmp_path / f"sandboxd-{os.geteuid()}"
    taken.write_text("not a directory")
    machine = FakeMachine()
    async with running_daemon(around=around, assemble=machine.assemble, temporary=str(tmp_path)) as running:
        async with running.client() as client:
            assert str(taken) in (await client.result("status"))["warnings"][0]
            await client.result("wrap", {"command": "x", "cwd": str(around.project)})
        assert machine.planner.asked[0][1].session_tmp.startswith(str(around.directory))
    assert taken.read_text() == "not a directory"
