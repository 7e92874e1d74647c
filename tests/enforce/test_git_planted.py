"""Repositories that a command makes itself: when it has ended, a git on the host runs nothing of what it put there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemons import DaemonProcess
from support.lab import Lab
from support.users import Identity

MONITOR = "git config -f {}/config core.fsmonitor ~/evil"

PLANTS = (
    "git init -q new; cp ~/evil new/.git/hooks/post-commit",
    "git init -q new; mkdir h; rm -rf new/.git/hooks; ln -s ../../h new/.git/hooks; cp ~/evil h/post-commit",
    "git init -q new; ln -s ~/evil new/.git/hooks/post-commit",
    f"git init -q new; {MONITOR.format('new/.git')}",
    "git init -q new; git -C new config core.hooksPath ../h; mkdir h; cp ~/evil h/post-commit",
    f"git init -q new; git -C new config include.path ../../i; mkdir i.d; {MONITOR.format('i.d')}; mv i.d/config i",
    f"git init -q new; mkdir c; {MONITOR.format('c')}; ln -sf ../../c/config new/.git/config",
    "git init -q new; git -C new config extensions.worktreeConfig true;"
    "git -C new config --worktree core.fsmonitor ~/evil",
    f"git init -q new; git init -q other; {MONITOR.format('other/.git')}; echo ../../other/.git > new/.git/commondir",
    "mkdir new; git init -q --bare trap; echo 'gitdir: ../trap' > new/.git; git config -f trap/config core.bare false;"
    + MONITOR.format("trap"),
    f"mkdir new; git init -q t; mv t/.git trap; ln -s ../trap new/.git; {MONITOR.format('trap')}",
    "git clone -q ~/origin new; cp ~/evil new/.git/hooks/post-commit",
    "git init -q --bare new; git config -f new/config core.bare false; git config -f new/config core.worktree .;"
    + MONITOR.format("new"),
    "git init -q new; git -C new -c protocol.file.allow=always submodule --quiet add ~/origin m;"
    + MONITOR.format("new/.git/modules/m"),
    "git clone -q ~/origin new; mkdir -p ../.git/modules; mv new/.git ../.git/modules/new;"
    f"echo 'gitdir: ../../.git/modules/new' > new/.git; {MONITOR.format('../.git/modules/new')}",
    # git needs less of a directory than listing it or renaming in it
    "git init -q new; cp ~/evil new/.git/hooks/post-commit; chmod 555 new/.git/hooks",
    "git init -q new; cp ~/evil new/.git/hooks/post-commit; chmod 311 new/.git/hooks",
    f"git init -q new; {MONITOR.format('new/.git')}; chmod 555 new/.git",
    "git init -q new; cp ~/evil new/.git/hooks/post-commit; : > new/.git/config.worktree;"
    "chmod 0 new/.git/config.worktree",
    "git init -q new; cp ~/evil new/.git/hooks/post-commit; chmod 311 new",
    "git init -q new; cp ~/evil new/.git/hooks/post-commit; chmod 311 new/.git .",
    "git init -q new; cp ~/evil new/.git/hooks/post-commit; mkdir -m 311 new/.git/modules new/.git/worktrees",
    "git init -q new; cp ~/evil new/.git/hooks/post-commit; ln -s /proc/1/root/x .mcp.json; ln -s /proc/1/root .vscode",
    # the name ends where git says
    f"mkdir new; git init -q t; mv t/.git 'trap '; echo 'gitdir: ../trap ' > new/.git; {MONITOR.format('trap?')}",
    f"mkdir new; git init -q t; mv t/.git trap; printf 'gitdir: ../trap\\0x' > new/.git; {MONITOR.format('trap')}",
)
"""Each in a directory of its own, where `new` becomes the trap."""


def everywhere(script: str) -> str:
    return "\n".join(f"(mkdir -p p{number}; cd p{number}; {script})" for number in range(len(PLANTS)))


PLANT = "\n".join(f"(mkdir p{number}; cd p{number}; {plant})" for number, plant in enumerate(PLANTS))
_USE = "for d in new new/m; do (cd $d && { git status; git commit -q --allow-empty -m l; }); done"
LATER = everywhere(_USE) + "\ntrue"


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    identity.write(identity.home / "evil", "#!/bin/sh\npwd | grep -o 'p[0-9]*/new' >> ~/pwned\n", mode=0o755)
    with Lab(identity) as opened:
        opened.host(
            "git init -q -b main .; echo 1 > f; git add .; git commit -qm 1; git init -q ~/origin;"
            "git -C ~/origin commit -q --allow-empty -m o"
        )
        yield opened


def test_nothing_planted_runs_on_the_host(lab: Lab) -> None:
    pwned = lab.home / "pwned"
    done = lab.run(PLANT)
    pwned.unlink(missing_ok=True)  # what ran inside ran inside
    lab.host(f"set +e; {LATER}", check=False)
    assert not pwned.exists(), pwned.read_text()
    assert {Path(path).relative_to(lab.workspace).parts[0] for path in done.moved} >= {
        f"p{number}" for number, plant in enumerate(PLANTS) if "../.git/modules" not in plant
    }
    # what stood there is kept under another name
    assert all(list(Path(path).parent.glob(Path(path).name + ".refused-*")) for path in done.moved)
    # the twin: outside of a sandbox each of them is a trap
    lab.host("chmod -R u+rwX p* .git; rm -rf p* .git/modules")
    lab.host(f"set +e; {PLANT}\nrm -f ~/pwned\n{LATER}", check=False)
    assert set(pwned.read_text().split()) == {f"p{number}/new" for number in range(len(PLANTS))}


WORK = """
set -e
git clone -q ~/origin clone; git -C clone pull -q
git worktree add -q tree; git -C tree commit -q --allow-empty -m n
git init -q new; cd new; git -c protocol.file.allow=always submodule --quiet add ~/origin m; git commit -qm m
git config filter.lfs.clean 'git-lfs clean -- %f'; git config filter.lfs.required true; git config user.name x; cd ..
git init -q --bare bare; mkdir -p a/b/c; mv a/b x; mv x/c a/; rm -r x
"""


def test_ordinary_work_is_left_alone(lab: Lab) -> None:
    done = lab.run(WORK)
    assert done.ok and not done.moved, done


def test_a_link_to_a_closed_repository_changes_nothing_there(lab: Lab) -> None:
    """Deeper than the scan looks, and not the command's to write: its hooks are the person's own."""
    deep = lab.workspace / "a" / "b" / "c" / "d" / "e"
    lab.host(f"mkdir -p {deep}; git init -q {deep}; cp ~/evil {deep}/.git/hooks/post-commit")
    script = f"mkdir new; ln -s {deep}/.git new/.git; mkdir file; echo gitdir: {deep}/.git > file/.git"
    done = lab.run(script, deny_write=["./a"])
    assert done.ok and not done.moved, done
    assert (deep / ".git" / "hooks" / "post-commit").exists()


def test_pipes_where_git_reads_hang_nobody(lab: Lab) -> None:
    names = ("config", "commondir", "config.worktree", "gitdir")
    script = "".join(f"rm -f new/.git/{name}; mkfifo new/.git/{name};" for name in names)
    done = lab.run(f"git init -q new; {script} mkdir other; mkfifo other/.git")
    assert done.ok and len(done.moved) == 3, done
    assert lab.run("true").ok


def test_the_daemon_reports_it(daemon: DaemonProcess) -> None:
    identity = daemon.identity
    identity.write(identity.home / "evil", "#!/bin/sh\n", mode=0o755)
    plant = "git init -q new; cp ~/evil new/.git/hooks/post-commit"
    done = daemon.run("run", "--show-violations", "-c", plant)
    assert done.returncode == 0
    hooks = identity.workspace / "new" / ".git" / "hooks"
    assert not (hooks / "post-commit").exists() and len(list(hooks.glob("post-commit.refused-*"))) == 1
    assert "new/.git/hooks/post-commit" in done.stderr, done


def test_what_could_not_be_looked_through_is_told(daemon: DaemonProcess) -> None:
    """A path that is too long for the kernel can be made step by step. What else there is has been made harmless."""
    identity = daemon.identity
    identity.write(identity.home / "evil", "#!/bin/sh\n", mode=0o755)
    deep = f"for n in $(seq 30); do mkdir {'d' * 200}; cd {'d' * 200}; done"
    plant = f"({deep}); mkdir -p a/b/c/d/e; git init -q a/b/c/d/e; cp ~/evil a/b/c/d/e/.git/hooks/post-commit"
    done = daemon.run("run", "--show-violations", "-c", plant)
    assert done.returncode == 125 and "ended with status 0\n" in done.stderr
    assert f"check the git repositories in {identity.workspace}" in done.stderr, daemon.log.read_text()[-1500:]
    assert not (identity.workspace / "a/b/c/d/e/.git/hooks/post-commit").exists()
    assert "e/.git/hooks/post-commit" in done.stderr
    identity.run(["rm", "-rf", str(identity.workspace / ("d" * 200))])  # programs that use long paths cannot


def test_many_closed_directories_are_opened_up(lab: Lab) -> None:
    closed = "for n in $(seq 50); do mkdir $n; chmod 311 $n; done"
    plant = "git init -q new; cp ~/evil new/.git/hooks/post-commit"
    done = lab.run(f"mkdir c; (cd c; {closed}; cd 7; {plant}; chmod 311 new/.git new); chmod 311 c")
    assert done.ok and not done.unseen
    assert done.moved == [str(lab.workspace / "c/7/new/.git/hooks/post-commit")]
    assert {(lab.workspace / path).stat().st_mode & 0o777 for path in ("c", "c/7", "c/7/new")} == {0o311}


def test_check_recommends_that_git_asks_for_bare_repositories(daemon: DaemonProcess) -> None:
    """Read from the files: a git that is run would obey what stands where it is run."""

    def step() -> dict[str, object]:
        steps: list[dict[str, object]] = json.loads(daemon.run("check", "--json").stdout)["steps"]
        return next(one for one in steps if one["name"] == "bare repositories")

    before = step()
    assert (before["ok"], before["code"]) == (False, "advice_bare_repository")
    assert "git config --global safe.bareRepository explicit" in str(before["remedy"])
    identity = daemon.identity
    identity.run(["git", "config", "--global", "safe.bareRepository", "explicit"], cwd=identity.home)
    assert step()["ok"] is True
