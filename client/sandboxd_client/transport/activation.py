"""Socket activation: detection of a service manager that listens.

It makes no connection, which would start the daemon. Sources are /proc and the user's systemd; without them (macOS)
every answer is no."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess

from sandboxd_client import programs

LOCK_NAME = "lock"
"""Lock file beside the socket; the daemon holds it open and writes its pid there (`rpc.socket`)."""
SOCKET_UNIT = "sandboxd.socket"
_SYSTEMCTL_TIMEOUT_S = 20.0
_LISTENING = "00010000"  # __SO_ACCEPTCON of the kernel's unix_seq_show()


def daemon_pid(path: str) -> int | None:
    """Return the process id of the daemon of the socket `path`, if it is known."""
    lock = os.path.join(os.path.dirname(path), LOCK_NAME)
    try:
        with open(lock, "rb") as file:
            text = file.read(16).strip()
        if not text.isdigit():
            return None
        descriptors = f"/proc/{int(text)}/fd"
        for name in os.listdir(descriptors):
            with contextlib.suppress(OSError):
                if os.readlink(f"{descriptors}/{name}") == lock:
                    return int(text)
    except OSError:
        pass
    return None


def is_listening(path: str) -> bool:
    """Return whether /proc/net/unix lists a listening socket at `path`.

    A container that shares this network namespace can listen at the same path of another file system, so a socket must
    exist here too. A stale socket here is still taken for that listener."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields = line.split(maxsplit=7)
                if len(fields) == 8 and fields[3] == _LISTENING and fields[7].rstrip("\n") == path:
                    return True
    except OSError:
        pass
    return False


def only_a_connection_is_missing(path: str) -> bool:
    """Return whether a service manager listens at `path` and no daemon runs."""
    return is_listening(path) and daemon_pid(path) is None


def start_socket_unit(path: str) -> bool:
    """Start the enabled socket unit of `path`; return whether it listens."""
    runtime = os.path.dirname(os.path.dirname(path))
    if not os.path.exists(os.path.join(runtime, "systemd", "private")) or os.environ.get("XDG_RUNTIME_DIR") != runtime:
        return False
    found = _systemctl("show", "-p", "LoadState,ActiveState,UnitFileState,Listen", SOCKET_UNIT)
    state = dict(line.split("=", 1) for line in (found or "").splitlines() if "=" in line)
    if state.get("LoadState") != "loaded" or state.get("Listen") != f"{path} (Stream)":
        return False
    # A failed unit stays so: a daemon that this client starts reports the reason.
    if state.get("ActiveState") == "inactive" and state.get("UnitFileState") == "enabled":
        _systemctl("start", SOCKET_UNIT)
    return is_listening(path)


def _systemctl(*words: str) -> str | None:
    """Return the output of the system's systemctl, never that of PATH, or None."""
    program = programs.find("systemctl").path
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--user", *words],
            stdin=subprocess.DEVNULL,
            env=programs.without_code(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SYSTEMCTL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
