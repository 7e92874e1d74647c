"""`sandboxd run --learn FILE`: what was blocked becomes a settings file that somebody can look at and use.

The command may be able to write where the file is, so the directory is opened before it runs, what is there is read
before it runs, and the new file takes the old one's place by its name in that directory: no link is followed.
"""

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
from sandboxd_client.commands import absolute
from sandboxd_client.errors import SandboxdError

_LARGEST = 4 << 20


class LearnedFile:
    """The file of `--learn`, and what stood in it before the command ran."""

    def __init__(self, path: str, directory: int, text: str, settings: dict[str, Any]) -> None:
        self._path = path
        self._directory = directory
        self._text = text
        self._settings = settings

    @classmethod
    @contextlib.contextmanager
    def opened(cls, name: str) -> Iterator[LearnedFile]:
        """Raises SandboxdError for a directory that is not there, and a file that holds something else."""
        path = absolute(name)
        try:
            directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxdError("learn_file", f"--learn: {os.path.dirname(path)}: {error.strerror}") from error
        try:
            text, settings = _read(path, directory)
            yield cls(path, directory, text, settings)
        finally:
            os.close(directory)

    def take(self, learned: dict[str, Any]) -> None:
        """Show what is to be added, ask where there is a terminal, and write it."""
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
            output.note(f"sandboxd: {self._path} could not be written: {error.strerror}")
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
    """What is there: nothing, or a settings file of plain JSON."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(os.path.basename(path), flags, dir_fd=directory)
    except FileNotFoundError:
        return "", {}
    except OSError as error:
        raise SandboxdError("learn_file", f"--learn: {path}: {error.strerror}") from error
    with open(file, "rb") as stream:
        data = stream.read(_LARGEST)
    try:
        text = data.decode()
        settings = json.loads(text) if text.strip() else {}
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise SandboxdError(
            "learn_file", f"--learn: {path} holds something else than plain JSON settings", "name a file of its own"
        )
    return text, settings


def _joined(old: Any, new: Any) -> Any:
    """`new` into `old`: objects by key, lists without doubles, anything else stays as it was."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _joined(old[key], value) if key in old else value for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return [*old, *(value for value in new if value not in old)]
    return old
