"""Errors of the client, each with a `slug`, a `message` and a `hint`.

`str(error)` is the message with the hint in brackets. Imports nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class SandboxdError(Exception):
    """Base of every error: a stable `slug`, one line, and a hint or ""."""

    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class DaemonNotRunning(SandboxdError):
    """No daemon answers at the socket, and none was to be started."""

    def __init__(self, path: str, message: str = "", hint: str = "start it with: sandboxd serve") -> None:
        super().__init__("daemon_not_running", message or f"sandboxd is not running: nothing answers at {path}", hint)
        self.path = path


class DaemonStartFailed(DaemonNotRunning):
    """A started daemon did not come up; the message is its own."""


class PermissionDenied(SandboxdError):
    """An unsafe socket or directory, or a daemon that refuses this caller."""


class WrongVersion(SandboxdError):
    """Client and daemon do not understand each other."""

    def __init__(self, message: str, hint: str = "restart the daemon with: sandboxd restart") -> None:
        super().__init__("wrong_version", message, hint)


class ConnectionLost(SandboxdError):
    """The connection ended before the answer, or the daemon sent no valid one."""

    def __init__(
        self, message: str = "the connection to sandboxd ended before it answered", *, sent: bool = True
    ) -> None:
        super().__init__("connection_lost", message, "check the daemon with: sandboxd status, sandboxd service status")
        self.sent = sent  # False: the daemon never got the whole request


class DaemonTimeout(SandboxdError):
    """No answer in time. The daemon may still act on the request."""

    def __init__(self, method: str, timeout: float) -> None:
        super().__init__("daemon_timeout", f"sandboxd did not answer {method} within {timeout:g} s")


class RpcError(SandboxdError):
    """An error reply of the daemon, with JSON-RPC `number` and further `data`."""

    def __init__(
        self, slug: str, message: str, hint: str = "", number: int = 0, data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(slug, message, hint)
        self.number = number
        self.data: Mapping[str, Any] = dict(data or {})


class InvalidCommand(SandboxdError, ValueError):
    """A command that cannot be sent: empty, NUL, not UTF-8, or too long."""


class SandboxSetupError(SandboxdError):
    """The sandbox could not be set up, and no command ran."""

    def __init__(self, message: str, hint: str = "", slug: str = "sandbox_setup_failed") -> None:
        super().__init__(slug, message, hint)


class WrapOutdated(SandboxSetupError):
    """No command ran: files of the sandbox changed after the wrap."""

    def __init__(self, message: str, hint: str = "run the command again", slug: str = "files_changed") -> None:
        super().__init__(message, hint, slug)


class SettingsChanged(WrapOutdated):
    """No command ran: the settings changed after the wrap."""

    def __init__(self, message: str, hint: str = "run the command again") -> None:
        super().__init__(message, hint, "settings_changed")


class CommandRefused(SandboxdError):
    """`decide=True`: the `decision` of `should_sandbox` was to run nothing."""

    def __init__(self, slug: str, message: str, hint: str, decision: object) -> None:
        super().__init__(slug, message, hint)
        self.decision = decision


class CommandDenied(CommandRefused):
    """A rule denies the command."""


class ApprovalRequired(CommandRefused):
    """The command needs an approval, and no client answers prompts."""


class SandboxOffWarning(UserWarning):
    """Commands run without a sandbox, since the settings say so."""


class SecretsWarning(UserWarning):
    """Commands get variables of this process that look like secrets."""


def error_of_reply(error: object) -> SandboxdError:
    """Return the exception for the `error` member of a reply."""
    from sandboxd_client.wire import codes

    if not isinstance(error, dict):
        return ConnectionLost("sandboxd sent a malformed error")
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
