"""`sandboxd audit send`: what a collector gets, read with the protocol's own messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandboxd.cli import otlp
from sandboxd.daemon.audit.audit_chain import BEGINNING, Position, encode_line
from support.collecting import AuditLog, collector

METRICS = """# HELP sandboxd_sessions Open sessions
# TYPE sandboxd_sessions gauge
sandboxd_sessions 2.0
# HELP sandboxd_violations_total What was blocked
# TYPE sandboxd_violations_total counter
sandboxd_violations_total{kind="write"} 7.0
# HELP sandboxd_wrap_seconds Time of a wrap
# TYPE sandboxd_wrap_seconds histogram
sandboxd_wrap_seconds_bucket{le="+Inf"} 3.0
sandboxd_wrap_seconds_count 3.0
sandboxd_wrap_seconds_sum 0.5
"""


def taken(follower: otlp.Follower) -> list[int]:
    numbers: list[int] = []
    while batch := follower.next():
        follower.took(batch)
        numbers += [int(one["seq"]) for one in batch]
    return numbers


def test_each_line_comes_once_over_renaming_and_restart(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.add(otlp.BATCH + 3)
    follower = log.follower()
    assert taken(follower) == list(range(1, otlp.BATCH + 4)) and taken(follower) == []
    line, _ = encode_line(log.last, {"kind": "run"})
    with log.path.open("ab") as file:
        file.write(line[:10])
    assert taken(follower) == [], "an unfinished line"
    with log.path.open("ab") as file:
        file.write(line[10:])
    log.last = Position(log.last.seq + 1)
    first = log.last.seq
    assert taken(follower) == [first]
    log.add(2)
    log.rotate()
    log.add(2)
    assert taken(follower) == [first + 1, first + 2, first + 3, first + 4]
    assert taken(log.follower(first + 2)) == [first + 3, first + 4], "another process goes on there"
    assert follower.skipped == 0
    for _ in range(3):  # the first of them is removed before it was sent
        log.add(1)
        log.rotate()
    log.add(1)
    assert taken(follower) == [first + 7, first + 8] and follower.skipped == 2
    Path(f"{log.path}.1").unlink()
    log.path.unlink()
    log.last = BEGINNING
    log.add(1)
    assert taken(follower) == [1], "another log begins anew"


def test_a_collector_that_refuses_gets_the_same_lines_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXD_SOCKET", str(tmp_path / "no.sock"))
    log = AuditLog(tmp_path / "audit.jsonl")
    log.add(2)
    log.add(1, "violation")
    follower, saved, pauses = log.follower(), list[int](), list[float]()

    class Enough(Exception):
        pass

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise Enough

    with collector(refusals=2) as (url, got):
        with pytest.raises(Enough):
            otlp.send(url, follower, saved.append, lambda text: None, pause=pause)
    assert pauses == [1.0, 2.0, 1.0] and saved == [3]
    ((path, request),) = got
    (of_resource,) = request.resource_logs
    names = {one.key: one.value.string_value for one in of_resource.resource.attributes}
    assert path == "/v1/logs" and names["service.name"] == "sandboxd" and names["host.name"]
    found = of_resource.scope_logs[0].log_records
    assert [(json.loads(one.body.string_value)["seq"], one.severity_text) for one in found] == [
        (1, "INFO"), (2, "INFO"), (3, "WARN"),
    ]  # fmt: skip
    assert found[0].time_unix_nano == 1769846400 * 10**9 and found[2].event_name == "sandboxd.violation"


def value_of(data: Any) -> float:
    return float(data.data_points[0].value)


def test_metrics_keep_their_kinds_and_labels() -> None:
    made = otlp.metrics_of(METRICS, otlp.resource(), 1.0)
    found = {one.name: one.data for one in made.resource_metrics[0].scope_metrics[0].metrics}
    assert {name: (type(data).__name__, value_of(data)) for name, data in found.items()} == {
        "sandboxd_sessions": ("Gauge", 2.0),
        "sandboxd_violations_total": ("Sum", 7.0),
        "sandboxd_wrap_seconds_count": ("Sum", 3.0),
        "sandboxd_wrap_seconds_sum": ("Sum", 0.5),
    }
    assert dict(found["sandboxd_violations_total"].data_points[0].attributes or {}) == {"kind": "write"}
