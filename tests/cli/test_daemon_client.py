"""The commands that ask the daemon and print its answer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli.conftest import CommandLine
from sandboxd_client import RpcError
from sandboxd_client.testing import FakeDaemon

ORIGIN = {"source": "user", "key": "sandbox.network.allowedDomains", "file": "/h/settings.json", "line": 4}


def test_status(cli: CommandLine, fake: FakeDaemon) -> None:
    session = {
        "session_id": "s1", "name": "agent", "cwd": "/w", "detached": False, "permission_mode": "prompt",
        "opened_at": 1.0, "commands": 2, "violations": 3, "policy_generation": 1,
    }  # fmt: skip
    files = [
        {"source": "user", "path": "/h/settings.json", "state": "loaded"},
        {"source": "managed", "path": "/etc/x", "state": "absent"},
    ]
    fake.answer("status", lambda params: {**fake._status(params), "sessions": [session], "settings": files})
    done = cli.run("status")
    assert done.returncode == 0
    assert f"pid {os.getpid()}" in done.stdout and fake.socket in done.stdout
    assert "s1 agent in /w: 2 running, 3 blocked" in done.stdout
    assert "/h/settings.json (user, loaded)" in done.stdout and "/etc/x" not in done.stdout
    answer = json.loads(cli.run("status", "--json").stdout)
    assert answer["running"] is True and answer["sessions"][0]["session_id"] == "s1"
    session["name"] = "\x1b[31mé\x9b31m\x7f\u202e\U000e0041"
    for shown in (cli.run("status").stdout, raw := cli.run("status", "--json").stdout):
        assert all(c.isprintable() or c == "\n" for c in shown) and "é" in shown
    assert json.loads(raw)["sessions"][0]["name"] == session["name"]


@pytest.fixture
def nobody(cli: CommandLine, tmp_path: Path) -> dict[str, str]:
    """An environment in which no daemon runs."""
    (tmp_path / "d").mkdir(mode=0o700)
    return {**cli.env, "SANDBOXD_SOCKET": str(tmp_path / "d" / "s")}


def test_status_and_stop_without_a_daemon_start_none(cli: CommandLine, nobody: dict[str, str]) -> None:
    done = cli.run("status", env=nobody)
    assert done.returncode == 1 and done.stdout.startswith("not running") and done.stderr == ""
    done = cli.run("status", "--json", env=nobody)
    assert json.loads(done.stdout) == {
        "running": False, "socket": nobody["SANDBOXD_SOCKET"], "starts_on_connection": False,
    }  # fmt: skip
    done = cli.run("stop", env=nobody)
    assert done.returncode == 0 and done.stdout.startswith("not running")
    assert not os.listdir(os.path.dirname(nobody["SANDBOXD_SOCKET"]))


@pytest.mark.parametrize("command", [["check"], ["explain", "host", "x"], ["describe"], ["settings", "show"]])
def test_questions_without_a_daemon_and_without_starting_one(
    cli: CommandLine, nobody: dict[str, str], command: list[str]
) -> None:
    done = cli.run(*command, "--no-autostart", env=nobody)
    assert done.returncode == 125 and done.stdout == ""
    assert "is not running" in done.stderr and "hint: start it with: sandboxd serve" in done.stderr


def test_stop(cli: CommandLine, fake: FakeDaemon) -> None:
    fake.answer("shutdown", lambda params: {**fake._shutdown(params), "pid": 2**22 + 1})
    done = cli.run("stop")
    assert (done.returncode, done.stdout) == (0, f"stopped (pid {2**22 + 1})\n")
    assert cli.run("stop").stdout.startswith("not running")


def test_check(cli: CommandLine, fake: FakeDaemon) -> None:
    steps = [
        {"name": "bubblewrap", "ok": True, "detail": "0.8.0"},
        {"name": "namespaces", "ok": False, "detail": "denied", "remedy": "run: sysctl …", "code": "userns_denied"},
    ]
    fake.answer("check", {"ok": False, "steps": steps})
    done = cli.run("check")
    assert done.returncode == 1
    assert "ok       bubblewrap  0.8.0" in done.stdout and "FAILED   namespaces  denied" in done.stdout
    assert "remedy: run: sysctl …" in done.stdout and "nothing would be run" in done.stdout
    done = cli.run("check", "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["steps"][1]["code"] == "userns_denied"
    advice = {"name": "git", "ok": False, "detail": "d", "remedy": "run: git …", "code": "advice_bare_repository"}
    fake.answer("check", {"ok": True, "steps": [steps[0], advice], "layers": ["seccomp"]})
    done = cli.run("check")
    assert done.returncode == 0 and "Layers: seccomp" in done.stdout
    assert "advice   git         d" in done.stdout and "remedy: run: git …" in done.stdout
    fake.answer("check", {"ok": True, "steps": steps})
    assert "without  namespaces  denied" in cli.run("check").stdout, "no failure of what works"


def test_explain(cli: CommandLine, fake: FakeDaemon) -> None:
    reason = {"type": "hostDenied", "text": "a rule denies x.test", "rule": "*.test", "origin": ORIGIN}
    answer = {"kind": "host", "subject": "x.test:443", "behavior": "deny", "reason": reason, "hint": "remove the rule"}
    fake.answer("policy.explain", answer)
    done = cli.run("explain", "host", "x.test", "--session", "s")
    assert done.stdout == (
        "denied: x.test:443\n"
        "reason: a rule denies x.test (hostDenied)\n"
        "rule:   *.test\n"
        "from:   /h/settings.json:4 (sandbox.network.allowedDomains)\n"
        "hint:   remove the rule\n"
    )
    assert fake.calls[-1].params["session_id"] == "s"
    assert json.loads(cli.run("explain", "host", "x.test", "--json").stdout)["reason"]["rule"] == "*.test"


@pytest.mark.parametrize(
    ("arguments", "answer", "first"),
    [
        (["path", "x", "--write"], {"kind": "path", "behavior": "allow"}, "allowed: write /w/x"),
        (["path", "x"], {"kind": "path", "behavior": "deny"}, "denied: read /w/x"),
        (["command", "ls -l"], {"kind": "command", "behavior": "ask", "sandboxed": False},
         "asks first, without the sandbox: /w/x"),
        (["command", "ls"], {"kind": "command", "behavior": "allow", "sandboxed": True},
         "allowed, in the sandbox: /w/x"),
    ],
)  # fmt: skip
def test_explanations_in_words(
    cli: CommandLine, fake: FakeDaemon, arguments: list[str], answer: dict[str, object], first: str
) -> None:
    reason = {"type": "default", "text": "so"}
    fake.answer("policy.explain", {"subject": "/w/x", "reason": reason, **answer})
    assert cli.run("explain", *arguments).stdout.splitlines()[0] == first
    assert fake.calls[-1].params["write"] is ("--write" in arguments)


def test_describe(cli: CommandLine, fake: FakeDaemon) -> None:
    assert cli.run("describe").stdout == "Nothing is enforced.\n"
    assert json.loads(cli.run("describe", "--json").stdout)["generation"] == 1


def test_settings(cli: CommandLine, fake: FakeDaemon) -> None:
    problem = {"severity": "warning", "message": "unknown key x", "file": "/h/s.json", "line": 2, "hint": "y?"}
    values = [
        {"key": "sandbox.enabled", "value": True, "origins": [ORIGIN]},
        {"key": "sandbox.network.allowedDomains", "value": ["a", "é"], "origins": [ORIGIN, ORIGIN]},
        {"key": "sandbox.failIfUnavailable", "value": True},
    ]
    fake.answer("settings.get", {"generation": 1, "values": values, "problems": [problem]})
    done = cli.run("settings", "show", "sandbox")
    assert done.stdout == (
        "sandbox.enabled = true\n    /h/settings.json:4 (sandbox.network.allowedDomains)\n"
        'sandbox.network.allowedDomains = ["a", "é"]\n    /h/settings.json:4 (sandbox.network.allowedDomains)\n'
        "sandbox.failIfUnavailable = true\n    default\n"
        "/h/s.json:2: warning: unknown key x (y?)\n"
    )
    assert fake.calls[-1].params["key"] == "sandbox"
    assert json.loads(cli.run("settings", "show", "--json").stdout)["values"][2]["value"] is True


def test_errors_of_the_daemon(cli: CommandLine, fake: FakeDaemon) -> None:
    fake.answer("policy.explain", RpcError("host_invalid", "no host: ..", "write a name"))
    done = cli.run("explain", "host", "..")
    assert (done.returncode, done.stderr) == (125, "sandboxd: no host: ..\nhint: write a name\n")


@pytest.mark.parametrize(
    "command",
    ["run", "status", "stop", "restart", "check", "explain", "describe", "settings", "serve"],
)
def test_help(cli: CommandLine, fake: FakeDaemon, command: str) -> None:
    for flag in ("--help", "-h"):
        done = cli.run(command, flag)
        assert done.returncode == 0 and done.stderr == ""
        assert done.stdout.startswith(f"usage: sandboxd {command}")
    assert f"  {command} " in cli.run("--help").stdout
    assert not fake.calls


def test_version(cli: CommandLine) -> None:
    assert cli.run("--version").stdout == "sandboxd 0.1.0\n"


def test_a_reader_that_goes_away(cli: CommandLine) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = cli.run("--help", capture_output=False, stdout=writer, stderr=-1)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
