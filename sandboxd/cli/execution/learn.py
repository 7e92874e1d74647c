"""`sandboxd run --learn FILE`: a settings file that would allow what was blocked.

A FILE without a slash lies in a directory that is masked in every sandbox, beside the records of trust.

The command may be able to write where the file is. So the directory is opened and the old file read before it runs, and
the new file takes the old one's place by its name in that directory: no link is followed."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from typing import Any

from sandboxd.cli import output
from sandboxd.cli.arguments import visible
from sandboxd_client.errors import SandboxdError
from sandboxd_client.running.commands import absolute

_LARGEST = 4 << 20
_RECORDS = ".local/state/sandboxd/trust"
"""Below the home: the daemon's records of trust."""


def learned_path(name: str) -> str:
    """Return the file of a NAME without a slash."""
    return os.path.join(os.path.expanduser("~"), _RECORDS, "learned", name)


def settings_path(name: str) -> str:
    """Return the file of `--settings`: a learned one, else one in this directory.

    Raises SandboxdError where there are both: a command may have made the latter."""
    local = absolute(name)
    learned = learned_path(name)
    if "/" in name or not name or not os.path.lexists(learned):
        return local
    if os.path.lexists(local):
        raise SandboxdError(
            "settings_ambiguous",
            f"--settings {name} is ambiguous: there is one in this directory and a learned one, {learned}",
            f"write ./{name} or {learned}",
        )
    return learned


def named_path(name: str, option: str = "--learn") -> str:
    """Return the file that an option names, and make the directory of a NAME.

    Raises SandboxdError."""
    if "/" in name:
        return absolute(name)
    if name in ("", ".", ".."):
        raise SandboxdError("learn_file", f"{option}: {name!r} is not the name of a file", "name a file")
    path = learned_path(name)
    learned = os.path.dirname(path)
    try:
        for directory in (os.path.dirname(learned), learned):
            os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        raise SandboxdError(
            "learn_file", f"{option}: cannot make {learned}: {error.strerror}", f"name a path: {option} ./{name}"
        ) from error
    return path


class LearnedFile:
    """The file of `--learn`, with its content before the command."""

    def __init__(self, path: str, directory: int, text: str, settings: dict[str, Any]) -> None:
        self._path = path
        self._directory = directory
        self._text = text
        self._settings = settings

    @classmethod
    @contextlib.contextmanager
    def opened(cls, name: str) -> Iterator[LearnedFile]:
        """Open the directory and read the file.

        Raises SandboxdError for a missing directory and a file without settings."""
        path = named_path(name)
        try:
            directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            where = os.path.dirname(path)
            raise SandboxdError("learn_file", f"--learn: cannot open {where}: {error.strerror}") from error
        try:
            text, settings = _read(path, directory)
            yield cls(path, directory, text, settings)
        finally:
            os.close(directory)

    def take(self, learned: dict[str, Any]) -> None:
        """Show the additions, ask where there is a terminal, and write."""
        for one in learned["left_out"]:
            output.note(f"sandboxd: not learned: {one['target']}: {one['why']}")
        for note in learned["notes"]:
            output.note(f"sandboxd: note: {note}")
        new = _joined(self._settings, learned["settings"])
        if new == self._settings:
            output.note(f"sandboxd: nothing to add to {self._path}")
            return
        text = json.dumps(new, indent=2, ensure_ascii=False) + "\n"
        if sys.stdin.isatty() and sys.stderr.isatty() and not self._confirmed(text):
            output.note("sandboxd: not written")
            return
        try:
            self._write(text)
        except OSError as error:
            output.note(f"sandboxd: cannot write {self._path}: {error.strerror}")
            return
        output.note(f"sandboxd: written: {self._path}; to use it: sandboxd run --settings {self._path} …")
        if self._path.startswith(os.path.join(os.getcwd(), "")):
            output.note(f"sandboxd: commands can write there, so it widens only after: sandboxd trust {self._path}")

    def _confirmed(self, text: str) -> bool:
        before = self._text.splitlines(keepends=True)
        for line in difflib.unified_diff(before, text.splitlines(keepends=True), self._path, self._path):
            sys.stderr.write(visible(line.rstrip("\n"), 2000) + "\n")
        sys.stderr.write(f"Write this to {visible(self._path, 2000)}? [y/N] ")
        sys.stderr.flush()
        try:
            return sys.stdin.readline().strip().lower() in ("y", "yes")
        except (OSError, KeyboardInterrupt):
            return False

    def _write(self, text: str) -> None:
        name, new = os.path.basename(self._path), f".sandboxd-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(new, flags, 0o644, dir_fd=self._directory)
        try:
            with open(file, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.rename(new, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=self._directory)
            raise


def _read(path: str, directory: int) -> tuple[str, dict[str, Any]]:
    """Read the file: nothing, or settings as plain JSON."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(os.path.basename(path), flags, dir_fd=directory)
    except FileNotFoundError:
        return "", {}
    except OSError as error:
        raise SandboxdError("learn_file", f"--learn: cannot read {path}: {error.strerror}") from error
    with open(file, "rb") as stream:
        data = stream.read(_LARGEST)
    try:
        text = data.decode()
        settings = json.loads(text) if text.strip() else {}
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise SandboxdError("learn_file", f"--learn: {path} is not a settings file in plain JSON", "name another file")
    return text, settings


def _joined(old: Any, new: Any) -> Any:
    """Merge `new` into `old`: objects by key, lists without duplicates, else `old`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _joined(old[key], value) if key in old else value for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return [*old, *(value for value in new if value not in old)]
    return old
