"""The launchd agent: what stands in its property list, how it is installed, and the socket that launchd hands over."""

from __future__ import annotations

import ctypes
import plistlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxd.cli.main import execute
from sandboxd.cli.service import launchd_agent, launchd_service
from sandboxd.cli.service.launchd_agent import LABEL, SOCKET_NAME, Agent, agent_plist, install_commands
from sandboxd.errors import HostError
from sandboxd.rpc import launchd_socket
from sandboxd.rpc import socket as rpc_socket
from sandboxd.rpc.launchd_socket import activated_sockets

EXAMPLE = Path(__file__).resolve().parents[3] / "launchd" / f"{LABEL}.plist"


def agent(home: str = "/Users/me", **changes: Any) -> Agent:
    values: dict[str, Any] = {
        "program": ("/opt/venv/bin/python", "-I", "-m", "sandboxd"),
        "home": home,
        "socket": "/Users/me/Library/Application Support/sandboxd/sandboxd.sock",
        "uid": 501,
        "environment": {"PATH": "/opt/homebrew/bin:/usr/bin:/bin", "SECRET": "s", "LANG": "en_US.UTF-8"},
        **changes,
    }
    return Agent(**values)


def test_the_property_list() -> None:
    text = agent_plist(agent())
    listed = plistlib.loads(text)
    assert listed["Label"] == LABEL == "dev.sandboxd.agent"
    assert listed["ProgramArguments"] == ["/opt/venv/bin/python", "-I", "-m", "sandboxd", "serve"]
    assert listed["Sockets"] == {
        "rpc": {
            "SockFamily": "Unix",
            "SockType": "stream",
            "SockPathName": "/Users/me/Library/Application Support/sandboxd/sandboxd.sock",
            "SockPathMode": 0o600,
        }
    }
    assert listed["KeepAlive"] == {"SuccessfulExit": False}
    assert listed["EnvironmentVariables"] == {
        "HOME": "/Users/me", "PATH": "/opt/homebrew/bin:/usr/bin:/bin", "LANG": "en_US.UTF-8",
    }  # fmt: skip
    assert listed["StandardErrorPath"] == "/Users/me/Library/Logs/sandboxd/agent.log"
    assert b"SECRET" not in text
    assert SOCKET_NAME == launchd_socket.SOCKET_NAME


def test_odd_paths_are_data() -> None:
    odd = agent(home="/Users/a&b <c>", program=("/opt/x y/python", "]]>"))
    listed = plistlib.loads(agent_plist(odd))
    assert listed["ProgramArguments"] == ["/opt/x y/python", "]]>", "serve"]
    assert listed["StandardOutPath"].startswith("/Users/a&b <c>/Library/Logs/")


def test_the_example_is_what_the_code_makes() -> None:
    assert plistlib.loads(EXAMPLE.read_bytes()) == plistlib.loads(agent_plist(agent()))


def test_where_things_are() -> None:
    assert agent().plist_path == "/Users/me/Library/LaunchAgents/dev.sandboxd.agent.plist"
    assert [words[1] for words in install_commands(agent())] == ["bootout", "enable", "bootstrap"]
    assert install_commands(agent())[2] == (
        "/bin/launchctl", "bootstrap", "gui/501", "/Users/me/Library/LaunchAgents/dev.sandboxd.agent.plist",
    )  # fmt: skip


@pytest.fixture
def launchctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that knows which agents it was given. What was asked of it is in `calls`."""
    state = tmp_path / "launchctl-state"
    state.mkdir()
    program = tmp_path / "bin" / "launchctl"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'cd {state}; echo "$*" >> calls\n'
        "case $1 in\n"
        '  bootstrap) [ -s busy ] && { truncate -s -1 busy; echo "Bootstrap failed: 37" >&2; exit 37; }\n'
        '    [ -e known ] && { echo "Bootstrap failed: 5: Input/output error" >&2; exit 5; }\n'
        '    cp "$3" known;;\n'
        '  bootout) [ -e known ] || { echo "Boot-out failed: 3: No such process" >&2; exit 3; }; rm known;;\n'
        "  print) [ -e known ];;\n"
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(launchd_agent, "LAUNCHCTL", str(program))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SANDBOXD_SOCKET", str(tmp_path / "run" / "sandboxd.sock"))
    monkeypatch.setattr(sys, "platform", "darwin")
    return state


def test_install_status_and_uninstall(launchctl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "home" / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    assert execute(["service", "status"]) == 1
    for _ in range(2):  # again is the same as once
        assert execute(["service", "install"]) == 0
        listed = plistlib.loads(file.read_bytes())
        assert listed["ProgramArguments"] == [sys.executable, "-I", "-m", "sandboxd", "serve"]
        assert listed["Sockets"]["rpc"]["SockPathName"] == str(tmp_path / "run" / "sandboxd.sock")
        assert (launchctl / "known").read_bytes() == file.read_bytes()
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert execute(["service", "status"]) == 0
    assert "launchd: knows dev.sandboxd.agent" in capsys.readouterr().out
    assert execute(["service", "uninstall"]) == 0
    assert not file.exists() and not (launchctl / "known").exists()
    assert execute(["service", "uninstall"]) == 0
    assert "no agent was installed" in capsys.readouterr().out


@pytest.mark.parametrize(("times", "status"), [(3, 0), (99, 125)])
def test_an_agent_that_is_not_gone_yet_is_waited_for(
    launchctl: Path, monkeypatch: pytest.MonkeyPatch, times: int, status: int
) -> None:
    monkeypatch.setattr(launchd_service, "RETRY_S", 0.001)
    monkeypatch.setattr(launchd_service, "BUSY_FOR_S", 15.0 if status == 0 else 0.05)
    (launchctl / "busy").write_text("x" * times)
    assert execute(["service", "install"]) == status
    assert (launchctl / "known").exists() is (status == 0)


def test_what_launchctl_says_is_said(
    launchctl: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launchd_service, "BUSY_FOR_S", 0.0)
    commands = (("true",), (launchd_agent.LAUNCHCTL, "bootstrap", "gui/1", "/no"))
    monkeypatch.setattr(launchd_service, "install_commands", lambda agent: commands)
    assert execute(["service", "install"]) == 125
    assert "bin/launchctl bootstrap gui/1 /no: " in capsys.readouterr().err


def test_usage_and_other_systems(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["service"]) == 2
    assert execute(["service", "reload"]) == 2
    monkeypatch.setattr(sys, "platform", "freebsd14")
    assert execute(["service", "install"]) == 125
    assert "no service for this operating system" in capsys.readouterr().err


# the socket


class Function:
    """A function of a C library."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)


class Library:
    """launch_activate_socket(3) as its manual describes it."""

    def __init__(self, descriptors: list[int], code: int = 0) -> None:
        self.freed: list[Any] = []
        self.array = (ctypes.c_int * max(len(descriptors), 1))(*descriptors)

        def activate(name: bytes, into: Any, count: Any) -> int:
            assert name == b"rpc"
            if code == 0:
                ctypes.cast(into, ctypes.POINTER(ctypes.POINTER(ctypes.c_int)))[0] = ctypes.cast(
                    self.array, ctypes.POINTER(ctypes.c_int)
                )
                ctypes.cast(count, ctypes.POINTER(ctypes.c_size_t))[0] = len(descriptors)
            return code

        self.launch_activate_socket = Function(activate)
        self.free = Function(self.freed.append)


def test_launchd_s_descriptors() -> None:
    library = Library([5, 9])
    assert activated_sockets(library=library) == (5, 9)
    assert len(library.freed) == 1


@pytest.mark.parametrize("code", [2, 3])
def test_not_started_by_launchd(code: int) -> None:
    assert activated_sockets(library=Library([], code)) == ()
    assert activated_sockets(library=object()) == ()


def test_launchd_s_other_errors() -> None:
    with pytest.raises(HostError) as caught:
        activated_sockets(library=Library([], 37))
    assert caught.value.slug == "passed_socket_unusable"


def test_the_daemon_takes_the_socket_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    descriptor = listener.detach()
    monkeypatch.setattr(rpc_socket, "activated_sockets", lambda: (descriptor,))
    taken = rpc_socket.take_passed({})
    assert taken is not None and taken.path == str(tmp_path / "s") and not taken.own
    assert not taken.socket.getblocking() and not taken.socket.get_inheritable()
    taken.close()
    assert (tmp_path / "s").exists()
    monkeypatch.setattr(rpc_socket, "activated_sockets", lambda: ())
    assert rpc_socket.take_passed({}) is None


def test_something_else_than_a_listening_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with socket.socket(socket.AF_INET) as other:
        monkeypatch.setattr(rpc_socket, "activated_sockets", lambda: (other.fileno(),))
        with pytest.raises(HostError) as caught:
            rpc_socket.take_passed({})
    assert caught.value.slug == "passed_socket_unusable"
