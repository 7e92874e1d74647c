"""The units of a user's systemd (systemd.unit(5), systemd.service(5)): what is written for one person. Pure.

What stands in them is in `systemd/` of the source tree, which a distribution installs as it is. `unit_texts` replaces
what differs: the program, where it looks for others, and a socket in another place than the usual one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SERVICE = "sandboxd.service"
SOCKET = "sandboxd.socket"
UNITS = (SERVICE, SOCKET)

CANNOT_START = 125
"""The exit status of `sandboxd serve` that is no accident; the unit knows it too (RestartPreventExitStatus=)."""

MARK = "# Written by sandboxd "
"""How a file begins that we may overwrite and remove. The version that wrote it follows."""

KEPT_VARIABLES = ("PATH", "SANDBOXD_CONFIG_HOME", "SANDBOXD_FLAG_SETTINGS", "SANDBOXD_LOG_LEVEL")
"""Of the environment in which the service is installed. The manager of a user has an environment of its own, and with
it another PATH: bubblewrap would be found at a prompt and not by the daemon."""

_EXEC_START = "ExecStart="
_LISTEN = "ListenStream="


@dataclass(frozen=True, slots=True)
class Service:
    """What the units of one person are made from. `program` are the words that start the daemon, absolute ones;
    `socket` is where clients look, None for the place that the unit names in any case."""

    program: tuple[str, ...]
    version: str
    environment: Mapping[str, str]
    socket: str | None = None


def unit_texts(service: Service, originals: Mapping[str, str]) -> dict[str, str]:
    """The units by name, made from those that we ship."""
    head = (
        f"{MARK}{service.version} (sandboxd service install), which overwrites it.\n"
        "# Changes of your own belong into a file beside it: systemctl --user edit "
    )
    variables = [f"{name}={service.environment[name]}" for name in KEPT_VARIABLES if service.environment.get(name)]
    start = [f"Environment={quoted(variable)}\n" for variable in variables]
    # The colon (systemd 244) keeps a dollar sign in a path from being taken for a variable.
    start.append(f"{_EXEC_START}:{' '.join(map(quoted, (*service.program, 'serve')))}\n")
    service_text = _replaced(originals[SERVICE], _EXEC_START, "".join(start))
    socket_text = originals[SOCKET]
    if service.socket is not None:
        # No quotes here: the rest of the line is the path.
        socket_text = _replaced(socket_text, _LISTEN, f"{_LISTEN}{service.socket.replace('%', '%%')}\n")
    texts = {SERVICE: service_text, SOCKET: socket_text}
    return {name: f"{head}{name}\n{text}" for name, text in texts.items()}


def _replaced(text: str, key: str, line: str) -> str:
    lines = text.splitlines(keepends=True)
    (at,) = [number for number, line in enumerate(lines) if line.startswith(key)]
    return "".join([*lines[:at], line, *lines[at + 1 :]])


def quoted(word: str) -> str:
    """One word of a command line or an assignment, whatever is in it: percent signs doubled (specifiers), and in
    double quotes with C-style escapes where it could be read as more than a word ("Quoting" in systemd.syntax(7))."""
    word = word.replace("%", "%%")
    if word and not any(character in " \t\n\r\"'\\;" or ord(character) < 32 for character in word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if ord(c) >= 32 else f"\\x{ord(c):02x}" for c in escaped) + '"'


def says_the_same(text: str, other: str) -> bool:
    """Whether two units differ at most in the environment, which is that of the shell in which they were made."""
    first, second = (
        [line for line in one.splitlines() if not line.startswith("Environment=")] for one in (text, other)
    )
    return first == second


def written_version(text: str) -> str | None:
    """The version of sandboxd that wrote this unit; None when it is somebody else's."""
    return text[len(MARK) :].split(" ", 1)[0] if text.startswith(MARK) else None


def properties(output: str) -> dict[str, str]:
    """What `systemctl show` prints: NAME=VALUE lines. Of a name that comes twice the last one counts."""
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


def why_it_cannot_start(service: Mapping[str, str]) -> str:
    """What the daemon said when it refused to start, by the properties of its unit; empty when it did not refuse."""
    return service.get("StatusText", "") if service.get("ExecMainStatus") == str(CANNOT_START) else ""


def listening_paths(listen: str) -> tuple[str, ...]:
    """The property `Listen` of a socket unit: `/run/…/sandboxd.sock (Stream)`, several ones separated by spaces."""
    return tuple(part.strip() for part in listen.replace(" (Stream)", "\n").splitlines() if part.strip())
