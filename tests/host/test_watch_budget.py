"""The watches and caches are bounded, and what is not watched is noticed all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.host import fact_source as facts_module
from sandboxd.host.fact_source import HostFacts
from sandboxd.host.watch.directory_changes import Changes, WatchBudget
from sandboxd.host.watch.name_watch import NameWatch
from sandboxd.plan.host_facts import Facts
from sandboxd.plan.host_queries import HostQueries
from sandboxd.settings.files import inotify
from support.waiting import wait_until

LIMIT = 400


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify, "watch_limit", lambda: LIMIT)


@pytest.fixture
def host(limited: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostFacts]:
    hosts: list[HostFacts] = []
    monkeypatch.setattr(inotify, "watches_in_use", lambda: sum(map(taken, hosts)))
    made = HostFacts()
    hosts.append(made)
    yield made
    made.close()


def tree(top: Path, directories: int = 300) -> HostQueries:
    for number in range(directories):
        (top / str(number)).mkdir(parents=True)
    return HostQueries(globs=(f"{top}/**/.env",))


def matches(facts: Facts) -> list[str]:
    return [found.path for many in facts.globs.values() for found in many]


def taken(host: HostFacts) -> int:
    return len(host._changes._by_watch)


@pytest.mark.parametrize(
    ("limit", "others", "most"), [(400, 0, 100), (400, 200, 50), (400, 400, 50), (100_000, 20_000, 20_000), (0, 0, 0)]
)
def test_a_quarter_of_what_is_left(limit: int, others: int, most: int) -> None:
    """The first eighth of the limit is taken without a look."""
    taken = 0
    budget = WatchBudget(lambda: limit, lambda: others + taken)
    for _ in range(limit + 1):
        budget.look(taken)
        taken += taken < budget.most
    assert taken == most


async def test_one_pattern_takes_no_more(host: HostFacts, tmp_path: Path) -> None:
    needs = tree(tmp_path)
    assert matches(await host.answer(needs)) == []
    assert 0 < taken(host) <= LIMIT // 4
    for number in (0, 150, 299):
        (tmp_path / str(number) / ".env").write_text("")
        assert f"{tmp_path}/{number}/.env" in matches(await host.answer(needs))
    (tmp_path / "150" / "new").mkdir()
    (tmp_path / "150" / "new" / ".env").write_text("")
    assert len(matches(await host.answer(needs))) == 4


async def test_what_was_not_used_is_given_back(host: HostFacts, tmp_path: Path) -> None:
    first, second, third = (tree(tmp_path / name, 60) for name in "abc")
    old = await host.answer(first)
    await host.answer(second)
    newest = await host.answer(third)
    assert not host.unchanged(old) and taken(host) <= LIMIT // 4
    assert host.unchanged(newest) or any(any(many) for many in newest.stamp.slow())  # type: ignore[attr-defined]
    (tmp_path / "a" / "7" / ".env").write_text("")
    assert matches(await host.answer(first)) == [f"{tmp_path}/a/7/.env"]


async def test_what_is_kept_in_memory_is_bounded(
    host: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_module, "MOST_REGISTERED", 200)
    for name in "abcdef":
        await host.answer(tree(tmp_path / name, 100))
        assert host._changes.registered < 500
    assert len(host._known) <= 3


def test_contents_without_a_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing a file changes nothing about its directory."""
    monkeypatch.setattr(inotify, "watch_limit", lambda: 0)
    changes, told = Changes(), list[str]()
    file, late = tmp_path / "config", tmp_path / "late"
    file.write_text("a")
    late.write_text("a")

    def settled() -> bool:
        watch = NameWatch(changes, lambda: told.append(""))
        watch.visit(str(tmp_path), "config", contents=True)
        watch.visit(str(tmp_path), "late", contents=True)
        assert len(watch.slow) == 1
        changes.compare(watch.slow)
        if told:
            told.clear()
            watch.cancel()
            return False
        watches.append(watch)
        return True

    watches: list[NameWatch] = []
    for changed in (file, late):
        wait_until(settled, "the clock of times has gone on")
        with changed.open("r+") as stream:
            stream.write("b")
        changes.compare(watches[-1].slow)
        assert told
        told.clear()
        watches[-1].cancel()
    assert changes.registered == 0
    changes.close()


def test_watches_of_the_user_are_counted(tmp_path: Path) -> None:
    before = inotify.watches_in_use()
    made = inotify.Inotify()
    for number in range(50):
        (tmp_path / str(number)).mkdir()
        made.add(str(tmp_path / str(number)), inotify.NAMES_CHANGE)
    own = inotify.watches_in_use()
    made.close()
    assert own >= 50 and before >= 0


def test_reading_ends_although_events_go_on(tmp_path: Path) -> None:
    """Each event that is read causes another one, as a command could."""
    made, names = inotify.Inotify(), list[str]()
    made.add(str(tmp_path), inotify.CREATE)
    (tmp_path / "0").touch()
    for event in made.read():
        names.append(event.name)
        if len(names) < 100:
            (tmp_path / str(len(names))).touch()
    assert names == ["0"]
    assert [event.name for event in made.read()] == ["1"]
    made.close()
