"""The shell of `run -c`: that of the user, or a named one."""

from __future__ import annotations

import pytest

from support.daemons import DaemonProcess, StartDaemon

WHICH = "readlink /proc/$$/exe; echo $SHELL"
FISH = "readlink /proc/$fish_pid/exe; echo $SHELL"


@pytest.fixture
def daemon(share_daemon: StartDaemon) -> DaemonProcess:
    return share_daemon(settings={})


@pytest.mark.parametrize("name", ["bash", "dash", "zsh", "fish"])
def test_a_line_runs_in_the_users_shell(daemon: DaemonProcess, name: str) -> None:
    done = daemon.run("run", "-c", FISH if name == "fish" else WHICH, env={"SHELL": f"/usr/bin/{name}"})
    assert [line.rpartition("/")[2] for line in done.stdout.splitlines()] == [name, name], done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("shell", ["", "/usr/bin/python3", "/no/such/zsh", "zsh"])
def test_a_shell_that_is_none_of_them_is_bash(daemon: DaemonProcess, shell: str) -> None:
    done = daemon.run("run", "-c", WHICH, env={"SHELL": shell})
    assert [line.rpartition("/")[2] for line in done.stdout.splitlines()] == ["bash", "bash"], done.stderr


def test_a_named_shell_precedes_the_users(daemon: DaemonProcess) -> None:
    for named in ("dash", "/usr/bin/dash"):
        assert daemon.run("run", "--shell", named, "-c", WHICH).stdout.splitlines()[0].endswith("/dash")
    wrong = (("--shell", "no-such-shell", "-c", "true"), ("--login", "true"), ("--shell", "sh", "--decide", "-c", ""))
    for words in wrong:
        assert daemon.run("run", *words).returncode == 2


@pytest.mark.parametrize(("name", "profile"), [("bash", ".profile"), ("zsh", ".zprofile"), ("dash", ".profile")])
def test_a_login_shell_reads_the_users_files(daemon: DaemonProcess, name: str, profile: str) -> None:
    home = daemon.identity.home
    daemon.identity.write(home / profile, "export PATH=/opt/mine:$PATH\necho x >~/.started\n")
    show = "echo $PATH"
    done = daemon.run("run", "--shell", name, "--login", "-c", show)
    assert done.returncode == 0 and done.stdout.startswith("/opt/mine:"), "a file that cannot write breaks nothing"
    assert not (home / ".started").exists()
    assert not daemon.run("run", "--shell", name, "-c", show).stdout.startswith("/opt/mine:")
    (home / profile).unlink()


def test_denials_judge_no_line_of_another_syntax(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings={"permissions": {"deny": ["Bash(env:*)"]}})
    refused = daemon.run("run", "--shell", "zsh", "-c", "=env")
    assert refused.returncode == 125 and "permissions.deny cannot judge a line of zsh" in refused.stderr
    assert daemon.run("run", "--shell", "bash", "-c", "echo ran").stdout == "ran\n"
    assert daemon.run("run", "--shell", "bash", "-c", "env").returncode == 125


def test_what_is_inherited_is_as_outside(daemon: DaemonProcess) -> None:
    show = "umask; ulimit -n; ulimit -f; nice; echo $LANG"
    around = f"umask 027; ulimit -S -n 321; ulimit -f 12345; exec nice -n 3 {{}} '{show}'"
    outside = daemon.identity.run(["bash", "-c", around.format("bash -c")])
    inside = daemon.identity.run(["bash", "-c", around.format("sandboxd run -c")], env=daemon.environment())
    assert inside.stdout == outside.stdout, inside.stderr
