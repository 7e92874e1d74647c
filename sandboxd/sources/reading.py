"""Reading settings files. Every way in which a file can be odd has one clear outcome, and none of them blocks, eats
memory or loses rules: an absent file is an empty layer, anything else that cannot be read is a broken one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable

from sandboxd.settings.jsonc import MAX_BYTES, MAX_PROJECT_BYTES
from sandboxd.settings.layer import Layer, broken_layer, parse_layer
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.problems import Problem, error, warning
from sandboxd.sources.locations import Location, SettingsLocations
from sandboxd.sources.tracking import tracked_by_git

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_OWN_SOURCES = frozenset({Source.FLAG, Source.LOCAL, Source.USER})


def read_layers(locations: SettingsLocations, cli: Iterable[Layer] = ()) -> tuple[Layer, ...]:
    """Read every file of `locations`, and put `cli` (layers that came with a call) beside them.

    Never raises. An absent file gives an empty layer, so that its path is known and can be protected. A file that is
    reached under two names counts once, under the higher source.
    """
    layers: list[Layer] = list(cli)
    seen: set[tuple[int, int]] = set()
    for location in locations.files:
        layers.append(_read_once(location, locations.home, seen))
        if location.directory:
            layers += (_read_once(inner, locations.home, seen) for inner in drop_ins(location))
    return tuple(layers)


def drop_ins(location: Location) -> tuple[Location, ...]:
    """The files of a drop-in directory, by name. Hidden files and editors' copies do not end in `.json`."""
    try:
        names = sorted(os.listdir(location.path))
    except OSError:
        return ()
    return tuple(
        Location(location.source, os.path.join(location.path, name))
        for name in names
        if name.endswith(".json") and not name.startswith(".")
    )


def read_layer(location: Location, home: str) -> Layer:
    """Read one file. Never raises."""
    return _read_once(location, home, set())


def _read_once(location: Location, home: str, seen: set[tuple[int, int]]) -> Layer:
    source, path = location.source, location.path
    empty = Layer(source, path)
    if location.directory:
        return _directory_layer(location)
    try:
        data, status = _read_bounded(path, MAX_PROJECT_BYTES if location.in_project else MAX_BYTES)
    except FileNotFoundError:
        if os.path.islink(path):
            problem = error(
                "settings_dangling_link", f"is a link to {_target(path)}, which does not exist", _at(location)
            )
            return broken_layer(problem, source, path)
        return empty
    except NotADirectoryError:
        return empty
    except _Unreadable as fault:
        if keeps_absent(path):
            return empty
        return broken_layer(error(fault.slug, fault.message, _at(location), hint=fault.hint), source, path)
    except OSError as fault:
        hint = "make it readable for the user who runs sandboxd" if fault.errno in (errno.EACCES, errno.EPERM) else ""
        problem = error("settings_unreadable", f"cannot be read: {fault.strerror}", _at(location), hint=hint)
        return broken_layer(problem, source, path)
    identity = (status.st_dev, status.st_ino)
    if identity in seen:
        return empty
    seen.add(identity)
    return _parse(data, status, location, home)


def keeps_absent(path: str) -> bool:
    """Whether it is the empty directory with which the daemon keeps this very name from being created by a sandbox, see
    `host.placeholders`: with a command in the home directory, that is what stands for the user's settings."""
    try:
        status = os.lstat(path)
        return (
            stat.S_ISDIR(status.st_mode)
            and bool(status.st_mode & stat.S_ISVTX)
            and status.st_uid == os.geteuid()
            and not os.listdir(path)
        )
    except OSError:
        return False


def _parse(data: bytes, status: os.stat_result, location: Location, home: str) -> Layer:
    source, distrust, problems = location.source, "", list[Problem]()
    if source in _OWN_SOURCES:
        distrust = _foreign(status, home)
        if distrust:
            problems.append(warning("settings_not_yours", f"{distrust}, so it may only tighten", _at(location)))
        elif location.in_project and tracked_by_git(location.path):
            source, distrust = Source.PROJECT, "tracked by git, so it came with the project and may only tighten"
    layer = parse_layer(data, source, location.path, may_widen=not distrust, distrust=distrust)
    if not problems:
        return layer
    return Layer(source, layer.file, layer.values, (*problems, *layer.problems), False, distrust)


def _foreign(status: os.stat_result, home: str) -> str:
    """Why a file is not this user's word; empty when it is. The owner of the home directory counts as this user:
    containers run as root over a mounted home."""
    if status.st_mode & stat.S_IWOTH:
        return "everybody can write it"
    owners = {0, os.geteuid()}
    with contextlib.suppress(OSError):
        owners.add(os.stat(home).st_uid)
    return "" if status.st_uid in owners else f"it belongs to user {status.st_uid}"


def _directory_layer(location: Location) -> Layer:
    """A drop-in directory is an empty layer of its own: absent is fine, unreadable is not."""
    try:
        os.listdir(location.path)
    except FileNotFoundError:
        pass
    except OSError as fault:
        problem = error("settings_unreadable", f"cannot be listed: {fault.strerror}", _at(location))
        return broken_layer(problem, location.source, location.path)
    return Layer(location.source, location.path)


class _Unreadable(Exception):
    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint


def _read_bounded(path: str, most: int) -> tuple[bytes, os.stat_result]:
    # O_NONBLOCK: opening a named pipe must not wait for somebody to write into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
            raise _Unreadable("settings_not_a_file", f"is {kind}, not a file", "remove it, or put a file there")
        if status.st_size > most:
            raise _Unreadable("settings_too_large", f"has {status.st_size} bytes, the limit is {most}")
        data = bytearray()
        while chunk := os.read(descriptor, most + 1 - len(data)):
            data += chunk
            if len(data) > most:
                raise _Unreadable("settings_too_large", f"has more than {most} bytes")
        return bytes(data), status
    finally:
        os.close(descriptor)


def _at(location: Location) -> Origin:
    return Origin(location.source, "", location.path)


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "somewhere"
