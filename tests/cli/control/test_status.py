"""`sandboxd status` as people read it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandboxd import PACKAGE, __version__
from sandboxd.cli.control.status import SESSIONS_SHOWN, _rows, counted, duration, warn_of_another_program
from sandboxd_client.wire.messages.origins import OriginRecord
from sandboxd_client.wire.messages.sessions import SessionRecord
from sandboxd_client.wire.messages.status import AuditRecord, PhaseRecord, StatusResult
from support.daemons import DaemonProcess
from support.users import Identity


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (-3, "0 s"), (59.9, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (3661, "1 h 1 min"),
        (86400, "1 d"), (90061, "1 d 1 h"), (86460, "1 d 1 min"),
    ],
)  # fmt: skip
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_is_no_plural() -> None:
    assert (counted(0, "line"), counted(1, "line"), counted(2, "line")) == ("0 lines", "1 line", "2 lines")


def session(number: int, commands: int) -> SessionRecord:
    values: dict[str, Any] = {
        "session_id": f"s-{number:02}", "name": None, "cwd": "/w", "detached": False, "permission_mode": "prompt",
        "opened_at": 0.0, "commands": commands, "violations": 0, "policy_generation": 1,
    }  # fmt: skip
    return SessionRecord(**values)


def status(**changes: Any) -> StatusResult:
    values: dict[str, Any] = {
        "version": "1", "protocol": 1, "pid": 2, "started_at": 0.0, "socket": "/s", "generation": 3, "enabled": True,
        "settings": (), "sessions": (), "layers": ("mounts",), **changes,
    }  # fmt: skip
    return StatusResult(**values)


def test_status_lists_what_needs_attention_first() -> None:
    sessions = tuple(session(number, number == 40) for number in range(50))
    rows = _rows(status(warnings=("broken", "odd"), sessions=sessions, commands=1))
    assert [label for label, _ in rows[:3]] == ["running", "warnings", ""]
    listed = [value for _, value in rows if value.startswith("s-")]
    assert len(listed) == SESSIONS_SHOWN and listed[0].startswith("s-40")
    assert "and 40 more (--json has them all)" in [value for _, value in rows]
    assert ("commands", "1 running, in 50 sessions") in rows


@pytest.mark.parametrize(
    ("failure", "blocking", "end"),
    [("", True, ""), ("disk full", False, ""), ("disk full", True, "; nothing new runs")],
)
def test_only_a_blocking_audit_log_stops_commands(failure: str, blocking: bool, end: str) -> None:
    audit = AuditRecord(True, "/a", 3, 0, failure, blocking)
    assert dict(_rows(status(audit=audit)))["audit"] == f"/a, 3 lines{end}"


def test_the_file_that_switches_the_sandbox_on_or_off_is_named() -> None:
    """Also one that a variable of the environment brought in."""
    place = OriginRecord("flag", "sandbox.enabled", "/org/flag.json", 3, 5)
    assert dict(_rows(status(enabled_origin=place)))["sandbox"] == "on, by /org/flag.json:3 (flag)"
    first, *_ = _rows(status(enabled=False, enabled_origin=place))
    assert first[0] == "OFF" and first[1].startswith("the sandbox is off in the settings, by /org/flag.json:3 (flag)")
    assert dict(_rows(status(enabled_origin=OriginRecord("default", "sandbox.enabled"))))["sandbox"] == "on"


def test_programs_and_versions_of_both_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    same = status(version=__version__, program=PACKAGE)
    assert dict(_rows(same))["program"] == PACKAGE
    assert dict(_rows(same))["client"] == f"version {__version__}, the same program"
    warn_of_another_program(same)
    assert capsys.readouterr().err == ""
    for other in (status(version="8", program=PACKAGE), status(version=__version__, program="/opt/other/sandboxd")):
        assert __version__ in dict(_rows(other))["client"]
        warn_of_another_program(other)
        assert f"version {other.version} of {other.program}" in (text := capsys.readouterr().err)
        assert f"version {__version__} of {PACKAGE}" in text and text.endswith("run: sandboxd restart\n")


def test_how_it_was_started() -> None:
    rows = dict(_rows(status(activated=True, startup=(PhaseRecord("program", 0.25), PhaseRecord("settings", 0.5)))))
    assert rows["socket"] == "/s (the service manager's)"
    assert rows["start"] == "took 0.75 s (program 0.25, settings 0.50)"


def test_of_a_real_daemon(daemon: DaemonProcess) -> None:
    lines = daemon.run("status").stdout.splitlines()
    assert lines[0].startswith("running:") and f"pid {daemon.pid}" in lines[0]
    assert lines[-1].startswith("start:") and "program" in lines[-1] and "back end" in lines[-1]
    answer = json.loads(daemon.run("status", "--json").stdout)
    assert (answer["running"], answer["pid"]) == (True, daemon.pid)


def test_without_a_daemon_it_says_so(identity: Identity) -> None:
    done = identity.run(identity.command("status", "--json"))
    address = f"{identity.runtime}/sandboxd/sandboxd.sock"
    assert json.loads(done.stdout) == {"running": False, "socket": address, "starts_on_connection": False}
    assert done.returncode == 1
