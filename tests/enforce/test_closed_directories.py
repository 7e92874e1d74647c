"""Directories that this user cannot search or write at the moment, and files where a rule expects a directory: what a
rule keeps absent or closed there stays so when the mode changes, and when the entry goes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.lab import Lab, Rules
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
        return  # nobody here who could own it
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
def test_what_stands_where_a_rule_has_a_directory_does_not_give_way(lab: Lab, make: str) -> None:
    lab.host(f"{make} f .claude g; mkdir d; {make} d/f")
    rules: Rules = {"deny_write": ["./f/x", "./d/f/x/y"], "deny_read": ["./f/z"]}
    done = lab.run(
        "for f in f .claude d/f g; do rm $f; mv $f $f-moved; mkdir $f; echo x > $f/x; done; "
        "mv d e; mkdir .claude/hooks; echo '{}' > .claude/settings.json; ls -d *; ls g",
        **rules,
    )
    assert done.stdout.split() == ["d", "f", "g", "x"], done
    assert not any((lab.workspace / name).is_dir() for name in ("f", ".claude", "d/f"))
    if make == "touch":
        assert lab.run("echo more >> f && cat f", **rules).stdout == "more\n"
