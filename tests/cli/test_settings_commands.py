"""`settings`, `exclude`, `allow`, `deny`, `enable`, `disable`: what they send, what they say, and their exit status."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import CommandLine
from sandboxd_client import RpcError
from sandboxd_client.testing import FakeDaemon

LOCAL = "/h/.claude/settings.local.json"
USAGE = 2


def origin(source: str, key: str, file: str = LOCAL, line: int = 3) -> dict[str, Any]:
    return {"source": source, "key": key, "file": file, "line": line}


def updated(**more: Any) -> dict[str, Any]:
    return {"generation": 2, "file": LOCAL, "written": True, **more}


@pytest.fixture
def lists(fake: FakeDaemon) -> dict[str, list[tuple[str, str]]]:
    """What `settings.get` says of lists: entries with their source. To be filled by the test."""
    entries: dict[str, list[tuple[str, str]]] = {}

    def get(params: dict[str, Any]) -> dict[str, Any]:
        key = params["key"]
        found = entries.get(key, [])
        origins = [origin(source, key) for _, source in found] or [{"source": "default", "key": key}]
        return {"generation": 1, "values": [{"key": key, "value": [v for v, _ in found], "origins": origins}]}

    fake.answer("settings.get", get)
    fake.answer("settings.update", updated())
    fake.answer("settings.exclude_command", updated())
    return entries


def sent(fake: FakeDaemon) -> list[tuple[str, str, Any]]:
    (call,) = [call for call in fake.calls if call.method == "settings.update"]
    return [(change["act"], change["key"], change.get("value")) for change in call.params["changes"]]


def explains(fake: FakeDaemon, behavior: str, **reason: Any) -> None:
    reason = {"type": "hostDenied", "text": "x.test is denied by a rule", **reason}
    fake.answer("policy.explain", {"kind": "host", "subject": "x", "behavior": behavior, "reason": reason})


# --- settings set, unset ---


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("true", True),
        ("5", 5),
        ('["a"]', ["a"]),
        ("deny", "deny"),
        ('"5"', "5"),
        ("/usr/bin/rg", "/usr/bin/rg"),
        ("", ""),
    ],
)
def test_set(cli: CommandLine, fake: FakeDaemon, lists: Any, value: str, meant: Any) -> None:
    done = cli.run("settings", "set", "network.onUnlisted", value)
    assert done.returncode == 0 and LOCAL in done.stdout and done.stderr == ""
    assert sent(fake) == [("set", "network.onUnlisted", meant)]


def test_unset_json_and_nothing_to_do(cli: CommandLine, fake: FakeDaemon, lists: Any) -> None:
    assert json.loads(cli.run("settings", "unset", "enabled", "--json").stdout)["file"] == LOCAL
    assert sent(fake) == [("unset", "enabled", None)]
    fake.answer("settings.update", updated(written=False, warnings=["sandbox.enabled stays true"]))
    done = cli.run("settings", "unset", "enabled")
    assert done.stdout == f"nothing to change: {LOCAL} says so already\n"
    assert done.stderr == "sandboxd: warning: sandbox.enabled stays true\n"


def test_a_locked_key_is_refused_with_the_reason(cli: CommandLine, fake: FakeDaemon) -> None:
    reason = "sandbox.enabled cannot be changed: set by managed settings (/etc/x.json:2)"
    fake.answer("settings.update", RpcError("settings_locked", reason, "ask the administrator of this machine"))
    for command in (["disable"], ["settings", "set", "enabled", "false"]):
        done = cli.run(*command)
        assert (done.returncode, done.stdout) == (125, "")
        assert done.stderr == f"sandboxd: {reason}\nhint: ask the administrator of this machine\n"


# --- settings show ---


def test_show_tells_what_is_locked_and_what_is_ignored(cli: CommandLine, fake: FakeDaemon) -> None:
    values = [{"key": "sandbox.enabled", "value": True, "origins": [origin("managed", "sandbox.enabled", "/etc/x")]}]
    ignored = {"key": "sandbox.enabled", "value": False, "reason": "set by managed settings",
               "origin": {"source": "cli", "key": "sandbox.enabled"}}  # fmt: skip
    fake.answer("settings.get", {"generation": 1, "values": values, "ignored": [ignored]})
    fake.answer("settings.locked", {"locked": [{"key": "sandbox.enabled", "reason": "set by managed settings"}]})
    assert cli.run("settings", "show").stdout == (
        "sandbox.enabled = true\n    /etc/x:3 (sandbox.enabled)\n    locked: set by managed settings\n"
        "cli (sandbox.enabled): ignored: false: set by managed settings\n"
    )


def test_show_of_what_is_changed(cli: CommandLine, fake: FakeDaemon) -> None:
    values = [
        {"key": "sandbox.enabled", "value": True, "origins": [{"source": "default", "key": "sandbox.enabled"}]},
        {"key": "sandbox.presets", "value": ["caches"], "origins": [origin("user", "sandbox.presets")]},
        {"key": "sandbox.network.allowedDomains", "value": []},
    ]
    fake.answer("settings.get", {"generation": 1, "values": values})
    done = cli.run("settings", "show", "--changed")
    assert done.stdout == f'sandbox.presets = ["caches"]\n    {LOCAL}:3 (sandbox.presets)\n'
    shown = json.loads(cli.run("settings", "show", "--changed", "--json").stdout)["values"]
    assert [value["key"] for value in shown] == ["sandbox.presets"]


def test_show_of_a_key_that_is_none(cli: CommandLine, fake: FakeDaemon) -> None:
    known = [{"key": "sandbox.enabled", "value": True}]
    fake.answer("settings.get", lambda params: {"generation": 1, "values": [] if "key" in params else known})
    done = cli.run("settings", "show", "enabeld")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr == "sandboxd: there is no setting enabeld\nhint: did you mean sandbox.enabled?\n"


# --- settings lint, schema: without a daemon ---


@pytest.fixture
def alone(cli: CommandLine, tmp_path: Path) -> dict[str, str]:
    """An empty home, and no daemon to answer a call."""
    return {**cli.env, "HOME": str(tmp_path / "home"), "SANDBOXD_SOCKET": "/nowhere/at/all"}


def test_lint_names_the_place_and_the_nearest_key(cli: CommandLine, alone: dict[str, str], tmp_path: Path) -> None:
    text = '{\n  "sandbox": {\n    "network": { "allow": ["ok.test"] },\n    "enabledd": 1\n  }\n}\n'
    (tmp_path / "bad.json").write_text(text)
    done = cli.run("settings", "lint", "bad.json", cwd=tmp_path, env=alone)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (
        "bad.json:3:18: warning: unknown key sandbox.network.allow has no effect "
        "(did you mean sandbox.network.allowedDomains?)\n"
        "bad.json:4:5: error: cannot enforce sandbox.enabledd, which by its name restricts commands "
        "(did you mean sandbox.enabled?)\n"
    )
    answer = json.loads(cli.run("settings", "lint", "bad.json", "--json", cwd=tmp_path, env=alone).stdout)
    assert (answer["ok"], answer["files"], answer["problems"][0]["line"]) == (False, ["bad.json"], 3)


OTHERS = """gdb|vim|tmux|screen|tar|rsync|psql|sqlite3|npm|yarn|bunx|cargo|go|uv run:*|just|crontab|at""".split("|")
"""Programs that run programs."""


def test_lint_knows_programs_that_run_others(cli: CommandLine, alone: dict[str, str], tmp_path: Path) -> None:
    never = ["docker ps && ls", "X=1 docker", "docker > x"]
    fine = ["docker ps:*", "npm run build", "git push:*", "uv sync"]
    patterns = [*OTHERS, *never, *fine]
    (tmp_path / "a.json").write_text(json.dumps({"sandbox": {"excludedCommands": patterns}}))
    done = cli.run("settings", "lint", "a.json", "--as", "user", "--json", cwd=tmp_path, env=alone)
    problems = json.loads(done.stdout)["problems"]
    assert all(problem["severity"] == "error" for problem in problems) and done.returncode == 1
    for pattern in patterns:
        assert any(repr(pattern) in problem["message"] for problem in problems) is (pattern not in fine), pattern


def test_lint_of_what_is_fine_says_nothing(cli: CommandLine, alone: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"sandbox": {"enabled": true}} // fine')
    done = cli.run("settings", "lint", "a.json", cwd=tmp_path, env=alone)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert cli.run("settings", "lint", cwd=tmp_path, env=alone).returncode == 0
    done = cli.run("settings", "lint", "a.json", "absent.json", cwd=tmp_path, env=alone)
    assert done.returncode == 1 and done.stdout == "absent.json: error: there is no such file (check the path)\n"


def test_lint_of_what_keeps_a_daemon_from_starting(cli: CommandLine, alone: dict[str, str], tmp_path: Path) -> None:
    user = tmp_path / "home" / ".claude" / "settings.json"
    project = tmp_path / "p" / ".claude" / "settings.json"
    for path, text in ((user, "{"), (project, '{"sandbox": {"excludedCommands": ["ls"]}}')):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    done = cli.run("settings", "lint", "--cwd", "p", cwd=tmp_path, env=alone)
    assert done.returncode == 1
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{user}:1:2: error: ")
    assert second.startswith(f"{project}:1:") and "may only tighten" in second
    done = cli.run("settings", "lint", str(project), "--as", "user", cwd=tmp_path, env=alone)
    assert (done.returncode, done.stdout) == (0, "")
    assert cli.run("settings", "lint", "--cwd", "absent", cwd=tmp_path, env=alone).returncode == USAGE


def test_schema_is_the_committed_one(cli: CommandLine, alone: dict[str, str]) -> None:
    done = cli.run("settings", "schema", env=alone)
    committed = Path(__file__).resolve().parents[2] / "docs" / "settings.schema.json"
    assert json.loads(done.stdout) == json.loads(committed.read_text())


# --- exclude ---


def test_exclude(cli: CommandLine, fake: FakeDaemon, lists: dict[str, Any]) -> None:
    done = cli.run("exclude", "add", "docker:*")
    assert done.stdout == f"docker:* runs outside the sandbox\n    in {LOCAL}\n"
    assert sent(fake) == [("add", "sandbox.excludedCommands", "docker:*")]
    assert cli.run("exclude", "list").stdout == "no command is excluded\n"
    lists["sandbox.excludedCommands"] = [("docker:*", "local"), ("gh", "user")]
    assert cli.run("exclude", "list").stdout.splitlines()[::2] == ["docker:*", "gh"]
    assert json.loads(cli.run("exclude", "list", "--json").stdout)["value"] == ["docker:*", "gh"]
    fake.calls.clear()
    fake.answer("settings.update", updated(written=False))
    done = cli.run("exclude", "remove", "docker")
    assert done.stdout == f"nothing to change: docker is not on the list of {LOCAL} (on it: docker:*, gh)\n"
    assert sent(fake) == [("remove", "sandbox.excludedCommands", "docker")]


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (["allow", "domain", "x.test"], ("add", "sandbox.network.allowedDomains", "x.test")),
        (["deny", "domain", "x.test", "--remove"], ("remove", "sandbox.network.deniedDomains", "x.test")),
        (["allow", "preset", "caches"], ("add", "sandbox.presets", "caches")),
        (["exclude", "add", "gh"], ("add", "sandbox.excludedCommands", "gh")),
    ],
)
def test_a_rule_of_one_session(
    cli: CommandLine, fake: FakeDaemon, lists: Any, arguments: list[str], change: Any
) -> None:
    explains(fake, "allow")
    of_session = {"policy_generation": 2, "settings": {}, "file": "the session s-1"}
    fake.answer("session.update", of_session)
    done = cli.run(*arguments, "--session", "s-1")
    assert (done.returncode, done.stderr) == (0, "") and "in the session s-1" in done.stdout
    (call,) = [call for call in fake.calls if call.method == "session.update"]
    (found,) = call.params["changes"]
    assert (call.params["session_id"], (found["act"], found["key"], found["value"])) == ("s-1", change)
    asked = [one.params for one in fake.calls if one.method in ("settings.get", "policy.explain")]
    assert all(params["session_id"] == "s-1" for params in asked)


# --- allow, deny ---


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["allow", "domain", "x.test"], [("add", "sandbox.network.allowedDomains", "x.test")]),
        (["deny", "domain", "x.test"], [("add", "sandbox.network.deniedDomains", "x.test")]),
        (["allow", "path", "/"], [("add", "sandbox.filesystem.allowWrite", "/")]),
        (["allow", "socket", "/s"], [("add", "sandbox.network.allowUnixSockets", "/s")]),
        (["allow", "preset", "caches"], [("add", "sandbox.presets", "caches")]),
        (["deny", "preset", "credentials"], [("add", "sandbox.presets", "credentials")]),
        (["deny", "preset", "credentials", "--remove"], [("remove", "sandbox.presets", "credentials")]),
        (["allow", "path", "/", "--read"], [("add", "sandbox.filesystem.allowRead", "/")]),
        (
            ["deny", "path", "~/x"],
            [("add", "sandbox.filesystem.denyRead", "~/x"), ("add", "sandbox.filesystem.denyWrite", "~/x")],
        ),
        (["allow", "domain", "x.test", "--remove"], [("remove", "sandbox.network.allowedDomains", "x.test")]),
    ],
)
def test_a_rule(cli: CommandLine, fake: FakeDaemon, lists: Any, arguments: list[str], changes: Any) -> None:
    explains(fake, arguments[0])
    done = cli.run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert sent(fake) == changes and LOCAL in done.stdout


def test_paths_become_absolute_and_escaped(cli: CommandLine, fake: FakeDaemon, lists: Any, tmp_path: Path) -> None:
    explains(fake, "allow")
    (tmp_path / "[a]").mkdir()
    for given, meant in (
        ("out/../sub/", f"{tmp_path}/sub"), ("build/**", f"{tmp_path}/build/**"), ("[a]", f"{tmp_path}/[[]a]"),
        ("$CACHE/x", "$CACHE/x"), ("~/y", "~/y"),
    ):  # fmt: skip
        fake.calls.clear()
        cli.run("allow", "path", given, cwd=tmp_path)
        assert sent(fake) == [("add", "sandbox.filesystem.allowWrite", meant)]


def test_only_the_opposite_rule_in_local_settings_is_removed(
    cli: CommandLine, fake: FakeDaemon, lists: dict[str, Any]
) -> None:
    lists["sandbox.network.deniedDomains"] = [("x.test", "local"), ("y.test", "user")]
    explains(fake, "allow")
    done = cli.run("allow", "domain", "x.test")
    added = ("add", "sandbox.network.allowedDomains", "x.test")
    assert sent(fake) == [added, ("remove", "sandbox.network.deniedDomains", "x.test")]
    assert "removed from sandbox.network.deniedDomains" in done.stderr
    fake.calls.clear()
    place = {"source": "user", "key": "sandbox.network.deniedDomains", "file": "/h/s.json", "line": 4}
    explains(fake, "deny", rule="y.test", origin=place)
    done = cli.run("allow", "domain", "y.test")
    assert len(sent(fake)) == 1
    assert "still not allowed" in done.stderr and "/h/s.json:4" in done.stderr


def test_a_path_that_does_not_exist_yet(cli: CommandLine, fake: FakeDaemon, lists: Any, tmp_path: Path) -> None:
    done = cli.run("allow", "path", "later", cwd=tmp_path)
    assert done.returncode == 0 and "does not exist yet" in done.stderr


# --- enable, disable ---


@pytest.mark.parametrize(("command", "value", "word"), [("enable", True, "on"), ("disable", False, "off")])
def test_the_switch(cli: CommandLine, fake: FakeDaemon, lists: Any, command: str, value: bool, word: str) -> None:
    assert cli.run(command).stdout == f"the sandbox is {word}\n    in {LOCAL}\n"
    assert sent(fake) == [("set", "sandbox.enabled", value)]


# --- all of them ---


@pytest.mark.parametrize(
    "arguments",
    [
        ["settings"], ["settings", "shwo"], ["settings", "set", "enabled"], ["settings", "set", "a", "b", "c"],
        ["settings", "unset"], ["settings", "schema", "x"], ["settings", "show", "a", "b"],
        ["settings", "show", "--as", "user"], ["settings", "lint", "--as", "nobody"],
        ["exclude"], ["exclude", "add"], ["exclude", "add", "a", "b"], ["exclude", "list", "x"], ["exclude", "ad"],
        ["allow"], ["allow", "path"], ["allow", "domain", "a", "b"],
        ["allow", "preset", "credentials"], ["deny", "preset", "caches"], ["allow", "preset", "cache"],
        ["allow", "domain", "x", "--session", "s", "--project"], ["settings", "unset", "x", "--changed"],
        ["exclude", "add", "x", "--session", "s", "--project"], ["allow", "host", "x"],
        ["allow", "domain", "x", "--read"], ["deny", "path", "x", "--read"], ["deny", "domain"], ["enable", "x"],
        ["disable", "--jsn"],
    ],
)  # fmt: skip
def test_usage(cli: CommandLine, fake: FakeDaemon, arguments: list[str]) -> None:
    done = cli.run(*arguments)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr.startswith("sandboxd: ")
    assert not fake.calls


@pytest.mark.parametrize("command", ["settings", "exclude", "allow", "deny", "enable", "disable"])
def test_help(cli: CommandLine, fake: FakeDaemon, command: str) -> None:
    done = cli.run(command, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: sandboxd {command}")
    assert f"  {command} " in cli.run("--help").stdout
    assert not fake.calls


@pytest.mark.parametrize(
    "arguments",
    [["settings", "set", "enabled", "true"], ["exclude", "list"], ["allow", "domain", "x"], ["deny", "path", "/x"],
     ["enable"], ["disable"]],
)  # fmt: skip
def test_without_a_daemon_and_without_starting_one(cli: CommandLine, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    done = cli.run(*arguments, "--no-autostart", env={**cli.env, "SANDBOXD_SOCKET": str(tmp_path / "d" / "s")})
    assert done.returncode == 125 and "is not running" in done.stderr
    assert not os.listdir(tmp_path / "d")


def test_what_a_file_says_cannot_move_the_cursor(cli: CommandLine, fake: FakeDaemon, lists: dict[str, Any]) -> None:
    lists["sandbox.excludedCommands"] = [("x\x1b[2J\u202e", "user")]
    assert "\x1b" not in cli.run("exclude", "list").stdout
    fake.answer("settings.update", updated(warnings=["a\x1b[31m\nb"]))
    done = cli.run("settings", "set", "enabled", "true")
    assert "\x1b" not in done.stderr and done.stderr.count("\n") == 1
