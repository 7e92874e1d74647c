"""What a command, its environment and its directory must be before they can be sent. Imports next to nothing, being on
the way of `sandboxd run`.
"""

from __future__ import annotations

import os

from sandboxd_client.errors import InvalidCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Path = str | os.PathLike[str]


def absolute(path: str | os.PathLike[str] | None) -> str:
    """`path` seen from the current directory, which it is itself when None. Not normalised: behind a symbolic link `..`
    is another directory than the text suggests."""
    try:
        here = os.getcwd()
    except FileNotFoundError as error:
        if path is not None and os.path.isabs(path):
            return os.fspath(path)
        raise InvalidCommand("cwd_missing", "the current directory has been removed", "change to another") from error
    return here if path is None else os.path.join(here, path)


VARIABLES_READ = (
    "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "MAVEN_OPTS", "GRADLE_OPTS", "SBT_OPTS",
    "GIT_SSH_COMMAND", "GIT_SSH",
    "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "GPG_AGENT_INFO", "GNOME_KEYRING_CONTROL", "DOCKER_HOST", "CONTAINER_HOST",
    "BUILDKIT_HOST", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "AT_SPI_BUS_ADDRESS", "WAYLAND_DISPLAY",
    "DISPLAY", "PULSE_SERVER", "PIPEWIRE_REMOTE", "SWAYSOCK", "I3SOCK", "TMUX", "KITTY_LISTEN_ON",
    "WEZTERM_UNIX_SOCKET", "ALACRITTY_SOCKET", "NVIM", "NVIM_LISTEN_ADDRESS", "VSCODE_IPC_HOOK",
    "VSCODE_IPC_HOOK_CLI", "VSCODE_GIT_IPC_HANDLE", "NOTIFY_SOCKET", "WSL_INTEROP",
    "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE",
    "PIP_CERT", "CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE",
)  # fmt: skip
"""The variables whose values decide what the sandbox's environment is: extended, or removed because the socket they
name cannot be used; and those that name a file which a command has to be able to read. The daemon is told these and no
others, which may be secret and which it has no use for."""


def sendable(environment: Mapping[str, str]) -> dict[str, str]:
    """Of `VARIABLES_READ`, those that are set and have a UTF-8 form. The command inherits all from its client."""
    found = ((name, environment.get(name)) for name in VARIABLES_READ)
    return {name: value for name, value in found if value is not None and _is_text(value)}


def sendable_search_path(environment: Mapping[str, str]) -> str:
    """The entries of PATH that have a UTF-8 form."""
    return ":".join(filter(_is_text, environment.get("PATH", "").split(":")))


def check_command(command: str | None, argv: Sequence[str] | None) -> None:
    """Raises InvalidCommand for what no program could be given."""
    if argv is not None and (not argv or not argv[0]):
        raise InvalidCommand("command_empty", "the command is empty")
    for text in (command or "",) if argv is None else argv:
        if "\0" in text:
            raise InvalidCommand("command_nul", "the command contains a NUL character", "no program can receive one")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
