"""Checks and conversions of a command, its environment and its directory.

Imports next to nothing, as part of every `sandboxd run`."""

from __future__ import annotations

import os

from sandboxd_client.errors import InvalidCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

Path = str | os.PathLike[str]


def absolute(path: str | os.PathLike[str] | None) -> str:
    """Return `path` below the current directory, or that directory for None.

    It is not normalised: behind a symbolic link `..` is another directory than the text suggests."""
    try:
        current = os.getcwd()
    except FileNotFoundError as error:
        if path is not None and os.path.isabs(path):
            return os.fspath(path)
        raise InvalidCommand(
            "cwd_missing", "the current directory has been removed", "change to another with: cd /"
        ) from error
    return current if path is None else os.path.join(current, path)


VARIABLES_READ = (
    "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "MAVEN_OPTS", "GRADLE_OPTS", "SBT_OPTS",
    "GIT_SSH_COMMAND", "GIT_SSH",
    "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "GPG_AGENT_INFO", "GNOME_KEYRING_CONTROL", "DOCKER_HOST", "CONTAINER_HOST",
    "BUILDKIT_HOST", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "AT_SPI_BUS_ADDRESS", "WAYLAND_DISPLAY",
    "DISPLAY", "PULSE_SERVER", "PIPEWIRE_REMOTE", "SWAYSOCK", "I3SOCK", "TMUX", "KITTY_LISTEN_ON",
    "WEZTERM_UNIX_SOCKET", "ALACRITTY_SOCKET", "NVIM", "NVIM_LISTEN_ADDRESS", "VSCODE_IPC_HOOK",
    "VSCODE_IPC_HOOK_CLI", "VSCODE_GIT_IPC_HANDLE", "NOTIFY_SOCKET", "WSL_INTEROP",
    "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE",
    "PIP_CERT", "CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)  # fmt: skip
"""The only variables that the daemon gets: others may be secret.

Their values decide which variables a sandbox extends, or removes with the socket that they name. Some name a file that
a command has to read.
"""
_NAMES_READ = frozenset(VARIABLES_READ)


def sendable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `VARIABLES_READ` that are set and UTF-8."""
    found = ((name, environment.get(name)) for name in environment if name in _NAMES_READ)
    return {name: value for name, value in found if value is not None and _is_text(value)}


def sendable_search_path(environment: Mapping[str, str]) -> str:
    """Return the entries of PATH that have a UTF-8 form."""
    return ":".join(filter(_is_text, environment.get("PATH", "").split(":")))


def sendable_settings(settings: Mapping[str, Any] | Path | None) -> dict[str, Any] | str | None:
    """Return settings as an object, or as an absolute path."""
    return (
        absolute(settings) if isinstance(settings, (str, os.PathLike)) else None if settings is None else dict(settings)
    )


def is_in_sandbox(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether an environment says that its program is in a sandbox already ($IS_SANDBOX)."""
    return bool((os.environ if environment is None else environment).get("IS_SANDBOX"))


SESSION_VARIABLE = "SANDBOXD_SESSION"


def session_around(environment: Mapping[str, str]) -> str | None:
    """Return the session of $SANDBOXD_SESSION: its id or name, or `auto:KEY`.

    `auto` means nothing to a client: each has its own sessions."""
    value = environment.get(SESSION_VARIABLE, "")
    return value if value not in ("", "auto") else None


def check_command(command: str | None, argv: Sequence[str] | None) -> None:
    """Check that a program could receive the command. Raises InvalidCommand."""
    if argv is not None and (not argv or not argv[0]):
        raise InvalidCommand("command_empty", "the command is empty")
    for text in (command or "",) if argv is None else argv:
        if "\0" in text:
            raise InvalidCommand("command_nul", "the command contains a NUL character", "remove it")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
