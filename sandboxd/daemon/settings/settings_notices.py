"""What a command is told about the settings it runs under: each warning once for each change of its file, and what a
caller's own overrides lack each time."""

from __future__ import annotations

import os
from collections import OrderedDict

from sandboxd.daemon.policies import Project, SessionPolicy
from sandboxd.policy.display import neutralise
from sandboxd.runtime.wrap import NO_OVERRIDES, Overrides

MOST_TOLD = 20
"""Warnings of one command. A project may have sent thousands of entries that do not count."""
REMEMBERED = 4096
_PROJECTS_REMEMBERED = 1024

_Version = tuple[int, int, int] | None


class SettingsNotices:
    """Of one daemon: another one tells everything again."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[str, _Version], None] = OrderedDict()
        self._of_files: tuple[str, ...] = ()
        self._seen: OrderedDict[str | None, tuple[int, str, tuple[tuple[str, str], ...]]] = OrderedDict()

    def about_files(self, warnings: tuple[str, ...]) -> tuple[str, ...]:
        """Those that the last command was not told already."""
        news = tuple(text for text in warnings if text not in self._of_files)
        self._of_files = warnings
        return news

    def about(self, policy: SessionPolicy, overrides: Overrides = NO_OVERRIDES) -> tuple[str, ...]:
        """What to tell with a command. Raises SettingsError when the overrides cannot hold."""
        project = policy.project
        of_files = Overrides(variables=overrides.variables) if overrides.variables else NO_OVERRIDES
        state = project.now.policy.generation, str(project.error or ""), overrides.variables
        news: list[str] = []
        if self._seen.get(project.directory) != state:
            self._seen[project.directory] = state
            self._seen.move_to_end(project.directory)
            while len(self._seen) > _PROJECTS_REMEMBERED:
                self._seen.popitem(last=False)
            news += self._untold(project, policy.snapshot(of_files).policy.warnings)
        if overrides is not NO_OVERRIDES and overrides != of_files:
            known = set(policy.snapshot(of_files).policy.warnings)
            news += (text for text in policy.snapshot(overrides).policy.warnings if text not in known)
        return _bounded(news)

    def _untold(self, project: Project, warnings: tuple[str, ...]) -> list[str]:
        """`warnings` are those of the files, read with the caller's variables."""
        files = {str(problem): problem.origin.file for problem in project.problems}
        broken = project.complaints[:1] if project.error is not None else ()
        versions: dict[str | None, _Version] = {}
        news = []
        for text in (*broken, *warnings):
            file = files.get(text)
            if file not in versions:
                versions[file] = _version(file)
            told = text, versions[file]
            if told not in self._told:
                news.append(text)
            self._told[told] = None
            self._told.move_to_end(told)
        while len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        return news


def _version(file: str | None) -> _Version:
    """What differs after a file was changed."""
    try:
        state = os.stat(file) if file is not None else None
    except OSError:
        state = None
    return None if state is None else (state.st_ino, state.st_mtime_ns, state.st_size)


def _bounded(news: list[str]) -> tuple[str, ...]:
    shown = [neutralise(text) for text in news[:MOST_TOLD]]
    if len(news) > MOST_TOLD:
        shown.append(f"{len(news) - MOST_TOLD:,} more warnings about the settings: sandboxd settings lint")
    return tuple(shown)
