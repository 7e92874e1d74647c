"""Warnings for commands, once for each change of a settings file."""

from __future__ import annotations

import os
from collections import OrderedDict

from sandboxd.daemon.policies import Project, SessionPolicy
from sandboxd.policy.display import neutralise
from sandboxd.runtime.wrap import NO_OVERRIDES, Overrides

MOST_TOLD = 20
"""Most warnings of one command; a project may have thousands of ignored entries."""
REMEMBERED = 4096
_PROJECTS_REMEMBERED = 1024

_Version = tuple[int, int, int] | None


class SettingsNotices:
    """Notices of one daemon. The next daemon reports everything again."""

    def __init__(self) -> None:
        self._reported: OrderedDict[tuple[str, _Version], None] = OrderedDict()
        self._of_files: tuple[str, ...] = ()
        self._seen: OrderedDict[str | None, tuple[int, str, tuple[tuple[str, str], ...]]] = OrderedDict()

    def about_files(self, warnings: tuple[str, ...]) -> tuple[str, ...]:
        """Return those that the last command did not get."""
        news = tuple(text for text in warnings if text not in self._of_files)
        self._of_files = warnings
        return news

    def about(self, policy: SessionPolicy, overrides: Overrides = NO_OVERRIDES) -> tuple[str, ...]:
        """Return the warnings for a command. Raises SettingsError for invalid overrides."""
        project = policy.project
        of_files = Overrides(variables=overrides.variables) if overrides.variables else NO_OVERRIDES
        state = project.now.policy.generation, str(project.error or ""), overrides.variables
        news: list[str] = []
        if self._seen.get(project.directory) != state:
            self._seen[project.directory] = state
            self._seen.move_to_end(project.directory)
            while len(self._seen) > _PROJECTS_REMEMBERED:
                self._seen.popitem(last=False)
            news += self._unreported(project, policy.snapshot(of_files).policy.warnings)
        if overrides is not NO_OVERRIDES and overrides != of_files:
            known = set(policy.snapshot(of_files).policy.warnings)
            news += (text for text in policy.snapshot(overrides).policy.warnings if text not in known)
        return _bounded(news)

    def _unreported(self, project: Project, warnings: tuple[str, ...]) -> list[str]:
        """Return those of `warnings` about files that were not yet reported."""
        files = {str(problem): problem.origin.file for problem in project.problems}
        broken = project.complaints[:1] if project.error is not None else ()
        versions: dict[str | None, _Version] = {}
        news = []
        for text in (*broken, *warnings):
            file = files.get(text)
            if file not in versions:
                versions[file] = _version(file)
            notice = text, versions[file]
            if notice not in self._reported:
                news.append(text)
            self._reported[notice] = None
            self._reported.move_to_end(notice)
        while len(self._reported) > REMEMBERED:
            self._reported.popitem(last=False)
        return news


def _version(file: str | None) -> _Version:
    """Return a value that changes with a file."""
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
