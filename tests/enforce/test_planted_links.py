"""A symlink that a sandbox has put at the name of a rule opens nothing to the next command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab import Lab, Rules
from support.users import Identity


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    with Lab(identity) as opened:
        opened.host("mkdir -p ~/other/in ~/secret; cd ~/other; echo own > f; echo own > in/f; echo key > ~/secret/k")
        yield opened


RULES = ("./out", "./out/", "./o*", "./*/", "./out/**", "./**/out", "sub/out", "*/out", "out/in", "out/*", "new/out/f")


@pytest.mark.parametrize("rule", RULES)
def test_nothing_outside_becomes_writable(lab: Lab, rule: str) -> None:
    lab.host("mkdir sub")
    rules: Rules = {"allow_write": [rule, "~/granted"]}
    done = lab.run("mkdir new; for d in . sub new; do ln -s ~/other $d/out; done", **rules)
    assert done.ok, done.stderr
    done = lab.run("for f in ~/other/f ~/other/in/f out/f sub/out/in/f; do echo planted > $f; done; touch x", **rules)
    assert not done.error and (lab.workspace / "x").exists(), done
    assert {(lab.home / "other" / name).read_text() for name in ("f", "in/f")} == {"own\n"}
    told = [text for text in done.warnings if "opens nothing" in text]
    assert told and all(str(lab.home / "other") in text and "out" in text for text in told), done.warnings


def test_nor_through_a_directory_that_was_swapped(lab: Lab) -> None:
    lab.host("mkdir -p sub/in")
    rules: Rules = {"allow_write": ["./sub/in/new"]}
    assert lab.run("mv sub s && ln -s ~/other sub && mkdir -p s/in", **rules).ok
    lab.host("mkdir ~/other/in/new")
    assert not lab.run("touch ~/other/in/new/f", **rules).ok
    assert not (lab.home / "other" / "in" / "new" / "f").exists()


def test_nothing_denied_becomes_readable(lab: Lab) -> None:
    for rule in ("./docs", "./d*"):
        rules: Rules = {"deny_read": ["~/secret"], "allow_read": [rule]}
        lab.run("ln -sfn ~/secret/k docs", **rules)
        done = lab.run("cat ~/secret/k docs", **rules)
        assert not done.ok and "key" not in done.stdout, done


def test_no_protection_is_lifted(lab: Lab) -> None:
    lab.host("git init -q .")
    for target, rule in ((".git/hooks", "./build"), (".git", "./build/hooks"), ("..", "./build/work/.git/hooks")):
        rules: Rules = {"allow_write": [rule]}
        lab.run(f"ln -sfn {target} build", **rules)
        assert not lab.run("echo > .git/hooks/pre-commit", **rules).ok
        assert not (lab.workspace / ".git" / "hooks" / "pre-commit").exists()


def test_one_opened_directory_does_not_lead_to_the_next(lab: Lab) -> None:
    """The first link is the person's own, the second stands where that one leads."""
    lab.host("mkdir ~/data; ln -s ~/data ~/first")
    rules: Rules = {"allow_write": ["~/first", "~/first/second"]}
    assert lab.run("ln -s ~/other ~/first/second; touch ~/data/f", **rules).ok
    assert not lab.run("echo planted > ~/other/f", **rules).ok
    assert (lab.home / "other" / "f").read_text() == "own\n"


def test_the_persons_own_links_are_followed(lab: Lab) -> None:
    """The twin: where no sandbox could have made it, and where what it leads to is writable anyway."""
    lab.host("ln -s ~/other ~/link; mkdir -p store; ln -s store here; ln -s ~/secret ~/shown")
    rules: Rules = {"allow_write": ["~/link/in", "./here"], "deny_read": ["~/sec*"], "allow_read": ["~/shown/k"]}
    done = lab.run("echo new > ~/other/in/f; touch here/f; cat ~/secret/k", **rules)
    assert done.ok and done.stdout == "key\n" and not any("opens nothing" in text for text in done.warnings), done
    assert (lab.home / "other" / "in" / "f").read_text() == "new\n"


def test_the_target_can_be_named(lab: Lab) -> None:
    lab.host("ln -s ~/other out")
    target: Path = lab.home / "other"
    assert lab.run("echo new > out/f", allow_write=["./out", f"/{target}"]).ok
    assert (target / "f").read_text() == "new\n"
