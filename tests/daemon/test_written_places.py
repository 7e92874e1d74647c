"""A command must not decide what the next one may do by writing settings where nothing guards them."""

from __future__ import annotations

from pathlib import Path

from sandboxd.daemon.written_places import WrittenPlaces


def test_a_directory_nobody_has_written_in_is_believed(tmp_path: Path) -> None:
    assert WrittenPlaces("/home/nobody").distrust(str(tmp_path / "ws"), ()) == ""


def test_below_where_a_command_ran_nothing_is_believed(tmp_path: Path) -> None:
    places = WrittenPlaces("/home/nobody")
    (tmp_path / "ws" / "sub").mkdir(parents=True)
    places.note(str(tmp_path / "ws"))
    assert "can write this file" in places.distrust(str(tmp_path / "ws" / "sub"), ())
    assert "can write this file" in places.distrust(str(tmp_path / "ws" / "sub" / "deeper"), ())
    assert places.distrust(str(tmp_path / "ws"), ()) == ""
    assert places.distrust(str(tmp_path / "ws2"), ()) == ""


def test_a_link_leads_nowhere_else(tmp_path: Path) -> None:
    places = WrittenPlaces("/home/nobody")
    (tmp_path / "ws" / "sub").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(tmp_path / "ws" / "sub")
    places.note(str(tmp_path / "ws"))
    assert places.distrust(str(tmp_path / "alias"), ())


def test_directories_that_every_command_may_write_in_count(tmp_path: Path) -> None:
    places = WrittenPlaces("/home/nobody")
    assert places.distrust(str(tmp_path / "p"), (str(tmp_path),))
    assert places.distrust(str(tmp_path / "p"), (str(tmp_path / "p"),)) == ""


def test_the_project_around_counts_and_home_does_not(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".claude").mkdir(parents=True)
    (home / "ws" / ".git").mkdir(parents=True)
    places = WrittenPlaces(str(home))
    assert places.distrust(str(home / "ws"), ()) == ""
    assert "inside the project" in places.distrust(str(home / "ws" / "sub"), ())
