"""The shell of `run -c`: that of the user, or a named one."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.processes import descendants
from support.terminal import Terminal

WHICH = "readlink /proc/$$/exe; echo $SHELL"
PROFILES = [("bash", ".profile"), ("zsh", ".zprofile"), ("dash", ".profile"), ("fish", ".config/fish/config.fish")]
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


@pytest.mark.parametrize(("name", "profile"), PROFILES)
def test_a_login_shell_reads_the_users_files(daemon: DaemonProcess, name: str, profile: str) -> None:
    home = daemon.identity.home
    start = "set -x PATH /opt/mine $PATH\n" if name == "fish" else "export PATH=/opt/mine:$PATH\n"
    text = start + "echo x >~/.started\n"
    daemon.identity.write(home / profile, f"if status is-login\n{text}end\n" if name == "fish" else text)
    show = "printenv PATH"
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
    command = daemon.popen("run", "-c", "echo up; exec cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None and command.stdout.readline() == "up\n"
    processes = (command.pid, *(one.pid for one in descendants(command.pid)))
    groups = {Path(f"/proc/{pid}/cgroup").read_text() for pid in processes}
    assert groups == {Path("/proc/self/cgroup").read_text()}
    command.communicate()
    line = ["sh", "-c", f"stty rows 33 cols 77; exec {shlex.join(daemon.identity.command('run', 'stty', 'size'))}"]
    ids = (f"--reuid={daemon.identity.uid}", f"--regid={daemon.identity.gid}", "--clear-groups")
    line = line if daemon.identity.is_me else ["setpriv", *ids, *line]
    with Terminal(line, env=daemon.environment(), cwd=daemon.identity.workspace) as terminal:
        terminal.expect("^33 77")
        assert terminal.wait() == 0
