"""The daemon put together: what keeps it from starting, and that its end leaves nothing, however far it had come."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandboxd import app
from sandboxd.app import Ground, Machine, main
from sandboxd.app_configuration import parse_pins
from sandboxd.errors import CallerError, HostError
from support.daemon import Surroundings, running_daemon, surroundings
from support.fake_runtime import FakeMachine
from support.waiting import wait_until_async


@dataclass(frozen=True, slots=True)
class Options:
    socket: str | None = None
    settings: str | None = None
    log_format: str | None = None
    resolve: tuple[str, ...] = ()
    idle_exit: float | None = None


@pytest.fixture
async def around() -> AsyncIterator[Surroundings]:
    async with surroundings() as made:
        yield made


@pytest.fixture
def refused(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Call `main` where it must not come to serve; what it said. One line and a hint, no traceback, nothing left."""
    for name in [name for name in os.environ if name.startswith(("SANDBOXD_", "LISTEN_", "NOTIFY_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(around.home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(around.base))
    monkeypatch.setattr(app, "raise_descriptor_limit", lambda: 0)  # it would last beyond the test

    def call(**options: Any) -> str:
        before = around.left()
        assert main(Options(**{"socket": str(around.socket), **options})) == 125
        said = capfd.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        lines = [line for line in said.err.splitlines() if not line.startswith("{")]
        assert len(lines) == 2, said.err
        assert lines[0].startswith("sandboxd: ")
        assert lines[1].startswith("hint: ")
        assert around.left() == before
        return said.err

    yield call


def test_broken_settings_are_named_with_their_place(refused: Callable[..., str], around: Surroundings) -> None:
    around.write(around.user_settings, '{\n  "sandbox": {\n    "enabled": tru\n  }\n}')
    assert f"{around.user_settings}:3:" in refused()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "nul", '{"a": 1,', "\0", '{"sandbox": {"enabled": "yes"}}', '{"permissions": {"deny": [1]}}'],
)
def test_settings_of_every_brokenness_are_refused(refused: Callable[..., str], around: Surroundings, text: str) -> None:
    around.write(around.user_settings, text)
    assert str(around.user_settings) in refused()


def test_settings_that_are_no_file(refused: Callable[..., str], around: Surroundings) -> None:
    around.user_settings.mkdir(parents=True)
    assert str(around.user_settings) in refused()


def test_a_settings_file_that_was_named_must_exist(refused: Callable[..., str]) -> None:
    assert "/no/such.json" in refused(settings="/no/such.json")


def test_the_socket_path_is_a_file(refused: Callable[..., str], around: Surroundings) -> None:
    around.directory.mkdir(mode=0o700)
    around.socket.write_text("precious")
    assert str(around.socket) in refused()
    assert around.socket.read_text() == "precious"


def test_what_stands_in_the_way_in_its_directory(refused: Callable[..., str], around: Surroundings) -> None:
    around.directory.mkdir(mode=0o700)
    os.mkfifo(around.directory / "lock")
    assert "is only a lock file" in refused()
    (around.directory / "lock").unlink()
    (around.directory / "bridge.sock").mkdir()
    said = refused()
    assert f"{around.directory}/bridge.sock: Is a directory" in said and "move it away" in said


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_the_directory_is_open_to_others(refused: Callable[..., str], around: Surroundings, mode: int) -> None:
    around.directory.mkdir()
    around.directory.chmod(mode)
    words = refused()
    assert f"{around.directory} can be used by other users (mode {mode:04o})" in words
    assert "chmod 700" in words


if os.geteuid() == 0:

    def test_the_directory_belongs_to_somebody_else(refused: Callable[..., str], around: Surroundings) -> None:
        around.directory.mkdir(mode=0o700)
        os.chown(around.directory, 12345, 12345)
        assert "uid 12345" in refused()


def test_the_directory_of_directories_is_missing(refused: Callable[..., str], around: Surroundings) -> None:
    refused(socket=str(around.base / "no" / "such" / "s.sock"))


def test_the_socket_path_is_too_long(refused: Callable[..., str], around: Surroundings) -> None:
    refused(socket=str(around.base / ("x" * 120)))


@pytest.mark.parametrize("path", ["relative/s.sock", ""])
def test_the_socket_path_is_not_absolute(refused: Callable[..., str], path: str) -> None:
    refused(socket=path)


@pytest.mark.parametrize("text", ["ok.test", "=127.0.0.1", "ok.test=", "ok.test=here", "a b=::1", "1.2.3.4=1.2.3.4"])
@pytest.mark.parametrize("way", ["option", "variable"])
def test_a_bad_pin_is_refused(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, text: str, way: str
) -> None:
    if way == "option":
        refused(resolve=(text,))
    else:
        monkeypatch.setenv("SANDBOXD_RESOLVE", f"good.test=127.0.0.1,{text}")
        refused()


def test_pins() -> None:
    pins = parse_pins(["a.test=127.0.0.1", "b.test=::1", " a.test=127.0.0.2", "", " "])
    assert pins == {"a.test": ["127.0.0.1", "127.0.0.2"], "b.test": ["::1"]}
    with pytest.raises(CallerError):
        parse_pins(["x"])


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
            temporary = machine.planner.asked[0][1].place.session_tmp
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
    assert machine.backend.launches[0].log == ["terminate", "kill"]


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
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []


async def test_a_machine_that_cannot_be_assembled_leaves_nothing(around: Surroundings) -> None:
    @asynccontextmanager
    async def broken(ground: Ground) -> AsyncIterator[Machine]:
        if ground.directory:
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
    grounds: list[Ground] = []
    machine = FakeMachine()

    @asynccontextmanager
    async def assemble(ground: Ground) -> AsyncIterator[Machine]:
        grounds.append(ground)
        async with machine.assemble(ground) as assembled:
            yield assembled

    async with running_daemon(around=around, assemble=assemble, settings={"sandbox": {"enabled": True}}):
        (ground,) = grounds
        assert ground.directory == str(around.directory)
        assert stat.S_IMODE(os.stat(ground.kept).st_mode) == 0o700
        assert ground.kept.startswith(str(around.base / "tmp"))
        assert ground.policy().enabled is True


async def test_a_temporary_place_that_cannot_be_used_is_replaced_and_told(around: Surroundings, tmp_path: Path) -> None:
    taken = tmp_path / f"sandboxd-{os.geteuid()}"
    taken.write_text("not a directory")
    machine = FakeMachine()
    async with running_daemon(around=around, assemble=machine.assemble, temporary=str(tmp_path)) as running:
        async with running.client() as client:
            assert str(taken) in (await client.result("status"))["warnings"][0]
            await client.result("wrap", {"command": "x", "cwd": str(around.project)})
        assert machine.planner.asked[0][1].place.session_tmp.startswith(str(around.directory))
    assert taken.read_text() == "not a directory"
