"""The variables of a sandbox, and that a real ssh gets through the proxy without netcat."""

from __future__ import annotations

import shlex
import socket
import subprocess
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sandboxd.plan.environment import FOREIGN_NAMES, HTTP_NAMES, EnvironmentChange, change_environment
from support.fake_host import place

TMP = "/var/tmp/sandboxd-1000/d-1/s"


def change(caller: dict[str, str] | None = None, **place_changes: object) -> EnvironmentChange:
    return change_environment(place(**place_changes), TMP, caller or {})


def test_everything_that_is_set() -> None:
    """Everything that is set."""
    values = dict(change().set)
    java, ssh = values.pop("JAVA_TOOL_OPTIONS"), values.pop("GIT_SSH_COMMAND")
    assert values == {
        **dict.fromkeys(HTTP_NAMES, "http://127.0.0.1:3128"),
        "SANDBOX_RUNTIME": "1", "TMPDIR": TMP, "TMPPREFIX": f"{TMP}/zsh", "XDG_RUNTIME_DIR": TMP,
        "NO_PROXY": "localhost,127.0.0.1,::1,*.local", "no_proxy": "localhost,127.0.0.1,::1,*.local",
        "RSYNC_PROXY": "127.0.0.1:3128", "NODE_USE_ENV_PROXY": "1",
        "CLOUDSDK_PROXY_TYPE": "http", "CLOUDSDK_PROXY_ADDRESS": "127.0.0.1", "CLOUDSDK_PROXY_PORT": "3128",
    }  # fmt: skip
    assert "-Dhttps.proxyPort=3128" in java and "-Dhttp.nonProxyHosts=localhost|" in java
    assert "set -- -o ProxyCommand=" in ssh and "core.sshCommand" in ssh
    assert not any("socks" in value for value in change().set.values())


def test_without_a_proxy_no_proxy_of_the_host_is_left() -> None:
    changed = change(http_port=None)
    assert set(changed.set) == {"SANDBOX_RUNTIME", "TMPDIR", "TMPPREFIX", "XDG_RUNTIME_DIR"}
    assert set(HTTP_NAMES) <= set(changed.unset)


def test_capture_makes_help_for_ssh_needless() -> None:
    assert "GIT_SSH_COMMAND" not in change_environment(replace(place(), captured=True), TMP, {}).set


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        ("-Xmx1g", "-Xmx1g "),
        ("-Dhttp.proxyHost=corp.test -Xmx1g -Dhttps.proxyPort=9", "-Xmx1g "),
        ('-Dhttp.nonProxyHosts="a|b" -Da=b', "-Da=b "),
        ("", ""),
    ],
)
def test_java_options_of_the_caller_are_kept(own: str, kept: str) -> None:
    """Java options of the caller are kept."""
    value = change({"JAVA_TOOL_OPTIONS": own}).set["JAVA_TOOL_OPTIONS"]
    assert value.startswith(kept + "-Dhttp.proxyHost=127.0.0.1")
    assert value.count("proxyHost") == 2 and "corp.test" not in value


def test_special_proxy_variables_are_replaced() -> None:
    """It could not be reached, and its URL may hold a password."""
    for changed in (change(), change(http_port=None)):
        assert set(FOREIGN_NAMES) <= set(changed.unset) and not set(FOREIGN_NAMES) & set(changed.set)
    login = "-Dhttp.proxyUser=me -Dhttps.proxyPassword=hunter2 -Dhttps.proxyHost=corp.test -Xmx1g"
    changed = change({"MAVEN_OPTS": login, "GRADLE_OPTS": "-Xmx2g", "JAVA_TOOL_OPTIONS": login})
    assert changed.set["MAVEN_OPTS"] == "-Xmx1g" and "GRADLE_OPTS" not in changed.set
    assert "hunter2" not in str(dict(changed.set)) and "corp.test" not in str(dict(changed.set))


@pytest.mark.parametrize(
    ("caller", "start"),
    [
        ({"GIT_SSH_COMMAND": "ssh -i 'a key'"}, "ssh -i 'a key' -o ProxyCommand="),
        ({"GIT_SSH_COMMAND": "/usr/bin/ssh", "GIT_SSH": "plink"}, "/usr/bin/ssh -o ProxyCommand="),
        ({"GIT_SSH_COMMAND": "X=1 exec ssh -v"}, "X=1 exec ssh -v -o ProxyCommand="),
    ],
)
def test_the_callers_own_ssh_is_kept(caller: dict[str, str], start: str) -> None:
    assert change(caller).set["GIT_SSH_COMMAND"].startswith(start)


@pytest.mark.parametrize("configured", ["", "--local", "--global"])
@pytest.mark.parametrize("program", ["", "ssh", "my tools/ssh"])
def test_git_runs_the_configured_ssh_through_the_proxy(tmp_path: Path, configured: str, program: str) -> None:
    """core.sshCommand of the repository or the person, else GIT_SSH, else ssh: each with our ProxyCommand behind it."""
    for name in ("ssh", "my tools/ssh", "other-ssh"):
        script = tmp_path / name
        script.parent.mkdir(exist_ok=True)
        script.write_text('#!/bin/sh\nfor word; do [ "$word" != -G ] || exit 0; done\nprintf "%s\\n" "$0" "$@" >said\n')
        script.chmod(0o755)
    base = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    caller = {"GIT_SSH": str(tmp_path / program)} if program else {}
    environment = {**base, **caller, "GIT_SSH_COMMAND": change(caller).set["GIT_SSH_COMMAND"]}
    git = partial(subprocess.run, cwd=tmp_path, env=environment, capture_output=True)
    git(["git", "init", "-q"], check=True)
    if configured:
        git(["git", "config", configured, "core.sshCommand", "other-ssh -i 'a key'"], check=True)
    git(["git", "ls-remote", "ssh://git@host.test:2222/x y"])
    said = (tmp_path / "said").read_text().splitlines()
    assert said[0] == str(tmp_path / ("other-ssh" if configured else program or "ssh"))
    assert ("a key" in said) is bool(configured)
    assert sum(word.startswith("ProxyCommand=bash -c ") for word in said) == 1
    assert said[said.index("-p") + 1] == "2222", "git has found out that it talks to OpenSSH"
    assert said[-2:] == ["git@host.test", "git-upload-pack '/x y'"]


@pytest.mark.parametrize("own", ["plink -batch", "/opt/ssh-wrapper.sh", "tsh"])
def test_a_program_that_is_not_openssh_is_left_alone(own: str) -> None:
    assert "GIT_SSH_COMMAND" not in change({"GIT_SSH_COMMAND": own}).set


def test_no_value_is_shown_when_a_change_is_printed() -> None:
    assert "SECRET" not in repr(change({"JAVA_TOOL_OPTIONS": "-Dpassword=SECRET"}))


class Proxy:
    """Answers one CONNECT with a given reply, then behaves like an ssh server that says hello and hangs up."""

    def __init__(self, reply: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._reply = reply
        self.request = b""
        self.banner = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)  # no ssh may come, and the suite has to end
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, self._listener:
            while b"\r\n\r\n" not in self.request:
                self.request += connection.recv(4096)
            connection.sendall(self._reply)
            if b" 200 " in self._reply:
                while b"\n" not in self.banner:
                    self.banner += connection.recv(4096)

    def join(self) -> None:
        self._thread.join(30)


def run_ssh(port: int, own: str = "") -> subprocess.CompletedProcess[str]:
    """What git does: the value as a shell line, the destination and the remote command behind it."""
    value = change({"GIT_SSH_COMMAND": own} if own else {}, http_port=port).set["GIT_SSH_COMMAND"]
    line = f"{value} -v -F none git@host.test {shlex.quote('git-upload-pack /x')}"
    return subprocess.run(["/bin/sh", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, text=True)


def test_ssh_reaches_its_server_through_the_proxy() -> None:
    proxy = Proxy(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nSSH-2.0-Test\r\n")
    done = run_ssh(proxy.port)
    proxy.join()
    assert proxy.request.startswith(b"CONNECT host.test:22 HTTP/1.1\r\nHost: host.test:22\r\n")
    assert proxy.banner.startswith(b"SSH-2.0-")
    assert "remote software version Test" in done.stderr


def test_a_refusal_of_the_proxy_is_shown() -> None:
    proxy = Proxy(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    done = run_ssh(proxy.port)
    proxy.join()
    assert "sandboxd: the proxy refused host.test:22: HTTP/1.1 403 Forbidden\n" in done.stderr
    assert done.returncode == 255
