"""Git config targets: directories of hooks, included files and templates.

The configuration files are read directly, by the rules of git-config(1). git is not run, because it would obey the very
configuration in question. Conditions (`includeIf`) count as fulfilled: a later git may run elsewhere, on another
branch."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from sandboxd.errors import PolicyError
from sandboxd.host.resolve import NameRecorder, resolve
from sandboxd.plan.host_facts import GitConfigTarget, PathKind, ResolvedPath
from sandboxd_client.records import dataclass

LARGEST_CONFIG = 1 << 20
MOST_INCLUDED = 200
"""Limit on included files of one configuration; git stops at a depth of ten."""
SYSTEM = ("/etc/gitconfig", "/usr/local/etc/gitconfig", "/opt/homebrew/etc/gitconfig")
"""The possible paths; the build of git has settled which of them counts."""
_OPTIONAL = ":(optional)"
_ESCAPES = {"t": "\t", "b": "\b", "n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True, slots=True)
class GitConfiguration:
    """The (lower-case key, value) pairs of files, and the names of all includes."""

    settings: tuple[tuple[str, str], ...] = ()
    included: tuple[ResolvedPath, ...] = ()

    def __add__(self, other: GitConfiguration) -> GitConfiguration:
        return GitConfiguration((*self.settings, *other.settings), (*self.included, *other.included))

    def get(self, key: str) -> str | None:
        return dict(self.settings).get(key)

    def hooks(self, directory: str, seen: NameRecorder) -> Iterator[GitConfigTarget]:
        """Yield every directory of hooks in `directory`; the caller's git uses the last."""
        for key, value in self.settings:
            if key == "core.hookspath" and value:
                yield _obeyed(os.path.join(directory, _expanded(value)), seen, directory=True)

    def files(self, seen: NameRecorder) -> Iterator[GitConfigTarget]:
        """Yield the included files, and the templates of new repositories."""
        for resolved in self.included:
            yield GitConfigTarget(resolved, listed=_is_listed(resolved, seen))
        for key, value in self.settings:
            if key == "init.templatedir" and os.path.isabs(path := _expanded(value)):
                yield _obeyed(path, seen, directory=True)


def configuration_of_user(home: str, seen: NameRecorder) -> GitConfiguration:
    """Return the configuration that holds in every repository of this user."""
    above = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    usual = (os.path.join(above, "git", "config"), os.path.join(home, ".gitconfig"))
    named = (os.environ.get(name, "") for name in ("GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL"))
    found = GitConfiguration()
    for path in dict.fromkeys((*SYSTEM, *usual, *filter(os.path.isabs, named))):
        found += read_configuration(path, seen)
    return found


def read_configuration(path: str, seen: NameRecorder) -> GitConfiguration:
    """Return the settings of a file with its includes. Raises `PolicyError`."""
    reader = _ConfigurationReader(seen)
    reader.read(path)
    return GitConfiguration(tuple(reader.settings), tuple(reader.included.values()))


class _ConfigurationReader:
    def __init__(self, seen: NameRecorder) -> None:
        self._seen = seen
        self.settings: list[tuple[str, str]] = []
        self.included: dict[str, ResolvedPath] = {}

    def read(self, path: str) -> None:
        todo = [(path, resolve(path, self._seen))]
        while todo:
            path, resolved = todo.pop()
            if resolved.kind is not PathKind.FILE:
                continue
            self._seen.visit(*os.path.split(resolved.real), True)
            for key, value in settings_in(text_of(resolved.real, LARGEST_CONFIG) or ""):
                self.settings.append((key, value))
                if value and key.startswith(("include.", "includeif.")) and key.endswith(".path"):
                    # relative to the file's name in the include, as in git
                    named = os.path.join(os.path.dirname(path), _expanded(value))
                    if named not in self.included:
                        self.included[named] = leads = resolve(named, self._seen)
                        todo.append((named, leads))
            if len(self.included) > MOST_INCLUDED:
                raise PolicyError(
                    "scan_too_large",
                    f"the configuration of git in {path} includes more than {MOST_INCLUDED} files",
                    hint="include fewer files: git obeys each of them, so each is protected",
                )


def _obeyed(path: str, seen: NameRecorder, *, directory: bool) -> GitConfigTarget:
    resolved = resolve(path, seen)
    return GitConfigTarget(resolved, directory=directory, listed=_is_listed(resolved, seen))


def _expanded(value: str) -> str:
    return os.path.expanduser(value.removeprefix(_OPTIONAL))


def _is_listed(resolved: ResolvedPath, seen: NameRecorder) -> bool:
    """Return whether git would list a new file there, as it does in a working tree."""
    directory = resolved.existing
    if f"{directory}/".find("/.git/") >= 0:
        return False
    while directory != "/":
        if resolve(os.path.join(directory, ".git"), seen).kind is not None:
            return True
        directory = os.path.dirname(directory)
    return False


def settings_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield (lower-case key, value) of a configuration text.

    Text that git would refuse is skipped, and the rest read: another version may be less strict. A zero byte ends a
    value."""
    section = ""
    for line in _lines(text.removeprefix("\ufeff").replace("\r\n", "\n")):
        line = line.strip(" \t\r")
        while line.startswith("["):
            section, line = _section(line)
        name = _name(line)
        if name:
            rest = line[len(name) :].lstrip(" \t")
            if rest.startswith("="):
                yield f"{section}.{name.lower()}", _value(rest[1:]).partition("\0")[0]
            elif not rest or rest[0] in "#;":
                yield f"{section}.{name.lower()}", ""


def _lines(text: str) -> Iterable[str]:
    """Yield lines, each joined with the next when a backslash ends it."""
    joined = ""
    for line in text.split("\n"):  # as git does; str.splitlines splits at more characters
        joined += line
        if _ends_escaped(joined):
            joined += "\n"  # taken out with its backslash in `_value`
        else:
            yield joined
            joined = ""
    yield joined


def _ends_escaped(line: str) -> bool:
    """Return whether a line ends in a backslash outside of escapes and comments."""
    quoted = escaped = False
    value = False
    for character in line:
        if escaped:
            escaped = False
        elif not value:
            value = character == "="
            if character in "#;":
                return False
        elif character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif character in "#;" and not quoted:
            return False
    return escaped


def _section(line: str) -> tuple[str, str]:
    """Return the name of a section with its subsection, and the rest of the line."""
    at = 1
    while at < len(line) and line[at] not in ' \t"]':
        at += 1
    section = line[1:at].lower()
    rest = line[at:].lstrip(" \t")
    if rest.startswith('"'):
        subsection, at = "", 1
        while at < len(rest) and rest[at] != '"':
            at += rest[at] == "\\"
            subsection += rest[at : at + 1]
            at += 1
        section += f".{subsection}"
        rest = rest[at + 1 :]
    return section, rest.partition("]")[2].lstrip(" \t")


def _name(line: str) -> str:
    if not line[:1].isalpha():
        return ""
    end = 1
    while end < len(line) and (line[end].isalnum() or line[end] == "-"):
        end += 1
    return line[:end]


def _value(text: str) -> str:
    """Return a value without quotes, escapes, comment and surrounding white space."""
    found, kept = "", 0
    quoted = False
    characters = iter(text.lstrip(" \t"))
    for character in characters:
        if character == "\\":
            character = next(characters, "\n")
            found += "" if character == "\n" else _ESCAPES.get(character, character)
        elif character == '"':
            quoted = not quoted
        elif character in "#;" and not quoted:
            break
        elif character in " \t\r" and not quoted:
            found += character
            continue
        else:
            found += character
        kept = len(found)
    return found[:kept]


def text_of(path: str, limit: int) -> str | None:
    """Return the beginning of a regular file, never waiting for a pipe."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fsdecode(os.read(file, limit)) if stat.S_ISREG(os.fstat(file).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(file)
