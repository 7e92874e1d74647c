"""The units of a user's systemd (systemd.unit(5), systemd.service(5)). Pure.

Their text is in `systemd/` of the source tree, which a distribution installs as it is. `unit_texts` replaces the
program, its environment, and a socket in another place than the default."""

from __future__ import annotations

from collections.abc import Mapping

from sandboxd_client.records import dataclass

SERVICE = "sandboxd.service"
SOCKET = "sandboxd.socket"
UNITS = (SERVICE, SOCKET)

CANNOT_START = 125
"""The exit status of a `sandboxd serve` that refuses to start; see RestartPreventExitStatus= in the unit."""

MARK = "# Written by sandboxd "
"""The start of a file that sandboxd may overwrite and remove, before the version that wrote it."""

KEPT_VARIABLES = ("PATH", "SANDBOXD_CONFIG_HOME", "SANDBOXD_FLAG_SETTINGS", "SANDBOXD_LOG_LEVEL")
"""Variables of the installing shell that the unit keeps. The user's systemd has another environment and PATH, in which
bubblewrap might not be found."""

_EXEC_START = "ExecStart="
_LISTEN = "ListenStream="


@dataclass(frozen=True, slots=True)
class Service:
    """The inputs of the units; `socket` is None for the default one."""

    program: tuple[str, ...]
    version: str
    environment: Mapping[str, str]
    socket: str | None = None


def unit_texts(service: Service, originals: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the units by name, made from the shipped ones."""
    head = (
        f"{MARK}{service.version} (sandboxd service install), which overwrites it.\n"
        "# Put changes into a file beside it: systemctl --user edit "
    )
    variables = [f"{name}={service.environment[name]}" for name in KEPT_VARIABLES if service.environment.get(name)]
    start = [f"Environment={quoted(variable)}\n" for variable in variables]
    # The colon (systemd 244) prevents the expansion of a dollar sign in a path.
    start.append(f"{_EXEC_START}:{' '.join(map(quoted, (*service.program, 'serve')))}\n")
    service_text = _replaced(originals[SERVICE], _EXEC_START, "".join(start))
    socket_text = originals[SOCKET]
    if service.socket is not None:
        # Without quotes: the rest of the line is the path.
        socket_text = _replaced(socket_text, _LISTEN, f"{_LISTEN}{service.socket.replace('%', '%%')}\n")
    texts = {SERVICE: service_text, SOCKET: socket_text}
    return {name: f"{head}{name}\n{text}" for name, text in texts.items()}


def _replaced(text: str, key: str, line: str) -> str:
    lines = text.splitlines(keepends=True)
    (at,) = [number for number, line in enumerate(lines) if line.startswith(key)]
    return "".join([*lines[:at], line, *lines[at + 1 :]])


def quoted(word: str) -> str:
    """Quote one word for a unit ("Quoting" in systemd.syntax(7)).

    Percent signs are doubled (specifiers). A word that could be read as several gets double quotes with C-style
    escapes."""
    word = word.replace("%", "%%")
    if word and not any(character in " \t\n\r\"'\\;" or ord(character) < 32 for character in word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if ord(c) >= 32 else f"\\x{ord(c):02x}" for c in escaped) + '"'


def says_the_same(text: str, other: str) -> bool:
    """Return whether two units differ at most in `Environment=`."""
    first, second = (
        [line for line in one.splitlines() if not line.startswith("Environment=")] for one in (text, other)
    )
    return first == second


def written_version(text: str) -> str | None:
    """Return the version of sandboxd that wrote a unit; None for other authors."""
    return text[len(MARK) :].split(" ", 1)[0] if text.startswith(MARK) else None


def properties(output: str) -> dict[str, str]:
    """Parse the NAME=VALUE lines of `systemctl show`; of two the last one counts."""
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


def why_it_cannot_start(service: Mapping[str, str]) -> str:
    """Return the status text of a daemon that refused to start, or an empty text."""
    return service.get("StatusText", "") if service.get("ExecMainStatus") == str(CANNOT_START) else ""


def listening_paths(listen: str) -> tuple[str, ...]:
    """Parse the property `Listen`: `/run/…/sandboxd.sock (Stream) …`."""
    return tuple(part.strip() for part in listen.replace(" (Stream)", "\n").splitlines() if part.strip())
