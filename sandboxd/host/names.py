"""Which names in which directories an answer depends on: one registration for each directory, however many names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from sandboxd.host.changes import Changes, Interest


class NameWatch:
    """Collects (directory, name) pairs and calls `on_change` when any of them appears, disappears or is replaced."""

    def __init__(self, changes: Changes, on_change: Callable[[], None]) -> None:
        self._changes = changes
        self._on_change = on_change
        self._names: dict[str, set[str]] = {}
        self._contents: set[str] = set()
        self._interests: list[Interest] = []

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

        def matters(changed: str, _: bool) -> bool:
            return changed in names or "*" in names

        with contextlib.suppress(OSError):  # gone or closed to us: its own parent is watched as well
            interest = self._changes.register(directory, matters, lambda _: self._on_change(), contents=contents)
            self._interests.append(interest)

    def cancel(self) -> None:
        for interest in self._interests:
            self._changes.cancel(interest)
        self._interests.clear()
        self._names.clear()
