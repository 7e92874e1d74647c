"""The place of a settings value, as it travels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OriginRecord:
    """`source` is one of cli managed flag local user project default; lines and columns count from 1."""

    source: str
    key: str
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return f"{self.source} ({self.key})"
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place} ({self.key})"
