"""`sandboxd service` on Linux: units of the user's systemd.

The units go to ~/.config/systemd/user. Units of a distribution are used as they are, and nothing is written. A file of
another author is neither overwritten nor removed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from sandboxd import __version__
from sandboxd.cli.output import fail, warn
from sandboxd.cli.service.systemctl import UserManager, user_name
from sandboxd.cli.service.systemd_units import (
    SERVICE,
    SOCKET,
    UNITS,
    Service,
    listening_paths,
    unit_texts,
    why_it_cannot_start,
    written_version,
)
from sandboxd_client import programs
from sandboxd_client.errors import SandboxdError
from sandboxd_client.transport.activation import daemon_pid, is_listening
from sandboxd_client.transport.connection import usable_path

_PACKAGE = Path(__file__).resolve().parents[2]
_SOCKET_WANTED = ("sockets.target.wants", SOCKET)


def shipped_units() -> dict[str, str]:
    """Return the shipped units. Raises SandboxdError `units_missing`."""
    for directory in (_PACKAGE / "systemd", _PACKAGE.parent / "systemd"):
        if (directory / SERVICE).is_file():
            return {name: (directory / name).read_text() for name in UNITS}
    raise SandboxdError("units_missing", f"the units are missing from {_PACKAGE}", "reinstall sandboxd")


def own_directory() -> str:
    """Return the directory of the user's units (systemd.unit(5))."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    home = configured if configured.startswith("/") else os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "systemd", "user")


def own_service() -> Service:
    """Return the service that runs this program by its interpreter."""
    environment = programs.without_code(os.environ)
    environment["PATH"] = os.pathsep.join(
        entry
        for entry in environment.get("PATH", os.defpath).split(os.pathsep)
        if entry.startswith("/") and not programs.why_writable(entry)
    )
    path = usable_path()
    usual = path == f"{environment.get('XDG_RUNTIME_DIR', '').rstrip('/')}/sandboxd/sandboxd.sock"
    return Service((sys.executable, "-I", "-m", "sandboxd"), __version__, environment, None if usual else path)


def distribution_directory(unit_path: tuple[str, ...], own: str) -> str | None:
    """Return the directory of units that a distribution has installed, or None."""
    for directory in unit_path:
        if directory == own or directory.startswith("/run/"):
            continue
        if all(os.path.isfile(os.path.join(directory, name)) for name in UNITS):
            return directory
    return None


def install(*, now: bool) -> int:
    """Install the units. Without `now` a running daemon goes on as it is."""
    _refuse_sudo()
    manager, own = UserManager.reached(), own_directory()
    unit_path = manager.unit_path()
    distributed = distribution_directory(unit_path, own)
    if distributed is not None and not any(os.path.lexists(os.path.join(own, name)) for name in UNITS):
        where, changed = distributed, False
    else:
        if own not in unit_path:
            raise SandboxdError(
                "unit_directory_unknown",
                f"systemd does not look for units in {own}",
                "install with the HOME and XDG_CONFIG_HOME that systemd was started with",
            )
        service = own_service()
        _refuse_temporary_program(service)
        where, changed = own, _write_units(own, unit_texts(service, shipped_units()))
    by_hand = started_by_hand(manager)
    if by_hand and now:
        return fail(
            f"a daemon that systemd did not start (pid {by_hand}) has the socket",
            "end it with: sandboxd stop, and then install again",
        )
    if changed or "yes" in (manager.service()["NeedDaemonReload"], manager.socket()["NeedDaemonReload"]):
        manager.do("daemon-reload")
    manager.do("enable", SOCKET)
    sys.stdout.write(f"{'written' if changed else 'present'}: {', '.join(os.path.join(where, n) for n in UNITS)}\n")
    if now and (failed := _start(manager, changed)):
        return failed
    listens = ", ".join(listening_paths(manager.socket()["Listen"]))
    sys.stdout.write(f"socket: {listens}\n")
    if not now:
        sys.stdout.write("it starts with your next login; now: sandboxd service install --now\n")
    if not os.path.exists(f"/var/lib/systemd/linger/{user_name(os.getuid())}"):
        sys.stdout.write(
            f"it runs while you are logged in; to have it always: loginctl enable-linger {user_name(os.getuid())}\n"
        )
    return 0


def _refuse_sudo() -> None:
    behind = os.environ.get("SUDO_USER") or os.environ.get("DOAS_USER") or ""
    if os.geteuid() == 0 and behind not in ("", "root"):
        raise SandboxdError(
            "service_of_root",
            f"sudo would install the service of root, not of {behind}",
            "run it without sudo",
        )


def _refuse_temporary_program(service: Service) -> None:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if any(os.path.realpath(sys.prefix).startswith(f"{place.rstrip('/')}/") for place in (cache, "/tmp", "/run")):
        raise SandboxdError(
            "program_fleeting",
            f"cannot install a service for a program in a temporary directory: {sys.prefix}",
            "install sandboxd first: ./dev install, in a checkout of sandboxd",
        )
    # As in the service: without variables of this shell that Python may need.
    try:
        done = subprocess.run(
            [*service.program, "--version"], env={"PATH": os.defpath}, cwd="/", capture_output=True, text=True
        )
        ended = done.returncode == 0
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    except OSError as error:
        ended, reason = False, error.strerror or str(error)
    if not ended:
        raise SandboxdError(
            "program_unusable",
            f"cannot start {' '.join(service.program)} outside this shell: {reason}",
            "install sandboxd into a virtual environment, and run its sandboxd program",
        )


def _write_units(directory: str, texts: dict[str, str]) -> bool:
    """Write the units; return whether one has changed. Raises SandboxdError."""
    changed = False
    try:
        for name in texts:
            path = os.path.join(directory, name)
            if os.path.lexists(path) and version_of(path) is None:
                raise SandboxdError(
                    "unit_foreign", f"cannot overwrite {path}: sandboxd did not write it", "move it away"
                )
        os.makedirs(directory, exist_ok=True)
        for name, text in texts.items():
            path = os.path.join(directory, name)
            if read_text(path) != text:
                changed = True
                with open(f"{path}.new", "w", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(text)
                os.replace(f"{path}.new", path)
    except OSError as error:
        raise SandboxdError(
            "unit_unwritable",
            f"cannot write {error.filename or directory}: {error.strerror}",
            "check its owner and mode",
        ) from error
    return changed


def _start(manager: UserManager, changed: bool) -> int:
    """Start socket and service; return an exit status. Commands go on."""
    _forget_failures(manager)
    words = ["start", SOCKET, SERVICE]
    if changed and manager.service()["ActiveState"] == "active":
        words = ["restart", SERVICE]
    if manager.socket()["ActiveState"] == "active" and not is_listening(
        usable_path()
    ):  # its path has changed, or its file is gone
        manager.do("stop", SOCKET, SERVICE)
        words = ["start", SOCKET, SERVICE]
    try:
        manager.do(*words)
    except SandboxdError as error:
        return fail(why_it_cannot_start(manager.service()) or error.message, f"see: journalctl --user -u {SERVICE}")
    return 0


def _forget_failures(manager: UserManager) -> None:
    """Reset failures, which count towards the limit of starts."""
    for name in UNITS:
        with contextlib.suppress(SandboxdError):  # it is not loaded
            manager.do("reset-failed", name)


def uninstall() -> int:
    """Remove the units and end the daemon. Without systemd the files go all the same."""
    own = own_directory()
    written = [path for name in UNITS if version_of(path := os.path.join(own, name)) is not None]
    unreachable: SandboxdError | None = None
    try:
        manager = UserManager.reached()
        known = [
            name
            for name, state in zip(UNITS, (manager.service(), manager.socket()), strict=True)
            if state["LoadState"] == "loaded"
        ]
        if known:
            manager.do("disable", "--now", *known)
    except SandboxdError as error:
        unreachable = error
    wanted = os.path.join(own, *_SOCKET_WANTED)
    for path in (*written, *([wanted] if os.path.islink(wanted) else [])):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    for directory in (os.path.dirname(wanted), own):
        with contextlib.suppress(OSError):  # it is not empty
            os.rmdir(directory)
    if unreachable is None:
        manager.do("daemon-reload")
        _forget_failures(manager)
        distributed = distribution_directory(manager.unit_path(), own)
        if distributed is not None:
            sys.stdout.write(f"the units in {distributed} belong to the distribution and are only disabled\n")
    elif written:
        warn(unreachable.message)
    sys.stdout.write("".join(f"removed: {path}\n" for path in written) or "no units were installed\n")
    return 0


def version_of(path: str) -> str | None:
    """Return the version of sandboxd that wrote a unit; None for other authors."""
    text = read_text(path)
    return None if text is None else written_version(text)


def read_text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (OSError, ValueError):
        return None


def started_by_hand(manager: UserManager) -> int | None:
    """Return the pid of a daemon at the clients' socket that systemd did not start."""
    pid = daemon_pid(usable_path())
    return None if pid is None or str(pid) == manager.service()["MainPID"] else pid
