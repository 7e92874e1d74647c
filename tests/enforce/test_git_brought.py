"""What came with a checkout, while no command ran, is no repository: when a command makes one of it, or leads to it, a
git on the host runs nothing of what is in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.lab import Lab
from support.users import Identity

CONFIG = "git config -f {0} core.repositoryformatversion 0; git config -f {0} core.fsmonitor ~/evil"
BARE = "mkdir -p data/objects data/refs; echo ref: refs/heads/main > data/HEAD;" + CONFIG.format("data/config")
DEEP = "git init -q a/b/c/d/e/f; mkdir data; cp ~/evil data/post-index-change; git -C a/b/c/d/e/f config {} {}"
POINTERS = {
    "a file": "mkdir src; echo gitdir: ../data > src/.git",
    "a link": "mkdir src; ln -s ../data src/.git",
    "a file in a worktree": "mkdir -p src data/worktrees/w; cp data/HEAD data/worktrees/w;"
    "echo ../.. > data/worktrees/w/commondir; echo gitdir: ../data/worktrees/w > src/.git",
    "a commondir": "mkdir -p src/.git; cp data/HEAD src/.git; echo ../../data > src/.git/commondir",
}
MADE = {
    "the rest of a bare one": (
        f"mkdir -p src/refs; {CONFIG.format('src/config')}; git config -f src/config core.worktree .;"
        "git config -f src/config core.bare false",
        "mkdir src/objects; echo ref: refs/heads/main > src/HEAD",
        "src",
    ),
    "the rest, and new names": (
        f"mkdir -p d/data/refs; {CONFIG.format('d/data/config')}",
        "mkdir d/data/objects; echo ref: refs/heads/main > d/data/HEAD; mv d src; mv src/data src/.git",
        "src",
    ),
    "a name that a repository has for its hooks": (
        DEEP.format("core.hooksPath", ".githooks"),
        "mv data a/b/c/d/e/f/.githooks",
        "a/b/c/d/e/f",
    ),
    "a link that a repository has for its hooks": (
        DEEP.format("core.hooksPath", ".githooks"),
        "ln -s $PWD/data a/b/c/d/e/f/.githooks",
        "a/b/c/d/e/f",
    ),
    "a directory with a link that a repository has for its hooks": (
        DEEP.format("core.hooksPath", "tools/hooks") + "; mkdir x alt; mv data x; ln -s $PWD/x/data alt/hooks",
        "mv alt a/b/c/d/e/f/tools",
        "a/b/c/d/e/f",
    ),
    "a name that a repository includes": (
        DEEP.format("include.path", "../conf/x") + ";" + CONFIG.format("data/x"),
        "mv data a/b/c/d/e/f/conf",
        "a/b/c/d/e/f",
    ),
}


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    identity.write(identity.home / "evil", "#!/bin/sh\necho ran >> ~/pwned\n", mode=0o755)
    with Lab(identity) as opened:
        opened.host("git init -q -b main .; echo 1 > f; git add .; git commit -qm 1")
        assert opened.run("true").ok  # this daemon has started before what follows came
        yield opened


def git_ran_it(lab: Lab, directory: str) -> bool:
    pwned = lab.home / "pwned"
    pwned.unlink(missing_ok=True)
    lab.host(f"cd {directory} && {{ git status; git add -A . ; }}; true", check=False)
    return pwned.exists()


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("way", POINTERS)
def test_a_repository_in_a_checkout_is_led_to_by_no_command(lab: Lab, way: str, seen: bool) -> None:
    lab.host(BARE)
    if seen:
        assert lab.run("true").ok
    done = lab.run(POINTERS[way])
    assert done.ok, done
    assert not git_ran_it(lab, "src")
    lab.host(f"rm -rf src data; {BARE}; {POINTERS[way]}")
    assert git_ran_it(lab, "src")


@pytest.mark.parametrize("way", MADE)
def test_nothing_in_a_checkout_is_made_a_repository(lab: Lab, way: str) -> None:
    brought, made, place = MADE[way]
    lab.host(brought)
    done = lab.run(made)
    assert done.ok and done.moved, done
    assert not git_ran_it(lab, place)
    lab.host(f"rm -rf src d data a alt x; {brought}; {made}")
    assert git_ran_it(lab, place)


def test_a_repository_of_a_person_keeps_its_worktrees(lab: Lab) -> None:
    """A bare one in the directory that uses it, and one that is too deep to be protected, which an
    earlier command has left alone."""
    for at, git_dir in (("p", "p/.bare"), ("a/b/c/d/e/f", "a/b/c/d/e/f/.git")):
        lab.host(
            f"mkdir -p {at}; git clone -q --bare . {git_dir}; cp ~/evil {git_dir}/hooks/post-index-change;"
            f"[ {git_dir} = {at}/.git ] || echo gitdir: ./.bare > {at}/.git"
        )
        assert lab.run("true").ok
        done = lab.run(f"git -C {at} worktree add -q -b w ../w{len(at)}")
        assert done.ok and not done.moved, done
        assert git_ran_it(lab, f"{at}/../w{len(at)}")
