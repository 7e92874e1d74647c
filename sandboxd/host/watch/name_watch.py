"""The names that an answer depends on, with one registration for each directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Container, Mapping

from sandboxd.host.placeholders.placeholder import is_absent
from sandboxd.host.watch.directory_changes import Changes, Interest
from sandboxd_client.records import dataclass


class NameWatch:
    """Calls `on_change` when a recorded name appears, disappears or is replaced."""

    def __init__(self, changes: Changes, on_change: Callable[[], None]) -> None:
        self._changes = changes
        self._on_change = on_change
        self._names: dict[str, frozenset[str]] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}
        """Shared sets of names: a pattern needs the same set in many directories."""
        self._contents: set[str] = set()
        self._absent: set[str] = set()
        self._accessed: set[str] = set()
        self._read: dict[str, Interest] = {}
        """The registrations of directories in which the contents of files matter."""
        self._interests: list[Interest] = []
        self.slow: list[Interest] = []

    def visit(self, directory: str, name: str, contents: bool = False) -> None:
        """Record a name (`*`: all) before it, or the `contents` of its file, is read."""
        known = self._names.get(directory)
        names = frozenset((name,)) if known is None else known | {name}
        self._names[directory] = self._sets.setdefault(names, names)
        if self._absent:  # it may be there by now, and go before this is known
            self._absent.discard(_path(directory, name))
        if known is not None:
            if not contents:
                return
            if directory in self._contents:
                if (interest := self._read.get(directory)) is not None:
                    interest.note(name)
                return
        if contents:
            self._contents.add(directory)
        matters = _NameFilter(directory, self._names, self._absent)
        with contextlib.suppress(OSError):  # gone or unreadable: its own parent is watched as well
            interest = self._changes.register(directory, matters, self._note_change, contents=contents)
            self._keep(interest)
            if contents:
                self._read[directory] = interest
                for known_name in names - {"*"}:
                    interest.note(known_name)

    def absent(self, path: str) -> None:
        """Record that nothing is at a path: a placeholder does not change the answer."""
        self._absent.add(path)

    @property
    def absent_paths(self) -> Collection[str]:
        return self._absent

    def access(self, directory: str) -> None:
        """Record a check of permissions in a directory, before it is made."""
        if directory in self._accessed:
            return
        self._accessed.add(directory)
        with contextlib.suppress(OSError):
            self._keep(self._changes.register(directory, _no_name, self._note_change, attributes=True))

    def _note_change(self, _: str) -> None:
        self._on_change()

    def _keep(self, interest: Interest) -> None:
        self._interests.append(interest)
        if interest.slow:
            self.slow.append(interest)

    def cancel(self) -> None:
        for interest in self._interests:
            self._changes.cancel(interest)
        self._interests.clear()
        self.slow.clear()
        self._names.clear()
        self._sets.clear()
        self._read.clear()


@dataclass(frozen=True, slots=True)
class _NameFilter:
    """Decides whether a name of a directory was recorded, and is not absent still."""

    directory: str
    names: Mapping[str, frozenset[str]]
    absent: Container[str]

    def __call__(self, changed: str, is_directory: bool) -> bool:
        names = self.names.get(self.directory, frozenset())
        if changed not in names:
            return "*" in names
        path = _path(self.directory, changed)
        return path not in self.absent or not is_absent(path)


def _no_name(name: str, is_directory: bool) -> bool:
    return False


def _path(directory: str, name: str) -> str:
    return directory + name if directory == "/" else f"{directory}/{name}"
