"""Rules mean what the format of the file says: where the path of a permission rule begins, and how far a pattern that
begins nowhere reaches. With a real daemon and real sandboxes, as root and as a user; the oracle is the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity


def reads(daemon: DaemonProcess, path: Path | str) -> bool:
    done = daemon.run("run", "--", "cat", str(path))
    assert done.returncode == 0 or not done.stdout, done
    return done.returncode == 0


def writes(daemon: DaemonProcess, path: Path) -> bool:
    """Whether a command can change a file, as the host sees it."""
    before = path.read_text() if path.exists() else None
    daemon.run("run", "--", "sh", "-c", 'echo changed > "$1"', "sh", str(path))
    after = path.read_text() if path.exists() else None
    if after != before:
        path.unlink()
        if before is not None:
            daemon.identity.write(path, before)
    return after != before


def project_file(identity: Identity, settings: Any) -> None:
    identity.write(identity.workspace / ".claude" / "settings.json", json.dumps(settings))


@pytest.mark.parametrize("source", ["user", "project"])
def test_a_slash_is_the_project_in_a_permission_rule(
    start_daemon: StartDaemon, identity: Identity, source: str
) -> None:
    """A deny that was meant for the project holds there, whatever stands at the same name in the root directory."""
    top = identity.home / "top"
    inside = identity.write(identity.workspace / "migrations" / "1.sql", "made\n")
    for name in (".env", "sub/.env", "plain"):
        identity.write(identity.workspace / name, "secret\n")
    absolute = identity.write(top / "key", "secret\n")
    rules = {"deny": ["Edit(/migrations/**)", "Read(/.env)", f"Read({absolute})"]}
    if source == "project":
        project_file(identity, {"permissions": rules})
    daemon = start_daemon(settings={"permissions": rules} if source == "user" else {})
    assert not writes(daemon, inside) and not writes(daemon, inside.with_name("2.sql"))
    assert not reads(daemon, identity.workspace / ".env")
    assert reads(daemon, identity.workspace / "sub" / ".env") and reads(daemon, identity.workspace / "plain")
    assert writes(daemon, identity.workspace / "plain")
    assert not reads(daemon, absolute), "it also is an absolute path that exists"
    explained = daemon.run("explain", "path", "--write", str(inside)).stdout
    assert explained.startswith("denied") and "Edit(/migrations/**)"[5:-1] in explained


def test_an_allow_with_a_slash_opens_only_the_project(start_daemon: StartDaemon, identity: Identity) -> None:
    outside = identity.write(identity.home / "outside" / "file", "mine\n")
    named = identity.write(identity.home / "named" / "file", "mine\n")
    allow = ["Edit(/**)", "Edit(/)", f"Edit({outside.parent}/**)", "Write(/etc/**)", f"Edit(/{named.parent}/**)"]
    daemon = start_daemon(settings={"permissions": {"allow": allow}})
    assert not writes(daemon, outside)
    assert not writes(daemon, identity.home / ".claude" / "settings.json")
    assert writes(daemon, identity.workspace / "file")
    assert writes(daemon, named)


def test_a_name_is_denied_at_every_depth_a_path_at_one(start_daemon: StartDaemon, identity: Identity) -> None:
    for name in (".env", "a/b/.env", "a/secrets/k", "x/y.key", "x/sub/y.key", "./dot", "x/dot"):
        identity.write(identity.workspace / name, "secret\n")
    deny = ["Read(.env)", "Read(secrets/**)", "Read(x/*.key)", "Read(./dot)"]
    daemon = start_daemon(settings={"permissions": {"deny": deny}})
    closed = [name for name in (".env", "a/b/.env", "a/secrets/k", "x/y.key", "dot") if not reads(daemon, name)]
    assert closed == [".env", "a/b/.env", "a/secrets/k", "x/y.key", "dot"]
    assert reads(daemon, "x/sub/y.key") and reads(daemon, "x/dot")


@pytest.mark.parametrize("tool", ["Read", "Grep", "Glob"])
def test_a_denied_look_is_a_denied_read(start_daemon: StartDaemon, identity: Identity, tool: str) -> None:
    secret = identity.write(identity.workspace / "secret", "s\n")
    other = identity.write(identity.workspace / "other", "o\n")
    daemon = start_daemon(settings={"permissions": {"deny": [f"{tool}(./secret)", "WebSearch", "mcp__a", "Task(x)"]}})
    assert not reads(daemon, secret) and reads(daemon, other)


@pytest.mark.parametrize("form", ["denyRead", "rule"])
def test_an_unanchored_pattern_holds_in_every_opened_place(
    start_daemon: StartDaemon, identity: Identity, form: str
) -> None:
    """In the project, in other writable directories, in what allowRead opens again, in the directory of one command
    and in what one command opens for itself."""
    places = ("written", "closed/again", "once", "elsewhere")
    for place in places:
        for name in (".env", "deep/er/.env", "k.pem", "deep/k.pem", "plain"):
            identity.write(identity.home / place / name, "secret\n")
    identity.write(identity.workspace / "sub" / "k.pem", "secret\n")
    files: dict[str, Any] = {
        "allowWrite": ["~/written"], "denyRead": ["~/closed"], "allowRead": ["~/closed/again"]
    }  # fmt: skip
    patterns = ["**/.env", "*.pem"]
    settings: dict[str, Any] = {"sandbox": {"filesystem": files}}
    if form == "rule":
        settings["permissions"] = {"deny": [f"Read({pattern})" for pattern in patterns]}
    else:
        files["denyRead"] += patterns
    daemon = start_daemon(settings=settings)
    assert not reads(daemon, "sub/k.pem")
    for place in ("written", "closed/again"):
        at = identity.home / place
        for name in (".env", "deep/er/.env", "k.pem", "deep/k.pem"):
            assert not reads(daemon, at / name), (place, name)
        assert reads(daemon, at / "plain"), place
    at = identity.home / "once"
    for option in (("--allow-write", str(at)), ("--cwd", str(at))):
        done = daemon.run("run", *option, "--", "cat", str(at / "deep" / "er" / ".env"))
        assert done.returncode != 0 and not done.stdout, option
    assert reads(daemon, identity.home / "elsewhere" / ".env"), "nothing opens this directory"
    explained = daemon.run("explain", "path", str(identity.home / "written" / "k.pem")).stdout
    assert explained.startswith("denied"), explained


def test_so_does_one_that_denies_writing(start_daemon: StartDaemon, identity: Identity) -> None:
    lock = identity.write(identity.home / "written" / "deep" / "x.lock", "kept\n")
    files = {"allowWrite": ["~/written"], "denyWrite": ["*.lock"]}
    daemon = start_daemon(settings={"sandbox": {"filesystem": files}})
    assert not writes(daemon, lock) and writes(daemon, lock.with_name("y"))


def test_a_project_has_no_say_in_other_directories(start_daemon: StartDaemon, identity: Identity) -> None:
    mine = identity.write(identity.home / "written" / ".env", "mine\n")
    inside = identity.write(identity.workspace / "a" / ".env", "project\n")
    project_file(identity, {"sandbox": {"filesystem": {"denyRead": ["**/.env"]}}})
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"allowWrite": ["~/written"]}}})
    assert reads(daemon, mine) and not reads(daemon, inside)


@pytest.mark.parametrize("where", ["user", "project"])
def test_a_denial_without_a_beginning_holds_in_caches(
    start_daemon: StartDaemon, identity: Identity, where: str
) -> None:
    """One that a project says has no say elsewhere: the twin."""
    cache = identity.home / ".cache" / "pip"
    for name in ("a/.env", "a/plain", "deep/er/.env"):
        identity.write(cache / name, "mine\n")
    settings: dict[str, Any] = {"sandbox": {"presets": ["caches"]}}
    denial = {"filesystem": {"denyWrite": ["**/.env"]}}
    if where == "project":
        project_file(identity, {"sandbox": denial})
    else:
        settings["sandbox"] |= denial
    daemon = start_daemon(settings=settings)
    assert writes(daemon, cache / "a" / "plain")
    for name in ("a/.env", "deep/er/.env"):
        assert writes(daemon, cache / name) is (where == "project"), name
    later = identity.write(cache / "later" / ".env", "mine\n")
    assert writes(daemon, later) is (where == "project")
    explained = daemon.run("explain", "path", "--write", str(later)).stdout
    assert explained.startswith("allowed" if where == "project" else "denied"), explained


def test_a_cache_too_large_to_be_looked_through_is_not_opened(start_daemon: StartDaemon, identity: Identity) -> None:
    cache = identity.home / ".cache" / "pip"
    plain = identity.write(cache / "plain", "mine\n")
    other = identity.write(identity.home / ".cache" / "yarn" / "plain", "mine\n")
    for number in range(20_010):
        (cache / str(number % 100) / str(number)).mkdir(parents=True)
    daemon = start_daemon(settings={"sandbox": {"presets": ["caches"], "filesystem": {"denyRead": ["**/.env"]}}})
    done = daemon.run("run", "--", "true")
    assert done.returncode == 0 and f"{cache} is not opened" in done.stderr and "**/.env" in done.stderr, done
    assert not writes(daemon, plain) and writes(daemon, other)
    assert daemon.run("explain", "path", "--write", str(plain)).stdout.startswith("denied")


DECIDED = """
import json, sys
from sandboxd_client import Client

with Client(autostart=False) as box, box.session() as session:
    for line in json.loads(sys.argv[1]):
        print(session.should_sandbox(line).behavior)
"""


def test_a_rule_with_a_path_is_about_the_file(start_daemon: StartDaemon, identity: Identity) -> None:
    """Where a line changes the directory, the same text may be another program."""
    for name in ("x.sh", "sub/x.sh", "sub/y.sh"):
        identity.write(identity.workspace / name, "#!/bin/sh\n").chmod(0o755)
    (identity.workspace / "link").symlink_to("sub/x.sh")
    rule = f"Bash({identity.workspace}/sub/x.sh:*)"
    lines = {
        "./x.sh": "allow",
        "sub/y.sh": "allow",
        "sub/x.sh": "deny",
        "./link a": "deny",
        "cd sub && ./x.sh": "deny",
        "sh -c 'cd sub; ./x.sh'": "deny",
        "cd sub && ./y.sh": "ask",
        "cd $DIR && ./x.sh": "ask",
    }
    daemon = start_daemon(settings={"sandbox": {"enabled": True}, "permissions": {"deny": [rule]}})
    done = daemon.python(DECIDED, json.dumps(list(lines)))
    assert dict(zip(lines, done.stdout.split(), strict=True)) == lines, done
