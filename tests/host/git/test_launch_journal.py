"""The journal of launches: what a daemon that was killed leaves to the next one, and its bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxd.errors import HostError
from sandboxd.host.git import launch_journal
from sandboxd.host.git.launch_journal import LaunchJournal, StartedLaunch, started_at
from sandboxd.plan.host_facts import Territory

TERRITORY = Territory(("/tmp/x", "/srv/a\nb"), ("/srv/apart",), ("/srv/.git",), 5)


def started(name: str) -> StartedLaunch:
    return StartedLaunch(name, TERRITORY, os.getpid(), started_at(os.getpid()))


def test_the_next_one_knows_what_was_not_looked_through(tmp_path: Path) -> None:
    first = LaunchJournal(str(tmp_path / "launches"))
    for name in "abc":
        first.add(started(name))
    first.remove("b")
    assert LaunchJournal(str(tmp_path / "launches")).take_over() == [], "its daemon lives"
    first.hand_over()
    second = LaunchJournal(str(tmp_path / "launches"))
    assert second.take_over() == [started("a"), started("c")]
    assert started("a").runs
    second.remove("a")
    second.close()
    third = LaunchJournal(str(tmp_path / "launches"))
    assert third.take_over() == [started("c")]
    third.remove("c")
    third.close()
    assert list(tmp_path.iterdir()) == []


def test_what_no_daemon_has_written_is_passed_over(tmp_path: Path) -> None:
    first = LaunchJournal(str(tmp_path / "launches"))
    first.add(started("a"))
    first.hand_over()
    [file] = tmp_path.iterdir()
    lines = [b"", b"{}", b'["start"]', b'["start","x",77,0,0,0]', b'["place",0]', b"\xff", b'["start", "half']
    file.write_bytes(b"\0".join([file.read_bytes()[:-1], *lines]))
    assert LaunchJournal(str(tmp_path / "launches")).take_over() == [started("a")]


def test_it_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_journal, "_MOST_RECORDS", 20)
    journal = LaunchJournal(str(tmp_path / "launches"))
    journal.add(started("stays"))
    for number in range(500):
        journal.add(started(str(number)))
        journal.remove(str(number))
        [file] = tmp_path.iterdir()
        assert file.read_bytes().count(b"\0") < 40
    journal.hand_over()
    assert LaunchJournal(str(tmp_path / "launches")).take_over() == [started("stays")]


def test_nothing_starts_that_cannot_be_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostError, match="cannot write the launch journal"):
        LaunchJournal(str(tmp_path / "none" / "launches")).add(started("a"))
    monkeypatch.setattr(launch_journal, "_MOST_OPEN", 1)
    journal = LaunchJournal(str(tmp_path / "launches"))
    journal.add(started("a"))
    with pytest.raises(HostError, match="too many"):
        journal.add(started("b"))
