"""The one exception tree of the project.

Each error answers three questions: which kind of fault it is (the class), what happened (`slug`, stable, and
`message`, for people) and what to do about it (`hint`). The classes say *whose* fault it is, because the reply
differs: a caller can correct a request, a person can correct a settings file, an administrator can mend a host,
and only we can mend our own bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class DaemonError(Exception):
    """Base of every error that reaches a caller.

    `slug` is a stable identifier in snake_case, `message` one line without a trailing full stop, `hint` one line
    that says what to do (empty when there is nothing to advise), `data` further JSON values for programs.
    """

    def __init__(self, slug: str, message: str, *, hint: str = "", data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint
        self.data: Mapping[str, Any] = dict(data or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.slug!r}, {self.message!r})"


class CallerError(DaemonError):
    """The request was wrong: bad parameter, unknown session, not permitted to this caller."""


class SettingsError(DaemonError):
    """A settings file or value is wrong. `data` carries `file`, `key`, `line` and `column` where known."""


class PolicyError(DaemonError):
    """The policy is well-formed and cannot be enforced as written, so nothing is run."""


class HostError(DaemonError):
    """This machine cannot start a sandbox: a tool, a kernel feature or a permission is missing."""


class LaunchError(DaemonError):
    """A sandbox was to be started and was not. The command did not run."""


class InternalError(DaemonError):
    """Our own bug. The message is safe to show; the details are in the log."""
