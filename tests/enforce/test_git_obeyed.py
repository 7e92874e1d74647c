"""What the configuration of git names, and git then obeys: hooks, included files, templates. Wherever the configuration
stands, and whether what it names exists or not, nothing that a sandbox has written there runs on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from support.lab import Lab
from support.users import Identity

REPOSITORY = "git init -q -b main . && echo 1 > file && git add file && git commit -qm first;"
SUBMODULE = (
    "git init -q ~/m; git -C ~/m commit -q --allow-empty -m m;"
    "git -c protocol.file.allow=always submodule --quiet add ~/m sub; git commit -qm sub;"
)


def hook(directory: str) -> str:
    return f"mkdir -p '{directory}'; cp ~/evil '{directory}/post-commit'"


def monitor(file: str) -> str:
    return f"mkdir -p d; git config -f d/config core.fsmonitor ~/evil; cat d/config > {file}"


@dataclass(frozen=True)
class Case:
    """`prepare` and `use` are on the host, `plant` is inside. `at`: where the command is started and git is used."""

    name: str
    prepare: str
    plant: str
    at: str = "."
    use: str = "git status; git commit -q --allow-empty -m l"


HOOKS = "git config core.hooksPath .githooks;"
CASES = (
    Case("hooks that exist", f"mkdir .githooks; {HOOKS}", hook(".githooks")),
    Case("absent hooks", HOOKS, hook(".githooks")),
    Case("absent hooks, deeper", "git config core.hooksPath .husky/_", hook(".husky/_")),
    Case("hooks behind a link", f"mkdir h; ln -s h .githooks; {HOOKS}", "rm .githooks; " + hook(".githooks")),
    Case("hooks with marks of comments", "mkdir 'h;k#'; git config core.hooksPath 'h;k#'", hook("h;k#")),
    Case("hooks with a quote", "mkdir 'h\"k'; git config core.hooksPath 'h\"k'", hook('h"k')),
    Case("hooks in two lines", r"mkdir hook; printf '[core]\n\thooksPath = ho\\\nok\n' >> .git/config", hook("hook")),
    Case("an included file", "touch i; git config include.path ../i", monitor("i")),
    Case("an absent one", "git config include.path ../i", monitor("i")),
    Case("an absent one, deeper", "git config include.path ../conf/i", "mkdir conf; " + monitor("conf/i")),
    Case(
        "an absent one in a directory that is moved",
        "mkdir conf; touch conf/x; git config include.path ../conf/i",
        "mv conf c; ln -s c conf; " + monitor("c/i"),
    ),
    Case("an absent one in the git directory", "git config include.path local", monitor(".git/local")),
    Case("one by condition", "git config includeIf.onbranch:m*.path ../i", monitor("i")),
    Case("one that another names", r"printf '[include]\npath = j\n' > i; touch j; git config include.path ../i",
         monitor("j")),
    Case("hooks that another names", r"printf '[core]\nhooksPath = h\n' > i; git config include.path ../i", hook("h")),
    Case("hooks for everybody", "mkdir .githooks; git config --global core.hooksPath .githooks", hook(".githooks")),
    Case("absent hooks for everybody", "git config --global core.hooksPath .githooks", hook(".githooks")),
    Case("hooks of everybody", "mkdir h; git config --global core.hooksPath $PWD/h", hook("h")),
    Case("included for everybody", "touch i; git config --global include.path $PWD/i", monitor("i")),
    Case("absent for everybody", "git config --global include.path $PWD/i", monitor("i")),
    Case("included for one place", "touch i; git config --global includeIf.gitdir:$PWD/.path $PWD/i", monitor("i")),
    Case(
        "the other file for everybody",
        "touch i; mkdir -p ~/.config/git; git config -f ~/.config/git/config include.path $PWD/i",
        monitor("i"),
    ),
    Case(
        "a template",
        "mkdir -p t/hooks; git config --global init.templateDir $PWD/t",
        hook("t/hooks"),
        use="git init -q ~/new; git -C ~/new commit -q --allow-empty -m l",
    ),
    Case(
        "an absent template",
        "git config --global init.templateDir $PWD/t",
        hook("t/hooks"),
        use="git init -q ~/new; git -C ~/new commit -q --allow-empty -m l",
    ),
    Case(
        "hooks of one working tree",
        "git config extensions.worktreeConfig true; mkdir h; git config --worktree core.hooksPath h",
        hook("h"),
    ),
    Case("hooks in a linked working tree", f"{HOOKS} git worktree add -q ~/w; mkdir ~/w/.githooks",
         hook(".githooks"), at="~/w"),
    Case("absent ones there", f"{HOOKS} git worktree add -q ~/w", hook(".githooks"), at="~/w"),
    Case("hooks in one inside", f"{HOOKS} git worktree add -q w; mkdir w/.githooks", hook("w/.githooks"),
         use="git -C w commit -q --allow-empty -m l"),
    Case(
        "hooks of a linked working tree",
        "git config extensions.worktreeConfig true; git worktree add -q ~/w; mkdir ~/w/h;"
        "git -C ~/w config --worktree core.hooksPath h",
        hook("h"),
        at="~/w",
    ),
    Case("hooks in a submodule", f"{SUBMODULE} git -C sub {HOOKS[4:]} mkdir sub/.githooks", hook("sub/.githooks"),
         use="git -C sub commit -q --allow-empty -m l"),
    Case("absent ones in a submodule that is worked in", f"{SUBMODULE} git -C sub {HOOKS[4:]}", hook(".githooks"),
         at="sub"),
    Case(
        "hooks beside a git directory that stands elsewhere",
        f"mv .git ~/g; echo gitdir: ~/g > .git; {HOOKS} mkdir .githooks",
        hook(".githooks"),
    ),
    Case("hooks behind a linked git directory", f"mv .git ~/g; ln -s ~/g .git; {HOOKS} mkdir .githooks",
         hook(".githooks")),
    Case("hooks of a bare repository", "git clone -q --bare . b.git; git -C b.git config core.hooksPath h",
         hook("b.git/h"), use="git push -q ./b.git HEAD:refs/heads/x; git push -q ./b.git :refs/heads/x"),
)  # fmt: skip


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    identity.write(identity.home / "evil", "#!/bin/sh\ntouch ~/pwned\n", mode=0o755)
    with Lab(identity) as opened:
        opened.host(REPOSITORY)
        yield opened


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_the_configuration_names_is_closed(lab: Lab, case: Case) -> None:
    pwned = lab.home / "pwned"
    plant = case.plant.replace("post-commit", "post-update") if "bare" in case.name else case.plant
    lab.host(case.prepare)
    at = lab.workspace / case.at.replace("~", str(lab.home))
    before = lab.host("git status --porcelain", cwd=at)
    done = lab.run(f"git status --porcelain; rm -f ~/pwned; set +e; {plant}", cwd=at)
    assert not done.error and done.stdout == before, done
    pwned.unlink(missing_ok=True)
    lab.host(f"set +e; {case.use}", cwd=at, check=False)
    assert not pwned.exists(), done
    # the twin: outside of a sandbox it is a trap
    lab.host(f"set +e; {plant}; rm -f ~/pwned; {case.use}", cwd=at, check=False)
    assert pwned.exists()
