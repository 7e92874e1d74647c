"""git inside a sandbox: ordinary work goes through, and nothing is planted that a later git on the host would run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab import Lab, Rules
from support.users import Identity

REPOSITORY = "git init -q -b main . && echo 1 > file && git add file && git commit -qm first"


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    with Lab(identity) as opened:
        yield opened


@pytest.fixture
def repository(lab: Lab) -> Path:
    lab.host(REPOSITORY)
    return lab.workspace


WORK = {
    "commit": "git status --porcelain; echo 2 >> file; git add -A; git commit -qm 2; git commit -q --amend -m third",
    "branch": "git branch b; git checkout -q b; echo 2 > o; git add .; git commit -qm two; git checkout -q main",
    "rebase": "git checkout -qb b; echo 2 > o; git add .; git commit -qm 2; git checkout -q main; echo 3 > p;"
    "git add .; git commit -qm 3; git rebase -q b; git checkout -q b; git merge -q main; git log --oneline",
    "stash": "echo 2 >> file; git stash -q; git stash pop -q; git diff --stat; git checkout file",
    "tag": "git tag v1; git tag -a v2 -m two; git tag -d v1; git describe",
    "move": "git mv file renamed; git rm -q --cached renamed; git reset -q --hard",
    "collect": "git gc -q; git fsck; git reflog; git repack -adq; git pack-refs --all; git count-objects -v",
    "notes": "git bisect start; git bisect reset; git notes add -m n; git notes show",
    "init": "git init -q new; cd new; echo 1 > f; git add f; git commit -qm one",
    "clone": "git clone -q . copy; cd copy; git log --oneline",
    "push": "git init -q --bare h.git; git push -q ./h.git main; git fetch -q ./h.git main; git ls-remote ./h.git",
    "pointer": "printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 1\\n' > big; git add big;"
    "git commit -qm l",
}


@pytest.mark.parametrize("work", WORK)
def test_ordinary_work(lab: Lab, repository: Path, work: str) -> None:
    done = lab.run(f"set -e; {WORK[work]}")
    assert done.ok, done.stderr
    assert lab.host("git fsck && git log --oneline | tail -1").endswith("first\n")


def test_status_is_clean_while_a_command_runs(lab: Lab, repository: Path) -> None:
    assert lab.run("git status --porcelain --ignored").stdout == ""
    assert lab.run("git status --porcelain --ignored").stderr == ""


def test_push_and_fetch_with_a_remote(lab: Lab, repository: Path) -> None:
    """What was pushed is stored here too, and what cannot be pushed has no effect there."""
    hub = lab.home / "hub.git"
    lab.host(f"git init -q --bare {hub}; git remote add origin {hub}; git push -q origin main")
    rules: Rules = {"allow_write": [f"/{hub}"]}
    work = "set -e; echo 2 > file; git commit -qam 2; git push -q origin HEAD; git rev-parse origin/main HEAD"
    done = lab.run(work, **rules)
    assert done.ok and len(set(done.stdout.split())) == 1, done
    assert lab.run("git fetch -q origin && git pull -q origin main", **rules).ok
    # without write access to the remote nothing has happened there either
    before = lab.host(f"git -C {hub} rev-parse main")
    assert not lab.run("echo 3 > file; git commit -qam 3; git push -q origin HEAD").ok
    assert lab.host(f"git -C {hub} rev-parse main") == before


def test_configuration_is_closed_unless_opted_in(lab: Lab, repository: Path) -> None:
    """Hooks stay closed. What people are told: test_field_messages."""
    hub = lab.home / "hub.git"
    lab.host(f"git init -q --bare {hub}; git remote add origin {hub}")
    assert not lab.run("git config user.x y").ok
    done = lab.run("git push -qu origin HEAD", allow_write=[f"/{hub}"])
    assert "config" in done.stderr
    assert lab.run("git push -qu origin HEAD; git config user.x y", allow_git_config=True, allow_write=[f"/{hub}"]).ok
    assert lab.host("git config branch.main.merge && git config user.x") == "refs/heads/main\ny\n"
    assert not lab.run("touch .git/hooks/pre-commit", allow_git_config=True).ok


TRAP = "printf '[core]\\nfsmonitor=%s\\n' $HOME/evil"
PLANTS = [
    "mkdir -p .git/hooks; cp ~/evil .git/hooks/pre-commit",
    "rm -rf .git/hooks; mkdir .git/hooks; cp ~/evil .git/hooks/pre-commit",
    "mv .git/hooks .git/h; mkdir .git/hooks; cp ~/evil .git/hooks/pre-commit",
    "cp -r .git g; mv .git old; mv g .git; cp ~/evil .git/hooks/pre-commit",
    "git config core.fsmonitor ~/evil",
    "git config core.hooksPath planted; mkdir planted; cp ~/evil planted/pre-commit",
    f"git config include.path ../included; {TRAP} > included",
    "git config alias.trap '!~/evil'",
    "git config filter.x.clean ~/evil; echo '* filter=x' > .gitattributes; echo 2 > file",
    f"{TRAP} > c; mv c .git/config",
    f"{TRAP} > .git/config.lock; mv .git/config.lock .git/config",
    f"git config extensions.worktreeConfig true; {TRAP} >> .git/config.worktree",
    f"mkdir .git/x; cp -r .git/refs .git/objects .git/x; {TRAP} > .git/x/config; echo x > .git/commondir",
    "rm -rf .git; git init -q .; cp ~/evil .git/hooks/pre-commit",
    "mv sub/.git sub/g; cp -r sub/g sub/.git; cp ~/evil sub/.git/hooks/pre-commit",
    "cp ~/evil sub/.git/hooks/post-checkout; git -C sub config core.fsmonitor ~/evil",
    "mv sub/.git g; echo 'gitdir: ../trap' > sub/.git",
    f"cp ~/evil .git/modules/m/hooks/pre-commit; {TRAP} >> .git/modules/m/config",
    f"cp ~/evil .git/modules/a/b/hooks/pre-commit; {TRAP} >> .git/modules/a/b/config",
    "echo 'gitdir: ../trap' > m/.git",
    f"{TRAP} > ~/.gitconfig",
]


@pytest.fixture(scope="module")
def prepared() -> dict[int, Path]:
    """By user: a repository with others in it. Made once, since `git submodule add` is slow, and copied."""
    return {}


@pytest.mark.parametrize("plant", PLANTS)
def test_nothing_planted_runs_on_the_host(lab: Lab, prepared: dict[int, Path], plant: str) -> None:
    if lab.identity.uid not in prepared:
        made = lab.identity.base / "prepared"
        made.mkdir()
        lab.identity.own(made)
        lab.host(
            f"{REPOSITORY}; git init -q -b main sub; git -C sub commit -q --allow-empty -m s;"
            "git init -q -b main ~/lib; git -C ~/lib commit -q --allow-empty -m l;"
            "git -c protocol.file.allow=always submodule -q add ~/lib m;"
            "git -c protocol.file.allow=always submodule -q add --name a/b ~/lib deep/b; git commit -qm modules;"
            "cp -r sub/.git trap; git config -f trap/config core.bare false"
        )
        lab.host(f"cp -a . {made}")
        prepared[lab.identity.uid] = made
    else:
        lab.host(f"cp -a {prepared[lab.identity.uid]}/. .")
    lab.host(
        "printf '#!/bin/sh\\ntouch ~/pwned\\n' > ~/evil; chmod +x ~/evil;"
        "git config -f trap/config core.fsmonitor ~/evil"
    )
    lab.run(plant)
    steps = "git status; git trap; git add -A; git commit -q --allow-empty -m later; git checkout -qB other; git log"
    later = f"set +e; for d in . sub m deep/b; do (cd $d && {{ {steps}; }} >/dev/null 2>&1); done"
    lab.host(later, check=False)
    assert not (lab.home / "pwned").exists()
    # the twin: outside of a sandbox the same thing is a trap
    lab.host(f"set +e; {plant}\n{later}", check=False)
    assert (lab.home / "pwned").exists()


def test_a_working_directory_does_not_become_a_bare_repository(lab: Lab) -> None:
    lab.host("printf '#!/bin/sh\\ntouch ~/pwned\\n' > evil; chmod +x evil")
    done = lab.run(
        "mkdir objects refs; echo 'ref: refs/heads/main' > HEAD; "
        "printf '[core]\\nrepositoryformatversion=0\\nbare=false\\nworktree=.\\nfsmonitor=./evil\\n' > config"
    )
    assert len(done.moved) == 1
    lab.host("git status; git add -A", check=False)
    assert not (lab.home / "pwned").exists()
    assert not lab.run("true").moved


def test_a_common_directory_that_appears_is_moved_aside(lab: Lab, repository: Path) -> None:
    done = lab.run("cp -r .git/. other; echo ../other > .git/commondir; touch mine")
    assert [Path(path).name.partition(".")[0] for path in done.moved] == ["commondir"]
    assert "mine" in lab.host("git status --porcelain")


@pytest.fixture
def worktree(lab: Lab) -> tuple[Path, Path]:
    """A main repository and a linked worktree of it, both outside of each other."""
    main, linked = lab.home / "m", lab.home / "w"
    lab.host(f"mkdir {main}; cd {main}; {REPOSITORY}; git worktree add -q ../w; git worktree add -q ../v")
    return main, linked


def test_a_linked_worktree_works(lab: Lab, worktree: tuple[Path, Path]) -> None:
    main, linked = worktree
    done = lab.run(
        "set -e; touch a; git add a; git commit -qm a; git stash list; git fetch -q . main; git branch x; git gc -q;"
        "git log --oneline", project=linked,
    )  # fmt: skip
    assert done.ok and len(done.stdout.splitlines()) == 2, done.stdout + done.stderr
    for attempt in (
        f"touch {main}/.git/hooks/pre-commit", f"echo >> {main}/.git/config", "rm .git", "echo gitdir: x > .git",
        f"echo x > {main}/.git/worktrees/w/commondir", f"touch {main}/file", f"rm {main}/.git/worktrees/v/commondir",
        f"mv {main}/.git/worktrees/v {main}/.git/x", f"echo >> {main}/.git/worktrees/w/config.worktree",
        f"mv {main}/.git/worktrees {main}/.git/x",
    ):  # fmt: skip
        assert not lab.run(attempt, project=linked).ok, attempt
    assert lab.host("git fsck", cwd=main) is not None


def test_a_worktree_below_a_writable_directory(lab: Lab, worktree: tuple[Path, Path]) -> None:
    """Protection closes nothing that git needs, and what is shown as writable is."""
    main, linked = worktree
    for number, rule in enumerate(("~", f"/{main}/.git")):
        done = lab.run(f"touch {number}; git add .; git commit -qm b", project=linked, allow_write=[rule])
        assert done.ok and {str(lab.home), str(main / ".git")} & {*done.writable}, done
        assert not lab.run(f"touch {main}/.git/hooks/x", project=linked, allow_write=[rule]).ok
    assert lab.run("git -C ../v commit -q --allow-empty -m v", project=linked, allow_write=["~"]).ok


def test_a_worktree_can_be_added_inside_the_project(lab: Lab, repository: Path) -> None:
    assert lab.run("git worktree add -q .trees/one && cd .trees/one && touch n && git add n && git commit -qm n").ok
    assert lab.run("cd .trees/one && touch o && git add o && git commit -qm o && git worktree list").ok
    assert not lab.run("echo x > .git/worktrees/one/commondir").ok
    assert not lab.run("rm .trees/one/.git").ok


def test_a_git_file_that_nobody_confirms_opens_nothing(lab: Lab, worktree: tuple[Path, Path]) -> None:
    """A sandboxed command may have written it, to have the next one open the place it names."""
    main, _ = worktree
    lab.host(f"echo 'gitdir: {main}/.git' > .git")
    done = lab.run(f"touch {main}/.git/x")
    assert not done.ok and any("does not point back" in warning for warning in done.warnings)
    lab.host(f"echo 'gitdir: {main}/.git/worktrees/w' > .git")
    assert not lab.run(f"touch {main}/.git/x").ok


def test_a_bare_layout(lab: Lab) -> None:
    project = lab.home / "p"
    lab.host(
        f"mkdir {project}; cd {project}; git init -q -b main seed; git -C seed commit -q --allow-empty -m first;"
        "git clone -q --bare seed .bare; echo 'gitdir: ./.bare' > .git; git worktree add -q main;"
        "git worktree add -q feat"
    )
    assert lab.run("touch f && git add f && git commit -qm f", project=project / "main").ok
    assert lab.run("cd feat && touch f && git add f && git commit -qm f && git worktree list", project=project).ok
    for cwd in (project, project / "main"):
        assert not lab.run(f"touch {project}/.bare/hooks/x", project=cwd).ok
        assert not lab.run(f"echo >> {project}/.bare/config", project=cwd).ok


def test_three_hundred_worktrees(lab: Lab, repository: Path) -> None:
    lab.host("for i in $(seq 300); do git worktree add -q --detach --no-checkout ~/w$i; done")
    done = lab.run("git worktree list | wc -l; touch n; git add n; git commit -qm n")
    assert done.ok and done.stdout == "301\n" and done.mounts < 60
    linked = lab.home / "w7"
    done = lab.run("touch n; git add n; git commit -qm n", project=linked)
    assert done.ok and done.mounts < 60
    assert not lab.run(f"touch {repository}/.git/worktrees/w8/x", project=linked).ok


def test_worktree_configuration_and_odd_switches(lab: Lab, repository: Path) -> None:
    lab.host("git config extensions.worktreeConfig true; git config --worktree core.sparseCheckout false")
    lab.host("git config core.fsmonitor true; git config safe.directory '*'")
    assert lab.run("git status --porcelain && echo 2 > n && git add n && git commit -qm n").ok
    assert not lab.run("git config --worktree core.fsmonitor ./evil").ok
    assert lab.host("git config --worktree core.sparseCheckout") == "false\n"


def test_a_directory_of_hooks_that_the_configuration_names(lab: Lab, repository: Path) -> None:
    lab.host("mkdir .husky; echo '#!/bin/sh' > .husky/pre-commit; chmod +x .husky/pre-commit")
    lab.host("git config core.hooksPath .husky")
    assert lab.run("git commit -q --allow-empty -m x").ok
    assert not lab.run("echo touch >> .husky/pre-commit").ok
    lab.host("git config core.hooksPath hooks-elsewhere; git config include.path ../shared; touch shared")
    assert lab.run("echo touch >> .husky/pre-commit").ok
    assert not lab.run("echo x > shared").ok


def test_a_branch_with_protected_files(lab: Lab, repository: Path) -> None:
    """Refused, or lifted by name. What is reported: test_field_messages."""
    lab.host("git checkout -qb b; mkdir .vscode; echo {} > .vscode/settings.json; git add -A; git commit -qm b")
    lab.host("git checkout -q main")
    done = lab.run("git checkout b")
    assert not done.ok or ".vscode" in done.stderr + done.stdout
    lab.host("git checkout -qf main; git clean -qfd")
    assert lab.run("git checkout -q b && git status --porcelain", allow_write=["./.vscode"]).stdout == ""


def test_owners_are_the_same_inside(lab: Lab, repository: Path) -> None:
    """Git has no doubts, and what is made belongs to the caller outside as well."""
    done = lab.run("git status --porcelain; id -u; stat -c %u .; echo > new; stat -c %u new")
    assert done.ok and set(done.stdout.split()) == {str(lab.identity.uid)}
    assert (repository / "new").stat().st_uid == lab.identity.uid
