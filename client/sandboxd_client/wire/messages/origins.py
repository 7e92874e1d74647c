"""The origin of a settings value."""

from __future__ import annotations

from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class OriginRecord:
    """The source, file, key and line of a value or rule."""

    source: str  # one of cli managed flag local user project default
    key: str
    file: str | None = None
    line: int | None = None  # counted from 1, as are columns
    column: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return f"{self.source} ({self.key})"
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place} ({self.key})"
