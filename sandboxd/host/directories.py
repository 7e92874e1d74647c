"""The daemon's own directories: their paths, and checks of their owners."""

from __future__ import annotations

import contextlib
import os
import stat

from sandboxd.errors import HostError
from sandboxd_client.records import dataclass

TEMPORARY_PARENT = "/var/tmp"
"""On disk, kept over a reboot, and not hidden by the `/tmp` of a sandbox."""


@dataclass(frozen=True, slots=True)
class TemporaryBase:
    """The parent of sessions' temporary directories; `warning` when it is unusual."""

    path: str
    warning: str = ""


def remove_if_empty(path: str) -> None:
    with contextlib.suppress(OSError):  # in use, or gone
        os.rmdir(path)


def ensure_private_directory(path: str, uid: int) -> None:
    """Make a directory of mode 0700, or check an existing one.

    It must not be a symlink, must belong to this user and be closed to others. Raises `HostError`:
    `directory_unusable`, `directory_foreign`, `directory_not_private`."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise HostError(
            "directory_unusable", f"cannot make {path}: {error.strerror}", hint=f"make {path} writable for you"
        ) from error
    state = os.lstat(path)
    if not stat.S_ISDIR(state.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(state.st_mode) else "not a directory"
        raise HostError("directory_unusable", f"{path} is {what}", hint="remove it")
    if state.st_uid != uid:
        raise HostError(
            "directory_foreign",
            f"{path} belongs to uid {state.st_uid}, not to you (uid {uid})",
            hint="ask that user or an administrator to remove it",
        )
    if state.st_mode & 0o077:
        raise HostError(
            "directory_not_private",
            f"{path} can be used by other users (mode {stat.S_IMODE(state.st_mode):04o})",
            hint=f"run: chmod 700 {path}",
        )


TEMPORARY_VARIABLE = "CLAUDE_CODE_TMPDIR"
"""Names the parent of sessions' temporary directories in place of `TEMPORARY_PARENT`."""


def chosen_base(uid: int, chosen: str, opened: str, default: TemporaryBase) -> TemporaryBase:
    """Return the base below the directory that the environment names, else the default with a warning.

    `opened` is a directory above it that commands could write."""
    if not chosen:
        return default
    path = os.path.join(chosen, f"sandboxd-{uid}")
    try:
        why = f"commands could write {opened}" if opened else _why_unusable(chosen, uid)
        if not why:
            ensure_private_directory(path, uid)
            return TemporaryBase(path)
    except (HostError, OSError) as error:
        why = error.message if isinstance(error, HostError) else f"{chosen}: {error.strerror}"
    more = f"; {default.warning}" if default.warning else ""
    return TemporaryBase(default.path, f"{TEMPORARY_VARIABLE} is not used: {why}{more}")


def _why_unusable(path: str, uid: int) -> str:
    """Return why a directory cannot hold temporary directories; empty if it can."""
    if not path.startswith("/") or os.path.realpath(path) != os.path.normpath(path):
        return f"{path} is not an absolute path without symbolic links"
    if (os.path.normpath(path) + "/").startswith(("/tmp/", "/dev/", "/proc/", "/sys/")):
        return f"{path} is below a directory that each sandbox has for itself"
    at = path
    while True:  # who can change a directory above can put another one in its place
        state = os.stat(at)
        if state.st_uid not in (0, uid) or (state.st_mode & 0o022 and not state.st_mode & stat.S_ISVTX):
            return f"other users can change {at}"
        if at == (above := os.path.dirname(at)):
            return ""
        at = above


def user_directories() -> tuple[str, ...]:
    """Return the user's directories for temporary files and caches on macOS, which programs ask confstr(3) for."""
    try:
        return tuple(os.path.realpath(found) for number in _DARWIN_USER_DIRECTORIES if (found := os.confstr(number)))
    except (OSError, ValueError):  # not macOS
        return ()


_DARWIN_USER_DIRECTORIES = (65537, 65538)  # _CS_DARWIN_USER_TEMP_DIR, _CS_DARWIN_USER_CACHE_DIR


def temporary_base(uid: int, runtime_dir: str, parent: str = TEMPORARY_PARENT) -> TemporaryBase:
    """Return `/var/tmp/sandboxd-UID`, made when it is missing.

    Falls back to the runtime directory, which is often in memory, with a warning. Raises `HostError` when both fail."""
    path = os.path.join(parent, f"sandboxd-{uid}")
    try:
        ensure_private_directory(path, uid)
    except HostError as error:
        fallback = os.path.join(runtime_dir, "tmp")
        ensure_private_directory(fallback, uid)
        return TemporaryBase(fallback, f"temporary files are kept in {fallback}: {error.message}")
    return TemporaryBase(path)
