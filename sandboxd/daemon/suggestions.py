"""Settings that would have let a command pass, from violations and the host."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace

from sandboxd.policy.explain.suggestions import Lesson, TargetState, learn
from sandboxd.policy.violation import Violation, ViolationKind
from sandboxd.runtime.command import Command
from sandboxd.runtime.sessions import Sessions

__all__ = ["Lesson", "learn_from", "lesson_of"]


async def learn_from(sessions: Sessions, wrap_id: str, violations: Sequence[Violation], home: str) -> Lesson:
    """Return the smallest settings for a command. Raises CallerError."""
    command, _ = sessions.wrapped(wrap_id)
    lesson = await lesson_of(violations, [command], home)
    missing = command.violations_lost + command.violations_recorded - len(violations)
    if missing <= 0:
        return lesson
    note = f"{missing} more were blocked than are kept: run it again with these settings to learn the rest"
    return replace(lesson, notes=(*lesson.notes, note))


async def lesson_of(violations: Sequence[Violation], commands: Sequence[Command], home: str) -> Lesson:
    """Return the smallest settings for violations of commands, as far as these are still known."""
    paths = [one.target for one in violations if one.kind in (ViolationKind.READ, ViolationKind.WRITE)]
    return learn(violations, await asyncio.to_thread(_look, paths, commands), home)


def _look(paths: Sequence[str], commands: Sequence[Command]) -> dict[str, TargetState]:
    def closed_at(path: str) -> str:
        return next(filter(None, (command.closed_at(path) for command in commands)), "")

    return {path: TargetState(os.path.lexists(path), _nearest(path), closed_at(path)) for path in paths}


def _nearest(path: str) -> str:
    directory = os.path.dirname(path)
    while directory != "/" and not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    return directory
