"""`sandboxd violations` and `sandboxd prompts`, against a fake daemon, in a pipe and on a terminal."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cli.conftest import CommandLine
from sandboxd.cli.prompts import lines_of
from sandboxd.screens.questions import question_row
from sandboxd_client import RpcError
from sandboxd_client.testing import FakeDaemon
from sandboxd_client.wire.messages.prompts import PermissionRequest
from support.terminal import CTRL_C, Terminal

VIOLATION = {
    "id": 1, "time": 1.0, "session_id": "s-1", "command_id": "c", "kind": "network", "operation": "CONNECT",
    "target": "no.test:443", "outcome": "hostDenied", "source": "proxy", "rule": "no.test", "count": 2,
    "origin": {"source": "user", "key": "sandbox.network.deniedDomains", "file": "/h/s.json", "line": 3},
    "hint": "do something",
}  # fmt: skip
LIST = {"violations": [VIOLATION], "total": 7, "hidden": 1, "cursor": "e-1"}


def question(number: int, **more: Any) -> dict[str, Any]:
    rule = f"ask{number}.test:443"
    return {
        "request_id": f"q-{number}", "session_id": "s-1", "kind": "network", "expires_at": time.time() + 300,
        "host": f"ask{number}.test", "port": 443, "command": "npm ci", "command_id": "c", "project": "/w",
        "text": "it is not listed", "scopes": ["once", "command", "session", "always"],
        "suggestions": [
            {"behavior": "allow", "scope": "always", "key": "sandbox.network.allowedDomains", "rule": rule},
            {"behavior": "deny", "scope": "always", "key": "sandbox.network.deniedDomains", "rule": rule},
        ],
        **more,
    }  # fmt: skip


def test_what_was_blocked(cli: CommandLine, fake: FakeDaemon) -> None:
    """The person at the command line sees it too."""
    fake.answer("violation.list", LIST)
    done = cli.run("violations", "--session", "s-1")
    assert done.returncode == 0 and fake.calls[-1].params == {"session_id": "s-1"}
    assert "s-1 network CONNECT no.test:443: hostDenied, 2 times, rule no.test in /h/s.json:3" in done.stdout
    assert "4 earlier ones are not kept" in done.stderr and "1 more are hidden" in done.stderr
    assert json.loads(cli.run("violations", "--json").stdout)["violations"][0]["target"] == "no.test:443"
    fake.answer("violation.list", {**LIST, "violations": [], "total": 0, "hidden": 0})
    assert cli.run("violations").stdout == "nothing was blocked\n"


def test_following_in_a_pipe_is_json_lines(cli: CommandLine, fake: FakeDaemon) -> None:
    fake.answer("violation.subscribe", LIST)
    process = cli.popen("violations", "--follow")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["id"] == 1
    fake.notify("sandbox_violation", {"cursor": "e-2", "violation": {**VIOLATION, "id": 2}})
    assert json.loads(process.stdout.readline())["id"] == 2
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.stdout.close()


@pytest.fixture
def terminal(cli: CommandLine) -> Iterator[Terminal]:
    with Terminal([*cli.argv, "prompts"], env=cli.env) as opened:
        opened.expect("waiting for questions")
        yield opened


def test_following_on_a_terminal(cli: CommandLine, fake: FakeDaemon) -> None:
    fake.answer("violation.subscribe", LIST)
    with Terminal([*cli.argv, "violations", "--follow"], env=cli.env) as opened:
        opened.expect(r"no\.test:443: hostDenied")
        fake.notify("sandbox_violation", {"cursor": "e-2", "violation": {**VIOLATION, "target": "a\x1b[2J"}})
        opened.expect(r"CONNECT a\\x1b\[2J: hostDenied")
        opened.press(CTRL_C)
        assert opened.wait() == 130


@pytest.mark.parametrize(
    ("key", "behavior", "scope"),
    [
        ("y", "allow", "once"), ("c", "allow", "command"), ("s", "allow", "session"), ("a", "allow", "always"),
        ("n", "deny", "once"), ("d", "deny", "always"),
    ],
)  # fmt: skip
def test_one_key_answers(terminal: Terminal, fake: FakeDaemon, key: str, behavior: str, scope: str) -> None:
    fake.notify("sandbox_permission_request", question(1))
    terminal.expect(r"May a command reach ask1\.test:443\?")
    terminal.expect("command  npm ci")
    terminal.expect(r"\[a\] yes, always \(rule ask1\.test:443 in sandbox\.network\.allowedDomains\)")
    terminal.expect("no answer in .* means no")
    terminal.press(key)
    heard = fake.wait_for_call("sandbox_permission_response")
    assert heard.params == {"request_id": "q-1", "behavior": behavior, "scope": scope}
    terminal.expect("yes|no")
    terminal.press("q")
    assert terminal.wait() == 0


def test_several_questions_queue_and_other_keys_answer_none(terminal: Terminal, fake: FakeDaemon) -> None:
    for number in (1, 2):
        fake.notify("sandbox_permission_request", question(number))
    terminal.expect(r"ask1\.test")
    terminal.expect("means no")
    for key in ("\r", " ", "x", "\x1b[A", "Y"):
        terminal.press(key)
    fake.notify("sandbox_permission_resolved", {"request_id": "q-1", "behavior": "deny", "text": "too late"})
    terminal.expect("deny: too late")
    terminal.expect(r"ask2\.test")
    terminal.expect("means no")
    terminal.press("n")
    assert fake.wait_for_call("sandbox_permission_response").params["request_id"] == "q-2"
    terminal.expect("no")
    assert [call.method for call in fake.calls].count("sandbox_permission_response") == 1


def test_an_answer_that_is_not_taken_says_why(terminal: Terminal, fake: FakeDaemon) -> None:
    fake.answer("sandbox_permission_response", RpcError("settings_locked", "cannot be changed", "ask somebody"))
    fake.notify("sandbox_permission_request", question(1))
    terminal.expect("means no")
    terminal.press("a")
    terminal.expect("not accepted: cannot be changed")
    terminal.expect(r"May a command reach ask1\.test:443\?")  # still open
    terminal.press(CTRL_C)
    assert terminal.wait() == 130


def test_without_a_terminal(cli: CommandLine) -> None:
    done = cli.run("prompts")
    assert done.returncode == 2 and "needs a terminal" in done.stderr


def test_the_daemon_goes_away(terminal: Terminal, fake: FakeDaemon) -> None:
    fake.disconnect()
    assert terminal.wait() == 125


def test_what_is_shown_is_one_line_each_and_only_fitting_keys() -> None:
    """Also when the daemon were careless."""
    asked = PermissionRequest(
        "q", "s", "sandbox_override", 10.0, command="x\n\x1b[2J[y] yes", project="/w\u202e", warnings=("a\nb",)
    )
    row = question_row(asked)
    lines = lines_of(row, 2, 0.0)
    assert all(line.isprintable() for line in lines)
    assert [choice.key for choice in row.choices] == ["y", "n"]
    assert lines[-1] == "  no answer in 10 s means no; 2 more waiting"
    assert any("OUTSIDE" in line for line in lines)
