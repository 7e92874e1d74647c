"""What can go wrong between a program and the daemon, each with advice in `hint`. Imports nothing.

`str(error)` is the message with the hint in brackets; `message`, `hint` and `slug` are there on their own.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class SandboxdError(Exception):
    """Base of every error of this package. `slug` is stable, `message` one line, `hint` what to do ("" if nothing)."""

    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class DaemonNotRunning(SandboxdError):
    """Nobody answers at the socket, and none was to be started."""

    def __init__(self, path: str, message: str = "", hint: str = "start it with: sandboxd serve") -> None:
        super().__init__("daemon_not_running", message or f"sandboxd is not running: nothing answers at {path}", hint)
        self.path = path


class DaemonStartFailed(DaemonNotRunning):
    """A daemon was started and did not come up; the message is what it said."""


class PermissionDenied(SandboxdError):
    """The socket or its directory belongs to somebody else, or the daemon refuses this caller."""


class WrongVersion(SandboxdError):
    """Client and daemon do not understand each other."""

    def __init__(self, message: str, hint: str = "restart the daemon with: sandboxd restart") -> None:
        super().__init__("wrong_version", message, hint)


class ConnectionLost(SandboxdError):
    """The daemon went away before it answered, or sent what is no answer. `sent` is False when it never got the
    request as a whole, so asking again cannot do anything twice."""

    def __init__(
        self, message: str = "the connection to sandboxd ended before it answered", *, sent: bool = True
    ) -> None:
        super().__init__(
            "connection_lost", message, "see whether it runs, and why not: sandboxd status, sandboxd service status"
        )
        self.sent = sent


class DaemonTimeout(SandboxdError):
    """No answer in time. The daemon may still act on the request."""

    def __init__(self, method: str, timeout: float) -> None:
        super().__init__("daemon_timeout", f"sandboxd did not answer {method} within {timeout:g} s")


class RpcError(SandboxdError):
    """The daemon answered with an error. `number` is the JSON-RPC number, `data` what else it said."""

    def __init__(
        self, slug: str, message: str, hint: str = "", number: int = 0, data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(slug, message, hint)
        self.number = number
        self.data: Mapping[str, Any] = dict(data or {})


class InvalidCommand(SandboxdError, ValueError):
    """The command cannot be sent: empty, a NUL character, bytes that are not UTF-8, longer than a message may be."""


class SandboxSetupError(SandboxdError):
    """The sandbox could not be set up, and nothing was run."""

    def __init__(self, message: str, hint: str = "", slug: str = "sandbox_setup_failed") -> None:
        super().__init__(slug, message, hint)


class WrapOutdated(SandboxSetupError):
    """Nothing was run, since files of the sandbox have changed between the wrap of the command and its start."""

    def __init__(self, message: str, hint: str = "run the command again", slug: str = "files_changed") -> None:
        super().__init__(message, hint, slug)


class SettingsChanged(WrapOutdated):
    """Nothing was run, since the settings have changed between the wrap of the command and its start."""

    def __init__(self, message: str, hint: str = "run the command again") -> None:
        super().__init__(message, hint, "settings_changed")


class CommandRefused(SandboxdError):
    """`decide=True`: the decision was to run nothing. `decision` is the result of `should_sandbox`."""

    def __init__(self, slug: str, message: str, hint: str, decision: object) -> None:
        super().__init__(slug, message, hint)
        self.decision = decision


class CommandDenied(CommandRefused):
    """A rule denies the command."""


class ApprovalRequired(CommandRefused):
    """The command may only run when somebody approves, and nobody was there to, or they did not."""


def error_of_reply(error: object) -> SandboxdError:
    """The exception for the `error` member of a reply."""
    from sandboxd_client.wire import codes

    if not isinstance(error, dict):
        return ConnectionLost("sandboxd sent an error without its parts")
    number = error.get("code")
    number = number if isinstance(number, int) else codes.INTERNAL_ERROR
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    message, slug, hint = str(error.get("message", "")), str(data.get("slug", "")), str(data.get("hint", ""))
    if number == codes.DENIED:
        return PermissionDenied(slug or "not_permitted", message, hint)
    if slug == "wrong_version":
        return WrongVersion(message, hint)
    if number == codes.METHOD_NOT_FOUND:
        return WrongVersion(f"the running sandboxd is older than this client: {message}")
    return RpcError(slug or "internal_error", message, hint, number, data)
