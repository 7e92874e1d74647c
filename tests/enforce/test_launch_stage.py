"""What a caller hands over with a command acts in the sandbox only: nothing of it on the host while that is made."""

from __future__ import annotations

import subprocess

import pytest

from support.bubblewrap import each_bubblewrap
from support.daemons import DaemonProcess

pytestmark = each_bubblewrap

WITH_ENVIRONMENT = """
import os, sys
from sandboxd_client import Client
given = dict(word.split("=", 1) for word in sys.argv[1:])
with Client(autostart=False) as box:
    done = box.run(["/usr/bin/env"], cwd=".", env={**os.environ, **given}, capture_output=True, text=True)
    print(done.stdout)
    print(done.stderr, file=sys.stderr)
"""


@pytest.fixture
def daemon(shared_daemon: DaemonProcess) -> DaemonProcess:
    return shared_daemon


def test_the_loader_ignores_the_commands_environment(daemon: DaemonProcess) -> None:
    """With LD_PRELOAD bubblewrap would run any code on the host; LD_DEBUG_OUTPUT shows whether its loader
    listens."""
    home = daemon.identity.home
    given = ["LD_DEBUG=files", f"LD_DEBUG_OUTPUT={home}/loader", "LD_PRELOAD=libc.so.6", "LOCPATH=/nonexistent"]
    done = daemon.python(WITH_ENVIRONMENT, *given, cwd=daemon.identity.workspace)
    assert set(given) <= set(done.stdout.splitlines()), done.stderr
    assert list(home.glob("loader*")) == []


@pytest.mark.parametrize("name", ["LD_DEBUG", "\u030cD_DEBUG", "\x01LD_DEBUG", "MD_DEBUG", "KD_DEBUG", "GUBED_DL"])
def test_nor_is_there_a_name_that_becomes_one_of_its(daemon: DaemonProcess, name: str) -> None:
    home = daemon.identity.home
    given = [f"{name}=files", f"{name}_OUTPUT={home}/loader"]
    done = daemon.python(WITH_ENVIRONMENT, *given, cwd=daemon.identity.workspace)
    assert set(given) <= set(done.stdout.split("\n")), done.stderr
    assert list(home.glob("loader*")) == []


def test_the_environment_arrives_as_it_was_given(daemon: DaemonProcess) -> None:
    workspace = daemon.identity.workspace
    given = ["PWD=/elsewhere", "A=", "\u00e4=\u00f6", "_=x y", "PWDX=1", "LD_LIBRARY_PATH=/opt/lib"]
    lines = daemon.python(WITH_ENVIRONMENT, *given, cwd=workspace).stdout.splitlines()
    assert set(given[1:]) <= set(lines)
    assert [line for line in lines if line.startswith("PWD=")] == [f"PWD={workspace}"]


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_directory_is_no_stream(daemon: DaemonProcess, stream: str) -> None:
    """Through its descriptor the host's mounts could be reached, where nothing is read-only."""
    identity = daemon.identity
    code = f"""
import os, subprocess
from sandboxd_client import Client
directory = os.open({str(identity.home)!r}, os.O_RDONLY)
with Client(autostart=False) as box:
    launch = box.wrap(argv=["sh", "-c", "for fd in 0 1 2; do cd -P /proc/self/fd/$fd && touch escaped; done"], cwd=".")
    streams = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.DEVNULL) | {{{stream!r}: directory}}
    print(subprocess.run(launch.argv, cwd=launch.cwd, **streams).returncode)
"""
    done = daemon.python(code, cwd=identity.workspace)
    assert not (identity.home / "escaped").exists()
    assert done.stdout.split() == ["125"], done.stderr


def test_other_streams_are(daemon: DaemonProcess) -> None:
    source = daemon.identity.write(daemon.identity.home / "in", "text\n")
    target = daemon.identity.write(daemon.identity.home / "out", "")
    with source.open() as stdin, target.open("w") as stdout:
        client = daemon.popen("run", "--", "cat", stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL)
        assert client.wait() == 0
    assert target.read_text() == "text\n"
