"""A git directory that no command can change, led to by one: what its configuration names is then looked for beside
what leads there. And names that git hands on to itself, where they stand for options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from support.lab import Lab
from support.users import Identity

HOOK = "mkdir -p sub/.husky; cp ~/evil sub/.husky/post-index-change"
RELATIVE = "mkdir .husky; git config core.hooksPath .husky"
USE = "cd sub && git status && git add -A ."
BROUGHT = (
    "mkdir -p {0}/objects {0}/refs; echo ref: refs/heads/main > {0}/HEAD; git config -f {0}/config "
    "core.repositoryformatversion 0; git config -f {0}/config remote.origin.url $PWD;"
    "git config -f {0}/config remote.origin.uploadPack ~/evil"
)
SUBMODULE = (
    "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),{0}; git config -f gm submodule.{0}.path {0};"
    "git config -f gm submodule.{0}.url ./x;"
    "git update-index --add --cacheinfo 100644,$(git hash-object -w gm),.gitmodules; git commit -qm m;"
)
FETCH = (
    "git init -q --bare ~/o; git push -q ~/o main; git config remote.origin.url ~/o;"
    "git config remote.origin.fetch '+refs/heads/*:refs/remotes/origin/*'; git fetch --recurse-submodules"
)


@dataclass(frozen=True)
class Case:
    """A person does `before` and `after`, a command `made`."""

    name: str
    before: str
    made: str
    after: str


CASES = (
    Case("relative hooks, a file", RELATIVE, f"{HOOK}; echo gitdir: ../.git > sub/.git", USE),
    Case("relative hooks, a link", RELATIVE, f"{HOOK}; ln -s ../.git sub/.git", USE),
    Case(
        "relative hooks of another repository",
        "git init -q ~/other; git -C ~/other config core.hooksPath .husky",
        f"{HOOK}; echo gitdir: ~/other/.git > sub/.git",
        USE,
    ),
    Case(
        "relative hooks of the user",
        "git config --global core.hooksPath .husky",
        f"{HOOK}; echo gitdir: ../.git > sub/.git",
        USE,
    ),
    Case(
        "relative hooks in a new worktree's place",
        RELATIVE,
        f"{HOOK}; mkdir -p .git/worktrees/w; cp .git/HEAD .git/worktrees/w; echo ../.. > .git/worktrees/w/commondir;"
        "echo gitdir: ../.git/worktrees/w > sub/.git",
        USE,
    ),
    Case("relative hooks in a worktree", RELATIVE, f"git worktree add -q sub; {HOOK}", USE),
    Case(
        "relative hooks in the place of a person's worktree",
        f"{RELATIVE}; git worktree add -q ~/w",
        f"{HOOK}; echo gitdir: $PWD/.git/worktrees/w > sub/.git",
        USE,
    ),
    Case(
        "relative hooks that came along",
        f"{RELATIVE}; {HOOK}",
        "echo gitdir: ../.git > sub/.git",
        USE,
    ),
    Case(
        "a link among submodules",
        BROUGHT.format("data"),
        SUBMODULE.format("m") + "mkdir -p .git/modules; ln -s ../../data .git/modules/m",
        FETCH,
    ),
    Case(
        "a link on the way to submodules",
        BROUGHT.format("data/m"),
        SUBMODULE.format("m") + "ln -s ../data .git/modules",
        FETCH,
    ),
    Case(
        "a link among submodules that came along",
        f"{BROUGHT.format('data')}; mkdir d; ln -s ../../../data d/m",
        SUBMODULE.format("d/m") + "mkdir -p .git/modules; mv d .git/modules/",
        FETCH,
    ),
    Case(
        "relative hooks, a link to what nobody writes here",
        f"{RELATIVE}; mkdir ~/checkout; cp ~/evil ~/checkout/post-index-change",
        "mkdir sub; echo gitdir: ../.git > sub/.git; ln -s ~/checkout sub/.husky",
        USE,
    ),
    Case(
        "a file that leads through a process",
        f"{RELATIVE}",
        f"{HOOK}; echo gitdir: /proc/self/cwd/../.git > sub/.git",
        USE,
    ),
    Case(
        "a link that leads through a process",
        BROUGHT.format("data") + "; git config -f data/config core.fsmonitor ~/evil",
        "mkdir sub; ln -s /dev/fd/../cwd/../data sub/.git",
        USE,
    ),
    Case(
        "hooks that lead through a process",
        f"{RELATIVE}; mkdir -p a/b; cp ~/evil a/b/post-index-change",
        "mkdir sub; echo gitdir: ../.git > sub/.git; ln -s /proc/self/cwd/../a/b sub/.husky",
        USE,
    ),
    Case(
        "a link among submodules through a process",
        BROUGHT.format("data"),
        SUBMODULE.format("m") + "mkdir -p .git/modules; ln -s /proc/self/cwd/data .git/modules/m",
        FETCH,
    ),
    Case(
        "what a new repository begins with",
        "true",
        "mkdir -p sub/.git/hooks; cp ~/evil sub/.git/hooks/post-index-change",
        "git init -q sub; : > sub/f; cd sub; git add -A .",
    ),
    Case(
        "a configuration that a new repository begins with, by a link",
        "true",
        "mkdir sub d; git config -f d/config core.fsmonitor ~/evil; ln -s ../d sub/.git",
        "git init -q sub; cd sub; git status",
    ),
    Case(
        "a remote that is an option",
        "true",
        "git clone -q . sub; git -C sub config remote.--upload-pack=$HOME/evil.url x",
        "cd sub; git fetch --all",
    ),
    Case(
        "a group of remotes with an option",
        "true",
        "git clone -q . sub; git -C sub config remotes.default --upload-pack=$HOME/evil",
        "cd sub; git remote update",
    ),
)


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    identity.write(identity.home / "evil", "#!/bin/sh\necho ran >> ~/pwned\nexit 1\n", mode=0o755)
    with Lab(identity) as opened:
        opened.host("git init -q -b main .; echo 1 > f; git add .; git commit -qm 1")
        assert opened.run("true").ok
        yield opened


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_a_command_leads_git_to_runs_nothing(lab: Lab, case: Case) -> None:
    pwned = lab.home / "pwned"
    lab.host(case.before)
    done = lab.run(case.made)
    assert done.ok and done.moved, done
    pwned.unlink(missing_ok=True)  # what ran inside ran inside
    lab.host(f"set +e; {case.after}", check=False)
    assert not pwned.exists()
    # the twin: outside of a sandbox each of them is a trap
    lab.host(
        "chmod -R u+rwX .; rm -rf .git .gitmodules * .husky ~/checkout ~/o ~/other ~/w ~/.gitconfig;"
        f"git init -q -b main .; echo 1 > f; git add .; git commit -qm 1; {case.before}; {case.made}; rm -f ~/pwned"
    )
    lab.host(f"set +e; {case.after}", check=False)
    assert pwned.exists()


@pytest.mark.parametrize(
    "closed",
    [
        "echo gitdir: /proc/1/cwd/x > b/.git",
        "ln -s /proc/1/cwd/x b/.git",
        "mv b/t b/.git; echo /proc/1/root/x > b/.git/commondir",
        "mv b/t b/.git; mkdir -p b/.git/worktrees/w; echo /proc/1/cwd/x > b/.git/worktrees/w/gitdir;"
        "cp b/.git/HEAD b/.git/worktrees/w; echo ../.. > b/.git/worktrees/w/commondir",
    ],
)
def test_what_leads_to_closed_places_ends_no_look(lab: Lab, closed: str) -> None:
    """The rest of what was found is made harmless, and the next command starts."""
    plant = "git init -q d/e/sub; cp ~/evil d/e/sub/.git/hooks/post-index-change"
    done = lab.run(f"mkdir b; git init -q t; mv t/.git b/t; {closed}; {plant}")
    assert done.ok and str(lab.workspace / "d/e/sub/.git/hooks/post-index-change") in done.moved, done
    assert lab.run("true").ok


def test_hooks_of_a_person_stay_where_they_are(lab: Lab) -> None:
    """Relative ones, in the repository, in its worktrees, and in one that a person has led to it."""
    lab.host(f"{RELATIVE}; cp ~/evil .husky/post-index-change; git add .; git commit -qm h")
    lab.host("git worktree add -q in; git worktree add -q a/b/c/d/deep; git worktree add -q ~/out")
    lab.host(f"{HOOK}; echo gitdir: ../.git > sub/.git")
    for _ in range(2):
        done = lab.run("git status; git add -A; git -C in status; git -C a/b/c/d/deep status; mkdir -p x; rmdir x")
        assert done.ok and not done.moved, done


def test_links_and_values_of_ordinary_work_stay(lab: Lab) -> None:
    done = lab.run(
        "git clone -q . new; git -C new config remote.origin.tagOpt --no-tags; git -C new config core.compression -1;"
        "git -C new config branch.main.description '- a list'; mkdir -p modules; ln -s ../new modules/l"
    )
    assert done.ok and not done.moved, done
