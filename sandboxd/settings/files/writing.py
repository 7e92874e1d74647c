"""Changing a settings file so that nobody's work is lost: not another daemon's, not an editor's, not ours.

- Daemons take turns through an advisory lock on a directory, which leaves no file behind: one of theirs that commands
  cannot open, since whoever can open a directory or file can keep it locked (flock(2)). Another program of the user
  could still keep it locked, so nobody waits for ever.
- An editor takes no lock. The new file is *exchanged* with the old one (renameat2 RENAME_EXCHANGE, macOS renamex_np
  RENAME_SWAP), and what comes out is compared with what the change was based on. If somebody saved in between, the
  change is made again on their text, so both stay.
- The file is never a link that we follow, and never half written: a temporary file beside it, flushed, then exchanged.

Everything goes through one descriptor of the directory, so that a directory swapped for a link changes nothing.
"""

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

from sandboxd.errors import SettingsError
from sandboxd.settings.jsonc import MAX_BYTES

ATTEMPTS = 20
LOCK_PATIENCE_S = 5.0
"""Daemons that write at the same time take some milliseconds each."""
_LOCK_LOOK_S = 0.005
_RENAME_EXCHANGE = 2
_RENAME_SWAP = 2


def edit_file(path: str, edit: Callable[[str], str], lock_directory: str = "", *, follow: bool = True) -> bool:
    """Replace the text of a settings file by `edit(text)`; an absent file counts as empty text, its directory is made.
    True when something changed.

    `lock_directory` is the one that is locked meanwhile, of all daemons of this user; without one the file's own.
    Without `follow` the file's directory must not be a link: a command may have put it there.
    `edit` may be called several times, each time with the newest text. Raises `SettingsError`: `settings_is_link`,
    `settings_not_a_file`, `settings_too_large`, `settings_not_utf8`, `settings_unwritable`, `settings_busy`, and what
    `edit` raises."""
    directory, name = os.path.split(path)
    try:
        if not os.path.lexists(directory) or follow:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        with _locked(lock_directory or directory), _opened(directory, follow) as at:
            return _edit(at, name, path, edit)
    except OSError as fault:
        raise SettingsError(
            "settings_unwritable",
            f"{path} cannot be written: {fault.strerror}",
            hint="check the owner and mode of the file and its directory",
            data={"file": path},
        ) from fault


def _edit(at: int, name: str, path: str, edit: Callable[[str], str]) -> bool:
    """`base` is the text that the change is made on, `present` the one that we believe to be in place. They differ
    once somebody saved between our reading and our exchange: then their text came out and is the new base."""
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
            present = None  # deleted meanwhile: the exchange found nothing to exchange with
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=at)
            os.fsync(at)
    raise SettingsError(
        "settings_busy",
        f"{path} is being changed by another program all the time",
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
                    f"a program keeps {directory} locked (flock), so nothing is changed there",
                    hint=f"end that program (lslocks and fuser {quote(directory)} show it), and try again; an editor "
                    "needs no lock",
                    data={"file": directory},
                ) from None
        time.sleep(_LOCK_LOOK_S)


class _Content:
    """What a file held, and what a replacement has to keep."""

    def __init__(self, data: bytes, status: os.stat_result) -> None:
        self.data = data
        self.status = status

    def text(self, path: str) -> str:
        if not self.data:
            # An editor that is about to write, or an accident. Taking it for "no settings" could lose some.
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
                f"{path} is a symbolic link, which is not written through",
                hint="change the file that it points to, or replace the link by a file",
                data={"file": path},
            ) from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SettingsError("settings_not_a_file", f"{path} is not a file", data={"file": path})
        data = bytearray()
        while chunk := os.read(descriptor, MAX_BYTES + 1 - len(data)):
            data += chunk
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise SettingsError("settings_too_large", f"{path} has more than {MAX_BYTES} bytes", data={"file": path})
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
    """Temporary files of a daemon that died while it wrote. We hold the lock, so nobody is using them."""
    for entry in os.listdir(at):
        if entry.startswith(f".{name}.") and entry.endswith(".tmp"):
            with contextlib.suppress(OSError):
                os.unlink(entry, dir_fd=at)


def _move_to_new(at: int, temporary: str, name: str) -> bool:
    """Put a file where none is; False when somebody made one meanwhile."""
    try:
        os.link(temporary, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
    except FileExistsError:
        return False
    return True


def _exchange(at: int, temporary: str, name: str) -> None:
    """Swap two files in one step. Where the file system cannot, replace: the old text is then in `temporary` no more,
    so keep it there by linking it first."""
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
    """The C library's exchange call as a function that returns 0 or an errno."""
    library = ctypes.CDLL(None, use_errno=True)
    name, flag = ("renameatx_np", _RENAME_SWAP) if sys.platform == "darwin" else ("renameat2", _RENAME_EXCHANGE)
    function = getattr(library, name, None)

    def exchange(at: int, first: str, second: str) -> int:
        if function is None:
            return errno.ENOSYS
        result = function(at, os.fsencode(first), at, os.fsencode(second), ctypes.c_uint(flag))
        return 0 if result == 0 else ctypes.get_errno()

    return exchange
