"""A key of the settings that restricts is enforced, or no command is run: with a real daemon and real sandboxes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity
from support.waiting import wait_until

NOT_RUN = 125


def project_file(identity: Identity, settings: Any) -> None:
    identity.write(identity.workspace / ".claude" / "settings.json", json.dumps(settings))


@pytest.mark.parametrize("source", ["user", "project"])
def test_credentials_are_kept_from_commands(start_daemon: StartDaemon, identity: Identity, source: str) -> None:
    credentials = {
        "files": [{"path": "~/.token", "mode": "deny"}, {"path": "keys", "mode": "mask"}],
        "envVars": [{"name": "API_KEY", "mode": "deny"}, {"name": "OTHER_KEY", "mode": "mask"}],
    }
    for path in (identity.home / ".token", identity.workspace / "keys" / "k", identity.workspace / "plain"):
        identity.write(path, "secret\n")
    settings = {"sandbox": {"credentials": credentials}}
    if source == "project":
        project_file(identity, settings)
    daemon = start_daemon(settings=settings if source == "user" else {})
    for name in (str(identity.home / ".token"), "keys/k"):
        done = daemon.run("run", "--", "cat", name)
        assert done.returncode != 0 and not done.stdout, name
    assert daemon.run("run", "--", "cat", "plain").stdout == "secret\n"
    script = 'echo "$API_KEY$OTHER_KEY$PLAIN"'
    environment = daemon.environment(API_KEY="a", OTHER_KEY="b", PLAIN="c")
    done = identity.run(identity.command("run", "-c", script), cwd=identity.workspace, env=environment)
    assert done.stdout == "c\n", done


def test_deny_edit_denies_writing(start_daemon: StartDaemon, identity: Identity) -> None:
    kept = identity.write(identity.workspace / "kept", "k\n")
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"denyEdit": ["kept"]}}})
    assert daemon.run("run", "-c", "echo x > other; echo x > kept").returncode != 0
    assert kept.read_text() == "k\n" and (identity.workspace / "other").exists()


@pytest.mark.parametrize("source", ["user", "project"])
@pytest.mark.parametrize(
    "settings",
    [
        {"sandbox": {"filesystem": {"denyReed": ["~/secret"]}}},
        {"sandbox": {"newSection": {"inside": {"forbidNetwork": True}}}},
        {"permissions": {"denied": ["Read(x)"]}},
    ],
)
def test_an_unknown_restriction_keeps_commands_from_running(
    start_daemon: StartDaemon, identity: Identity, source: str, settings: Any
) -> None:
    file = identity.home / ".claude" / "settings.json"
    if source == "project":
        project_file(identity, settings)
        file = identity.workspace / ".claude" / "settings.json"
    daemon = start_daemon(settings=settings if source == "user" else {})
    key = next(key for key in ("denyReed", "newSection", "denied") if key in json.dumps(settings))
    for command in (["--", "touch", "ran"], ["-c", "touch ran"]):
        done = daemon.run("run", *command)
        assert done.returncode == NOT_RUN and key in done.stderr and str(file) in done.stderr, done
        assert "--ignore-unknown-restrictions" in done.stderr
    code = """
from sandboxd_client import Client, SandboxdError
with Client(autostart=False) as box, box.session(".") as session:
    wrapped = lambda: box.wrap("touch ran", cwd=".")
    for wrap in (lambda: box.run("touch ran"), lambda: session.run("touch ran"), wrapped):
        try:
            wrap()
        except SandboxdError as error:
            print(error.slug)
"""
    assert daemon.python(code).stdout == "restriction_unknown\n" * 3
    assert not (identity.workspace / "ran").exists()
    for _ in range(2):
        done = daemon.run("run", "--ignore-unknown-restrictions", "--", "touch", "ran")
        assert done.returncode == 0 and "not enforced" in done.stderr, done
    insisting = """
from sandboxd_client import Client, Overrides
insist = {"sandbox": {"ignoreUnknownRestrictions": True}}
with Client(autostart=False) as box, box.session(".", settings=insist) as session:
    print(session.run("true").returncode)
    print(box.run("true", overrides=Overrides(ignore_unknown_restrictions=True)).returncode)
    print(box.run("true", overrides={"ignore_unknown_restrictions": True}).returncode)
"""
    done = daemon.python(insisting)
    assert done.stdout == "0\n" * 3, done.stderr


def test_no_hint_proposes_what_is_refused(start_daemon: StartDaemon, identity: Identity) -> None:
    settings = {"sandbox": {"allowOverrides": False, "denyNew": True}}
    daemon = start_daemon(settings=settings)
    assert "--ignore-unknown" not in daemon.run("run", "--", "touch", "ran").stderr
    assert daemon.run("run", "--ignore-unknown-restrictions", "--", "touch", "ran").returncode == NOT_RUN
    assert not (identity.workspace / "ran").exists()


def test_a_project_cannot_insist(start_daemon: StartDaemon, identity: Identity) -> None:
    project_file(identity, {"sandbox": {"ignoreUnknownRestrictions": True}})
    daemon = start_daemon(settings={"sandbox": {"denyNew": True, "ignoreUnknownRestrictions": True}})
    assert daemon.run("run", "--", "touch", "ran").returncode == NOT_RUN
    assert not (identity.workspace / "ran").exists()


def test_additional_directories_are_as_the_working_directory(start_daemon: StartDaemon, identity: Identity) -> None:
    other = identity.write(identity.home / "other" / "file", "o\n").parent
    project_file(identity, {"permissions": {"additionalDirectories": ["~/planted"]}})
    planted = identity.write(identity.home / "planted" / "file", "p\n")
    identity.write(identity.home / ".bashrc", "mine\n")
    directories = ["~/other", "~/.bashrc"]
    daemon = start_daemon(settings={"permissions": {"additionalDirectories": directories}})
    script = "cd {0}; echo x > new; mkdir .vscode; echo x > .vscode/settings.json; echo x > {1}"
    done = daemon.run("run", "-c", script.format(other, planted))
    assert (other / "new").read_text() == "x\n", done
    assert not (other / ".vscode" / "settings.json").exists()
    assert planted.read_text() == "p\n"
    assert daemon.run("run", "-c", "echo x >> ~/.bashrc").returncode != 0
    assert (identity.home / ".bashrc").read_text() == "mine\n"


def told(daemon: DaemonProcess, what: str, *options: str) -> bool:
    done = daemon.run("run", *options, "--", "true")
    assert done.returncode == 0, done
    return what in done.stderr


def test_run_reports_ignored_keys_once_for_each_change(start_daemon: StartDaemon, identity: Identity) -> None:
    project_file(identity, {"sandbox": {"filesystem": {"allowWrite": ["~/x"]}, "colour": 1}})
    daemon = start_daemon()
    first = daemon.run("run", "--", "true").stderr
    assert "sandbox.filesystem.allowWrite is ignored" in first and "unknown key sandbox.colour" in first
    assert daemon.run("run", "--", "true").stderr == ""
    project_file(identity, {"sandbox": {"filesystem": {"allowWrite": ["~/x", "~/y"]}}})
    wait_until(lambda: told(daemon, "sandbox.filesystem.allowWrite is ignored"), "the change is told")
    assert daemon.run("run", "--", "true").stderr == ""


def test_an_override_that_does_not_count_is_told_each_time(start_daemon: StartDaemon, identity: Identity) -> None:
    daemon = start_daemon(settings={"sandbox": {"allowOverrides": False}})
    for _ in range(2):
        assert told(daemon, "allowedDomains is ignored", "--allow-domain", "ok.test")
        assert told(daemon, "allowWrite is ignored", "--allow-write", str(identity.home))
    assert daemon.run("run", "--", "true").stderr == ""


@pytest.mark.parametrize(
    "settings",
    [
        {"filesystem": {"denyRead": ["./secret"]}},
        {"permission": {"deny": ["Read(./secret)"]}},
        {"Permissions": {"deny": ["Read(./secret)"]}},
        {"permissions": {"dney": ["Read(./secret)"]}},
        {"permissions": {"deny": ["read(./secret)"]}},
        {"permissions": {"ask": ["bash(rm:*)"]}},
        {"sandbox": {"filesystem": {"dneyRead": ["./secret"]}}},
        {"sandbox": {"allowUnsandboxedCommand": False}},
        {"allowUnsandboxedCommands": False},
        {"Sandbox": {"network": {"transparent": False}}},
    ],
    ids=json.dumps,
)
def test_a_misspelt_restriction_lets_no_command_run(
    start_daemon: StartDaemon, identity: Identity, settings: Any
) -> None:
    identity.write(identity.workspace / "secret", "s\n")
    daemon = start_daemon(settings=settings)
    done = daemon.run("run", "--", "cat", "secret")
    assert done.returncode == NOT_RUN and not done.stdout and "settings lint" in done.stderr, done
    assert daemon.run("run", "--ignore-unknown-restrictions", "--", "cat", "secret").stdout == "s\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"filesystem": {"denyRead": []}, "hooks": {"deny": ["x"]}, "theme": {"denyRead": ["x"]}},
        {"permissions": {"deny": ["WebSearch", "NotebookRead(x)", "mcp__a__read"], "defaultMode": "plan"}},
        {"sandbox": {"allowUnsandboxedCommand": True, "filesystem": {"alowRead": ["x"]}}},
    ],
    ids=json.dumps,
)
def test_what_restricts_nothing_by_its_name_is_in_no_way(start_daemon: StartDaemon, settings: Any) -> None:
    assert start_daemon(settings=settings).run("run", "--", "echo", "ran").stdout == "ran\n"


# --- permission rules, by the names and forms that their owner's documentation has ---

_NO_READING = [
    "LS(.env)", "Glob(.env)", "Grep(**/.env)", "R*(.env)", "*ead(./.env)", 'Read(".env")', "Read( .env )", "Read:.env",
    "NotebookRead(.env)", r"Read(./\.env)",
]  # fmt: skip
_NO_WRITING = ["Edit(.env)", "Write(/.env)", "MultiEdit(./.env)", "NotebookEdit(.env)", "W*(.env)", "Edit('.env')"]


@pytest.mark.parametrize("kind", ["deny", "ask"])
def test_rules_for_files_close_by_each_tool_and_form(start_daemon: StartDaemon, identity: Identity, kind: str) -> None:
    """A command that runs cannot be asked about each file, so `ask` closes too."""
    daemon = start_daemon()
    for name in (".env", "env"):
        identity.write(identity.workspace / name, "secret\n")
    for rule in (*_NO_READING, *_NO_WRITING):
        project_file(identity, {"permissions": {kind: [rule]}})
        done = daemon.run("run", "-c", "cat env; cat .env; echo x >> env; echo x >> .env")
        closed = rule in _NO_READING
        assert done.stdout == ("secret\n" if closed else "secret\nsecret\n"), (rule, done)
        assert (identity.workspace / ".env").read_text() == "secret\n", rule
        assert (identity.workspace / "env").read_text() == "secret\nx\n", rule
        explained = daemon.run("explain", "path", "--write", ".env").stdout
        assert explained.startswith("denied") and f"permissions.{kind}" in explained, (rule, explained)
        identity.write(identity.workspace / "env", "secret\n")


def test_a_tool_alone_closes_all_that_it_does(start_daemon: StartDaemon, identity: Identity) -> None:
    notebook = identity.write(identity.workspace / "sub" / "a.ipynb", "cells\n")
    daemon = start_daemon()
    for rule, written in (("Edit", []), ("Write", []), ("W*e", []), ("NotebookEdit", ["new"]), ("Grep", ["new"])):
        project_file(identity, {"permissions": {"deny": [rule]}})
        script = "echo x > new; echo x > sub/a.ipynb; cat sub/a.ipynb; echo x > $TMPDIR/own"
        done = daemon.run("run", "-c", script)
        assert done.returncode == 0 and done.stdout, (rule, done)
        assert (identity.workspace / "new").exists() is bool(written), (rule, done)
        assert (notebook.read_text() == "cells\n") is (rule != "Grep"), rule
        (identity.workspace / "new").unlink(missing_ok=True)
        identity.write(notebook, "cells\n")


@pytest.mark.parametrize("source", ["user", "project"])
@pytest.mark.parametrize("rule", ["Read", "read(.env)", "View(.env)", "Bash(command:rm *)", "Read(path:.env)"])
def test_a_rule_that_is_not_enforced_keeps_commands_from_running(
    start_daemon: StartDaemon, identity: Identity, source: str, rule: str
) -> None:
    settings = {"permissions": {"deny": [rule]}}
    if source == "project":
        project_file(identity, settings)
    daemon = start_daemon(settings=settings if source == "user" else {})
    done = daemon.run("run", "--", "touch", "ran")
    assert done.returncode == NOT_RUN and repr(rule) in done.stderr and "settings.json:" in done.stderr, done
    assert not (identity.workspace / "ran").exists()
    lint = daemon.run("settings", "lint")
    assert repr(rule) in lint.stdout + lint.stderr and lint.returncode != 0
    done = daemon.run("run", "--ignore-unknown-restrictions", "--", "touch", "ran")
    assert done.returncode == 0 and "not enforced" in done.stderr and repr(rule) in done.stderr, done


def test_a_denial_of_everything_lets_no_command_run(start_daemon: StartDaemon, identity: Identity) -> None:
    daemon = start_daemon()
    project_file(identity, {"permissions": {"deny": ["*"]}})
    for option in ([], ["--ignore-unknown-restrictions"]):
        done = daemon.run("run", *option, "--", "touch", "ran")
        assert done.returncode == NOT_RUN and "denied by Bash(*)" in done.stderr, done
        assert not (identity.workspace / "ran").exists()
    project_file(identity, {"permissions": {"deny": ["Bash(rm *)"]}})
    assert daemon.run("run", "--", "touch", "ran").returncode == 0 and (identity.workspace / "ran").exists()


def test_rules_about_other_tools_say_nothing_and_allow_nothing(start_daemon: StartDaemon, identity: Identity) -> None:
    outside = identity.write(identity.home / "outside" / "file", "mine\n")
    others = ["mcp__*", "mcp__a__b", "WebSearch", "Task(x)", "Agent(model:opus)", "TodoWrite", "Monitor"]
    daemon = start_daemon(settings={"permissions": {"deny": others, "ask": others}})
    done = daemon.run("run", "-c", "cat ~/outside/file; echo x > new")
    assert (done.stdout, done.stderr, done.returncode) == ("mine\n", "", 0)
    allow = ["E*(~/outside/**)", "*", "Edit(file_path:~/outside/file)", "edit(~/outside/**)", 'Edit("~/outside/**")']
    identity.write(identity.home / ".claude" / "settings.json", json.dumps({"permissions": {"allow": allow}}))
    done = daemon.run("run", "-c", "echo x > ~/outside/file")
    assert outside.read_text() == "mine\n" and done.returncode != 0
    assert all(repr(rule) in done.stderr for rule in allow), done


def test_reading_is_closed_outside_of_working_directories(start_daemon: StartDaemon, identity: Identity) -> None:
    key = "blockReadsOutsideWorkingDirectories"
    for name in ("private", "opened/file", "added/file"):
        identity.write(identity.home / name, "mine\n")
    identity.write(identity.workspace / "file", "mine\n")
    script = "cat file ~/private ~/opened/file ~/added/file /etc/passwd | grep -c mine"
    daemon = start_daemon(
        settings={
            "permissions": {"additionalDirectories": ["~/added"]},
            "sandbox": {"filesystem": {"allowRead": ["~/opened"]}},
        }
    )
    assert daemon.run("run", "-c", script).stdout == "4\n"
    project_file(identity, {"permissions": {key: True}})
    done = daemon.run("run", "-c", script)
    assert done.stdout == "3\n" and "private" in done.stderr, done
    explained = daemon.run("explain", "path", "~/private").stdout
    assert explained.startswith("denied") and key in explained
    assert daemon.run("run", "-c", "echo x > new; cat new").stdout == "x\n"
