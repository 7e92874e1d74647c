"""Table of the variables that name a Unix socket.

A variable whose socket cannot be used is removed from a command's environment, so that a program does without it
instead of failing at it. A value that names no Unix socket (`DOCKER_HOST=tcp://…`) stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from urllib.parse import unquote

from sandboxd_client.records import dataclass

ABSTRACT = "@"
"""A socket without a path: unreachable, whatever is listed."""

_Read = Callable[[str, Mapping[str, str]], str | None]


@dataclass(frozen=True, slots=True)
class SocketVariable:
    """A variable, and `companions` that are of no use without it."""

    name: str
    read: _Read
    companions: tuple[str, ...] = ()


def _plain(value: str, _: Mapping[str, str]) -> str | None:
    return value if value.startswith("/") else None


def _until(end: str) -> _Read:
    return lambda value, environment: _plain(value.partition(end)[0], environment)


def _url(value: str, _: Mapping[str, str]) -> str | None:
    """Read `unix:///run/x.sock`, `unix:/run/x.sock`, `unix:@name`."""
    scheme, colon, rest = value.partition(":")
    if scheme != "unix" or not colon:
        return None
    rest = rest.removeprefix("//")
    return rest if rest.startswith("/") else ABSTRACT


def _url_or_plain(value: str, environment: Mapping[str, str]) -> str | None:
    return _url(value, environment) or _plain(value, environment)


def _bus(value: str, _: Mapping[str, str]) -> str | None:
    """Read the first address of a D-Bus address list (D-Bus Specification)."""
    transport, colon, pairs = value.partition(";")[0].partition(":")
    if transport != "unix" or not colon:
        return None
    keys = dict(pair.partition("=")[::2] for pair in pairs.split(","))
    path = unquote(keys.get("path", ""))
    return path if path.startswith("/") else ABSTRACT


def _in_runtime_directory(value: str, environment: Mapping[str, str]) -> str | None:
    if value.startswith("/"):
        return value
    directory = environment.get("XDG_RUNTIME_DIR", "")
    return f"{directory}/{value}" if value and directory.startswith("/") else None


def _display(value: str, _: Mapping[str, str]) -> str | None:
    """Read `:0`, `:0.1`, `unix:0` (X(7)); another host means TCP."""
    host, colon, rest = value.rpartition(":")
    number = rest.partition(".")[0]
    if not colon or host not in ("", "unix") or not (number.isascii() and number.isdecimal()):
        return None
    return f"/tmp/.X11-unix/X{number}"


SOCKET_VARIABLES: tuple[SocketVariable, ...] = (
    SocketVariable("SSH_AUTH_SOCK", _plain, ("SSH_AGENT_PID",)),
    SocketVariable("GPG_AGENT_INFO", _until(":")),
    SocketVariable("GNOME_KEYRING_CONTROL", _plain),
    SocketVariable("DOCKER_HOST", _url),
    SocketVariable("CONTAINER_HOST", _url),
    SocketVariable("BUILDKIT_HOST", _url),
    SocketVariable("DBUS_SESSION_BUS_ADDRESS", _bus),
    SocketVariable("DBUS_SYSTEM_BUS_ADDRESS", _bus),
    SocketVariable("AT_SPI_BUS_ADDRESS", _bus),
    SocketVariable("WAYLAND_DISPLAY", _in_runtime_directory),
    SocketVariable("DISPLAY", _display),
    SocketVariable("PULSE_SERVER", _url_or_plain),
    SocketVariable("PIPEWIRE_REMOTE", _in_runtime_directory),
    SocketVariable("SWAYSOCK", _plain),
    SocketVariable("I3SOCK", _plain),
    SocketVariable("TMUX", _until(","), ("TMUX_PANE",)),
    SocketVariable("KITTY_LISTEN_ON", _url),
    SocketVariable("WEZTERM_UNIX_SOCKET", _plain),
    SocketVariable("ALACRITTY_SOCKET", _plain),
    SocketVariable("NVIM", _plain),
    SocketVariable("NVIM_LISTEN_ADDRESS", _plain),
    SocketVariable("VSCODE_IPC_HOOK", _plain),
    SocketVariable("VSCODE_IPC_HOOK_CLI", _plain),
    SocketVariable("VSCODE_GIT_IPC_HANDLE", _plain),
    SocketVariable("NOTIFY_SOCKET", _until("\0")),
    SocketVariable("WSL_INTEROP", _plain),
)


def named_sockets(environment: Mapping[str, str]) -> Iterator[tuple[SocketVariable, str]]:
    """Yield each variable that names a Unix socket, with its path or ABSTRACT."""
    for variable in SOCKET_VARIABLES:
        value = environment.get(variable.name, "")
        path = variable.read(value, environment) if value else None
        if path is not None:
            yield variable, path
