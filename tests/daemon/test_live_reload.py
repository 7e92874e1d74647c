"""Settings that change while the daemon runs: real files, the real watcher, a real socket, and what a subscriber hears.

Every test ends with a marker change, so that "nothing was said" is known without waiting for a time.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from support.daemon import RunningDaemon, running_daemon
from support.fake_runtime import FakeMachine
from support.rpc import RawClient
from support.waiting import wait_until_async

DENIED = "sandbox.network.deniedDomains"


def denying(*hosts: str, **sandbox: Any) -> dict[str, Any]:
    return {"sandbox": {"network": {"deniedDomains": list(hosts)}, **sandbox}}


@pytest.fixture
async def running() -> AsyncIterator[RunningDaemon]:
    async with running_daemon(settings=denying("first.test"), assemble=FakeMachine().assemble) as started:
        yield started


class Listener:
    """A subscribed client."""

    def __init__(self, client: RawClient, running: RunningDaemon) -> None:
        self.client = client
        self.running = running
        self.file = running.around.user_settings

    def write(self, settings: Any) -> None:
        self.running.around.write(self.file, settings)

    async def event(self) -> Any:
        """The next change that is told."""
        message = await self.client.receive()
        assert message["method"] == "settings_changed"
        return message["params"]

    async def hosts(self) -> list[str]:
        """The denied hosts of the next event."""
        return denied_in(await self.event())

    async def until(self, *hosts: str) -> list[Any]:
        """All events up to the one after which exactly these hosts are denied."""
        events = []
        while True:
            events.append(await self.event())
            if denied_in(events[-1]) == list(hosts):
                return events


def denied_in(event: Any) -> list[str]:
    return next((value["value"] for value in event["changed"] if value["key"] == DENIED), [])


@pytest.fixture
async def listener(running: RunningDaemon) -> AsyncIterator[Listener]:
    async with running.client() as client:
        state = await client.result("settings.subscribe")
        assert {v["key"]: v["value"] for v in state["values"]}[DENIED] == ["first.test"]
        assert state["broken"] == "" and state["generation"] == running.daemon.policies.generation
        yield Listener(client, running)


async def test_a_change_tells_its_keys_and_where_they_come_from(listener: Listener, running: RunningDaemon) -> None:
    before = running.daemon.policies.generation
    listener.write('{"sandbox": {"enabled": false,\n  "network": {"deniedDomains": ["first.test", "b.test"]}}}')
    event = await listener.event()
    assert event["generation"] > before
    changed = {value["key"]: value for value in event["changed"]}
    assert set(changed) == {"sandbox.enabled", DENIED}
    assert changed["sandbox.enabled"]["value"] is False
    assert [origin["line"] for origin in changed[DENIED]["origins"]] == [2, 2]
    assert {origin["file"] for origin in changed[DENIED]["origins"]} == {str(listener.file)}
    assert (event["broken"], event["session_id"], event["cwd"]) == ("", None, None)


def in_place(file: Path, text: str) -> None:
    with file.open("r+") as stream:
        stream.truncate()
        stream.write(text)


def renamed(file: Path, text: str) -> None:
    new = file.with_name("new")
    new.write_text(text)
    new.rename(file)


def by_an_editor(file: Path, text: str) -> None:
    """As vim does: a swap file, the old file moved aside, a new one written, the copy removed."""
    swap, copy = file.with_name(f".{file.name}.swp"), file.with_name(file.name + "~")
    swap.write_text("swap")
    file.rename(copy)
    file.write_text(text)
    copy.unlink()
    swap.unlink()


def deleted_and_made(file: Path, text: str) -> None:
    file.unlink()
    file.write_text(text)


def directory_replaced(file: Path, text: str) -> None:
    new = file.parent.with_name("claude.new")
    new.mkdir()
    (new / file.name).write_text(text)
    file.parent.rename(file.parent.with_name("claude.old"))
    new.rename(file.parent)


def directory_removed_and_made(file: Path, text: str) -> None:
    shutil.rmtree(file.parent)
    file.parent.mkdir()
    file.write_text(text)


def made_a_link(file: Path, text: str) -> None:
    target = file.parent.with_name("dotfiles.json")
    target.write_text(text)
    link = file.with_name("link")
    link.symlink_to(target)
    link.rename(file)


WAYS: list[Callable[[Path, str], None]] = [
    in_place, renamed, by_an_editor, deleted_and_made, directory_replaced, directory_removed_and_made, made_a_link,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_every_way_of_writing_a_file_is_noticed(listener: Listener, way: Callable[[Path, str], None]) -> None:
    way(listener.file, json.dumps(denying("second.test")))
    await listener.until("second.test")
    listener.write(denying("third.test"))  # still watched
    await listener.until("third.test")


async def test_the_target_of_a_link_is_watched(listener: Listener) -> None:
    made_a_link(listener.file, json.dumps(denying("second.test")))
    await listener.until("second.test")
    in_place(listener.file.parent.with_name("dotfiles.json"), json.dumps(denying("third.test")))
    await listener.until("third.test")


async def test_a_file_that_is_deleted_is_no_longer_in_force(listener: Listener) -> None:
    listener.file.unlink()
    event = await listener.event()
    assert denied_in(event) == [] and [value["key"] for value in event["changed"]] == [DENIED]
    listener.write(denying("back.test"))
    assert await listener.hosts() == ["back.test"]


async def test_a_file_that_did_not_exist(listener: Listener, running: RunningDaemon) -> None:
    running.around.write(running.around.managed_settings, denying("managed.test"))
    assert await listener.hosts() == ["managed.test", "first.test"]


async def test_many_writes_end_in_the_last_one(listener: Listener) -> None:
    for number in range(10):
        listener.write(denying(f"n{number}.test"))
    events = await listener.until("n9.test")
    assert len(events) <= 10
    assert all(event["broken"] == "" for event in events)


async def test_an_equal_result_is_no_event(listener: Listener, running: RunningDaemon) -> None:
    generation = running.daemon.policies.generation
    listener.file.touch()
    listener.write('{"sandbox": { /* the same */ "network": {"deniedDomains": ["first.test"]}}}')
    async with running.client() as other:  # the listener itself only listens, so that no event is passed over
        await other.result("settings.reload")
    listener.write(denying("marker.test"))
    event = await listener.event()
    assert denied_in(event) == ["marker.test"]
    assert event["generation"] == running.daemon.policies.generation > generation


BROKEN = {
    "cut off": '{"sandbox": {"network": {"deniedDomains": ["first.test"]}',
    "wrong type": '{"sandbox": {"network": {"deniedDomains": "x"}}}',
    "impossible deny": '{"sandbox": {"network": {"deniedDomains": ["a b"]}}}',
    "duplicate key": '{"sandbox": {}, "sandbox": {}}',
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_file_is_reported_and_changes_nothing(
    listener: Listener, running: RunningDaemon, kind: str
) -> None:
    wrap = {"command": "x", "cwd": str(running.around.project)}
    async with running.client() as other:
        before = await other.result("wrap", wrap)  # a project that was never read has no last good policy
    generation = (await listener.client.result("settings.get"))["generation"]
    listener.write(BROKEN[kind])
    event = await listener.event()
    assert event["broken"].startswith(f"{listener.file}:1:")
    assert (event["changed"], event["generation"]) == ([], generation)
    async with running.client() as other:
        status = await other.result("status")
        assert any(warning.startswith(f"{listener.file}:1:") for warning in status["warnings"])
        denied = await other.result("policy.explain", {"kind": "host", "target": "first.test"})
        assert denied["behavior"] == "deny"
        assert (await other.result("wrap", wrap))["policy_generation"] == before["policy_generation"]
    listener.write(denying("first.test"))
    mended = await listener.event()
    assert (mended["broken"], mended["changed"]) == ("", [])


async def test_a_file_that_becomes_everybodys_may_only_tighten(listener: Listener) -> None:
    settings = {"sandbox": {"network": {"deniedDomains": ["first.test"], "allowedDomains": ["ok.test"]}}}
    listener.write(settings)
    assert [v["key"] for v in (await listener.event())["changed"]] == ["sandbox.network.allowedDomains"]
    listener.file.chmod(0o666)
    (lost,) = (await listener.event())["changed"]
    assert (lost["key"], lost["value"]) == ("sandbox.network.allowedDomains", [])
    listener.file.chmod(0o600)
    (back,) = (await listener.event())["changed"]
    assert back["value"] == ["ok.test"]


async def test_a_wrap_carries_the_generation_it_was_made_under(listener: Listener, running: RunningDaemon) -> None:
    cwd = str(running.around.project)
    async with running.client() as other:
        first = (await other.result("wrap", {"command": "x", "cwd": cwd}))["policy_generation"]
        assert (await other.result("wrap", {"command": "x", "cwd": cwd}))["policy_generation"] == first
        listener.write(denying("second.test"))
        await listener.until("second.test")
        second = (await other.result("wrap", {"command": "x", "cwd": cwd}))["policy_generation"]
        assert second > first


# --- who is told of what ---


async def test_a_subscription_is_about_the_settings_it_names(running: RunningDaemon) -> None:
    cwd = str(running.around.project)
    async with running.client() as of_project, running.client() as of_daemon, running.client() as of_session:
        await of_project.result("settings.subscribe", {"cwd": cwd})
        await of_daemon.result("settings.subscribe")
        own = {"sandbox": {"network": {"deniedDomains": ["own.test"]}}}
        session = (await of_session.result("session.open", {"cwd": cwd, "settings": own}))["session_id"]
        state = await of_session.result("settings.subscribe", {"session_id": session})
        assert {v["key"]: v["value"] for v in state["values"]}[DENIED] == ["own.test", "first.test"]
        running.around.write(running.around.project_settings, denying("project.test"))
        told = (await of_project.receive())["params"]
        assert denied_in(told) == ["first.test", "project.test"] and told["cwd"] == cwd
        in_session = (await of_session.receive())["params"]
        assert denied_in(in_session) == ["own.test", "first.test", "project.test"]
        assert in_session["session_id"] == session
        running.around.write(running.around.user_settings, denying("marker.test"))
        assert denied_in((await of_daemon.receive())["params"]) == ["marker.test"]  # nothing of the project


async def test_twice_is_once_and_a_change_over_rpc_is_told_too(listener: Listener, running: RunningDaemon) -> None:
    await listener.client.result("settings.subscribe")
    async with running.client() as other:
        change = {"act": "add", "key": DENIED, "value": "added.test"}
        await other.result("settings.update", {"changes": [change]})
    assert await listener.hosts() == ["added.test", "first.test"]
    listener.write(denying("marker.test"))
    assert await listener.hosts() == ["added.test", "marker.test"]


async def test_a_client_that_is_gone_is_forgotten(running: RunningDaemon) -> None:
    async with running.client() as client:
        await client.result("settings.subscribe")
        assert len(running.daemon.subscriptions) == 1

    def forgotten() -> bool:
        gc.collect()
        return len(running.daemon.subscriptions) == 0

    await wait_until_async(forgotten, "the subscription has ended")


@pytest.mark.parametrize(
    ("params", "slug"),
    [({"session_id": "x"}, "session_unknown"), ({"cwd": "x"}, "cwd_relative"), ({"a": 1}, "invalid_params")],
)
async def test_what_cannot_be_subscribed_to(running: RunningDaemon, params: dict[str, Any], slug: str) -> None:
    async with running.client() as client:
        assert (await client.error("settings.subscribe", params))["data"]["slug"] == slug
