"""Service managers that listen at the socket in place of a daemon (socket activation): to tell whether one does,
without the connection that would start the daemon, and to let a socket unit that is installed do the starting.

What is looked at is /proc and the user's systemd; where there are none (macOS) every answer is no.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess

from sandboxd_client import programs

LOCK_NAME = "lock"
"""Of the daemon (`rpc.socket`), beside its socket: held open as long as it lives, with its pid in it."""
SOCKET_UNIT = "sandboxd.socket"
_SYSTEMCTL_TIMEOUT_S = 20.0
_LISTENING = "00010000"  # __SO_ACCEPTCON of the kernel's unix_seq_show()


def daemon_pid(path: str) -> int | None:
    """The process id of the daemon of the socket `path`; None when there is none, or nothing can be known."""
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
    """Whether a socket of this network namespace listens at `path`, by what the kernel lists (/proc/net/unix). The path
    there is the one that the listener sees: in a container that shares our network it can be of another file system.
    So there has to be a socket here too; one that somebody left behind is still taken for the other's."""
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
    """Whether a service manager listens at `path` and no daemon runs: the next connection starts it."""
    return is_listening(path) and daemon_pid(path) is None


def start_socket_unit(path: str) -> bool:
    """Have the user's systemd listen at `path`, where the socket unit is installed and means that path. Returns whether
    it seems to: then a connection is the next thing to try. A unit that nobody has enabled is left alone."""
    runtime = os.path.dirname(os.path.dirname(path))
    if not os.path.exists(os.path.join(runtime, "systemd", "private")) or os.environ.get("XDG_RUNTIME_DIR") != runtime:
        return False
    found = _systemctl("show", "-p", "LoadState,ActiveState,UnitFileState,Listen", SOCKET_UNIT)
    state = dict(line.split("=", 1) for line in (found or "").splitlines() if "=" in line)
    if state.get("LoadState") != "loaded" or state.get("Listen") != f"{path} (Stream)":
        return False
    # One that failed stays so: a daemon that we start ourselves says what keeps it from starting.
    if state.get("ActiveState") == "inactive" and state.get("UnitFileState") == "enabled":
        _systemctl("start", SOCKET_UNIT)
    return is_listening(path)


def _systemctl(*words: str) -> str | None:
    """What it prints; None when it fails or is not there. Only that of the system counts: PATH may begin with a
    directory that commands can write."""
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
