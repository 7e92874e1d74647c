"""Following settings files: every change is read, none is missed, and a system that cannot watch is told."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from sandboxd.daemon import policies
from sandboxd.daemon.policies import Policies, Project
from sandboxd.daemon.settings.reload import Reloading
from sandboxd.daemon.settings.settings_places import SettingsPlaces
from sandboxd.errors import HostError
from sandboxd.settings.files.locations import Location
from sandboxd.settings.files.trust import TrustedDirectory, remembered
from support.rpc import Log
from support.waiting import wait_until_async


class FakeWatcher:
    """Reports when the test says so."""

    def __init__(self, locations: Iterable[Location]) -> None:
        self.locations = tuple(locations)
        self.items: asyncio.Queue[Exception | None] = asyncio.Queue()
        self.closed = False
        self.full = False
        self.replaced = 0

    def __len__(self) -> int:
        return len(self.locations)

    async def __aenter__(self) -> FakeWatcher:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True

    def set_locations(self, locations: Iterable[Location]) -> None:
        if self.full:
            raise HostError("watch_limit", "no more watches")
        self.locations = tuple(locations)
        self.replaced += 1

    def include(self, locations: Iterable[Location]) -> None:
        if self.full:
            raise HostError("watch_limit", "no more watches")
        self.locations = tuple(dict.fromkeys((*self.locations, *locations)))

    async def changes(self) -> AsyncIterator[None]:
        while True:
            item = await self.items.get()
            if item is not None:
                raise item
            yield


class World:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = Log()
        self.policies = Policies(SettingsPlaces({}, str(home), managed_root=str(home)), self.log.logger)
        self.watchers: list[FakeWatcher] = []

    def reloading(self, retry_s: float = 0.0) -> Reloading:
        def watch(locations: Iterable[Location]) -> Any:
            self.watchers.append(FakeWatcher(locations))
            return self.watchers[-1]

        return Reloading(self.policies, self.log.logger, watch, retry_s=retry_s)

    def enable(self, on: bool = True) -> None:
        path = self.home / ".claude" / "settings.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"sandbox": {"enabled": on}}))

    @property
    def enabled(self) -> bool:
        return self.policies.own.now.policy.enabled


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_change_is_read(world: World) -> None:
    async with world.reloading().following():
        world.enable()
        world.watchers[0].items.put_nowait(None)
        await wait_until_async(lambda: world.enabled)
    assert world.watchers[0].closed


async def test_a_change_before_the_watching_is_not_missed(world: World) -> None:
    world.enable(False)
    assert world.enabled
    async with world.reloading().following():
        assert not world.enabled


async def test_a_new_project_is_watched_as_well(world: World) -> None:
    async with world.reloading().following():
        watcher = world.watchers[0]
        before = set(watcher.locations)
        world.policies.of_session(str(world.home / "p"))
        assert {location.path for location in set(watcher.locations) - before} == {
            str(world.home / "p/.claude/settings.json"),
            str(world.home / "p/.claude/settings.local.json"),
        }
        assert len(watcher.locations) == len(set(watcher.locations))


async def test_many_projects_cost_equally_and_are_forgotten(world: World) -> None:
    async with world.reloading().following():
        watcher = world.watchers[0]
        gc.disable()  # it must not run by itself meanwhile
        try:
            for number in range(600):
                world.policies.of_session(str(world.home / f"p{number}"))
                if number % 100 == 99:
                    gc.collect()
        finally:
            gc.enable()
        assert 1 <= watcher.replaced <= 8, "all of them are looked at seldom"
        assert len(watcher) < 400, "those of projects that are over are not watched for ever"
        assert str(world.home / "p599/.claude/settings.json") in {location.path for location in watcher.locations}


@pytest.mark.parametrize("error", [HostError("watch_limit", "no inotify left"), OSError(28, "no space")])
async def test_without_a_watcher_the_daemon_goes_on_and_says_so(world: World, error: Exception) -> None:
    def watch(locations: Iterable[Location]) -> Any:
        raise error

    reloading = Reloading(world.policies, world.log.logger, watch)
    async with reloading.following():
        assert "not watched" in reloading.failure
        world.enable()
        reloading.reload()
        assert world.enabled


async def test_a_watcher_that_ends_is_told(world: World) -> None:
    reloading = world.reloading()
    async with reloading.following():
        assert reloading.failure == ""
        world.watchers[0].items.put_nowait(HostError("watch_limit", "gone"))
        await wait_until_async(lambda: reloading.failure)
    assert "gone" in reloading.failure


async def test_an_ended_watcher_is_replaced_with_a_later_command(world: World) -> None:
    reloading = world.reloading()
    async with reloading.following():
        world.watchers[0].items.put_nowait(HostError("watch_limit", "gone"))
        await wait_until_async(lambda: reloading.failure)
        world.enable()
        await reloading.come_back()
        assert reloading.failure == "" and world.enabled
        assert [watcher.closed for watcher in world.watchers] == [True, False]
        world.enable(False)
        world.watchers[1].items.put_nowait(None)
        await wait_until_async(lambda: not world.enabled)
        await reloading.come_back()
        assert len(world.watchers) == 2, "what works is left alone"
    assert world.watchers[1].closed


async def test_a_watcher_that_was_full_is_given_everything_again(world: World) -> None:
    reloading = world.reloading()
    async with reloading.following():
        watcher = world.watchers[0]
        watcher.full = True
        world.policies.of_session(str(world.home / "p"))
        await reloading.come_back()
        assert reloading.failure
        watcher.full = False
        await reloading.come_back()
        assert reloading.failure == "" and len(world.watchers) == 1
        assert str(world.home / "p/.claude/settings.json") in {location.path for location in watcher.locations}


async def test_a_system_that_cannot_watch_is_asked_less_and_less(world: World) -> None:
    asked = []

    def watch(locations: Iterable[Location]) -> Any:
        asked.append(locations)
        raise HostError("watch_limit", "no inotify left")

    reloading = Reloading(world.policies, world.log.logger, watch, retry_s=3600.0)
    async with reloading.following():
        for _ in range(10):
            await reloading.come_back()
    assert len(asked) == 1
    await reloading.come_back()
    assert len(asked) == 1, "it is over"


async def test_a_project_that_cannot_be_watched_is_used_all_the_same(world: World) -> None:
    reloading = world.reloading()
    async with reloading.following():
        world.watchers[0].full = True
        assert world.policies.of_session(str(world.home / "p"))() is not None
        assert "no more watches" in reloading.failure


async def test_a_fault_of_ours_does_not_end_the_following(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.reloading().following():
        with monkeypatch.context() as patch:
            patch.setattr(world.policies, "reload_changed", lambda: 1 / 0)
            world.watchers[0].items.put_nowait(None)
            await wait_until_async(lambda: "reading the settings failed" in world.log.text)
        world.enable()
        world.watchers[0].items.put_nowait(None)
        await wait_until_async(lambda: world.enabled)


async def test_files_that_change_all_the_time_are_read_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command can write those of a session below its own. Others are read as ever, and so is what a command needs."""
    home, projects = tmp_path / "home", [tmp_path / name for name in ("quiet", "busy")]
    home.mkdir()
    world = World(home)
    reads: list[str] = []
    refresh = Project.refresh

    def counted(self: Project) -> tuple[str, ...]:
        reads.append(Path(self.directory or "/own").name)
        return refresh(self)

    monkeypatch.setattr(Project, "refresh", counted)
    monkeypatch.setattr(policies, "REST", 1 << 30)

    def write(project: Path, number: int) -> None:
        path = project / ".claude" / "settings.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"sandbox": {"network": {"deniedDomains": [f"n{number}.test"]}}}))

    kept = [world.policies.project(str(project)) for project in projects]
    for number in range(5):
        write(projects[1], number)
        outcome = world.policies.reload_changed()
    assert reads == ["busy"] and outcome.again_s > 0
    write(projects[0], 1)
    world.policies.reload_changed()
    assert reads == ["busy", "quiet"]
    await world.policies.bring_up_to_date(str(projects[1]))
    assert reads == ["busy", "quiet", "busy"]
    assert "n4.test" in str(kept[1].now.policy.network.denied)


async def test_revoked_trust_ends_before_the_next_command(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    path = project / ".claude" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"sandbox": {"filesystem": {"allowWrite": ["/srv/elsewhere"]}}}))
    world = World(home)
    places = world.policies.places
    places.trust.make()
    files = {".claude/settings.json": remembered(path.read_bytes())}
    places.trust.save(TrustedDirectory(str(project), files, 0.0))
    known = world.policies.project(str(project))

    def widens() -> bool:
        return any(rule.path == "/srv/elsewhere" for rule in known.now.policy.files.allow_write)

    assert widens()
    await wait_until_async(lambda: known.look().settled, "the clock of times has gone on")
    known.refresh()
    places.trust.remove(str(project))
    await world.policies.bring_up_to_date(str(project))
    assert not widens()
