"""A pattern goes through the symlinks that its parts name, as in a shell: what it denies there is denied, and the links
stay what they are for the next command."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.lab import Lab, Rules
from support.users import Identity


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    """`lnk` leads to a directory outside, by `hop`; `own` to one in the workspace."""
    with Lab(identity) as opened:
        opened.host(
            "mkdir -p ~/sec/in sub/d; for at in ~/sec ~/sec/in sub/d; do echo key > $at/f; echo open > $at/other; done;"
            "ln -s hop lnk; ln -s ~/sec hop; ln -s sub/d own"
        )
        yield opened


OUTSIDE = ("./l*k/f", "./*/f", "./?nk/f", "./[l]nk/f", "./lnk/f*", "./**/lnk/f", "./**/l*k/f", "./lnk/?", "./*k/[f]",
           "./h*p/f", "~/w*/lnk/f", "./l*k/**/f")  # fmt: skip


@pytest.mark.parametrize("pattern", OUTSIDE)
def test_what_a_pattern_denies_through_a_link_is_denied(lab: Lab, pattern: str) -> None:
    if pattern.startswith("~"):
        lab.host(f"ln -s {lab.workspace} ~/way-to-it")
    for name in ("lnk/f", "hop/f", "~/sec/f"):
        done = lab.run(f"cat {name} && echo read", deny_read=[pattern])
        assert not done.ok and "key" not in done.stdout and "Permission denied" in done.stderr, (name, done)
    done = lab.run("cat lnk/other ~/sec/other own/other; echo > own/f", deny_read=[pattern.replace("*/f", "lnk/f")])
    assert done.ok and done.stdout == "open\n" * 3, done


@pytest.mark.parametrize("pattern", ("./o*n/f", "./*/f", "./o??/*", "./**/own/f"))
def test_so_is_writing(lab: Lab, pattern: str) -> None:
    done = lab.run("for f in own/f sub/d/f; do echo planted > $f; rm -f $f; mv $f x; done", deny_write=[pattern])
    assert not done.error, done
    assert (lab.workspace / "sub" / "d" / "f").read_text() == "key\n"
    assert lab.run("cat own/f; touch own/new sub/new new", deny_write=[pattern]).ok
    assert {"d", "new"} <= set(os.listdir(lab.workspace / "sub"))


CHANGES = "ln -sfn sub {0}; mv {0} {0}2; mv -T sub {0}; rm {0}; mkdir {0}"


@pytest.mark.parametrize("pattern", ("./l*k/f", "./lnk/*", "./**/lnk/f", "./lnk/f", "./lnk/in/?"))
def test_no_command_makes_the_next_one_free(lab: Lab, pattern: str) -> None:
    """Each link on the way stands in the workspace, where a command could give it another target."""
    secret = lab.home / "sec" / ("in/f" if "in" in pattern else "f")
    for link in ("lnk", "hop"):
        lab.run(CHANGES.format(link), deny_read=[pattern])
        assert lab.workspace.joinpath(link).is_symlink()
        done = lab.run(f"cat {secret}", deny_read=[pattern])
        assert not done.ok and "key" not in done.stdout, done


def test_nor_as_long_as_nothing_is_there(lab: Lab) -> None:
    lab.run("rm lnk; ln -sfn sub hop; mv hop x; mkdir lnk", deny_read=["./lnk/*.key"])
    lab.host("echo key > lnk/a.key")
    done = lab.run("cat ~/sec/a.key", deny_read=["./lnk/*.key"])
    assert not done.ok and "Permission denied" in done.stderr, done


def test_a_link_that_no_rule_goes_through_can_change(lab: Lab) -> None:
    """The twin."""
    assert lab.run("ln -sfn / lnk && rm hop && mv own mine", deny_read=["./sub/*/f"]).ok
    assert os.readlink(lab.workspace / "lnk") == "/"


def test_two_stars_go_through_no_link_and_say_so(lab: Lab) -> None:
    """Neither in a shell, nor for git: a link to `/` is enough to make it endless."""
    done = lab.run("cat sub/d/f || cat ~/sec/f", deny_read=["./**/f"])
    assert done.ok and done.stdout == "key\n", done
    (told,) = [text for text in done.warnings if "symbolic link" in text and "/lnk" in text]
    assert str(lab.home / "sec") in told and "write a rule for that directory" in told
    assert not any("/own" in text for text in done.warnings)
    lab.host("mkdir many; for n in 1 2 3 4 5; do ln -s ~/sec many/$n; done")
    of_many = [text for text in lab.run("true", deny_read=["./many/**/f"]).warnings if "symbolic link" in text]
    assert len(of_many) == 4 and "2 more" in of_many[3], of_many
    assert not any("symbolic" in text for text in lab.run("true", allow_read=["./many/**/f"]).warnings)
    assert not lab.run("cat ~/sec/f", deny_read=["./**/f", "~/sec"]).ok


def test_rules_that_open_go_through_the_persons_own_links_only(lab: Lab) -> None:
    lab.host("mkdir ~/links; ln -s ~/sec ~/links/a; ln -s ~/sec ~/links/b")
    rules: Rules = {"allow_write": ["~/links/*/in"]}
    assert lab.run("echo new > ~/sec/in/f && cat ~/links/b/in/f", **rules).stdout == "new\n"
    rules = {"allow_write": ["./l*k/in", "./*/in", "./lnk/i?"]}
    done = lab.run("echo planted > ~/sec/in/f", **rules)
    assert not done.ok and (lab.home / "sec" / "in" / "f").read_text() == "new\n"
    assert any("opens nothing" in text and "/lnk" in text for text in done.warnings), done.warnings


def test_reading_is_opened_by_the_name_that_the_pattern_has(lab: Lab) -> None:
    lab.host("mkdir -p ~/closed/deep; echo shown > ~/closed/deep/f; ln -s deep ~/closed/l1; echo no > ~/closed/n")
    rules: Rules = {"deny_read": ["~/closed"], "allow_read": ["~/closed/l?/f"]}
    done = lab.run("cat ~/closed/deep/f ~/closed/l1/f; cat ~/closed/n", **rules)
    assert done.stdout == "shown\n" * 2 and "no" not in done.stdout, done


def test_a_name_that_is_a_link_to_a_basic_device_breaks_nothing(lab: Lab) -> None:
    """What is to be empty is often linked to /dev/null, and a command could do it."""
    lab.host("ln -s /dev/null a.env; echo key > b.env; ln -s /dev/pts terminals")
    done = lab.run("cat a.env; echo > /dev/null && cat b.env", deny_read=["./*.env", "./t*/*"])
    assert not done.error and "key" not in done.stdout and "b.env: Permission denied" in done.stderr, done


def test_links_at_protected_names_are_kept_to_their_end(lab: Lab) -> None:
    """Below the top too: a change of the second link would put the editor's settings in place."""
    lab.host("mkdir -p sub/store; ln -s editor sub/.vscode; ln -s store sub/editor; ln -s hop free")
    planting = "rm editor; mkdir editor; echo planted > editor/tasks.json; ln -sfn /tmp editor; mv editor x; touch y"
    lab.run(f"cd sub; {planting}")
    assert os.readlink(lab.workspace / "sub" / "editor") == "store"
    assert os.listdir(lab.workspace / "sub" / "store") == [] and (lab.workspace / "sub" / "y").exists()
    assert lab.run("rm free").ok
