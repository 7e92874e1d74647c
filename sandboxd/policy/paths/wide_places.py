"""Wide places: much at once, programs that start outside, or secrets.

A place includes the paths below it, except for those of `_WITHOUT_TREES`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from sandboxd.policy.paths.protected_names import ProtectedIn, is_protected_name, rows
from sandboxd.policy.paths.secret_places import SecretPlaces, named_secrets
from sandboxd_client.records import dataclass

_EVERYTHING: Final = "everything below {path}"
_SETTINGS_WHY: Final = "the settings that say what commands may do"
_STARTED: Final = "what programs outside the sandbox are started from or obey ({path}: {why})"
_SECRET: Final = "keys, tokens or passwords ({path})"
_DEVICE: Final = "a device of this machine"

SETTINGS: Final = re.compile(
    r".*/\.claude(/settings(\.local)?\.json)?|/etc/(sandboxd|claude-code)(/.*)?"
    r"|/Library/Application Support/(sandboxd|ClaudeCode)(/.*)?"
)
_WITHOUT_TREES: Final = tuple(
    """/home /mnt /media /opt /private /private/var /run /srv /Users /usr/bin /usr/lib /usr/local /usr/local/bin
    /usr/local/src /usr/sbin /usr/src /var /var/lib /Volumes
    ~/Library""".split()
)
_TREES: Final = (
    ("it is of the system", """/bin /boot /efi /etc /lib /lib32 /lib64 /libx32 /nix /private/etc /sbin /snap /usr
     /Applications /Library /System /proc /sys"""),
    ("it says what is started, and when", """/var/spool/cron /var/spool/at /var/spool/anacron /run/systemd
     /run/udev /run/user/*/systemd /var/lib/systemd /var/lib/docker /var/lib/containers /var/lib/cloud /var/lib/kubelet
     /var/lib/libvirt /var/lib/machines /var/lib/portables"""),
    ("programs are installed or updated from it", """/var/lib/dpkg /var/lib/rpm /var/lib/apt /var/cache/apt /var/lib/dnf
     /var/cache/dnf /var/cache/yum /var/lib/pacman /var/cache/pacman /var/lib/snapd /var/lib/flatpak /var/lib/dkms
     /var/lib/alternatives /var/backups"""),
    ("it says who may do what", "/var/lib/polkit-1 /var/lib/sudo /var/lib/pam /var/lib/sss /var/lib/AccountsService"),
)  # fmt: skip
_OF_THE_SYSTEM: Final = ("/var/log", "/var/cache", "/var/mail", "/var/spool/mail", "/run/lock")
"""Directories of the system themselves, and not what is below them."""
_LOGIN: Final = "/run/user/*"
_SOURCE_TREES: Final = ("/usr/src/", "/usr/local/src/")
_CACHES: Final = frozenset({".cache", ".npm", ".bun", ".gradle"})
"""Directories that are protected in part. That part stays protected when they are opened."""
_PROGRAM_DIRECTORIES: Final = frozenset({"bin", "sbin", ".bin"})


@dataclass(frozen=True, slots=True)
class WidePlace:
    """A wide place, with all paths `below` it, or for `writing` alone."""

    path: str
    why: str
    below: bool = True
    writing: bool = True


def why_wide_place(path: str, home: str, *, write: bool, glob: bool = False) -> str:
    """Return the power that a rule for a path gives; empty for an ordinary path."""
    if glob:
        while path != "/" and not posixpath.basename(path).strip("*"):
            path = posixpath.dirname(path)
    named = path.split("/")
    for above in _from_root(home):
        if path == above or (glob and _matches(named, above.split("/"))):
            return "your whole home directory" if above == home != "/" else _EVERYTHING.format(path=above)
    if SETTINGS.fullmatch(path):
        return _SETTINGS_WHY
    if glob and named[1] == "**":
        return _EVERYTHING.format(path="/") + f" that {path} matches"
    for place in _places(home):
        if (place.writing and not write) or is_source_directory(path):
            continue
        wide = _names(named, place) if glob else _is_at(named, place)
        if wide:
            return place.why.format(path=place.path)
    return _by_name(path, home, write=write)


def why_wide_project(path: str, home: str) -> str:
    """Return the power that a session's directory gives, by place and not by name."""
    if path in _from_root(home):
        return _EVERYTHING.format(path=path)
    if SETTINGS.fullmatch(path):
        return _SETTINGS_WHY
    places = (place for place in _places(home) if _is_at(path.split("/"), place))
    return "" if is_source_directory(path) else next((place.why.format(path=place.path) for place in places), "")


def is_system_directory(path: str) -> bool:
    """Return whether programs of the system, or files they obey, are at a path."""
    return not is_source_directory(path) and _system_directories().fullmatch(path) is not None


@lru_cache(maxsize=1)
def _system_directories() -> re.Pattern[str]:
    places = (place for place in _all_places("~") if place.path.startswith("/") and place.writing)
    texts = (re.escape(place.path).replace(r"\*", "[^/]*") + "(?:/.*)?" * place.below for place in places)
    return re.compile("|".join(texts), re.DOTALL)


def is_source_directory(path: str) -> bool:
    """Return whether a path is in a directory for sources, among the system's."""
    return path.startswith(_SOURCE_TREES)


def _from_root(home: str) -> list[str]:
    """Return the home directory and those above it."""
    above = [home]
    while above[-1] != "/":
        above.append(posixpath.dirname(above[-1]))
    return above


@lru_cache(maxsize=8)
def _places(home: str) -> tuple[WidePlace, ...]:
    return tuple(_all_places(home))


def _all_places(home: str) -> Iterator[WidePlace]:
    def at_home(text: str) -> str:
        return home + text[1:] if text.startswith("~") else text

    for row in rows(ProtectedIn.HOME):
        why = _STARTED.format(path="{path}", why=row.why)
        yield WidePlace(f"{home}/{row.name}", why)
        if row.parts[0] not in _CACHES:
            above = ("/".join((home, *row.parts[:at])) for at in range(1, len(row.parts)))
            yield from (WidePlace(path, why, below=False) for path in above)
    yield from (WidePlace(at_home(text), _SECRET, writing=False) for text in named_secrets() if text != home)
    yield WidePlace("/dev", _DEVICE, writing=False)
    for why, trees in _TREES:
        for tree in trees.split():
            yield WidePlace(tree, _STARTED.format(path="{path}", why=why))
    yield WidePlace(_LOGIN, _STARTED.format(path="{path}", why="programs of your login listen there"), below=False)
    for one in (*_WITHOUT_TREES, *_TREES[0][1].split()):
        yield WidePlace(at_home(one), _EVERYTHING, below=False, writing=False)
    for one in dict.fromkeys((*_OF_THE_SYSTEM, *(above for _, trees in _TREES for above in _above(trees)))):
        yield WidePlace(one, _STARTED.format(path="{path}", why="it is of the system"), below=False)
    for directory in (".claude", ".claude/settings.json", ".claude/settings.local.json"):
        yield WidePlace(f"{home}/{directory}", _SETTINGS_WHY, below=False, writing=False)


def _above(trees: str) -> Iterator[str]:
    """Yield the directories above these trees: who can write there can replace them."""
    for tree in trees.split():
        while (tree := posixpath.dirname(tree)) != "/":
            yield tree


def _is_at(named: Sequence[str], place: WidePlace) -> bool:
    """Return whether a path is a place, or lies below one that counts as a tree."""
    pattern = place.path.split("/")
    same = all(fnmatchcase(name, part) for name, part in zip(named, pattern, strict=False))
    return same and (len(named) >= len(pattern) if place.below else len(named) == len(pattern))


def _names(pattern: Sequence[str], place: WidePlace) -> bool:
    """Return whether a pattern names a place, or a path below one."""
    names = place.path.replace("*", "x").split("/")
    if _matches(pattern, names):
        return True
    return place.below and any(
        pattern[length - 1].strip("*") and _matches(pattern[:length], names) for length in range(2, len(pattern))
    )


def _matches(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether a pattern matches a path, by their components."""
    if not pattern or not names:
        return not names and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return any(_matches(pattern[1:], names[at:]) for at in range(len(names) + 1))
    return fnmatchcase(names[0], pattern[0]) and _matches(pattern[1:], names[1:])


def _by_name(path: str, home: str, *, write: bool) -> str:
    if write and is_protected_name(path, home):
        return _STARTED.format(path=path, why="it has a protected name")
    if write and posixpath.basename(path) in _PROGRAM_DIRECTORIES:
        return _STARTED.format(path=path, why="programs lie there")
    return _SECRET.format(path=path) if SecretPlaces(home).holds(path) else ""
