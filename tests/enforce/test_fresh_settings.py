"""A rule that was written before a command started holds for it, whichever settings file it is in, whether or not the
system lets files be watched."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity
from support.waiting import wait_until

LIMITED = """
import ctypes, os, sys
uid, gid = os.geteuid(), os.getegid()
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000):
    raise OSError(ctypes.get_errno(), "unshare")
for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
with open(f"/proc/sys/user/{sys.argv[1]}", "w") as file:
    file.write(sys.argv[2])
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Runs a program in a user namespace of its own, with one of the kernel's limits lowered there."""

LIMITS = {
    "watched": None,
    "no instances": ("max_inotify_instances", "0"),
    "no watches": ("max_inotify_watches", "0"),
    "few watches": ("max_inotify_watches", "12"),
}
PLACES = ("user", "local", "project", "project local", "flag", "--settings", "linked")


@pytest.fixture(params=["watched", "no instances", "few watches"])
def limited(request: pytest.FixtureRequest, identity: Identity, start_daemon: StartDaemon) -> Iterator[DaemonProcess]:
    limit = LIMITS[request.param]
    through = [] if limit is None else [sys.executable, "-c", LIMITED, *limit]
    named = identity.write(identity.home / "named.json", "{}")
    yield start_daemon(
        through=through, arguments=["--settings", str(named)],
        env={"SANDBOXD_FLAG_SETTINGS": str(identity.home / "flag.json")},
    )  # fmt: skip


def run(daemon: DaemonProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Our command line in the user namespace of the daemon: it does not know who calls from another one."""
    enter = ["nsenter", "--user", "--preserve-credentials", "--target", str(daemon.pid), "--"]
    if os.stat(f"/proc/{daemon.pid}/ns/user").st_ino == os.stat("/proc/self/ns/user").st_ino:
        enter = []
    return daemon.identity.run([*enter, *daemon.identity.command(*arguments)], env=daemon.environment())


def is_no_directory(path: Path) -> bool:
    return not path.is_dir()


def file_of(place: str, identity: Identity) -> Path:
    return {
        "user": identity.home / ".claude/settings.json",
        "local": identity.home / ".claude/settings.local.json",
        "project": identity.workspace / ".claude/settings.json",
        "project local": identity.workspace / ".claude/settings.local.json",
        "flag": identity.home / "flag.json",
        "--settings": identity.home / "named.json",
        "linked": identity.home / ".claude/settings.json",
    }[place]


def test_a_rule_holds_for_the_next_command(limited: DaemonProcess, identity: Identity) -> None:
    """The same number of bytes each time, in place and by renaming, so that only the times can tell."""
    for name in "ab":
        identity.write(identity.workspace / name, "there")
    assert run(limited, "run", "-c", "cat a b").stdout == "therethere"
    for place in PLACES:
        path = file_of(place, identity)
        wait_until(partial(is_no_directory, path), "what kept the file absent has gone")
        if place == "linked":
            identity.write(identity.home / "elsewhere.json", "{}")
            identity.run(["ln", "-sf", str(identity.home / "elsewhere.json"), str(path)], check=True)
        for denied, renamed in (("a", False), ("b", False), ("a", True), ("b", True)):
            rules = json.dumps({"sandbox": {"filesystem": {"denyRead": [f"{identity.workspace}/{denied}"]}}})
            if renamed and place != "linked":
                new = identity.write(path.with_name("new"), rules)
                os.replace(new, path)
            else:
                identity.write(path, rules)
            done = run(limited, "run", "-c", f"cat {denied}; cat {'b' if denied == 'a' else 'a'}")
            assert done.stdout == "there", (place, denied, renamed, done.stdout, done.stderr)
        path.write_text("{}") if place == "--settings" else path.unlink()
        done = run(limited, "run", "-c", "cat a b")
        assert done.stdout == "therethere", (place, done.stdout, done.stderr)


BETWEEN = """
import json, os, subprocess, sys
from pathlib import Path
from sandboxd_client import Client
path, rules, environment = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
with Client(autostart=False) as box:
    launch = box.wrap(command=sys.argv[4], cwd=".", env={**os.environ, **environment})
    path.parent.mkdir(exist_ok=True)
    path.write_text(rules)
    done = subprocess.run(
        launch.argv, cwd=launch.cwd, env={**os.environ, **environment, **launch.env.set}, capture_output=True, text=True
    )
    outcome = box.wrap_outcome(launch.wrap_id)
    print(json.dumps([done.returncode, done.stdout, outcome.started, outcome.settings_changed, outcome.reason]))
"""
"""Writes a settings file after a command was wrapped and before it is spawned."""

FIXED = {
    "file rule": {"filesystem": {"denyRead": ["a"]}},
    "write rule": {"filesystem": {"denyWrite": ["a"]}},
    "credential file": {"credentials": {"files": [{"path": "a", "mode": "deny"}]}},
    "variable": {"credentials": {"envVars": [{"name": "TOKEN", "mode": "deny"}]}},
    "limit": {"limits": {"maxProcesses": 100}},
    "socket": {"network": {"allowUnixSockets": ["a"]}},
    "unknown": {"filesystem": {"denyEverything": ["a"]}},
}
LIVE = {
    "the same": {},
    "host": {"network": {"deniedDomains": ["a.test"]}},
    "command": {"excludedCommands": ["a"]},
}


def between(daemon: DaemonProcess, path: Path, sandbox: object, command: str) -> list[object]:
    work = daemon.identity.workspace
    done = daemon.python(BETWEEN, str(path), json.dumps({"sandbox": sandbox}), '{"TOKEN": "t"}', command, cwd=work)
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("place", ["user", "project"])
def test_a_rule_written_between_wrap_and_spawn_holds(daemon: DaemonProcess, identity: Identity, place: str) -> None:
    identity.write(identity.workspace / "a", "there")
    path = file_of(place, identity)
    for name, sandbox in FIXED.items():
        if name == "socket" and place == "project":
            continue  # it would widen, which a project may not
        resolved = json.loads(json.dumps(sandbox).replace('"a"', json.dumps(f"{identity.workspace}/a")))
        found = between(daemon, path, resolved, "cat a; touch ran")
        assert found[:4] == [125, "", False, True], (name, found)
        assert "settings have changed" in str(found[4])
        assert not (identity.workspace / "ran").exists(), name
        path.write_text("{}")
    for name, sandbox in LIVE.items():
        assert between(daemon, path, sandbox, "cat a")[:4] == [0, "there", True, False], name
        path.write_text("{}")


GRANTED = """
import json, os, subprocess, sys
from sandboxd_client import Client
place, scope, how = sys.argv[1:]
subscribed, ready = os.pipe()
if asking := os.fork():  # a person, who is not the process that asks
    with Client(autostart=False) as person:
        person.permission_subscribe()
        os.write(ready, b"x")
        for said in person.notifications(60):
            if said.method == "sandbox_permission_request":
                person.permission_respond(said.params.request_id, "allow", scope=scope)
                break
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(asking, 0)[1]))
os.read(subscribed, 1)
with Client(autostart=False) as box, box.session(cwd=".") as session:
    box.permission_request("path", session_id=session.id, path=place, write=True)
    launch = box.wrap(argv=["touch", place + "/made"], session_id=session.id)
    if how == "revoked":
        for grant in box.permission_list(session.id).grants:
            box.permission_revoke(session.id, grant.grant_id)
    environment = {**os.environ, **launch.env.set}
    done = subprocess.run(launch.argv, cwd=launch.cwd, env=environment, stderr=subprocess.PIPE, text=True)
    print(json.dumps([done.returncode, box.wrap_outcome(launch.wrap_id).settings_changed, done.stderr]))
"""


@pytest.mark.parametrize(
    ("scope", "how", "holds"),
    [("session", "kept", True), ("session", "revoked", False), ("once", "kept", True)],
)
def test_a_path_granted_for_a_command_that_has_not_started(
    daemon: DaemonProcess, identity: Identity, scope: str, how: str, holds: bool
) -> None:
    """A grant that was taken back by then opens nothing; the others do."""
    identity.run(["mkdir", str(identity.home / "granted")], check=True)
    place = identity.home / "granted"
    done = daemon.python(GRANTED, str(place), scope, how, cwd=identity.workspace)
    assert done.returncode == 0, done.stderr
    status, changed, said = json.loads(done.stdout)
    assert (status, changed) == ((0, False) if holds else (125, True)), said
    assert (place / "made").exists() is holds
    assert holds or "sandboxd: the settings have changed since the command was prepared\nhint: " in said


RESTARTED = """
import json, os, subprocess, sys
from pathlib import Path
from sandboxd_client import Client
with Client(autostart=False) as box:
    launch = box.wrap(command="cat a", cwd=".")
    box.restart()
    if sys.argv[2]:
        Path(sys.argv[1]).parent.mkdir(exist_ok=True)
        Path(sys.argv[1]).write_text(sys.argv[2])
    environment = {**os.environ, **launch.env.set}
    done = subprocess.run(launch.argv, cwd=launch.cwd, env=environment, stdout=subprocess.PIPE, text=True)
print(json.dumps([done.returncode, done.stdout]))
"""


def test_a_ticket_outlives_its_daemon_under_equal_settings(daemon: DaemonProcess, identity: Identity) -> None:
    work = identity.workspace
    identity.write(work / "a", "there")
    denied = json.dumps({"sandbox": {"filesystem": {"denyRead": [f"{work}/a"]}}})
    hosts = json.dumps({"sandbox": {"network": {"deniedDomains": ["a.test"]}}})
    for rules, expected in (("", [0, "there"]), (hosts, [0, "there"]), (denied, [125, ""])):
        done = daemon.python(RESTARTED, str(file_of("user", identity)), rules, cwd=work)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == expected, (rules, done.stderr)


RUNS = {
    "client": """
        with Client(autostart=False) as box:
            wrap = box.wrap
            box.wrap = lambda **given: changed(wrap(**given))
            done = box.run(command, input="fed", text=True, stdout=PIPE, shell=True)
            print(done.returncode, done.stdout, len(wraps))
    """,
    "async client": """
        async def main():
            async with AsyncClient(autostart=False) as box:
                wrap = box.wrap
                async def later(**given):
                    return changed(await wrap(**given))
                box.wrap = later
                done = await box.run(command, input="fed", text=True, stdout=PIPE, shell=True)
                print(done.returncode, done.stdout, len(wraps))
        asyncio.run(main())
    """,
    "command line": """
        from sandboxd.cli.execution import run
        once = run._spawn
        run._spawn = lambda wrapped, *more: once(changed(wrapped), *more)
        status = run.main(["-c", command])
        print(status, "", len(wraps), flush=True)
    """,
}
AROUND = """
import asyncio, sys
from pathlib import Path
from subprocess import PIPE
from sandboxd_client import AsyncClient, Client
path, rules, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
wraps = []
def changed(wrapped):
    wraps.append(wrapped)
    if len(wraps) == 1:
        path.parent.mkdir(exist_ok=True)
        path.write_text(rules)
    return wrapped
"""


@pytest.mark.parametrize("how", RUNS)
def test_a_command_whose_settings_changed_is_wrapped_again(daemon: DaemonProcess, identity: Identity, how: str) -> None:
    work = identity.workspace
    identity.write(work / "a", "there")
    rules = json.dumps({"sandbox": {"filesystem": {"denyRead": [f"{work}/a"]}}})
    code = AROUND + textwrap.dedent(RUNS[how])
    words = str(file_of("user", identity)), rules, "cat; cat a || echo closed; echo ran >> runs"
    done = identity.run(identity.python("-c", code, *words), cwd=work, env=daemon.environment(), input="fed")
    assert "fedclosed" in done.stdout and "2" in done.stdout, (done.stdout, done.stderr)
    assert (work / "runs").read_text() == "ran\n"


FILES = {
    "protected ones go": ("mkdir .vscode .idea; touch .vscode/a .idea/a", "rm -r .vscode .idea"),
    "a protected one is a file now": ("mkdir .vscode; touch .vscode/a", "rm -r .vscode; echo own >.vscode"),
    "a protected one is a link now": ("mkdir .idea; touch .idea/a", "mv .idea moved; ln -s moved .idea"),
    "a denied one goes": ("mkdir secret; echo a >secret/a", "rm -r secret"),
    "those that keep names absent go": ("true", "find . -mindepth 1 -type d -perm -1000 -delete"),
    "one has a directory of its own now": ("true", "rm -d .idea || true; mkdir .idea; echo own >.idea/a"),
}
ACT = """
import subprocess
def changed(wrapped):
    wraps.append(wrapped)
    if len(wraps) == 1:
        subprocess.run(["sh", "-ec", rules], check=True)
    return wrapped
"""
PLANT = "for n in .vscode .idea; do (mkdir -p $n; echo x >$n/planted; echo x >$n) 2>>errors; done; cat; echo ran >>runs"


@pytest.mark.parametrize("how", RUNS)
@pytest.mark.parametrize("what", FILES)
def test_a_command_of_which_the_files_changed_is_wrapped_again(
    identity: Identity, start_daemon: StartDaemon, how: str, what: str
) -> None:
    work = identity.workspace
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"denyRead": [f"{work}/secret"]}}})
    setup, act = FILES[what]
    identity.run(["sh", "-ec", setup], cwd=work, check=True)
    code = AROUND + ACT + textwrap.dedent(RUNS[how])
    words = str(work), act, PLANT
    done = identity.run(identity.python("-c", code, *words), cwd=work, env=daemon.environment(), input="fed")
    assert done.returncode == 0 and "fed" in done.stdout, (done.stdout, done.stderr)
    assert (work / "runs").read_text() == "ran\n"
    assert not any((work / name / "planted").exists() for name in (".vscode", ".idea", "moved")), done.stderr
    for name in (".vscode", ".idea"):
        assert not (work / name).is_file() or (work / name).read_text() == "own\n"
    if what in ("protected ones go", "a protected one is a link now"):  # for others there is something to mount on
        assert done.stdout.split()[-1] == "2", (done.stdout, done.stderr)


@pytest.mark.parametrize("limit", ["no instances", "no watches"])
def test_it_is_told_that_nothing_is_watched(identity: Identity, start_daemon: StartDaemon, limit: str) -> None:
    words = LIMITS[limit]
    assert words is not None
    daemon = start_daemon(through=[sys.executable, "-c", LIMITED, *words])
    told = []
    for arguments in (("status",), *(("run", "--", "true"),) * 3, ("status",)):
        done = run(daemon, *arguments)
        assert "settings files are not watched" in done.stdout + done.stderr, done
        told.append("protected names that are made outside" in done.stdout + done.stderr)
    first = limit == "no instances"  # watches are taken once a command runs
    assert told == [False, first, not first, False, True]
    assert daemon.log.read_text().count("protected names made outside stay writable") == 1
    daemon.stop()
    watched = start_daemon()
    for arguments in (("status",), ("run", "--", "true")):
        done = watched.run(*arguments)
        assert done.returncode == 0 and "not watched" not in done.stdout + done.stderr, done
        assert "made outside" not in done.stdout + done.stderr, done


RAISE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.setns(os.open(f"/proc/{sys.argv[1]}/ns/user", os.O_RDONLY), 0):
    raise OSError(ctypes.get_errno(), "setns")
with open("/proc/sys/user/max_inotify_instances", "w") as file:
    file.write("100")
"""


def test_watching_comes_back(identity: Identity, start_daemon: StartDaemon) -> None:
    """The limit is that of the daemon's user namespace, and is raised from outside while it runs."""
    daemon = start_daemon(through=[sys.executable, "-c", LIMITED, "max_inotify_instances", "0"])
    assert "not watched" in run(daemon, "run", "--", "true").stderr
    identity.run(identity.python("-c", RAISE, str(daemon.pid)), check=True)
    wait_until(lambda: "not watched" not in run(daemon, "run", "--", "true").stderr, "it is watched again")
    assert "not watched" not in run(daemon, "status").stdout
    assert watches(daemon.pid) > 0


@pytest.mark.parametrize("most", [0, 40, 400])
def test_few_watches_and_a_pattern_that_searches_a_tree(
    identity: Identity, start_daemon: StartDaemon, most: int
) -> None:
    """The daemon takes a quarter of them, and what it does not watch holds all the same."""
    work = identity.workspace
    identity.run(["sh", "-ec", "for a in $(seq 300); do mkdir -p tree/$a; done"], cwd=work, check=True)
    daemon = start_daemon(
        settings={"sandbox": {"filesystem": {"denyRead": [f"{work}/tree/**/.env"]}}},
        through=[sys.executable, "-c", LIMITED, "max_inotify_watches", str(most)],
    )
    assert run(daemon, "run", "--", "true").returncode == 0
    for number in (1, 150, 300):
        secret = work / "tree" / str(number) / ".env"
        identity.write(secret, "secret")
        identity.write(secret.with_name("other"), "other ")
        done = run(daemon, "run", "-c", f"cat {secret.parent}/other {secret}")
        assert done.stdout == "other " and done.returncode, (number, done)
    settings, files = 200, most // 4  # those of the settings files are apart
    assert watches(daemon.pid) <= min(most, settings + files)


@pytest.mark.parametrize(("limit", "most", "of"), [("instances", 5, "instances"), ("watches", 100, "watches")])
def test_it_is_told_once_that_directories_are_compared(
    identity: Identity, start_daemon: StartDaemon, limit: str, most: int, of: str
) -> None:
    work = identity.workspace
    identity.run(["sh", "-ec", "for a in $(seq 100); do mkdir -p tree/$a; done"], cwd=work, check=True)
    daemon = start_daemon(through=[sys.executable, "-c", LIMITED, f"max_inotify_{limit}", str(most)])
    told = [f"inotify {of} are used up" in run(daemon, "run", "--", "true").stderr for _ in range(3)]
    assert told == [True, False, False]
    assert f"inotify {of} are used up" in run(daemon, "status").stdout
    if limit == "instances":
        assert instances(daemon.pid) == 2, "those of the settings files and of protected names that appear"
    daemon.stop()
    daemon = start_daemon()
    assert "used up" not in run(daemon, "run", "--", "true").stderr
    assert instances(daemon.pid) == 4, "and those of directories and of placeholders"


def instances(pid: int) -> int:
    """Those of inotify that a process has."""
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += os.readlink(path) == "anon_inode:inotify"
    return count


def test_watches_of_ended_sessions_are_given_back(daemon: DaemonProcess, identity: Identity) -> None:
    """Those of the last few stay: the next command often follows at once."""
    work = identity.workspace
    identity.run(["sh", "-ec", "for p in $(seq 30); do mkdir -p $p/a/b $p/c; done"], cwd=work, check=True)
    assert daemon.run("run", "--", "true").returncode == 0
    of_a_tree = watches(daemon.pid)
    for number in range(1, 13):
        assert daemon.run("run", "--", "true", cwd=work / str(number)).returncode == 0
    assert watches(daemon.pid) < of_a_tree - 60


def watches(pid: int) -> int:
    count = 0
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            count += path.read_text().count("\ninotify ")
    return count


@pytest.mark.usefixtures("placeholders")
@pytest.mark.parametrize("how", ["denied there", "denied inside", "searched"])
def test_a_filled_placeholder_of_another_project_is_closed(
    start_daemon: StartDaemon, identity: Identity, how: str
) -> None:
    """Nothing is at the name but what a command of the other project needs there, and that command goes on."""
    one, other = identity.workspace / "one", identity.workspace / "other"
    rule = {"denied there": "/.vscode", "denied inside": "/.vscode/secret", "searched": "/**/secret"}[how]
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"denyRead": [f"{one}{rule}"]}}})
    identity.run(["mkdir", "-p", str(one), str(other)], check=True)
    with daemon.popen("run", "-c", "echo ready; cat", cwd=one, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as held:
        assert held.stdout is not None and held.stdout.readline() == b"ready\n"
        assert (one / ".vscode").is_dir(), "it is kept absent"
        for _ in range(2):
            assert daemon.run("run", "-c", f"ls {one}/.vscode", cwd=other).stdout == ""
        identity.write(one / ".vscode" / "secret", "secret")
        identity.write(one / "open", "open")
        done = daemon.run("run", "-c", f"cat {one}/open {one}/.vscode/secret", cwd=other)
        assert done.stdout == "open" and done.returncode, (done.stdout, done.stderr)
        held.communicate(b"")
    assert (one / ".vscode" / "secret").read_text() == "secret"


LOCKS = """
import fcntl, os, sys, time
held = []
for path in sys.argv[1:]:
    for mode in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        try:
            held.append(os.open(path, os.O_RDONLY))
            fcntl.flock(held[-1], mode | fcntl.LOCK_NB)
            break
        except OSError:
            pass
print("ready", flush=True)
sys.stdin.readline()
"""


def test_locks_of_a_command_delay_no_settings(daemon: DaemonProcess, identity: Identity) -> None:
    config = identity.home / ".claude"
    for name in ("settings.json", "settings.local.json"):
        identity.write(config / name, "{}")
    script = identity.write(identity.workspace / "locks.py", LOCKS)
    base = f"/var/tmp/sandboxd-{identity.uid}"
    paths = [str(path) for path in (config, *config.iterdir(), identity.home, identity.workspace, base)]
    with daemon.popen(
        "run", "--", "python3", str(script), *paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None and command.stdout.readline() == "ready\n"
        done = daemon.run("settings", "set", "sandbox.network.deniedDomains", '["a.test"]')
        assert done.returncode == 0, done.stderr
        assert daemon.run("run", "--", "true").returncode == 0
        command.communicate("\n")
    assert "a.test" in (config / "settings.local.json").read_text()
