"""Reading of settings files, which never blocks, exhausts memory or loses rules.

An absent file is an empty layer. Any other file that cannot be read is a broken layer."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from shlex import quote

from sandboxd.errors import SettingsError
from sandboxd.settings.files.locations import Location, SettingsLocations
from sandboxd.settings.files.trust import TrustStore, difference, digest, real_path
from sandboxd.settings.jsonc import MAX_BYTES, MAX_PROJECT_BYTES, MAX_PROJECT_VALUES
from sandboxd.settings.layer import PROJECT_DISTRUST, Layer, Placed, broken_layer, parse_layer
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.problems import Problem, error, warning
from sandboxd.settings.widening import widening

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_USER_SOURCES = frozenset({Source.FLAG, Source.LOCAL, Source.USER})


ALLOW_TRUST = "sandbox.allowProjectTrust"
TRUST_MISSING = "trust_missing"
"""The slug for a local file of a project that would widen and is not trusted."""
TRUST_CHANGED = "trust_changed"
"""The slug for a content that differs from the trusted one."""
_WARNED_LINES = 6


def read_layers(
    locations: SettingsLocations, cli: Iterable[Layer] = (), trust: TrustStore | None = None
) -> tuple[Layer, ...]:
    """Read every file of `locations`, beside `cli`, the layers of a call.

    Never raises. `trust` holds the trusted contents of files in projects, which may otherwise only tighten. An absent
    file gives an empty layer, so that its path is known and can be protected. A file with two names counts once, under
    the higher source."""
    layers: list[Layer] = list(cli)
    seen: set[tuple[int, int]] = set()
    for location in locations.files:
        store = trust if location.in_project and trust_is_allowed(layers) else None
        layers.append(_read_once(location, locations.home, seen, store))
        if location.directory:
            layers += (_read_once(inner, locations.home, seen) for inner in drop_ins(location))
    return tuple(layers)


def trust_is_allowed(layers: Iterable[Layer]) -> bool:
    """Return whether managed settings, which come first, permit trust."""
    managed = (layer.values.get(ALLOW_TRUST) for layer in layers if layer.source is Source.MANAGED)
    return not any(isinstance(placed, Placed) and placed.value is False for placed in managed)


def drop_ins(location: Location) -> tuple[Location, ...]:
    """Return the `.json` files of a drop-in directory, by name, without hidden ones."""
    try:
        names = sorted(os.listdir(location.path))
    except OSError:
        return ()
    return tuple(
        Location(location.source, os.path.join(location.path, name))
        for name in names
        if name.endswith(".json") and not name.startswith(".")
    )


def read_layer(location: Location, home: str, trust: TrustStore | None = None, most: int | None = None) -> Layer:
    """Read one file, of at most this number of keys and values. Never raises."""
    return _read_once(location, home, set(), trust, most)


def read_content(location: Location) -> bytes | None:
    """Return the bytes of a settings file; None if absent. Raises SettingsError."""
    try:
        return _read_bounded(location.path, MAX_PROJECT_BYTES if location.in_project else MAX_BYTES)[0]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except _Unreadable as fault:
        if keeps_absent(location.path):
            return None
        raise SettingsError(fault.slug, f"{location.path} {fault.message}", hint=fault.hint) from fault
    except OSError as fault:
        raise SettingsError("settings_unreadable", f"cannot read {location.path}: {fault.strerror}") from fault


def trust_subject(location: Location) -> tuple[str, str]:
    """Return the real directory and the name under which a content is trusted.

    Files of a project go by the project, wherever links lead from there; other files go by their real path."""
    directory, name = os.path.split(location.path)
    project, folder = os.path.split(directory)
    if location.source not in (Source.LOCAL, Source.PROJECT) or folder != ".claude":
        return os.path.split(real_path(location.path))
    return real_path(project), f"{folder}/{name}"


def _read_once(
    location: Location,
    home: str,
    seen: set[tuple[int, int]],
    trust: TrustStore | None = None,
    most: int | None = None,
) -> Layer:
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
        hint = (
            "make it readable for the user that sandboxd runs as" if fault.errno in (errno.EACCES, errno.EPERM) else ""
        )
        problem = error("settings_unreadable", f"cannot be read: {fault.strerror}", _at(location), hint=hint)
        return broken_layer(problem, source, path)
    identity = (status.st_dev, status.st_ino)
    if identity in seen:
        return empty
    seen.add(identity)
    layer = (
        _parse_untrusted(data, location, trust) if location.in_project else _parse(data, status, location, home, most)
    )
    return replace(layer, content=data)


def keeps_absent(path: str) -> bool:
    """Return whether this is a placeholder of the daemon for absent settings."""
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


def _parse_untrusted(data: bytes, location: Location, trust: TrustStore | None) -> Layer:
    """Parse a file that commands may have written; only trusted content may widen."""
    directory, name = trust_subject(location)
    record = None if trust is None else trust.find(directory)
    trusted = None if record is None else record.files.get(name)
    if trusted is not None and trusted.sha256 == digest(data):
        layer = parse_layer(data, location.source, location.path)
        return replace(layer, may_widen=True, distrust="")
    of_project = name.startswith(".claude/")
    source = Source.PROJECT if of_project else location.source
    subject = directory if of_project else location.path
    reason, hint = f"{PROJECT_DISTRUST}, until the user trusts this content", f"sandboxd trust {quote(subject)}"
    slug, changed = TRUST_MISSING, ""
    if record is not None and (of_project or trusted is not None):
        slug, lines = TRUST_CHANGED, difference("" if trusted is None else trusted.text, data)
        reason = f"{PROJECT_DISTRUST}: this is not the content that was trusted"
        more = f" (and {len(lines) - _WARNED_LINES} more lines)" if len(lines) > _WARNED_LINES else ""
        changed = f"{reason}; the difference: {' | '.join(lines[:_WARNED_LINES])}{more}"
    layer = parse_layer(data, source, location.path, may_widen=False, distrust=reason, most=MAX_PROJECT_VALUES)
    if not widening(layer) or (record is None and location.source is Source.PROJECT):
        return layer  # no value is lost, or the file is the project's, and `settings show` lists what is ignored
    problem = warning(slug, changed or reason, _at(location), hint=hint)
    return replace(layer, problems=(problem, *layer.problems))


def _parse(data: bytes, status: os.stat_result, location: Location, home: str, most: int | None) -> Layer:
    source, distrust, problems = location.source, "", list[Problem]()
    if source in _USER_SOURCES:
        distrust = _foreign(status, home)
        if distrust:
            problems.append(warning("settings_not_yours", f"{distrust}, so it may only tighten", _at(location)))
            most = MAX_PROJECT_VALUES
    layer = parse_layer(data, source, location.path, may_widen=not distrust, distrust=distrust, most=most)
    if not problems:
        return layer
    return Layer(source, layer.file, layer.values, (*problems, *layer.problems), False, distrust)


def _foreign(status: os.stat_result, home: str) -> str:
    """Return why a file is not under the user's control; empty when it is.

    The owner of the home directory counts as the user: containers run as root over a mounted home."""
    if status.st_mode & stat.S_IWOTH:
        return "every user can write it"
    owners = {0, os.geteuid()}
    with contextlib.suppress(OSError):
        owners.add(os.stat(home).st_uid)
    return "" if status.st_uid in owners else f"it belongs to user {status.st_uid}"


def _directory_layer(location: Location) -> Layer:
    """Return the layer of a drop-in directory: empty, or broken if unreadable."""
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
    # O_NONBLOCK: opening a named pipe must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
            raise _Unreadable("settings_not_a_file", f"is {kind}, not a file", "remove it, or replace it by a file")
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
