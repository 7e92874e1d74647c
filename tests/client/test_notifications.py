"""What the daemon says unasked, in both clients: typed, in order, beside ordinary calls."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from sandboxd_client import AsyncClient, Client, ConnectionLost, Notification, WrongVersion
from sandboxd_client.testing import FakeDaemon
from sandboxd_client.wire.messages.settings import SettingsChangedNotification

DENIED = "sandbox.network.deniedDomains"


def changed(generation: int) -> dict[str, Any]:
    origin = {"source": "user", "key": DENIED, "file": "/h/s.json", "line": 3}
    return {"generation": generation, "changed": [{"key": DENIED, "value": ["x"], "origins": [origin]}]}


def generations(found: list[Notification]) -> list[int]:
    assert all(one.method == "settings_changed" and type(one.params) is SettingsChangedNotification for one in found)
    return [one.params.generation for one in found]


def test_they_come_in_order_and_typed(box: Client, fake: FakeDaemon) -> None:
    box.settings_subscribe()
    for number in range(3):
        fake.notify("settings_changed", changed(number))
    heard = box.notifications()
    first = next(heard)
    assert first.params.changed[0].origins[0].line == 3
    assert generations([first, next(heard), next(heard)]) == [0, 1, 2]


def test_calls_in_between_lose_none(box: Client, fake: FakeDaemon) -> None:
    box.settings_subscribe()
    for number in range(3):
        fake.notify("settings_changed", changed(number))
        assert box.status().generation == 1
    heard = box.notifications()
    assert generations([next(heard) for _ in range(3)]) == [0, 1, 2]


def test_it_ends_when_nothing_comes_in_time(box: Client, fake: FakeDaemon) -> None:
    box.settings_subscribe()
    fake.notify("settings_changed", changed(1))
    assert generations(list(box.notifications(timeout=0.05))) == [1]


def test_others_may_call_while_one_listens(box: Client, fake: FakeDaemon) -> None:
    box.settings_subscribe()
    heard: list[Notification] = []
    listening = threading.Thread(target=lambda: heard.append(next(box.notifications())), daemon=True)
    listening.start()
    assert box.status() and box.status()
    fake.notify("settings_changed", changed(7))
    listening.join(30)
    assert generations(heard) == [7]


def test_what_a_newer_daemon_says_is_passed_over(box: Client, fake: FakeDaemon) -> None:
    box.settings_subscribe()
    fake.notify("something_new", {"x": 1})
    fake.notify("settings_changed", {**changed(1), "new": True})
    assert generations([next(box.notifications())]) == [1]
    fake.notify("settings_changed", {"generation": "one"})
    with pytest.raises(WrongVersion):
        next(box.notifications())


def test_a_lost_connection_ends_it(box: Client, fake: FakeDaemon) -> None:
    with pytest.raises(ConnectionLost):
        next(box.notifications())  # there is no subscription to
    box.settings_subscribe()
    fake.disconnect()
    with pytest.raises(ConnectionLost):
        next(box.notifications())
    box.settings_subscribe()  # connects again
    fake.notify("settings_changed", changed(2))
    assert generations([next(box.notifications())]) == [2]


async def test_the_same_with_coroutines(fake: FakeDaemon) -> None:
    async with AsyncClient(fake.socket, autostart=False) as box:
        with pytest.raises(ConnectionLost):
            await anext(box.notifications())
        await box.settings_subscribe()
        listening = asyncio.ensure_future(anext(box.notifications()))
        await box.status()
        fake.notify("settings_changed", changed(0))
        fake.notify("something_new", {})
        fake.notify("settings_changed", changed(1))
        heard = box.notifications()
        assert generations([await listening, await anext(heard)]) == [0, 1]
        assert [one async for one in box.notifications(timeout=0.05)] == []
        fake.disconnect()
        with pytest.raises(ConnectionLost):
            await anext(heard)


def blocked(number: int, count: int = 1) -> dict[str, Any]:
    one = {"id": number, "time": 1.0, "session_id": "s", "command_id": "c", "kind": "write", "operation": "openat"}
    more = {"target": "/x", "outcome": "pathNotWritable", "source": "seccomp", "count": count}
    return {"cursor": f"e-{number}", "violation": {**one, **more}}


def test_a_badge_counts_what_was_just_blocked_and_hides(fake: FakeDaemon) -> None:
    known = {"violations": [blocked(1)["violation"]], "total": 1, "hidden": 0, "cursor": "e-1"}
    fake.answer("violation.subscribe", known)
    shown: list[int] = []
    ended = threading.Event()

    def show(count: int) -> None:
        shown.append(count)
        if count == 1:
            fake.notify("sandbox_violation", blocked(2, count=3))  # two more of the same
        elif count == 0:
            fake.disconnect()
            ended.set()

    def follow() -> None:
        with Client(fake.socket, autostart=False) as box, pytest.raises(ConnectionLost):
            box.on_badge(show, shown_s=1.0)

    following = threading.Thread(target=follow)
    following.start()
    fake.wait_for_call("violation.subscribe")
    fake.notify("sandbox_violation", blocked(2))
    assert ended.wait(20)
    following.join(20)
    assert shown[0] == 1 and shown[-1] == 0 and max(shown) == 3
