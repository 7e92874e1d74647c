"""The daemon's own directories: their paths, and checks of their owners."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from sandboxd.errors import HostError

TEMPORARY_PARENT = "/var/tmp"
"""On disk, kept over a reboot, and not hidden by the `/tmp` of a sandbox."""


@dataclass(frozen=True, slots=True)
class TemporaryBase:
    """The parent of sessions' temporary directories; `warning` when it is unusual."""

    path: str
    warning: str = ""


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
