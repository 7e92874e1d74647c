"""The search for bubblewrap, with a check of its version and its mode."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Collection, Sequence

from sandboxd.errors import HostError
from sandboxd_client import programs
from sandboxd_client.records import dataclass

OLDEST_BWRAP = (0, 8, 0)
INSTALL = "install it: apt-get install bubblewrap, dnf install bubblewrap, pacman -S bubblewrap"
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Bwrap:
    """An executable bubblewrap; `mtime_ns` and `inode` reveal its replacement."""

    path: str
    version: tuple[int, ...]
    inode: int
    mtime_ns: int

    @property
    def version_text(self) -> str:
        return _dotted(self.version)


def find_bwrap(configured: str | None, search_path: str, writable: Sequence[str] = ()) -> Bwrap:
    """Return the bubblewrap of the settings, else the system's, else one in PATH.

    One in PATH is used only where no command can write it; `writable` are the directories that commands may write. Runs
    `--version`. Raises `HostError`: `bwrap_missing`, `bwrap_writable`, `bwrap_not_executable`, `bwrap_setuid`,
    `bwrap_too_old`, `bwrap_broken`."""
    path = _locate(configured, search_path, writable)
    state = os.stat(path)
    if state.st_mode & stat.S_ISUID and state.st_uid == 0 and os.geteuid() != 0:
        raise HostError(
            "bwrap_setuid",
            f"{path} is a setuid build, which refuses options that the sandbox needs",
            hint=f"run: chmod u-s {path}, and allow unprivileged user namespaces",
            data={"path": path},
        )
    version = _version(path)
    if version < OLDEST_BWRAP:
        raise HostError(
            "bwrap_too_old",
            f"{path} is bubblewrap {_dotted(version)}; the oldest supported version is {_dotted(OLDEST_BWRAP)}",
            hint="install a newer one, for example in /usr/local/bin, or name one in bwrapPath of the managed settings",
            data={"path": path},
        )
    return Bwrap(path, version, state.st_ino, state.st_mtime_ns)


def safe_program(name: str, writable: Collection[str]) -> tuple[str | None, str]:
    """Return the path of a program that commands cannot write, or None and the reason."""
    if not os.path.isabs(name):
        found = programs.find(name, "", writable)
        return found.path, found.why or f"{name} is in no directory of the system"
    why = programs.why_writable(name, writable)
    if not why and not (os.path.isfile(name) and os.access(name, os.X_OK)):
        why = f"{name} is not an executable file"
    return (None, why) if why else (name, "")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _locate(configured: str | None, search_path: str, writable: Sequence[str]) -> str:
    if configured is not None:
        if not os.path.isabs(configured) or not os.path.isfile(configured):
            raise HostError(
                "bwrap_missing",
                f"bwrapPath names {configured}, where there is no file",
                hint="correct bwrapPath in the managed settings, or remove it",
                data={"path": configured},
            )
        if not os.access(configured, os.X_OK):
            raise HostError(
                "bwrap_not_executable", f"{configured} is not executable", hint=f"run: chmod a+rx {configured}"
            )
        return configured
    found = programs.find("bwrap", search_path, writable)
    if found.path is not None:
        return found.path
    if not found.refused:
        raise HostError("bwrap_missing", "bubblewrap (bwrap) is not installed", hint=INSTALL)
    if not os.access(found.refused, os.X_OK):
        raise HostError(
            "bwrap_not_executable", f"{found.refused} is not executable", hint=f"run: chmod a+rx {found.refused}"
        )
    raise HostError(
        "bwrap_writable",
        f"{found.refused} is not used as bubblewrap, since a command could have written it: {found.why}",
        hint=f"{INSTALL}; or name it in bwrapPath of the managed settings",
        data={"path": found.refused},
    )


def _version(path: str) -> tuple[int, ...]:
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False, cwd="/",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError("bwrap_broken", f"{path} cannot be run: {error}", hint="reinstall bubblewrap") from error
    text = done.stdout.decode("utf-8", "replace")
    match = _VERSION.search(text)
    if done.returncode or match is None:
        raise HostError(
            "bwrap_broken",
            f"{path} --version gives no version (exit status {done.returncode})",
            hint="reinstall bubblewrap",
        )
    return tuple(int(part or 0) for part in match.groups())
