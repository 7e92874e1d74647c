"""Changes of settings files that lose no work of another program.

- Daemons take turns through an advisory lock on a directory of theirs. Commands cannot open it, since a process that
  can open a directory can keep it locked (flock(2)). Another program of the user could, so the wait is bounded.
- An editor takes no lock. The new file is *exchanged* with the old one (renameat2 RENAME_EXCHANGE, macOS renamex_np
  RENAME_SWAP), and the old file is compared with the text that the change is based on. If another program saved in
  between, the change is made again on its text.
- No link is followed, and no file is half written: a temporary file beside it is flushed, then exchanged.

All steps use one descriptor of the directory, so that replacing the directory by a link changes nothing."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from shlex import quote

from sandboxd.errors import SettingsError, way_out
from sandboxd.settings.jsonc import MAX_BYTES

ATTEMPTS = 20
LOCK_PATIENCE_S = 5.0
"""A daemon that writes holds the lock for some milliseconds."""
_LOCK_LOOK_S = 0.005
_RENAME_EXCHANGE = 2
_RENAME_SWAP = 2


def edit_file(path: str, edit: Callable[[str], str], lock_directory: str = "", *, follow: bool = True) -> bool:
    """Replace the text of a settings file by `edit(text)`; True when it changed.

    An absent file counts as empty text, and its directory is made. `lock_directory` is common to all daemons of the
    user; without it the directory of the file is locked. Without `follow`, that directory must not be a link, which a
    command may have made. `edit` may be called several times, each time with the newest text. Raises `SettingsError`:
    `settings_is_link`, `settings_not_a_file`, `settings_too_large`, `settings_not_utf8`, `settings_unwritable`,
    `settings_busy`, and what `edit` raises."""
    directory, name = os.path.split(path)
    try:
        if not os.path.lexists(directory) or follow:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        with _locked(lock_directory or directory), _opened(directory, follow) as at:
            return _edit(at, name, path, edit)
    except OSError as fault:
        raise SettingsError(
            "settings_unwritable",
            f"cannot write {path}: {fault.strerror}",
            hint=way_out(fault, "check the owner and mode of the file and its directory"),
            data={"file": path},
        ) from fault


def _edit(at: int, name: str, path: str, edit: Callable[[str], str]) -> bool:
    """Exchange the file until no other change came in between.

    `base` is the text that the change is made on, `present` the text that should be in place. They differ after another
    program has saved between the read and the exchange: its text came out, and is the new base."""
    _remove_leftovers(at, name)
    base = present = _read(at, name, path)
    for _ in range(ATTEMPTS):
        text = "" if base is None else base.text(path)
        new = edit(text)
        if new == text and base is present:
            return False
        temporary = _write_beside(at, name, new, base)
        try:
            if present is None:
                if _move_to_new(at, temporary, name):
                    return True
                base = present = _read(at, name, path)
                continue
            _exchange(at, temporary, name)
            came_out = _read(at, temporary, path)
            if came_out is None or came_out.data == present.data:
                return True
            base, present = came_out, _Content(new.encode("utf-8"), came_out.status)
        except FileNotFoundError:
            present = None  # deleted meanwhile
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=at)
            os.fsync(at)
    raise SettingsError(
        "settings_busy",
        f"cannot write {path}: another program keeps changing it",
        hint="try again",
        data={"file": path},
    )


@contextlib.contextmanager
def _opened(directory: str, follow: bool = True) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(directory, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    with _opened(directory) as descriptor:
        _lock(descriptor, directory)
        yield


def _lock(descriptor: int, directory: str) -> None:
    until = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise SettingsError(
                    "settings_busy",
                    f"cannot change settings: another program keeps {directory} locked (flock)",
                    hint=f"end that program (lslocks and fuser {quote(directory)} show it), or use an editor",
                    data={"file": directory},
                ) from None
        time.sleep(_LOCK_LOOK_S)


class _Content:
    """The content of a file, and the status that a replacement keeps."""

    def __init__(self, data: bytes, status: os.stat_result) -> None:
        self.data = data
        self.status = status

    def text(self, path: str) -> str:
        if not self.data:
            # An editor that is about to write, or an accident: replacing it could lose settings.
            raise SettingsError(
                "settings_empty", f"{path} is empty", hint="write an empty object into it, or delete it"
            )
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError:
            raise SettingsError("settings_not_utf8", f"{path} is not UTF-8", hint="save the file as UTF-8") from None


def _read(at: int, name: str, path: str) -> _Content | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except FileNotFoundError:
        return None
    except OSError as fault:
        if fault.errno == errno.ELOOP:
            raise SettingsError(
                "settings_is_link",
                f"cannot write {path}: it is a symbolic link",
                hint="change the file that it points to, or replace the link by a file",
                data={"file": path},
            ) from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SettingsError(
                "settings_not_a_file", f"cannot write {path}: it is not a regular file", data={"file": path}
            )
        data = bytearray()
        while chunk := os.read(descriptor, MAX_BYTES + 1 - len(data)):
            data += chunk
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise SettingsError(
            "settings_too_large", f"cannot write {path}: it has more than {MAX_BYTES} bytes", data={"file": path}
        )
    return _Content(bytes(data), status)


def _write_beside(at: int, name: str, text: str, old: _Content | None) -> str:
    temporary = f".{name}.{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=at)
    with open(descriptor, "wb") as file:
        file.write(text.encode("utf-8"))
        file.flush()
        if old is not None:
            if (old.status.st_uid, old.status.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, old.status.st_uid, old.status.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(old.status.st_mode))
        os.fsync(descriptor)
    return temporary


def _remove_leftovers(at: int, name: str) -> None:
    """Remove temporary files of a daemon that died; the lock is held."""
    for entry in os.listdir(at):
        if entry.startswith(f".{name}.") and entry.endswith(".tmp"):
            with contextlib.suppress(OSError):
                os.unlink(entry, dir_fd=at)


def _move_to_new(at: int, temporary: str, name: str) -> bool:
    """Put a file where none is; False when another program made one meanwhile."""
    try:
        os.link(temporary, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
    except FileExistsError:
        return False
    return True


def _exchange(at: int, temporary: str, name: str) -> None:
    """Swap two files in one step, or rename and keep the old text by a link."""
    code = _rename_exchange()(at, temporary, name)
    if code == 0:
        return
    if code not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
        raise OSError(code, os.strerror(code))
    kept = temporary + "~"
    os.link(name, kept, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
    os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    os.rename(kept, temporary, src_dir_fd=at, dst_dir_fd=at)


@cache
def _rename_exchange() -> Callable[[int, str, str], int]:
    """Return the exchange call of the C library, which returns 0 or an errno."""
    library = ctypes.CDLL(None, use_errno=True)
    name, flag = ("renameatx_np", _RENAME_SWAP) if sys.platform == "darwin" else ("renameat2", _RENAME_EXCHANGE)
    function = getattr(library, name, None)

    def exchange(at: int, first: str, second: str) -> int:
        if function is None:
            return errno.ENOSYS
        result = function(at, os.fsencode(first), at, os.fsencode(second), ctypes.c_uint(flag))
        return 0 if result == 0 else ctypes.get_errno()

    return exchange
