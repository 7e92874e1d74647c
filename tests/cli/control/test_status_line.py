"""`sandboxd status --line`: one short line, once and at each change."""

from __future__ import annotations

import subprocess
import time
from typing import Any

from sandboxd.cli.control.status_line import line_of
from sandboxd_client.testing import FakeDaemon
from support.waiting import wait_until

QUESTION = {"request_id": "q-1", "session_id": "s", "kind": "network", "expires_at": 9e9, "host": "a.test", "port": 443}


def violation(number: int, **more: Any) -> dict[str, Any]:
    one = {"id": number, "time": time.time(), "session_id": "s", "command_id": "c", "kind": "write"}
    return {**one, "operation": "openat", "target": "/x", "outcome": "denied", "source": "seccomp", **more}


def test_the_line_is_short_and_empty_while_all_is_quiet() -> None:
    assert line_of(3, 1) == "⛔ 3 blocked · 1 question"
    assert (line_of(0, 0), line_of(0, 2)) == ("", "2 questions")
    assert line_of(1, 0, enabled=False) == "sandbox OFF · ⛔ 1 blocked"


def test_one_line_is_of_the_last_seconds(cli: Any, fake: FakeDaemon) -> None:
    found = [violation(1, time=1.0), violation(2, count=2), violation(3)]
    fake.answer("violation.list", {"violations": found, "total": 4, "hidden": 0, "cursor": "e-3"})
    fake.answer("permission.list", {"grants": [], "open": [QUESTION]})
    done = cli.run("status", "--line", "--last", "3600")
    assert (done.returncode, done.stdout, done.stderr) == (0, "⛔ 3 blocked · 1 question\n", "")
    for wrong in (("--watch",), ("--line", "--last", "0")):
        assert cli.run("status", *wrong).returncode == 2
    cli.env["SANDBOXD_SOCKET"] += "-none"
    done = cli.run("status", "--line")
    assert (done.returncode, done.stdout, done.stderr) == (1, "\n", "")


def test_watching_prints_each_change_over_a_restart(cli: Any, fake: FakeDaemon) -> None:
    with cli.popen("status", "--line", "--watch", "--last", "1", stderr=subprocess.PIPE) as watching:
        try:
            assert watching.stdout.readline() == "\n"
            fake.notify("sandbox_violation", {"cursor": "e-1", "violation": violation(1)})
            assert watching.stdout.readline() == "⛔ 1 blocked\n"
            assert watching.stdout.readline() == "\n", "hidden again"
            fake.notify("sandbox_permission_request", QUESTION)
            assert watching.stdout.readline() == "1 question\n"
            fake.answer("permission.subscribe", {"open": []})
            fake.disconnect()
            assert watching.stdout.readline() == "\n"
            wait_until(lambda: [call.method for call in fake.calls].count("permission.subscribe") == 2)
            assert all(one.params["watch"] for one in fake.calls if one.method == "permission.subscribe")
        finally:
            watching.kill()
