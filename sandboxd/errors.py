"""Exception tree of the project.

An error has a class, a stable `slug`, a `message` for people and a `hint`. The class says what has to be corrected: the
request, a settings file, the host or sandboxd itself."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any


class DaemonError(Exception):
    """Base of every error that reaches a caller.

    `slug` is a stable identifier in snake_case. `message` is one line without a trailing full stop. `hint` is one line
    with the remedy, empty where there is none. `data` holds further JSON values for programs."""

    def __init__(self, slug: str, message: str, *, hint: str = "", data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint
        self.data: Mapping[str, Any] = dict(data or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.slug!r}, {self.message!r})"


class CallerError(DaemonError):
    """Wrong request: bad parameter, unknown session, or not permitted to this caller."""


class SettingsError(DaemonError):
    """Wrong settings; `data` holds `file`, `key`, `line`, `column` where known."""


class PolicyError(DaemonError):
    """Well-formed policy that cannot be enforced, so that no command runs."""


class HostError(DaemonError):
    """Missing tool, kernel feature or permission, without which no sandbox can start."""


class LaunchError(DaemonError):
    """Failed start of a sandbox. The command did not run."""


class InternalError(DaemonError):
    """Bug in sandboxd. The message is safe to show; the log has the details."""


def way_out(fault: OSError, otherwise: str) -> str:
    """Return the hint for a file that cannot be written; another one where the disk is not the reason."""
    return _WAYS_OUT.get(fault.errno or 0, otherwise)


_WAYS_OUT = {
    errno.ENOSPC: "free some disk space there",
    errno.EDQUOT: "free some of the disk quota",
    errno.EROFS: "mount the file system writable",
}
