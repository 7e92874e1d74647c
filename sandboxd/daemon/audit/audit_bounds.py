"""Bounds on the audit lines that commands and clients can cause.

Lines of a command over a bound are counted by target, and one line at its end reports the count. The next line of a
kind reports those that belong to no command (`not_written`). The lines of a command's own life are always written,
since no command runs without them. Over a bound, texts of commands are cut."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from sandboxd.policy.display import LONGEST_TARGET
from sandboxd.runtime.rate_bound import RateBound


class Bound(NamedTuple):
    """Lines at once and lines a second after that, of all commands and of one."""

    of_all: tuple[int, float]
    of_command: tuple[int, float] | None = None
    told_as: str = ""
    """Kind of the line that reports a command's unwritten lines."""
    is_asked_before: bool = False
    """True where the line is expensive to make: see `is_over`."""


BOUNDS: Final = {
    "connection": Bound((5000, 5.0), (500, 1.0), "connections"),
    "violation": Bound((2000, 2.0), (200, 1.0), "violations"),
    "question": Bound((2000, 2.0)),
    "answer": Bound((2000, 2.0)),
    "decision": Bound((2000, 5.0), is_asked_before=True),
    "run_refused": Bound((2000, 5.0), is_asked_before=True),
    "control": Bound((2000, 5.0)),
    "settings": Bound((500, 1.0)),
    "fallback": Bound((500, 1.0)),
}
WHOLE: Final = (1000, 5.0)
"""Bound on lines with the whole text of a command."""
LONGEST_COMMAND: Final = 4096
CUT: Final = 200
"""Characters of such a text, and of one over the bound."""
TARGETS_COUNTED, TARGETS_TOLD = 256, 20
COMMANDS_KNOWN = 4096


class AuditBounds:
    """Bounds of one daemon."""

    def __init__(self) -> None:
        self._all = {kind: RateBound(*bound.of_all) for kind, bound in BOUNDS.items()}
        self._whole = RateBound(*WHOLE)
        self._commands: dict[tuple[str, str], dict[str, _Lines]] = {}
        """Running commands that have caused lines with a bound for each command."""

    def is_over(self, kind: str) -> bool:
        """Return whether the next line, which belongs to no command, is only counted."""
        return not self._all[kind].admits()

    def longest(self) -> int:
        """Return how many characters of a command the next line may hold."""
        return LONGEST_COMMAND if self._whole.admits() else CUT

    def admitted(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Return the line to write; None when it is only counted."""
        bound = BOUNDS.get(record["kind"])
        if bound is None or record.get("outcome") == "answered":  # by the user
            return record
        of_all = self._all[record["kind"]]
        if bound.of_command is not None and record["command_id"]:
            return record if self._of_command(record, bound).admit(record["target"], of_all) else None
        if not bound.is_asked_before and not of_all.admits():
            return None
        lost, of_all.lost = of_all.lost, 0
        return {**record, "not_written": lost} if lost else record

    def ended(self, session_id: str, command_id: str) -> list[dict[str, Any]]:
        """Return the lines that report what was not written of a command."""
        found = self._commands.pop((session_id, command_id), {})
        return [
            {"kind": BOUNDS[kind].told_as, "count": lines.bound.lost, "targets": lines.most}
            for kind, lines in found.items()
            if lines.bound.lost
        ]

    def _of_command(self, record: dict[str, Any], bound: Bound) -> _Lines:
        assert bound.of_command is not None
        lines = self._commands.setdefault((record["session_id"], record["command_id"]), {})
        if len(self._commands) > COMMANDS_KNOWN:  # some ended before they caused a line
            self._commands.pop(next(iter(self._commands)))
        if record["kind"] not in lines:
            lines[record["kind"]] = _Lines(RateBound(*bound.of_command))
        return lines[record["kind"]]


class _Lines:
    """Lines of one kind that one command has caused."""

    def __init__(self, bound: RateBound) -> None:
        self.bound = bound
        self._counted: Counter[str] = Counter()

    def admit(self, target: str, of_all: RateBound) -> bool:
        if self.bound.admits():
            if of_all.admits(0):
                return True
            self.bound.lost += 1
        target = target[:LONGEST_TARGET]
        if target in self._counted or len(self._counted) < TARGETS_COUNTED:
            self._counted[target] += 1
        return False

    @property
    def most(self) -> dict[str, int]:
        """Return the count of each of the most frequent targets."""
        return dict(self._counted.most_common(TARGETS_TOLD))
