"""Commands that clean up meet what keeps protected names absent, and work: removing it succeeds and does nothing, since
outside the name is absent. What is there outside as well is refused as ever, and nothing can be made at the name."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from support.bubblewrap import each_bubblewrap
from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("placeholders")

CLIENT = """
import json, sys
from sandboxd_client import Client
with Client(autostart=False) as box:
    for asked in sys.stdin:
        line, cwd = json.loads(asked)
        done = box.run(f"exec 2>&1; {line}", cwd=cwd, capture_output=True, text=True)
        violations = [[one.operation, one.target] for one in done.violations]
        print(json.dumps([done.returncode, done.stdout, violations]), flush=True)
"""
Run = Callable[..., tuple[int, str, set[tuple[str, str]]]]
"""`run(daemon, line, cwd=None)`: exit status, everything said, and what was refused: the calls and the names below the
working directory."""


@pytest.fixture
def run() -> Iterator[Run]:
    """One client for each daemon, since a Python for each line takes longer than the line."""
    clients: dict[int, subprocess.Popen[str]] = {}

    def run(daemon: DaemonProcess, line: str, cwd: Path | None = None) -> tuple[int, str, set[tuple[str, str]]]:
        identity = daemon.identity
        client = clients.get(daemon.process.pid)
        if client is None:
            client = clients[daemon.process.pid] = identity.popen(
                identity.python("-c", CLIENT), env=daemon.environment(), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write(json.dumps([line, str(cwd or identity.workspace)]) + "\n")
        client.stdin.flush()
        answer = client.stdout.readline()
        assert answer, "the client has ended"
        status, said, refused = json.loads(answer)
        place = f"{cwd or identity.workspace}/"
        return status, said, {(operation, target.removeprefix(place)) for operation, target in refused}

    yield run
    for client in clients.values():
        client.communicate()


def host(identity: Identity, line: str) -> str:
    return identity.run(["/bin/sh", "-ec", line], env=identity.environment(), check=True).stdout


def there(place: Path) -> list[str]:
    """All that is in a directory for good: a placeholder is sticky, and outlives its sandbox for a moment. (`rglob`
    does not bear that one goes while it looks.)"""
    found = []
    for directory, names, files in os.walk(place):
        for path in (Path(directory, name) for name in (*names, *files)):
            with contextlib.suppress(FileNotFoundError):
                if path.relative_to(place).parts[0] != ".git" and not path.lstat().st_mode & 0o1000:
                    found.append(str(path.relative_to(place)))
    return sorted(found)


def gone(place: Path, names: Iterable[str]) -> None:
    wait_until(lambda: not any((place / name).exists() for name in names), "the placeholders are gone")


ABSENT = (".vscode", ".idea", ".mcp.json", ".gitmodules", ".claude")
REPOSITORY = """
git init -q -b main .; git config user.name a; git config user.email a@a.test
printf 'ignored\\n' >.gitignore; echo 1 >tracked; mkdir sub; echo 1 >sub/tracked
git add .; git commit -qm first
"""
UNTRACKED = "echo 2 >>tracked; mkdir -p new/below; touch new/file new/below/file ignored sub/new;"
RMTREE = """
import os, shutil
for entry in os.scandir():
    if entry.name != ".git":
        shutil.rmtree(entry) if entry.is_dir() else os.remove(entry)
"""
CLEANED = {
    "git clean -fd": [".gitignore", "ignored", "sub", "sub/tracked", "tracked"],
    "git clean -fdx": [".gitignore", "sub", "sub/tracked", "tracked"],
    "git clean -fdX": [".gitignore", "new", "new/below", "new/below/file", "new/file", "sub", "sub/new", "sub/tracked",
                       "tracked"],
    "git stash -u && git diff --quiet": [".gitignore", "ignored", "sub", "sub/tracked", "tracked"],
    "git stash -u && git stash pop": [".gitignore", "ignored", "new", "new/below", "new/below/file", "new/file", "sub",
                                      "sub/new", "sub/tracked", "tracked"],
    "git stash -a -q && git diff --quiet": [".gitignore", "sub", "sub/tracked", "tracked"],
    "ls -A | grep -vx .git | xargs rm -r": [],
    "ls -A | grep -vx .git | xargs rm -rf": [],
    "find * .vscode .idea .mcp.json .gitmodules .gitignore -delete": [],
    f"python3 -c '{RMTREE}'": [],
}  # fmt: skip
"""Lines, and what is there afterwards."""


@each_bubblewrap
def test_commands_that_clean_up(start_daemon: StartDaemon, identity: Identity, run: Run) -> None:
    daemon, work = start_daemon(), identity.workspace
    host(identity, REPOSITORY)
    for line, left in CLEANED.items():
        host(identity, f"git stash clear; git reset -q --hard; git clean -fdxq; {UNTRACKED}")
        status, said, refused = run(daemon, f"test -d .vscode && ls -d .mcp.json && {line}")
        assert (status, refused) == (0, set()), (line, said, refused)
        assert "Device or resource busy" not in said and "warning" not in said, said
        assert there(work) == left, line
        gone(work, ABSENT)
    host(identity, "git fsck 2>&1")
    assert "tracked" in host(identity, "git ls-files")


@each_bubblewrap
def test_one_by_one(start_daemon: StartDaemon, identity: Identity, run: Run) -> None:
    daemon, work = start_daemon(), identity.workspace
    for line in ("rmdir .vscode", "rmdir .vscode/ .idea", "rm -d .vscode", "rm -rf .vscode && rm -rf .vscode",
                 "mkdir -p a/b && touch a/b/c && rm -r a .mcp.json && test ! -e a"):  # fmt: skip
        assert run(daemon, line) == (0, "", set()), line
    assert there(work) == []
    line = "mkdir d; chmod -R 777 . && rm -rf .idea && stat -c %a d .idea"
    assert run(daemon, line) == (0, "777\n1555\n", set())
    (work / "d").rmdir()
    # as strong as before: nothing can be made there
    for line, refused in {
        "rmdir .vscode; mkdir .vscode": ".vscode",
        "rmdir .vscode; echo x >.vscode/settings.json": ".vscode/settings.json",
        "rmdir .vscode; mkdir x; mv -T x .vscode": ".vscode",
        "chmod -R 777 .; echo x >.vscode/settings.json": ".vscode/settings.json",
        "rmdir .mcp.json; echo x >.mcp.json": ".mcp.json",
        "rmdir .mcp.json; ln -s /tmp .mcp.json/x": ".mcp.json/x",
        "rm -rf .idea; cp -r /etc/alternatives .idea": ".idea/alternatives",
    }.items():
        status, said, found = run(daemon, line)
        assert status != 0 and refused in {target for _, target in found}, (line, said, found)
    gone(work, ABSENT)
    assert there(work) == ["x"]


@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o700])
def test_what_is_really_there_is_refused(daemon: DaemonProcess, identity: Identity, mode: int, run: Run) -> None:
    work = identity.workspace
    host(identity, REPOSITORY)
    for name in (".vscode", ".claude", ".claude/commands"):
        (work / name).mkdir()
        identity.own(work / name).chmod(mode)
    for line in (
        "rmdir .vscode",
        "rm -rf .vscode",
        "git clean -fdxe .claude",
        "python3 -c 'import os; os.rmdir(\".vscode\")'",
    ):
        status, said, refused = run(daemon, line)
        assert status and "busy" in said and {target for _, target in refused} == {".vscode"}, (line, said, refused)
    status, said, refused = run(daemon, "rm -rf .claude")
    assert status and {target for _, target in refused} == {".claude/commands"}, (said, refused)
    assert all((work / name).is_dir() for name in (".claude", ".claude/commands", ".vscode"))


def test_a_directory_that_only_holds_absent_names_stays(daemon: DaemonProcess, identity: Identity, run: Run) -> None:
    """It is there outside, so its removal is refused aloud."""
    work = identity.workspace
    (work / ".claude").mkdir()
    identity.own(work / ".claude")
    status, said, refused = run(daemon, "rmdir .claude/commands && rm -rf .claude")
    assert status and ("unlinkat", ".claude") in refused, (said, refused)
    assert {target for _, target in refused} == {".claude"} and (work / ".claude").is_dir()


def test_where_nothing_is_reported(start_daemon: StartDaemon, identity: Identity, run: Run) -> None:
    daemon, work = start_daemon(settings={"sandbox": {"reportViolations": "off"}}), identity.workspace
    host(identity, f"{REPOSITORY} {UNTRACKED}")
    for line in ("git clean -fdxq", "rmdir .vscode && rm -rf .idea .mcp.json", f"{UNTRACKED} git stash -qu"):
        assert run(daemon, line) == (0, "", set()), line
    gone(work, ABSENT)
    (work / ".vscode").mkdir()
    identity.own(work / ".vscode")
    status, said, refused = run(daemon, "rmdir .vscode || mkdir .idea")
    assert status and "busy" in said and not refused and (work / ".vscode").is_dir()


@each_bubblewrap
def test_two_in_one_directory(start_daemon: StartDaemon, identity: Identity, run: Run) -> None:
    """One removes, and neither can plant."""
    daemon, work = start_daemon(), identity.workspace
    plant = "mkdir .vscode || echo x >.vscode/tasks.json"
    with daemon.popen(
        "run", "-c", f"echo ready; read line; {plant}; echo $?", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None and other.stdout.readline() == "ready\n"
        assert run(daemon, "rm -rf .vscode .mcp.json; ls -d .vscode")[:2] == (0, ".vscode\n")
        status, _, refused = run(daemon, f"rmdir .vscode; {plant}")
        assert status and ("mkdir", ".vscode") in refused
        assert (work / ".vscode").is_dir() and not [*(work / ".vscode").iterdir()]
        said, _ = other.communicate("\n")
        assert said == "1\n" or said == "2\n", said
    gone(work, ABSENT)
    assert there(work) == []


def test_at_home(daemon: DaemonProcess, identity: Identity, run: Run) -> None:
    """Where most names are absent, some of them below directories that are, and some are kept by empty files."""
    home = identity.home
    host(identity, "mkdir -p ~/project; touch ~/project/x ~/file")
    before = there(home)
    # the daemon's records in .local/state are really there, and cannot be removed
    status, said, refused = run(daemon, "ls -A | grep -vxE '.claude|.local' | xargs rm -rf; ls -A | wc -l", cwd=home)
    assert status == 0 and not refused, (said, refused)
    assert int(said) > 20, said
    assert [name for name in there(home) if name.split("/")[0] != ".local"] == [
        name for name in before if name.split("/")[0] == ".claude"
    ]
    assert run(daemon, "chmod 600 .bashrc .profile; stat -c %a .bashrc", cwd=home) == (0, "1644\n", set())
    for line in ("rm .bashrc; echo x >>.bashrc", "rm -rf .local; mkdir -p .local/bin; touch .local/bin/x",
                 "rm .gitconfig; git config --global user.name x"):  # fmt: skip
        status, said, refused = run(daemon, line, cwd=home)
        assert status and refused, (line, said)
    daemon.stop()
    assert [name for name in there(home) if name.split("/")[0] != ".local"] == [
        name for name in before if name.split("/")[0] == ".claude"
    ]


@each_bubblewrap
def test_git_clean_outside_while_a_command_runs(start_daemon: StartDaemon, identity: Identity, run: Run) -> None:
    """It takes the mounts of that command with it. The next one runs and is protected, and what the first one makes
    then is moved aside when it ends."""
    daemon, work = start_daemon(), identity.workspace
    host(identity, REPOSITORY)
    plant = "mkdir -p .vscode .claude/hooks; echo x >.vscode/tasks.json; echo x >.claude/hooks/x; echo x >own"
    with daemon.popen(
        "run", "--show-violations", "-c", f"echo ready; read line; {plant}", stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as first:  # fmt: skip
        assert first.stdout is not None and first.stdout.readline() == "ready\n"
        for line in ("git clean -fdxq", "rm -rf .vscode .claude .idea"):
            host(identity, line)
            assert not (work / ".vscode").exists()
            status, said, refused = run(daemon, f"{plant}; git status --porcelain")
            assert status == 0 and ("openat", ".vscode/tasks.json") in refused, (said, refused)
            assert said.endswith("?? own\n") and (work / "own").exists()
        _, said = first.communicate("\n")
    assert f"create {work}/.vscode" in said and "refused-" in said, said
    gone(work, ABSENT)
    moved = [name for name in there(work) if "refused-" in name and name.endswith(("tasks.json", "hooks/x"))]
    assert len(moved) == 2 and not any(name in ABSENT for name in there(work)), there(work)


def test_a_clean_up_from_above_while_a_command_runs(daemon: DaemonProcess, identity: Identity, run: Run) -> None:
    """By a command whose working directory is further up: nothing is left, in either order of ends."""
    work = identity.workspace
    (work / "sub").mkdir()
    identity.own(work / "sub")
    with daemon.popen(
        "run", "--cwd", str(work / "sub"), "-c", "echo ready; read line; echo x >own", stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as below:  # fmt: skip
        assert below.stdout is not None and below.stdout.readline() == "ready\n"
        assert run(daemon, "find sub -mindepth 1 -delete")[0] == 0
        assert run(daemon, "echo x >.mcp.json || echo closed", cwd=work / "sub")[1].endswith("closed\n")
        below.communicate("\n")
    gone(work / "sub", ABSENT)
    assert there(work) == ["sub", "sub/own"]
