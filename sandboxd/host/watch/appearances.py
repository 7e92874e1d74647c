"""Appearances: reports of names that are made outside, where a running command may make none.

One inotify instance serves all commands. A name is watched for in the nearest directory on the way to it that exists,
and from there on as directories appear."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Collection, Iterable
from functools import partial

from sandboxd.errors import HostError
from sandboxd.settings.files import inotify
from sandboxd_client.records import dataclass, field

Appeared = Callable[[tuple[str, ...]], None]
"""Receives the names that are there now."""


@dataclass(slots=True, eq=False)
class Expectation:
    """The names of one command."""

    names: frozenset[str]
    appeared: Appeared
    directories: set[str] = field(default_factory=set)
    """Directories that are watched, with their content looked at."""


class Appearances:
    """The names that running commands may not make; `log` hears once when they cannot be watched."""

    def __init__(self, log: Callable[..., None]) -> None:
        self.warnings: tuple[str, ...] = ()
        """The warning that the limits of inotify kept names of the last command unwatched."""
        self._log = log
        self._logged = ""
        self._inotify: inotify.Inotify | None = None
        self._expected: set[Expectation] = set()
        self._paths: dict[int, set[str]] = {}
        self._numbers: dict[str, int] = {}

    def close(self) -> None:
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None

    def ready(self) -> None:
        """Make the inotify instance if there is none yet, so that a command hears of a failure before it starts."""
        try:
            if self._inotify is None:
                self._inotify = inotify.Inotify()
                asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._read)
        except HostError as error:
            self._fail(error.message, "raise fs.inotify.max_user_instances")

    def expect(self, names: Iterable[str], appeared: Appeared, closed: Collection[str] = ()) -> Callable[[], None]:
        """Report each of these canonical paths when it is made, and those that are there at once, but for `closed`.

        The result ends the reports."""
        expectation = Expectation(frozenset(names), appeared)
        self._expected.add(expectation)
        self.warnings = ()
        self.ready()
        self._look(expectation, expectation.names, frozenset(closed))
        if not self.warnings:
            self._logged = ""
        return partial(self._cancel, expectation)

    def _cancel(self, expectation: Expectation) -> None:
        self._expected.discard(expectation)
        for directory in expectation.directories:
            self._leave(directory)

    def _look(self, expectation: Expectation, names: Iterable[str], closed: frozenset[str] = frozenset()) -> None:
        """Report what is there, and watch for the rest and for what takes its place."""
        there = []
        for name in names:
            above = os.path.dirname(name)
            while not self._watch(expectation, above) and above != "/":
                above = os.path.dirname(above)
            if name not in closed and os.path.lexists(name):
                there.append(name)
        if there:
            expectation.appeared(tuple(there))

    def _watch(self, expectation: Expectation, directory: str) -> bool:
        """Watch a directory; False if there is none."""
        if directory in expectation.directories:
            return True
        if self._inotify is None:
            return True
        try:
            number = self._inotify.add(directory, inotify.CREATE | inotify.MOVED_TO | inotify.DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                self._fail("inotify watches are used up", "raise fs.inotify.max_user_watches")
            else:
                self._log("protected names made outside stay writable", path=directory, why=error.strerror)
            return True
        expectation.directories.add(directory)
        self._paths.setdefault(number, set()).add(directory)
        self._numbers[directory] = number
        return True

    def _fail(self, why: str, remedy: str) -> None:
        if self._logged != why:
            self._log("protected names made outside stay writable", why=why)
        self._logged = why
        self.warnings = (
            "protected names that are made outside while a command runs stay writable for it, since they are not "
            f"watched for ({why}); {remedy}, it is tried again with each command",
        )

    def _leave(self, directory: str) -> None:
        if any(directory in one.directories for one in self._expected):
            return
        number = self._numbers.pop(directory, None)
        paths = self._paths.get(number, set()) if number is not None else set()
        paths.discard(directory)
        if number is not None and not paths and self._inotify is not None:
            self._paths.pop(number, None)
            self._inotify.remove(number)

    def _read(self) -> None:
        assert self._inotify is not None
        changed: dict[str, None] = {}
        for event in self._inotify.read():
            if event.mask & inotify.OVERFLOW:
                changed["/"] = None
            for directory in self._paths.get(event.watch, ()):
                if event.mask & inotify.IGNORED:
                    self._gone(directory)
                elif event.name:
                    changed[os.path.join(directory, event.name)] = None
        for expectation in tuple(self._expected):
            names = [
                name
                for path in changed
                if path == "/" or os.path.dirname(path) in expectation.directories
                for name in expectation.names
                if path == "/" or name == path or name.startswith(f"{path}/")
            ]
            if names:
                self._look(expectation, dict.fromkeys(names))

    def _gone(self, directory: str) -> None:
        """Forget a directory that was removed; the one above it reports a new one."""
        number = self._numbers.pop(directory, None)
        if number is not None:
            self._paths.pop(number, None)
        for expectation in self._expected:
            expectation.directories.discard(directory)
