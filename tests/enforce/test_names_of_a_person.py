"""A person creates, fills, replaces and removes protected names between commands and while they run, also where a
placeholder stands at that moment: every later command starts, and none of them changes what the person has made."""

from __future__ import annotations

import json
import subprocess

import pytest

from support.daemons import DaemonProcess
from support.users import Identity

SEQUENCE = """
import json, os, random, shutil, sys, time
from pathlib import Path
from sandboxd_client import Client

NAMES = sys.argv[3:]
PLANT = "for n in %s; do (echo planted >$n; mkdir -p $n; echo planted >$n/planted; rm -rf $n) 2>/dev/null; done; true"

def fill(path):
    path.mkdir(parents=True, exist_ok=True)
    (path / "own").write_text("own")

def removed(path):
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)

def file(path):
    removed(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("own")

def written(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("own")

def renamed_over(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.parent / "new"
    removed(new)
    fill(new)
    if path.is_file() or any(path.glob("*")):
        removed(path)
    new.rename(path)

def taken(path):
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o755)

def emptied(path):
    if path.is_dir():
        [removed(entry) for entry in path.iterdir()]

ACTS = (fill, fill, removed, file, written, renamed_over, taken, emptied)

def now():
    found = {}
    for name in set(NAMES) - {".claude"}:  # commands may change what else is there
        for path in (Path(name), Path(name) / "own", Path(name) / "planted"):
            if path.is_file() and (text := path.read_text()):  # in a home, what keeps a file absent is an empty one
                found[str(path)] = text
    return found

chosen = random.Random(int(sys.argv[1]))
steps = []
with Client(autostart=False) as box:
    for _ in range(int(sys.argv[2])):
        name, act = chosen.choice(NAMES), chosen.choice(ACTS)
        lingers = chosen.random() < 0.8
        try:
            act(Path(name))
        except (NotADirectoryError, FileExistsError, IsADirectoryError):
            continue
        if not lingers:
            time.sleep(0.25)  # what stands there for nothing has gone
        before = now()
        steps.append((act.__name__, name))
        for _ in range(2):
            done = box.run(PLANT % " ".join(NAMES), capture_output=True, text=True)
            if done.returncode:
                sys.exit(json.dumps([steps, done.returncode, done.stderr]))
        if now() != before:
            sys.exit(json.dumps([steps, before, now()]))
print(json.dumps(len(steps)))
"""


PROJECT = (".vscode", ".mcp.json", ".claude", ".claude/commands", ".gitmodules", "sub/.idea", "sub/.claude/agents")
HOME = (".gitconfig", ".bashrc", ".profile", ".vscode", ".config/git/config", ".mcp.json")
WORKTREE = (".vscode", ".claude/agents", ".idea", "../main/.git/hooks/pre-commit", "../main/.git/config.worktree")
REPOSITORY = """
git init -q -b main main; cd main; git config user.name a; git config user.email a@a.test
git commit -q --allow-empty -m first; git worktree add -q ../linked
"""


@pytest.mark.parametrize(
    ("place", "seed"), [("project", 0), ("project", 1), ("home", 0), ("home", 1), ("linked worktree", 1)]
)
def test_generated_sequences(daemon: DaemonProcess, identity: Identity, place: str, seed: int) -> None:
    cwd = identity.workspace
    names: tuple[str, ...] = PROJECT
    if place == "home":
        cwd, names = identity.home, HOME
    if place == "linked worktree":
        identity.run(["sh", "-ec", REPOSITORY], cwd=cwd, check=True)
        cwd, names = cwd / "linked", WORKTREE
    done = daemon.python(SEQUENCE, str(seed), "15", *names, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) > 7


@pytest.mark.parametrize("name", [".vscode", ".mcp.json", ".claude/commands", "sub/.idea"])
def test_one_is_filled_while_a_command_needs_it_absent(daemon: DaemonProcess, identity: Identity, name: str) -> None:
    work = identity.workspace
    identity.run(["mkdir", "-p", "sub", ".claude"], cwd=work, check=True)
    with daemon.popen(
        "run", "-c", "echo ready; read line", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "ready\n"
        identity.run(["sh", "-ec", f"mkdir -p {name}; echo own > {name}/own"], cwd=work, check=True)
        for _ in range(2):
            done = daemon.run("run", "-c", f"echo x >{name}/own; echo x >{name}/new; rm -rf {name}; true")
            assert done.returncode == 0, done.stderr
        first.communicate("\n")
    done = daemon.run("run", "-c", f"cat {name}/own; echo x >{name}/new")
    assert done.stdout == "own\n" and done.returncode not in (0, 125), done.stderr
    assert [entry.name for entry in (work / name).iterdir()] == ["own"]
    assert (work / name / "own").read_text() == "own\n"
