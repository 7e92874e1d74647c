"""The environment on macOS: consistent credentials, in no argument list, understood by real programs."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandboxd.backends.macos.environment import AUTHORIZATION, seatbelt_environment
from sandboxd.backends.macos.tokens import ProxyPassword
from sandboxd.plan.environment import HTTP_NAMES
from sandboxd.proxy.http.credentials import parse_basic
from support.seatbelt import SESSION_TMP, place

PASSWORD = ProxyPassword()


def environment(caller: dict[str, str] | None = None, port: int = 50001) -> dict[str, str]:
    return seatbelt_environment(place(), SESSION_TMP, caller or {}, port, 50002, PASSWORD)


def test_passwords_are_their_own_and_do_not_show() -> None:
    other = ProxyPassword()
    assert other.value != PASSWORD.value and len(PASSWORD.value) >= 32
    assert PASSWORD.check(b"sandboxd", PASSWORD.value.encode())
    for user, password in ((b"sandboxd", other.value.encode()), (b"", PASSWORD.value.encode()), (b"sandboxd", b"")):
        assert not PASSWORD.check(user, password)
    assert not PASSWORD.check(b"\xff", b"\xff\x00")
    assert PASSWORD.value not in repr(PASSWORD) + str(PASSWORD)


def test_all_variables_agree() -> None:
    """No socks URL in the common variables."""
    values = environment()
    for name in HTTP_NAMES:
        url = urlsplit(values[name])
        assert (url.scheme, url.hostname, url.port) == ("http", "127.0.0.1", 50001)
        assert PASSWORD.check((url.username or "").encode(), (url.password or "").encode())
    assert parse_basic(values[AUTHORIZATION].encode()) == (b"sandboxd", PASSWORD.value.encode())
    assert values["RSYNC_PROXY"] == f"sandboxd:{PASSWORD.value}@127.0.0.1:50001"
    assert values["CLOUDSDK_PROXY_PASSWORD"] == PASSWORD.value
    assert values["TMPDIR"] == SESSION_TMP and values["TMPPREFIX"] == f"{SESSION_TMP}/zsh"
    assert values["NODE_USE_ENV_PROXY"] == "1" and values["SANDBOX_RUNTIME"] == "1"
    assert "-Dhttps.proxyPort=50001" in values["JAVA_TOOL_OPTIONS"]
    assert not any(value.startswith("socks") for value in values.values())


@pytest.mark.parametrize("caller", [{}, {"GIT_SSH_COMMAND": "ssh -i 'my key'"}, {"GIT_SSH": "/opt/my ssh/ssh"}])
def test_no_argument_of_ssh_holds_the_password(caller: dict[str, str]) -> None:
    command = environment(caller)["GIT_SSH_COMMAND"]
    assert PASSWORD.value not in command and PASSWORD.authorization not in command
    assert f"${AUTHORIZATION}" in command and "Proxy-Authorization: " in command


def test_an_ssh_program_that_would_not_understand_is_left_alone() -> None:
    assert "GIT_SSH_COMMAND" not in environment({"GIT_SSH_COMMAND": "plink -batch"})


@contextmanager
def one_answer(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A port that takes one connection, keeps its request head and answers."""
    import socket

    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(4096)
                heads.append(head)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], heads
        thread.join(10)


def test_ssh_sends_the_password_and_gets_through(tmp_path: Path) -> None:
    """The words that git gives to its shell, run with a stand-in for ssh that starts the ProxyCommand as ssh
    does. The box needs no netcat."""
    stand_in = tmp_path / "ssh"
    stand_in.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do case $word in ProxyCommand=*) command=${word#ProxyCommand=};; esac; done\n'
        "command=$(printf %s \"$command\" | sed 's/%h/ok.test/; s/%p/22/; s/%%/%/g')\n"
        'exec /bin/sh -c "$command" </dev/null\n'
    )
    stand_in.chmod(0o755)
    with one_answer(b"HTTP/1.1 200 Connection established\r\n\r\nSSH-2.0-test\r\n") as (port, heads):
        values = environment(port=port)
        done = subprocess.run(
            ["/bin/sh", "-c", values["GIT_SSH_COMMAND"] + " git@ok.test true"],
            env={**os.environ, **values, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True, timeout=20,
        )  # fmt: skip
    assert done.stdout == b"SSH-2.0-test\r\n", done.stderr
    assert heads[0].startswith(b"CONNECT ok.test:22 HTTP/1.1\r\nHost: ok.test:22\r\n")
    assert f"Proxy-Authorization: {PASSWORD.authorization}\r\n\r\n".encode() in heads[0]


def test_curl_takes_the_password_from_the_variables() -> None:
    with one_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nyes") as (port, heads):
        done = subprocess.run(
            ["curl", "-sS", "http://ok.test/"], env={**os.environ, **environment(port=port)},
            capture_output=True, timeout=20,
        )  # fmt: skip
    assert done.stdout == b"yes", done.stderr
    assert f"Proxy-Authorization: {PASSWORD.authorization}".encode() in heads[0]


def test_git_makes_repositories_without_sample_hooks(tmp_path: Path) -> None:
    """What makes refusing `.git/hooks` everywhere bearable."""
    values = {**os.environ, **environment(), "HOME": str(tmp_path)}
    subprocess.run(["git", "init", "-q", str(tmp_path / "new")], env=values, check=True)
    assert not (tmp_path / "new" / ".git" / "hooks").exists()
    subprocess.run(["git", "clone", "-q", str(tmp_path / "new"), str(tmp_path / "copy")], env=values, check=True,
                   stderr=subprocess.DEVNULL)  # fmt: skip
    assert not (tmp_path / "copy" / ".git" / "hooks").exists()
