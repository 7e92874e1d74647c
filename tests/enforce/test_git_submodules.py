"""Submodules and signatures inside a sandbox, and repositories with a file system monitor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.lab import Lab, Rules
from support.users import Identity

LOCAL = "-c protocol.file.allow=always"


@pytest.fixture
def lab(identity: Identity) -> Iterator[Lab]:
    with Lab(identity) as opened:
        opened.host(
            "git init -q -b main .; git commit -q --allow-empty -m 1; git init -q -b main ~/lib;"
            "echo 1 > ~/lib/f; git -C ~/lib add f; git -C ~/lib commit -qm l"
        )
        yield opened


def test_existing_submodules_are_updated_and_committed_in(lab: Lab) -> None:
    lab.host(
        f"git {LOCAL} submodule --quiet add ~/lib m; git commit -qm m; git submodule --quiet deinit -f m;"
        "git submodule --quiet init; echo 2 > ~/lib/f; git -C ~/lib commit -qam 2"
    )
    done = lab.run(
        f"set -e; git {LOCAL} submodule --quiet update; git {LOCAL} submodule --quiet update --remote; cat m/f;"
        "cd m; echo 3 > f; git commit -qam 3; cd ..; git commit -qam moved; git status --porcelain"
    )
    assert (done.stdout, done.ok) == ("2\n", True), done
    assert lab.host("git -C m log --oneline | wc -l") == "3\n"
    assert not done.moved


def test_one_is_added_where_the_user_has_opened_what_it_writes(lab: Lab) -> None:
    add = f"git {LOCAL} submodule --quiet add ~/lib m && git commit -qm m && git submodule status"
    closed = lab.run(add)
    assert not closed.ok and ".gitmodules" in closed.stderr
    lab.host("git reset -q --hard; rm -rf m .git/modules")
    opened: Rules = {"allow_write": ["./.gitmodules"], "allow_git_config": True}
    done = lab.run(add, **opened)
    assert done.ok and not done.moved, done
    assert lab.host("git submodule status && git -C m log --oneline | wc -l").endswith("1\n")
    # what it brought is protected from the next command on
    assert not lab.run("touch .git/modules/m/hooks/post-commit", **opened).ok


def test_commits_are_signed_with_a_key_in_a_file(lab: Lab) -> None:
    """With an agent the same, through `allowUnixSockets`."""
    lab.host(
        "mkdir -m 700 ~/.ssh; ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id;"
        'echo "a@a.test $(cat ~/.ssh/id.pub)" > ~/who;'
        "git config gpg.format ssh; git config user.signingkey ~/.ssh/id; git config commit.gpgsign true;"
        "git config gpg.ssh.allowedSignersFile ~/who"
    )
    done = lab.run("echo 1 > f; git add f; git commit -qm signed && git verify-commit HEAD")
    assert done.ok and "Good" in done.stderr, done
    assert lab.host("git verify-commit HEAD 2>&1").startswith("Good")
    assert not lab.run("git commit -q --allow-empty -m x", deny_read=["~/.ssh"]).ok


def test_a_monitor_that_the_user_has_set_runs_inside(lab: Lab) -> None:
    lab.identity.write(lab.home / "monitor", "#!/bin/sh\necho ran >> ~/seen; exit 1\n", mode=0o755)
    lab.host("git config core.fsmonitor ~/monitor; touch f; git add f; git commit -qm f; rm -f ~/seen")
    done = lab.run("echo 2 > f; git status --porcelain; touch ~/seen", allow_write=["~"])
    assert done.stdout == " M f\n", done
    assert (lab.home / "seen").read_text().startswith("ran\n")
