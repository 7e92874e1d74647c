"""`--remote HOST`: the socket of another machine, by a program in ssh's place that forwards as ssh does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandboxd import __version__
from sandboxd.cli.arguments import UsageError
from sandboxd.cli.remote import RemoteError, forwarded
from sandboxd_client import Client, ConnectionLost
from sandboxd_client.testing import FakeDaemon
from sandboxd_client.wire.messages.hello import PROTOCOL
from support.waiting import wait_until

SSH = """#!{python}
import json, os, socket, sys, threading
with open("{log}", "a") as log:
    print(os.getpid(), json.dumps(sys.argv[1:]), file=log)
if sys.argv[-1] == "sandboxd status --json":
    print("welcome")
    print(open("{status}").read())
    sys.exit(0)
local, remote = sys.argv[sys.argv.index("-L") + 1].split(":")
def copy(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
def serve():
    while True:
        here = listener.accept()[0]
        there = socket.socket(socket.AF_UNIX)
        there.connect(remote)
        for pair in ((here, there), (there, here)):
            threading.Thread(target=copy, args=pair, daemon=True).start()
listener = socket.socket(socket.AF_UNIX)
listener.bind(local)
listener.listen()
threading.Thread(target=serve, daemon=True).start()
print("sandboxd-forwards", flush=True)
sys.stdin.read()
"""


class Ssh:
    def __init__(self, directory: Path, fake: FakeDaemon) -> None:
        self.path, self.log, self.state = directory / "ssh", directory / "log", directory / "status"
        self.path.write_text(SSH.format(python=sys.executable, log=self.log, status=self.state))
        self.path.chmod(0o755)
        self.status = {"running": True, "socket": fake.socket, "version": __version__, "protocol": PROTOCOL}
        self.answer()

    def answer(self, **changes: Any) -> None:
        self.state.write_text(json.dumps({**self.status, **changes}))

    def calls(self) -> list[tuple[int, list[str]]]:
        lines = (line.split(" ", 1) for line in self.log.read_text().splitlines())
        return [(int(pid), json.loads(words)) for pid, words in lines]


@pytest.fixture
def ssh(tmp_path: Path, fake: FakeDaemon) -> Ssh:
    return Ssh(tmp_path, fake)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_a_socket_here_leads_to_the_daemon_there(ssh: Ssh, fake: FakeDaemon) -> None:
    with forwarded("me@there", str(ssh.path)) as path:
        with Client(path, autostart=False) as box:
            box.permission_subscribe()
            box.permission_respond("q-1", "deny")
        assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
        (_, asked), (pid, words) = ssh.calls()
    assert [call.method for call in fake.calls][-2:] == ["permission.subscribe", "sandbox_permission_response"]
    assert asked[-3:] == ["--", "me@there", "sandboxd status --json"]
    assert words[-5:] == ["-L", f"{path}:{fake.socket}", "--", "me@there", "echo sandboxd-forwards; exec cat"]
    assert not os.path.exists(path) and not is_alive(pid)


@pytest.mark.parametrize(
    ("changes", "slug"),
    [
        ({"running": False}, "daemon_not_running"),
        ({"protocol": PROTOCOL + 1}, "wrong_version"),
        ({"socket": "/a b"}, "ssh_failed"),
        ({"socket": "/a:/b"}, "ssh_failed"),
        ({"socket": None}, "ssh_failed"),
    ],
)
def test_a_daemon_that_does_not_fit_is_refused(ssh: Ssh, changes: dict[str, Any], slug: str) -> None:
    ssh.answer(**changes)
    with pytest.raises(RemoteError) as raised, forwarded("there", str(ssh.path)):
        pytest.fail("forwarded")
    assert raised.value.slug == slug and len(ssh.calls()) == 1


def test_a_version_of_the_same_protocol_is_told(ssh: Ssh, capsys: pytest.CaptureFixture[str]) -> None:
    ssh.answer(version="9.9")
    with forwarded("there", str(ssh.path)):
        assert "the daemon on there is version 9.9" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x", "a b", "a\nb"])
def test_a_host_is_no_option_and_one_word(host: str) -> None:
    with pytest.raises(UsageError), forwarded(host, "/nowhere/ssh"):
        pytest.fail("forwarded")


def test_output_without_a_status_is_an_error(ssh: Ssh) -> None:
    ssh.state.write_text("command not found")
    with pytest.raises(RemoteError, match="does not tell of its daemon"), forwarded("there", str(ssh.path)):
        pytest.fail("forwarded")
    with pytest.raises(RemoteError, match="does not start"), forwarded("there", "/nowhere/ssh"):
        pytest.fail("forwarded")


def test_ssh_ends_with_its_client_and_the_client_with_ssh(ssh: Ssh, cli: Any) -> None:
    code = "import sys, time; from sandboxd.cli.remote import forwarded\n"
    code += "with forwarded('h', sys.argv[1]): print(1, flush=True); time.sleep(600)"
    argv = [sys.executable, "-c", code, str(ssh.path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=cli.env) as client:
        assert client.stdout is not None and client.stdout.readline() == b"1\n"
        client.kill()
    pid, _ = ssh.calls()[-1]
    wait_until(lambda: not is_alive(pid))
    with forwarded("there", str(ssh.path)) as path, Client(path, autostart=False) as box:
        box.permission_subscribe()
        os.kill(ssh.calls()[-1][0], 9)
        with pytest.raises(ConnectionLost):
            next(box.notifications(20))
