"""A row of the result, and how results are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    `budget` is "≤ 1.6", "≥ 0.85", "= 0" or empty for a figure that has none; `detail` are the measured parts behind
    a ratio. With `error` there is no figure: the row could not be measured, which is a failure."""

    name: str
    value: float | None
    unit: str = ""
    budget: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def ok(self) -> bool:
        if self.error or self.value is None:
            return False
        if not self.budget:
            return True
        relation, _, limit = self.budget.partition(" ")
        bound = float(limit)
        return {"≤": self.value <= bound, "≥": self.value >= bound, "=": self.value == bound}[relation]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def table(rows: Iterable[Row]) -> str:
    """The rows for people: name, figure, budget, verdict, and the parts in small print."""
    lines: list[Sequence[str]] = [("what", "measured", "budget", "", "")]
    for row in rows:
        figure = "failed" if row.value is None else f"{_number(row.value)} {row.unit}".strip()
        verdict = "" if not row.budget and not row.error else "ok" if row.ok else "MISSED"
        parts = ", ".join(f"{key} {_number(value)}" for key, value in row.detail.items())
        lines.append((row.name, figure, row.budget, verdict, row.error or parts))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[4]]).rstrip()
        for line in lines
    )


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
