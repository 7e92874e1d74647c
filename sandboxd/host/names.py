"""Which names in which directories an answer depends on: one registration for each directory, however many names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from sandboxd.host.changes import Changes, Interest
from sandboxd.host.placeholder import is_absent


class NameWatch:
    """Collects (directory, name) pairs and calls `on_change` when any of them appears, disappears or is replaced."""

    def __init__(self, changes: Changes, on_change: Callable[[], None]) -> None:
        self._changes = changes
        self._on_change = on_change
        self._names: dict[str, set[str]] = {}
        self._contents: set[str] = set()
        self._absent: set[str] = set()
        self._accessed: set[str] = set()
        self._interests: list[Interest] = []
        self.slow: list[Interest] = []

    def visit(self, directory: str, name: str, contents: bool = False) -> None:
        """To be called before the name is looked at. `*` stands for every name. With `contents`, writing a
        file of that name counts as well."""
        known = self._names.get(directory)
        if known is not None:
            known.add(name)
            if not contents or directory in self._contents:
                return
        names = known if known is not None else self._names.setdefault(directory, {name})
        if contents:
            self._contents.add(directory)

        absent = self._absent

        def matters(changed: str, _: bool) -> bool:
            if changed not in names:
                return "*" in names
            path = directory + changed if directory == "/" else f"{directory}/{changed}"
            return path not in absent or not is_absent(path)

        with contextlib.suppress(OSError):  # gone or closed to us: its own parent is watched as well
            self._keep(self._changes.register(directory, matters, lambda _: self._on_change(), contents=contents))

    def absent(self, path: str) -> None:
        """The answer was that nothing is there: a placeholder that comes and goes does not change it."""
        self._absent.add(path)

    def access(self, directory: str) -> None:
        """To be called before it is asked who may do what in a directory: modes and owners change too."""
        if directory in self._accessed:
            return
        self._accessed.add(directory)
        with contextlib.suppress(OSError):
            self._keep(self._changes.register(directory, _no_name, lambda _: self._on_change(), attributes=True))

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


def _no_name(name: str, is_directory: bool) -> bool:
    return False
