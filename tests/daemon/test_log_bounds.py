"""The daemon's log stays small, whatever is said to it how often."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
from pathlib import Path
from typing import Any

import structlog

from sandboxd.daemon.log import LogFormat, StandardLogs, make_logger
from sandboxd.daemon.log_bounds import EVENTS_KNOWN, LONGEST_TEXT, CappedFile, Repeats
from sandboxd.runtime.rate_bound import RateBound


def records(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_repeats_are_counted_and_other_events_pass() -> None:
    stream = io.StringIO()
    log = make_logger(stream, LogFormat.JSON)
    for number in range(1000):
        log.warning("bridge peer refused", number=number)
    log.error("something else")
    written = records(stream)
    assert 50 <= sum(one["event"] == "bridge peer refused" for one in written) < 100
    assert written[-1]["event"] == "something else"


def test_what_was_not_logged_is_said_with_the_next() -> None:
    now = [0.0]
    repeats = Repeats(lambda burst, per_second: RateBound(burst, per_second, lambda: now[0]))
    passed = 0
    for _ in range(60):
        with contextlib.suppress(structlog.DropEvent):
            repeats(None, "info", {"event": "again"})
            passed += 1
    now[0] = 2.0
    assert passed == 50
    assert repeats(None, "info", {"event": "again"}) == {"event": "again", "not_logged": 10}
    assert repeats(None, "info", {"event": "again"}) == {"event": "again"}


def test_later_steps_see_no_long_texts() -> None:
    record = Repeats()(None, "warning", {"event": "refused", "path": "x" * 1_000_000})
    assert len(record["path"]) == LONGEST_TEXT + 1


def test_debug_records_all_pass() -> None:
    stream = io.StringIO()
    log = make_logger(stream, LogFormat.JSON, logging.DEBUG)
    for _ in range(200):
        log.debug("step")
    assert len(records(stream)) == 200


def test_what_libraries_say_is_the_same_whatever_names_are_in_it() -> None:
    stream = io.StringIO()
    with StandardLogs.installed(make_logger(stream, LogFormat.JSON)):
        for number in range(1000):
            logging.getLogger("proxy").error("connection %d ended by a fault", number)
    written = records(stream)
    assert 50 <= len(written) < 100
    assert written[0]["event"] == "connection 0 ended by a fault" and "log_template" not in written[0]


def test_events_of_many_names_are_bounded_together() -> None:
    stream = io.StringIO()
    log = make_logger(stream, LogFormat.JSON)
    for number in range(20 * EVENTS_KNOWN):
        log.info(f"event {number}")
    assert len(records(stream)) < 1500


def test_the_own_file_is_begun_anew_at_its_largest(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    with path.open("a") as stream:
        capped = CappedFile(stream, str(path), 10_000)
        for number in range(1000):
            capped.write(f"{number:099}")
    older = tmp_path / "daemon.log.1"
    assert sorted(tmp_path.iterdir()) == [path, older]
    assert path.stat().st_size + older.stat().st_size <= 20_400
    assert path.stat().st_mode & 0o777 == 0o600
    lines = (older.read_text() + path.read_text()).splitlines()
    assert int(lines[-1]) == 999 and [int(line) for line in lines] == list(range(1000 - len(lines), 1000))


def test_a_file_of_somebody_else_is_only_written_to(tmp_path: Path) -> None:
    path, other = tmp_path / "daemon.log", tmp_path / "mine"
    path.write_text("")
    for own in (str(path), "", str(tmp_path / "none")):
        with other.open("a") as stream:
            capped = CappedFile(stream, own, 1000)
            for _ in range(100):
                capped.write("x" * 99)
    assert other.stat().st_size == 30_000
    assert sorted(os.listdir(tmp_path)) == ["daemon.log", "mine"]


def test_several_daemons_share_a_file_that_stays_bounded(tmp_path: Path) -> None:
    path, older = tmp_path / "daemon.log", tmp_path / "daemon.log.1"
    with path.open("a") as first, path.open("a") as second:
        both = [CappedFile(stream, str(path), 1000) for stream in (first, second)]
        for number in range(200):
            both[number % 2 if number < 100 else 0].write("x" * 99)
            assert sum(file.stat().st_size for file in (path, older) if file.exists()) <= 4000
        both[1].write("last")
        assert path.read_text().endswith("last\n")
    assert sorted(tmp_path.iterdir()) == [path, older]


def test_a_file_that_was_moved_away_is_left(tmp_path: Path) -> None:
    path, moved = tmp_path / "daemon.log", tmp_path / "moved"
    with path.open("a") as stream:
        capped = CappedFile(stream, str(path), 1000)
        path.rename(moved)
        capped.write("x")
    assert (moved.read_text(), path.read_text()) == ("", "x\n")


def test_a_stream_without_a_descriptor_or_a_reader_is_no_fault() -> None:
    capped = CappedFile(io.StringIO(), "/none")
    capped.write("x")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        CappedFile(stream).write("x")
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
