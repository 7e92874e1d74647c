"""Directories that this user cannot search or write at the moment, and files where a rule expects a directory: what a
rule keeps absent or closed there stays so when the mode changes, and when the entry goes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemons import DaemonProcess
from support.lab import LS, Lab, Rules
from support.users import Identity

SECRET = "hush"


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    with Lab(identity) as opened:
        yield opened


@pytest.mark.parametrize("whose", ["own", "theirs"])
def test_a_directory_that_is_opened_up_between_two_commands(lab: Lab, whose: str) -> None:
    directory = lab.identity.write(lab.identity.base / "shared" / "file", "f").parent
    if whose == "theirs" and (lab.identity.uid == 0 or lab.identity.is_me):
        return  # no other user here could own it
    if whose == "theirs":
        os.chown(directory, 0, 0)
    rules: Rules = {"cwd": directory, "deny_write": [f"/{directory}/absent"]}
    attempts = "touch free; mkdir absent; mkdir .vscode; touch .mcp.json; ls -d free absent/* .vscode/* | cat"
    for mode, made in ((0o555, False), (0o777, True), (0o555, False), (0o777, True)):
        directory.chmod(mode)
        done = lab.run(attempts, **rules)
        # root needs no mode for what it makes outside, and has none of its powers inside
        assert (done.stdout == "free\n") is made, (oct(mode), done)
        assert sorted(one.name for one in directory.iterdir()) == ["file", *["free"] * made]
        (directory / "free").unlink(missing_ok=True)


def test_what_is_denied_in_a_directory_that_cannot_be_searched(lab: Lab) -> None:
    """A command may close a directory, and the next one open it up again."""
    deep = "a/b/c/d/e"
    for name in ("locked", "free"):
        lab.identity.write(lab.workspace / deep / name / "key", SECRET)
    rules: Rules = {"deny_read": [f"./{deep}/locked/key"], "deny_write": [f"./{deep}/locked/absent/x"]}
    lab.run(f"chmod 0 {deep}/locked", **rules)
    lab.host(f"chmod 0 {deep}/locked {deep}/free")
    opened = "chmod 700 free locked; cat free/key locked/key; mkdir locked/absent && echo made"
    done = lab.run(f"cd {deep}; {opened}", **rules)
    lab.host(f"chmod 700 {deep}/locked {deep}/free")
    assert done.stdout == SECRET, done
    done = lab.run(f"cd {deep}/locked; cat key; mkdir absent/x; touch new && ls", **rules)
    assert done.stdout.split() == ["absent", "key", "new"], done


@pytest.mark.parametrize("make", ["touch", "mkfifo"])
def test_a_file_where_a_rule_has_a_directory_is_kept(lab: Lab, make: str) -> None:
    lab.host(f"{make} f .claude g; mkdir d; {make} d/f")
    rules: Rules = {"deny_write": ["./f/x", "./d/f/x/y"], "deny_read": ["./f/z"]}
    done = lab.run(
        "for f in f .claude d/f g; do rm $f; mv $f $f-moved; mkdir $f; echo x > $f/x; done; "
        "mv d e; mkdir .claude/hooks; echo '{}' > .claude/settings.json; ls -d [a-g]; ls g",
        **rules,
    )
    assert done.stdout.split() == ["d", "f", "g", "x"], done
    assert not any((lab.workspace / name).is_dir() for name in ("f", ".claude", "d/f"))
    if make == "touch":
        assert lab.run("echo more >> f && cat f", **rules).stdout == "more\n"


PATTERNS = ("./**/key", "./s*/d/k?y", "./l*k/key", "./lnk/k*", "./*.key")


@pytest.mark.parametrize(("closing", "mode"), [("sub", "000"), ("sub", "444"), ("sub/d", "000"), ("sub/d", "444"),
                                               ("sub/d", "300")])  # fmt: skip
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_holds_in_a_closed_directory(lab: Lab, pattern: str, closing: str, mode: str) -> None:
    """One command closes the directory, and the next one opens it up and reads."""
    lab.host(f"mkdir -p sub/d free; printf {SECRET} > sub/d/key; echo ok > free/f")
    lab.host("ln -s sub/d lnk; ln -s sub/d/key x.key")
    rules: Rules = {"deny_read": [pattern]}
    lab.host(f"chmod {mode} {closing}")
    done = lab.run("cat free/f; chmod 700 sub; chmod 700 sub/d; cat sub/d/key lnk/key x.key", **rules)
    lab.host("chmod 700 sub; chmod 700 sub/d")
    assert SECRET not in done.stdout, done
    if done.error:
        assert done.error == "glob_unreadable" and mode == "300" and done.hint
    else:
        assert done.stdout == "ok\n"
    done = lab.run("cat free/f; touch sub/d/new; cat sub/d/key", **rules)
    assert done.stdout == "ok\n" and (lab.workspace / "sub" / "d" / "new").exists(), done


def test_a_closed_directory_is_told_of_and_open_again_afterwards(lab: Lab) -> None:
    lab.host(f"mkdir -p a/b c; printf {SECRET} > a/b/other; touch c/f; chmod 0 a/b")
    rules: Rules = {"deny_write": ["./*/*/key"], "allow_write": ["~/*/*/x"]}
    done = lab.run("chmod 700 a/b; touch a/b/f; touch c/g a/g", **rules)
    told = [text for text in done.warnings if "cannot be searched" in text and f"{lab.workspace}/a/b" in text]
    closed = lab.identity.uid != 0  # root sees outside what is in it
    lab.host("chmod 700 a/b")
    assert bool(told) is closed and (lab.workspace / "a" / "b" / "f").exists() is not closed, done
    assert (lab.workspace / "a" / "g").exists()
    done = lab.run("touch a/b/f", **rules)
    assert done.ok and not [text for text in done.warnings if "cannot be searched" in text], done


def test_a_protected_name_that_leads_into_a_closed_directory(lab: Lab) -> None:
    """Below the top as well."""
    lab.host("mkdir -p sub store/editor; ln -s ../store/editor sub/.vscode; chmod 0 store")
    lab.run("chmod 700 store; echo planted > store/editor/tasks.json; touch free")
    lab.host("chmod 700 store")
    assert (lab.workspace / "free").exists() and os.listdir(lab.workspace / "store" / "editor") == []


def test_a_directory_opened_on_the_host_opens_for_the_next(lab: Lab) -> None:
    """Also what lies in it, which was out of reach together with it."""
    lab.host("mkdir -p sub/d; chmod 444 sub")
    lab.run("true")
    lab.host("chmod 755 sub")
    assert lab.run("touch sub/d/new sub/new && mkdir sub/d/.vscode && touch sub/d/.vscode/x").ok
    lab.host("mv sub/d/.vscode sub/.idea; chmod 444 sub")
    lab.run("chmod 755 sub; echo planted > sub/.idea/planted")
    lab.host("chmod 755 sub")
    assert lab.run("touch sub/d/more").ok and not lab.run("echo planted > sub/.idea/planted").ok
    assert not (lab.workspace / "sub" / ".idea" / "planted").exists()


def test_a_project_in_a_directory_that_its_owner_has_closed(lab: Lab) -> None:
    """A home without write permission keeps nothing from being written in a project in it."""
    project = lab.identity.write(lab.home / "project" / "file", "f").parent
    lab.home.chmod(0o555)
    script = f"touch new && {LS}; mkdir .vscode/x; chmod 755 ..; touch ../.bashrc"
    for rules in (Rules(cwd=project), Rules(cwd=project, allow_write=["~"]), Rules(allow_write=["~/project"])):
        done = lab.run(f"cd {project}; {script}", **rules)
        assert done.stdout == "file\nnew\n", done
        (project / "new").unlink()
    lab.home.chmod(0o755)
    assert not (lab.home / ".bashrc").exists() and not (project / ".vscode" / "x").exists()


def test_a_working_directory_that_its_owner_has_closed(lab: Lab) -> None:
    directory = lab.identity.write(lab.identity.base / "closed" / "file", "f").parent
    directory.chmod(0o555)
    done = lab.run("touch new; chmod 755 .; cat file", cwd=directory)
    assert done.stdout == "f" and not (directory / "new").exists()
    assert any("chmod u+w" in text for text in done.warnings) is bool(lab.identity.uid), done


def test_a_replaced_working_directory_is_refused(lab: Lab) -> None:
    done = lab.run("true", cwd=Path("/dev/shm"), deny_read=["./secret"])
    assert done.error == "cwd_special", done


@pytest.mark.parametrize("mode", ["000", "444", "300"])
@pytest.mark.parametrize("closing", ["d", "d/e"])
@pytest.mark.parametrize("entry", [".vscode/tasks.json", ".git/hooks/pre-commit", ".mcp.json"])
def test_a_searched_directory_that_is_closed_later(lab: Lab, entry: str, closing: str, mode: str) -> None:
    protected = lab.identity.write(lab.workspace / "d" / "e" / entry, "old")
    if entry.startswith(".git/"):
        lab.host("git init -q d/e")
    assert lab.run("touch d/e/first && echo ran").stdout == "ran\n"
    assert lab.run(f"chmod {mode} {closing}; echo ran").stdout == "ran\n"
    for turn in range(2):
        lab.host(f"mkdir -p other/{turn}/.vscode")  # what was found is old, and is looked at again
        done = lab.run(f"chmod 700 d; chmod 700 d/e; echo x > d/e/{entry}; touch free && echo ran")
        assert done.stdout == "ran\n", done
        lab.host(f"chmod 700 d; chmod 700 d/e; cat d/e/{entry}; chmod {mode} {closing}")
        lab.host("chmod 700 d; chmod 700 d/e")
        assert protected.read_text() == "old"
        lab.host(f"chmod {mode} {closing}")
    lab.host("chmod 700 d; chmod 700 d/e")
    done = lab.run(f"touch d/e/new && echo ran; echo x > d/e/{entry}")
    assert done.stdout == "ran\n" and protected.read_text() == "old", done


def test_a_command_that_closes_directories_of_absent_names(daemon: DaemonProcess) -> None:
    """The command has its status, the next ones run, and nothing is left."""
    identity = daemon.identity
    work = identity.workspace

    def host(line: str) -> None:
        identity.run(["/bin/sh", "-c", line], env=identity.environment(), check=True)

    host("git init -q sub/deep; mkdir -p other/below")
    rules = json.dumps({"sandbox": {"filesystem": {"denyWrite": ["./other/below/absent/x"]}}})
    identity.write(identity.home / ".claude" / "settings.local.json", rules)
    try:
        done = daemon.run("run", "--show-violations", "-c", "chmod 0 sub other/below; exit 3")
        assert done.returncode == 3, done.stderr
        assert daemon.run("run", "-c", "exit 4").returncode == 4
    finally:
        host("chmod 755 sub other/below")
    assert daemon.run("run", "-c", "exit 5").returncode == 5
    daemon.stop()
    assert not (work / "other" / "below" / "absent").exists()
    assert not (work / "sub" / "deep" / ".git" / "commondir").exists()
