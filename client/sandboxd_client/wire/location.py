"""Path of the daemon's socket, and the check of its directory.

$SANDBOXD_SOCKET, else $XDG_RUNTIME_DIR/sandboxd/sandboxd.sock, else (macOS, if it is short enough)
~/Library/Application Support/sandboxd/sandboxd.sock, else /tmp/sandboxd-UID/sandboxd.sock. macOS cleans $TMPDIR and
/tmp up after three days, sockets too. The owner of the directory decides which process answers there and so which argv
the client runs. The directory must be no symbolic link, belong to this user and be closed to others."""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_NAME = "sandboxd.sock"
LOG_NAME = "daemon.log"
STATE_DIRECTORY = ".local/state/sandboxd"
"""Directory below the home directory that every sandbox hides. No variable moves it out of that protection."""
_MAX_PATH_OF_MACOS = 103
_MAX_PATH = _MAX_PATH_OF_MACOS if sys.platform == "darwin" else 107  # sun_path of unix(7), without the closing NUL


class LocationError(Exception):
    """Error of a socket path or its directory."""

    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint


def socket_path(
    environment: Mapping[str, str] | None = None, *, uid: int | None = None, platform: str = sys.platform
) -> str:
    """Return the path of the socket, without I/O. Raises LocationError."""
    environment = os.environ if environment is None else environment
    explicit = environment.get("SANDBOXD_SOCKET")
    if explicit:
        return check_path(explicit, "$SANDBOXD_SOCKET")
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime and runtime.startswith("/"):  # a relative one is to be ignored (XDG base directory specification)
        return check_path(f"{runtime.rstrip('/')}/sandboxd/{SOCKET_NAME}", "$XDG_RUNTIME_DIR")
    home = environment.get("HOME", "")
    if platform == "darwin" and home.startswith("/"):
        path = f"{home.rstrip('/')}/Library/Application Support/sandboxd/{SOCKET_NAME}"
        if len(os.fsencode(path)) <= _MAX_PATH_OF_MACOS:
            return path
    uid = os.geteuid() if uid is None else uid
    return check_path(f"/tmp/sandboxd-{uid}/{SOCKET_NAME}")


def log_paths(path: str, home: str) -> tuple[str, ...]:
    """Return the places of the log of a daemon that a client starts for a socket; an older part has `.1` added.

    The first one is kept over logouts. The second one is for a home directory that cannot be written."""
    beside = os.path.join(os.path.dirname(path), LOG_NAME)
    return (os.path.join(home, STATE_DIRECTORY, LOG_NAME), beside) if home.startswith("/") else (beside,)


def check_path(path: str, source: str = "the socket path") -> str:
    """Return `path` if it can name a Unix socket. Raises LocationError."""
    hint = "give an absolute path, such as /run/user/1000/sandboxd/sandboxd.sock"
    if "\0" in path:
        raise LocationError("socket_path_invalid", f"{source} contains a NUL character", hint)
    if not path.startswith("/"):
        raise LocationError("socket_path_invalid", f"{source} is not absolute: {path}", hint)
    length = len(os.fsencode(path))
    if length > _MAX_PATH:
        raise LocationError(
            "socket_path_invalid",
            f"{source} gives a socket path of {length} bytes, more than {_MAX_PATH}: {path}",
            "set SANDBOXD_SOCKET to a shorter path",
        )
    return path


def check_place(path: str, *, uid: int | None = None) -> bool:
    """Return whether a socket of this user is at `path`.

    False when it or its directory is missing. Raises LocationError where either is unsafe."""
    uid = os.geteuid() if uid is None else uid
    directory = os.path.dirname(path)
    at_path = _status(path)
    if at_path is not None and not stat.S_ISSOCK(at_path.st_mode):
        raise LocationError(
            "socket_path_occupied",
            f"{path} is not a socket",
            "move it away, or set SANDBOXD_SOCKET to another path",
        )
    state = _status(directory)
    if state is None:
        return False
    if not stat.S_ISDIR(state.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(state.st_mode) else "not a directory"
        raise LocationError(
            "directory_unusable", f"{directory} is {kind}", "remove it; sandboxd creates the directory itself"
        )
    if state.st_uid != uid:
        raise LocationError(
            "directory_foreign",
            f"{directory} belongs to uid {state.st_uid}, not to you (uid {uid}): its socket cannot be trusted",
            "set XDG_RUNTIME_DIR to your own runtime directory, or set SANDBOXD_SOCKET",
        )
    if state.st_mode & 0o077:
        raise LocationError(
            "directory_not_private",
            f"{directory} can be used by other users (mode {stat.S_IMODE(state.st_mode):04o})",
            f"run: chmod 700 {directory}"
            if os.path.basename(directory).startswith("sandboxd")
            else "set SANDBOXD_SOCKET to a path in a private directory (chmod 700)",
        )
    if at_path is not None and at_path.st_uid != uid:
        raise LocationError(
            "directory_foreign",
            f"{path} belongs to uid {at_path.st_uid}, not to you (uid {uid})",
            "remove it, or set SANDBOXD_SOCKET to another path",
        )
    return at_path is not None


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LocationError(
            "directory_unusable",
            f"cannot read the attributes of {path}: {error.strerror}",
            "run the command without sandboxd: inside a sandbox the daemon cannot be reached"
            if os.environ.get("SANDBOX_RUNTIME")
            else "make the directories above it searchable, or set SANDBOXD_SOCKET to another path",
        ) from error


def make_directory(path: str) -> None:
    """Make the socket's directory (0700). Raises LocationError."""
    directory = os.path.dirname(path)
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise LocationError(
            "directory_unusable",
            f"cannot create {directory}: {error.strerror}",
            "set XDG_RUNTIME_DIR to an existing directory of yours, or set SANDBOXD_SOCKET",
        ) from error
    check_place(path)
