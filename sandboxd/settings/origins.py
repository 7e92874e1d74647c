"""Origins of settings values. Every effective value and every rule has one."""

from __future__ import annotations

from enum import StrEnum

from sandboxd_client.records import dataclass


class Source(StrEnum):
    """A kind of settings, in order of precedence, highest first."""

    CLI = "cli"
    MANAGED = "managed"
    FLAG = "flag"
    LOCAL = "local"
    USER = "user"
    PROJECT = "project"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """The source, file, key and position (from 1) of a value; None if not in a file."""

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
