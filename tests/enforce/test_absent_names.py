"""Protected names that are absent stay so, with nothing at them: in the project, at home, inside and outside."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.processes import descendants
from support.users import Identity
from support.waiting import wait_until

REFUSED = {
    "mkdir .vscode": ".vscode",
    "echo x > .mcp.json": ".mcp.json",
    "ln -s /etc .idea": ".idea",
    "touch t; mv t .gitmodules": ".gitmodules",
    "touch u; ln u .ripgreprc": ".ripgreprc",
    "mkfifo .cursor": ".cursor",
    "mkdir -p .claude/commands": ".claude",
    "cp /etc/hostname .git/commondir": ".git/commondir",
    "cp /etc/hostname .git/config.worktree": ".git/config.worktree",
    "mkdir d; mv d .windsurf": ".windsurf",
    "mkdir -p .opencode/plugins": ".opencode",
    "mkdir -p .kiro/settings": ".kiro",
    "mkdir -p .github/workflows; mkdir .github/hooks": ".github/hooks",
    "echo x > crush.json": "crush.json",
}
QUIET = "ls -A; git status --porcelain; git clean -fdx; git stash -u; git fetch -q . HEAD; ls -A .git | grep -c x"


@contextmanager
def sampled(*places: Path) -> Iterator[set[str]]:
    """Every entry that is seen in these directories, looked at all the time."""
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            for place in places:
                seen.update(os.listdir(place))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def repository(identity: Identity) -> Path:
    identity.run(["git", "init", "-q", str(identity.workspace)])
    return identity.workspace


def test_absent_names_are_refused_and_never_there(daemon: DaemonProcess) -> None:
    work = repository(daemon.identity)
    git = set(os.listdir(work / ".git"))
    line = "; ".join(f"({line})" for line in REFUSED)
    before = (work / "sub").exists(), work.stat().st_mtime_ns
    with sampled(work, work / ".git") as seen:
        still = daemon.run("run", "-c", "sleep 0.3; ls -A; stat -c %i .git")
        assert work.stat().st_mtime_ns == before[1], "a command that makes nothing changes nothing"
        done = daemon.run("run", "-c", f"({line}) 2>&1; ls -A | tr '\\n' ' '")
    assert still.stdout.split()[0] == ".git" and len(still.stdout.split()) == 2
    assert done.stdout.count("Permission denied") == len(REFUSED), done
    assert seen <= {".git", ".github", "t", "u", "d"} | git
    said = daemon.run("violations").stdout
    assert not [name for name in REFUSED.values() if f"{work / name}: pathProtected" not in said], said
    assert "absent-names," in daemon.run("status").stdout


def test_commands_of_git_see_nothing(daemon: DaemonProcess) -> None:
    repository(daemon.identity)
    make = "git config user.name n; git config user.email e; echo 1 >f; git add f; git commit -qm f"
    daemon.identity.run(["sh", "-c", make], cwd=daemon.identity.workspace)
    done = daemon.run("run", "-c", f"exec 2>&1; {QUIET}")
    assert done.stdout.splitlines()[:1] == [".git"] and "warning" not in done.stdout, done
    assert not [name for name in REFUSED.values() if name in done.stdout], done


PERSON = {
    "a file": ("echo mine > .mcp.json", ".mcp.json"),
    "an atomic save": ("echo mine > t.tmp; mv t.tmp .mcp.json", ".mcp.json"),
    "a tree": ("mkdir t.d; echo mine > t.d/settings.json; mv t.d .vscode", ".vscode/settings.json"),
    "in place": ("mkdir .vscode; echo mine > .vscode/settings.json", ".vscode/settings.json"),
    "two levels": ("mkdir -p .claude; echo mine > .claude/settings.json", ".claude/settings.json"),
    "over an old file": ("echo mine > t.tmp; mv t.tmp .ripgreprc", ".ripgreprc"),
    "over an old folder": ("mkdir t.f; echo mine > t.f/x; mv .cursor t.g; mv t.f .cursor", ".cursor/x"),
    "over an old link": ("mkdir t.h; echo mine > t.h/x; ln -s t.h t.l; mv -T t.l .zed", ".zed"),
    "a link": ("mkdir t.e; echo mine > t.e/x; ln -s t.e .idea", ".idea"),
}
TRIES = """
until test -e made; do
    for name in $NAMES; do
        (echo theirs > $name; rm $name; mv $name away; chmod 777 $name; ln -s f $name) 2>/dev/null
        (rm $name/*.json .cursor/x; echo x >> $name/settings.json) 2>/dev/null
    done
    touch tried
done
touch over; until test -e end; do sleep 0.02; done; cat .mcp.json
"""


def test_what_a_person_makes_meanwhile_is_theirs(daemon: DaemonProcess) -> None:
    """From the first moment it cannot be changed inside, stays, and is not reported as the command's."""
    identity, work = daemon.identity, daemon.identity.workspace
    names = " ".join(dict.fromkeys(name for _, name in PERSON.values()))
    identity.run(
        ["sh", "-ec", "echo old > .ripgreprc; mkdir .cursor t.i; echo old > .cursor/x; ln -s t.i .zed"], cwd=work
    )
    client = daemon.popen("run", "-c", f"NAMES='{names}'; {TRIES}", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until((work / "tried").exists, "the command tries")
    for line, name in PERSON.values():
        identity.run(["sh", "-ec", line], cwd=work)
        assert (work / name).exists(), line
        top = work / name.split("/")[0]
        wait_until(partial(is_mounted_inside, client.pid, top), f"{top} is closed")
    for _ in range(20):
        identity.run(["sh", "-ec", "echo mine > t.tmp; mv t.tmp .mcp.json; cat .mcp.json"], cwd=work, check=True)
    identity.run(["touch", "made"], cwd=work)
    wait_until((work / "over").exists, "the command has tried all of them")
    assert {(work / name).read_text() for _, name in PERSON.values() if name not in (".idea", ".zed")} == {"mine\n"}
    assert (os.readlink(work / ".idea"), os.readlink(work / ".zed")) == ("t.e", "t.h")
    assert os.listdir(work / ".vscode") == ["settings.json"]
    identity.run(["sh", "-c", "echo anew > t.tmp; mv t.tmp .mcp.json; touch end"], cwd=work)
    out, err = client.communicate()
    assert client.returncode == 0 and out.endswith(b"anew\n"), err
    assert (work / ".mcp.json").read_text() == "anew\n" and (work / ".vscode").is_dir()
    assert not list(work.glob("*.refused-*")) and not list(work.glob(".*.refused-*"))


def is_mounted_inside(client: int, path: Path) -> bool:
    """Whether one of the command's processes, which come and go, has a mount on the path."""
    for process in descendants(client):
        with suppress(OSError):  # it has ended since
            if f" {path} " in Path(f"/proc/{process.pid}/mountinfo").read_text():
                return True
    return False


@pytest.mark.parametrize("whom", ["client", "helper", "daemon"])
def test_nothing_appears_whoever_is_killed(start_daemon: StartDaemon, whom: str) -> None:
    daemon = start_daemon()
    work = repository(daemon.identity)
    with sampled(work, daemon.identity.home) as seen:
        client = daemon.popen("run", "-c", "echo running; sleep 987", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert client.stdout is not None and client.stdout.readline() == b"running\n"
        pids = {"client": client.pid, "helper": descendants(client.pid)[1].pid, "daemon": daemon.process.pid}
        os.kill(pids[whom], signal.SIGKILL)
        if whom == "daemon":
            client.terminate()
        client.communicate()
    assert seen <= {".git", ".cache", ".local", ".config"}


def test_where_names_cannot_be_compared_there_are_placeholders(placeholders: None, start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    done = daemon.run("run", "-c", "ls -A; mkdir .vscode")
    assert ".vscode" in done.stdout and done.returncode == 1
    assert "absent-names-placeholders" in daemon.run("status").stdout


def test_writing_a_name_that_is_hidden_is_refused(identity: Identity, start_daemon: StartDaemon) -> None:
    """Refuse a hidden name as a name, although a directory hides it."""
    work = identity.workspace
    (work / "closed").mkdir()
    closed = [str(work / name) for name in ("gone", "closed")]
    daemon = start_daemon(settings={"sandbox": {"filesystem": {"denyRead": closed}}})
    lines = ("echo x > gone", "echo x >> gone", "truncate -s 0 gone", "echo x > closed", "cp /etc/hostname open")
    done = daemon.run("run", "-c", "; ".join(f"({line}) 2>&1" for line in lines))
    assert [line.rpartition(": ")[2] for line in done.stdout.splitlines()] == ["Permission denied"] * 4
    assert (work / "open").is_file() and not (work / "gone").is_file()
    said = daemon.run("violations").stdout
    assert all(f"{path}: pathDenied" in said and f"rule {path} in" in said for path in closed), said
