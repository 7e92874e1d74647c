"""The table of settings files by source. Pure.

| source | file |
| --- | --- |
| managed | `/etc/sandboxd/managed-settings.json`, `/etc/sandboxd/managed-settings.d/*.json`, `/etc/claude-code/managed-settings.json` (macOS: below `/Library/Application Support/sandboxd` and `…/ClaudeCode`) |
| flag | the file that `$SANDBOXD_FLAG_SETTINGS` names |
| local | `settings.local.json` in the configuration directory; the project's `.claude/settings.local.json`, while its content is trusted |
| user | `settings.json` in the configuration directory |
| project | the project's `.claude/settings.json`; its `settings.local.json` while its content is not trusted |

The configuration directory is `$SANDBOXD_CONFIG_HOME`, else `~/.claude`. Nothing in the environment moves the managed
files, since the user could otherwise evade the rules of the administrator.
"""  # noqa: E501 - a table

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from sandboxd.errors import SettingsError
from sandboxd.settings.origins import Source
from sandboxd_client.records import dataclass

FLAG_VARIABLE = "SANDBOXD_FLAG_SETTINGS"
CONFIG_VARIABLE = "SANDBOXD_CONFIG_HOME"

_MANAGED: dict[str, tuple[tuple[str, bool], ...]] = {
    "linux": (
        ("/etc/sandboxd/managed-settings.json", False),
        ("/etc/sandboxd/managed-settings.d", True),
        ("/etc/claude-code/managed-settings.json", False),
    ),
    "macos": (
        ("/Library/Application Support/sandboxd/managed-settings.json", False),
        ("/Library/Application Support/sandboxd/managed-settings.d", True),
        ("/Library/Application Support/ClaudeCode/managed-settings.json", False),
    ),
}


@dataclass(frozen=True, slots=True)
class Location:
    """One settings file, or a directory of them (`*.json` in it, in order of name).

    `in_project` marks files that a repository can contain or a command can write: they widen only with trusted content.
    """

    source: Source
    path: str
    directory: bool = False
    in_project: bool = False


@dataclass(frozen=True, slots=True)
class SettingsLocations:
    """The settings files of one project, highest source first."""

    files: tuple[Location, ...]
    home: str
    local_file: str
    """The file that changes are written to."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that are read, or would be if they existed, without repeats."""
        return tuple(dict.fromkeys(location.path for location in self.files))


def find_locations(
    environment: Mapping[str, str],
    home: str,
    project: str | None = None,
    *,
    platform: str = "linux",
    cli_files: tuple[str, ...] = (),
    managed_root: str = "/",
) -> SettingsLocations:
    """Return the locations of the table above. `project` None means no project.

    `cli_files` are settings files named on the command line. `managed_root` is for tests and must never come from the
    environment. Raises `SettingsError` (`settings_invalid`)."""
    config = _absolute(environment, CONFIG_VARIABLE) or posixpath.join(home, ".claude")
    managed = _MANAGED["macos" if platform == "macos" else "linux"]
    local, user = posixpath.join(config, "settings.local.json"), posixpath.join(config, "settings.json")
    files = [Location(Source.MANAGED, _below(managed_root, path), directory) for path, directory in managed]
    files += [Location(Source.CLI, path) for path in cli_files]
    flag = _absolute(environment, FLAG_VARIABLE)
    if flag:
        files.append(Location(Source.FLAG, flag))
    files += [Location(Source.LOCAL, local), Location(Source.USER, user)]
    if project is not None:
        directory = posixpath.join(project, ".claude")
        files.append(Location(Source.LOCAL, posixpath.join(directory, "settings.local.json"), in_project=True))
        files.append(Location(Source.PROJECT, posixpath.join(directory, "settings.json"), in_project=True))
    # In the home directory the project's files are also the user's: the higher source wins.
    unique: dict[str, Location] = {}
    for location in files:
        unique.setdefault(location.path, location)
    return SettingsLocations(tuple(unique.values()), home, local)


def _absolute(environment: Mapping[str, str], name: str) -> str | None:
    """Return an absolute path from the environment; a relative one is refused."""
    path = environment.get(name)
    if path and not path.startswith("/"):
        raise SettingsError(
            "settings_path_relative", f"${name} is not an absolute path: {path!r}", hint="begin it with /"
        )
    return path


def _below(root: str, path: str) -> str:
    return path if root == "/" else posixpath.join(root, path.lstrip("/"))
