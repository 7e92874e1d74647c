"""Where a settings value came from. Every effective value and every rule carries one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """The places settings come from, highest precedence first."""

    CLI = "cli"
    MANAGED = "managed"
    FLAG = "flag"
    LOCAL = "local"
    USER = "user"
    PROJECT = "project"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """One value's place: the source, the file (absolute path, None for the command line and built-ins), the dotted
    key, and the position in the file (both counted from 1; None where there is no file)."""

    source: Source
    key: str
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return f"{self.source.value} ({self.key})"
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place} ({self.key})"


BUILT_IN = Origin(Source.DEFAULT, "built-in")
