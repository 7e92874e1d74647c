"""The user's systemd, through systemctl(1)."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping

from sandboxd.cli.service.systemd_units import SERVICE, SOCKET, properties
from sandboxd_client import programs
from sandboxd_client.errors import SandboxdError
from sandboxd_client.records import dataclass, field

_TIMEOUT_S = 100.0
"""Longer than the time limits of the units for start and stop."""
_SERVICE_PROPERTIES = (
    "LoadState,ActiveState,SubState,Result,MainPID,ExecMainStatus,FragmentPath,DropInPaths,NeedDaemonReload,UnitFileState,StatusText,"
    "NRestarts"
)
_SOCKET_PROPERTIES = "LoadState,ActiveState,Result,FragmentPath,NeedDaemonReload,UnitFileState,Listen"


_WITHOUT = "a service is not needed: the first command starts a daemon, for example: sandboxd run true"


@dataclass(frozen=True, slots=True)
class UserManager:
    """The systemd of the user. Every method raises SandboxdError."""

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @classmethod
    def reached(cls) -> UserManager:
        """Return the manager if it answers, else raise the reason."""
        manager = cls()
        manager.unit_path()
        return manager

    def unit_path(self) -> tuple[str, ...]:
        """Return the directories of units, in order of precedence."""
        return tuple(self._run("show", "--value", "-p", "UnitPath").split())

    def service(self) -> dict[str, str]:
        return properties(self._run("show", "-p", _SERVICE_PROPERTIES, SERVICE))

    def socket(self) -> dict[str, str]:
        return properties(self._run("show", "-p", _SOCKET_PROPERTIES, SOCKET))

    def program(self) -> str:
        """Return the program of the service, or an empty text."""
        start = self._run("show", "--value", "-p", "ExecStart", SERVICE)
        return start.partition("path=")[2].partition(" ;")[0]

    def do(self, *words: str) -> None:
        """Run a command that changes something."""
        self._run(*words)

    def _run(self, *words: str) -> str:
        program = programs.find("systemctl").path
        if program is None or not os.path.isdir("/run/systemd/system"):
            why = "it is not installed" if program is None else "this host was not booted with it"
            raise SandboxdError("no_systemd", f"cannot use systemd: {why}", _WITHOUT)
        try:
            done = subprocess.run(
                [program, "--user", "--no-pager", "--no-ask-password", *words],
                env={**programs.without_code(self.environment), "SYSTEMD_COLORS": "0", "LC_ALL": "C.UTF-8"},
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise SandboxdError(
                "systemd_failed", f"systemctl --user {' '.join(words)} did not end in {_TIMEOUT_S:.0f} seconds"
            ) from None
        if done.returncode == 0:
            return done.stdout
        reason = next(iter(done.stderr.strip().splitlines()), f"status {done.returncode}")
        if "connect to" in reason or "No medium found" in reason or "DBUS_SESSION_BUS" in reason:
            raise self._unreachable(reason)
        raise SandboxdError(
            "systemd_failed", f"systemctl --user {' '.join(words)}: {reason}", "see: sandboxd service status"
        )

    def _unreachable(self, reason: str) -> SandboxdError:
        uid = os.getuid()
        runtime = f"/run/user/{uid}"
        if os.path.exists(f"{runtime}/systemd/private"):  # it runs, but the shell of su or cron has no variable for it
            hint = f"run: export XDG_RUNTIME_DIR={runtime}"
        else:
            hint = f"log in instead of using su or sudo, or as root: loginctl enable-linger {user_name(uid)}"
        return SandboxdError("no_user_manager", f"cannot reach the systemd of this user: {reason}", hint)


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
