"""Decisions on Unix sockets: listed, never open, closed with all allowed."""

from __future__ import annotations

import pytest

from sandboxd.policy.decision import Reason
from sandboxd.policy.model import NetworkPolicy, SocketRule
from sandboxd.policy.sockets.control_sockets import control_socket
from sandboxd.policy.sockets.socket_decisions import decide_socket, open_sockets
from sandboxd.policy.sockets.socket_variables import ABSTRACT, SOCKET_VARIABLES, named_sockets
from sandboxd.settings.origins import Origin, Source
from support.mac_leaks import CONTROL_PATHS

ORIGIN = Origin(Source.USER, "sandbox.network.allowUnixSockets", "/u.json", 4, 7)
OWN = ("/run/user/1000/sandboxd", "/var/tmp/sandboxd-1000")


def decide(
    path: str,
    *listed: str,
    everything: bool = False,
    real: str = "",
    trusted: bool = True,
    private: bool = False,
    brought: str = "",
) -> Reason:
    network = NetworkPolicy(
        allow_unix_sockets=tuple(SocketRule(one, ORIGIN) for one in listed),
        allow_all_unix_sockets=everything,
        control_sockets=("/home/u/agent",),
    )
    ends = [(real or one, trusted) for one in listed]
    decision = decide_socket(path, open_sockets(network, ends, OWN), private=private, brought=brought)
    opens = (Reason.SOCKET_ALLOWED, Reason.SESSION_TMP)
    assert decision.allowed is (decision.reason in opens)
    assert (decision.origin == ORIGIN) is (decision.allowed and not everything and not private)
    return decision.reason


@pytest.mark.parametrize(
    ("path", "listed", "reason"),
    [
        ("/tmp/s.sock", ("/tmp/s.sock",), Reason.SOCKET_ALLOWED),
        ("/tmp/s.sock2", ("/tmp/s.sock",), Reason.SOCKET_NOT_LISTED),
        ("/tmp/other.sock", ("/tmp/s.sock",), Reason.SOCKET_NOT_LISTED),
        ("/srv/a/b/c.sock", ("/srv/a",), Reason.SOCKET_ALLOWED),
        ("/srv/ab/c.sock", ("/srv/a",), Reason.SOCKET_NOT_LISTED),
        ("/srv/a.sock", (), Reason.SOCKET_NOT_LISTED),
        ("", ("/",), Reason.SOCKET_NOT_LISTED),
        ("@abstract", ("/",), Reason.SOCKET_NOT_LISTED),
        ("/var/run/docker.sock", ("/run/docker.sock",), Reason.SOCKET_ALLOWED),
        ("/run/docker.sock", ("/var/run/docker.sock",), Reason.SOCKET_ALLOWED),
        ("/run/user/1000/sandboxd/sandboxd.sock", ("/run/user/1000",), Reason.SOCKET_OWN),
        ("/run/user/1000/sandboxd/bridge.sock", ("/run/user/1000/sandboxd/bridge.sock",), Reason.SOCKET_OWN),
        ("/var/tmp/sandboxd-1000/x", ("/",), Reason.SOCKET_OWN),
        ("/run/user/1000/sandboxd2/x", ("/run/user/1000",), Reason.SOCKET_ALLOWED),
    ],
)
def test_what_is_listed(path: str, listed: tuple[str, ...], reason: Reason) -> None:
    assert decide(path, *listed) is reason


@pytest.mark.parametrize("path", ["/home/u/agent", *CONTROL_PATHS])
def test_control_sockets_stay_closed_unless_listed_one_by_one(path: str) -> None:
    assert decide(path, everything=True) is Reason.SOCKET_CONTROL
    assert decide(path) is Reason.SOCKET_CONTROL
    assert decide(path, path) is Reason.SOCKET_ALLOWED
    assert decide("/srv/harmless.sock", everything=True) is Reason.SOCKET_ALLOWED
    assert control_socket(path) is not None or path == "/home/u/agent"


def test_a_directory_of_agents_is_one_too() -> None:
    for path in ("/home/u/.ssh/agent", "/run/user/7/systemd", "/tmp/com.apple.launchd.x"):
        assert control_socket(path) is not None
    for path in ("/home/u/.ssh", "/home/u/agents", "/w/app-main.sock", "/w/wezterm.sock"):
        assert control_socket(path) is None


def test_a_link_that_the_command_could_have_made_opens_nothing() -> None:
    assert decide("/run/docker.sock", "/w/server.sock", real="/run/docker.sock") is Reason.SOCKET_ALLOWED
    for path, reason in (
        ("/srv/x.sock", Reason.SOCKET_REDIRECTED),
        ("/run/docker.sock", Reason.SOCKET_CONTROL),
    ):
        assert decide(path, "/w/server.sock", real=path, trusted=False) is reason
    assert decide("/srv/y.sock", "/w/server.sock", real="/srv/x.sock", trusted=False) is Reason.SOCKET_NOT_LISTED


def test_the_session_s_own() -> None:
    assert decide("/tmp/x.sock", private=True) is Reason.SESSION_TMP
    assert decide("/run/user/1000/sandboxd/x", private=True) is Reason.SOCKET_OWN


def test_what_was_brought_is_not_opened_by_its_place() -> None:
    """Only `allowAllUnixSockets` opens them."""
    assert decide("/w/x.sock", "/w", brought="it came late") is Reason.SOCKET_BROUGHT
    assert decide("/tmp/x.sock", private=True, brought="it came late") is Reason.SOCKET_BROUGHT
    assert decide("/w/x.sock", "/w", everything=True, brought="it came late") is Reason.SOCKET_ALLOWED
    assert decide("/run/docker.sock", "/run", everything=True, brought="it came late") is Reason.SOCKET_CONTROL
    assert decide("/srv/x.sock", "/w", brought="it came late") is Reason.SOCKET_NOT_LISTED


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("SSH_AUTH_SOCK", "/tmp/ssh-x/agent.1", "/tmp/ssh-x/agent.1"),
        ("SSH_AUTH_SOCK", "relative", None),
        ("GPG_AGENT_INFO", "/home/u/.gnupg/S.gpg-agent:0:1", "/home/u/.gnupg/S.gpg-agent"),
        ("DOCKER_HOST", "unix:///run/docker.sock", "/run/docker.sock"),
        ("DOCKER_HOST", "tcp://docker.test:2375", None),
        ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1/bus,guid=1;tcp:host=x", "/run/user/1/bus"),
        ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/a%20b", "/run/a b"),
        ("DBUS_SESSION_BUS_ADDRESS", "unix:abstract=/tmp/dbus-x,guid=1", ABSTRACT),
        ("DBUS_SESSION_BUS_ADDRESS", "disabled:", None),
        ("WAYLAND_DISPLAY", "wayland-0", "/run/user/1/wayland-0"),
        ("WAYLAND_DISPLAY", "/x/w", "/x/w"),
        ("DISPLAY", ":0", "/tmp/.X11-unix/X0"),
        ("DISPLAY", ":10.1", "/tmp/.X11-unix/X10"),
        ("DISPLAY", "localhost:10.0", None),
        ("DISPLAY", "nonsense", None),
        ("PULSE_SERVER", "unix:/run/user/1/pulse/native", "/run/user/1/pulse/native"),
        ("TMUX", "/tmp/tmux-1/default,12,0", "/tmp/tmux-1/default"),
        ("KITTY_LISTEN_ON", "unix:@kitty", ABSTRACT),
        ("NOTIFY_SOCKET", "/run/systemd/notify", "/run/systemd/notify"),
        ("SSH_AUTH_SOCK", "", None),
    ],
)
def test_variables(name: str, value: str, path: str | None) -> None:
    environment = {name: value, "XDG_RUNTIME_DIR": "/run/user/1", "PATH": "/bin"}
    assert [found for _, found in named_sockets(environment)] == ([] if path is None else [path])


def test_a_variable_has_one_row() -> None:
    names = [variable.name for variable in SOCKET_VARIABLES]
    assert len(names) == len(set(names))
