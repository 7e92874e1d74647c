"""Where the daemon's socket is, and whether its directory can be trusted.

$SANDBOXD_SOCKET, else $XDG_RUNTIME_DIR/sandboxd/sandboxd.sock, else /tmp/sandboxd-UID/sandboxd.sock (macOS:
$TMPDIR/sandboxd-UID/sandboxd.sock). Whoever owns the directory decides who answers there, so before connecting it
is checked: a directory (not a symbolic link) of this user's, closed to others. A socket in another place would let
somebody else hand us an argv to run.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_NAME = "sandboxd.sock"
_MAX_PATH = 103 if sys.platform == "darwin" else 107  # sun_path of unix(7), without the closing NUL


class LocationError(Exception):
    """The socket's place cannot be used. `slug` is one of `socket_path_invalid`, `directory_foreign`,
    `directory_not_private`, `directory_unusable`, `socket_path_occupied`."""

    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint


def socket_path(
    environment: Mapping[str, str] | None = None, *, uid: int | None = None, platform: str = sys.platform
) -> str:
    """The path of the socket, by name only: nothing is looked at. Raises LocationError `socket_path_invalid`."""
    environment = os.environ if environment is None else environment
    explicit = environment.get("SANDBOXD_SOCKET")
    if explicit:
        return check_path(explicit, "$SANDBOXD_SOCKET")
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime and runtime.startswith("/"):  # a relative one is to be ignored (XDG base directory specification)
        return check_path(f"{runtime.rstrip('/')}/sandboxd/{SOCKET_NAME}", "$XDG_RUNTIME_DIR")
    base = (environment.get("TMPDIR") if platform == "darwin" else None) or "/tmp"
    uid = os.geteuid() if uid is None else uid
    return check_path(f"{base.rstrip('/')}/sandboxd-{uid}/{SOCKET_NAME}", "$TMPDIR")


def check_path(path: str, source: str = "the socket path") -> str:
    """`path` when it can name a Unix socket: absolute, not too long, no NUL. Raises LocationError."""
    hint = "give an absolute path, such as /run/user/1000/sandboxd/sandboxd.sock"
    if "\0" in path:
        raise LocationError("socket_path_invalid", f"{source} contains a NUL character", hint)
    if not path.startswith("/"):
        raise LocationError("socket_path_invalid", f"{source} is not absolute: {path}", hint)
    length = len(os.fsencode(path))
    if length > _MAX_PATH:
        raise LocationError(
            "socket_path_invalid",
            f"{source} gives a socket path of {length} bytes, and a Unix socket's can have {_MAX_PATH}: {path}",
            "choose a shorter one with $SANDBOXD_SOCKET",
        )
    return path


def check_place(path: str, *, uid: int | None = None) -> bool:
    """Whether something stands at `path`, after checking that its directory is this user's alone and that what stands
    there is a socket. Raises LocationError; a missing directory is simply False."""
    uid = os.geteuid() if uid is None else uid
    directory = os.path.dirname(path)
    at_path = _look(path)
    if at_path is not None and not stat.S_ISSOCK(at_path.st_mode):
        raise LocationError(
            "socket_path_occupied",
            f"{path} is not a socket",
            "move it away, or choose another place with $SANDBOXD_SOCKET",
        )
    state = _look(directory)
    if state is None:
        return False
    if not stat.S_ISDIR(state.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(state.st_mode) else "not a directory"
        raise LocationError(
            "directory_unusable", f"{directory} is {what}", "remove it; sandboxd makes the directory itself"
        )
    if state.st_uid != uid:
        raise LocationError(
            "directory_foreign",
            f"{directory} belongs to uid {state.st_uid}, not to you (uid {uid}): its socket cannot be trusted",
            "set XDG_RUNTIME_DIR to your own runtime directory, or choose a place with $SANDBOXD_SOCKET",
        )
    if state.st_mode & 0o077:
        raise LocationError(
            "directory_not_private",
            f"{directory} can be used by other users (mode {stat.S_IMODE(state.st_mode):04o})",
            f"run: chmod 700 {directory}"
            if os.path.basename(directory).startswith("sandboxd")
            else "choose a directory that is only for the socket with $SANDBOXD_SOCKET, and chmod 700 it",
        )
    if at_path is not None and at_path.st_uid != uid:
        raise LocationError(
            "directory_foreign",
            f"{path} belongs to uid {at_path.st_uid}, not to you (uid {uid})",
            "remove it, or choose another place with $SANDBOXD_SOCKET",
        )
    return at_path is not None


def _look(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LocationError(
            "directory_unusable",
            f"cannot look at {path}: {error.strerror}",
            "this is inside a sandbox already, where the daemon cannot be reached: run the command without sandboxd"
            if os.environ.get("SANDBOX_RUNTIME")
            else "see that the directories above it can be searched, or choose a place with $SANDBOXD_SOCKET",
        ) from error


def make_directory(path: str) -> None:
    """Make the socket's directory (0700) when it is absent. Its parent must exist. Raises LocationError."""
    directory = os.path.dirname(path)
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise LocationError(
            "directory_unusable",
            f"cannot make {directory}: {error.strerror}",
            "set XDG_RUNTIME_DIR to an existing directory of yours, or choose a place with $SANDBOXD_SOCKET",
        ) from error
    check_place(path)
