"""Problems of settings files, with their origins: collected, never raised."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sandboxd.errors import SettingsError
from sandboxd.settings.origins import Origin
from sandboxd_client.records import dataclass

_OF_A_CALL = "correct the option, or the settings of the call"


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem; with `fatal` the settings cannot be used at all.

    An error that is not fatal is a bad entry of a list that allows: the entry is left out, which is the strict reading.
    A bad entry of a list that denies is always fatal, because leaving it out would allow more."""

    severity: Severity
    slug: str
    message: str
    origin: Origin
    hint: str = ""
    fatal: bool = False

    def __str__(self) -> str:
        """Format as compilers do: `file:line:column: error: message (hint)`."""
        place = self.origin.file or self.origin.source.value
        if self.origin.line is not None:
            place += f":{self.origin.line}:{self.origin.column or 1}"
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}: {self.severity.value}: {self.message}{hint}"

    def as_error(self) -> SettingsError:
        """Make the exception for a caller that has to refuse."""
        place = self.origin.file or self.origin.source.value
        if self.origin.line is not None:
            place += f":{self.origin.line}:{self.origin.column or 1}"
        return SettingsError(
            self.slug,
            f"{place}: {self.message}",
            hint=self.hint
            or (f"run `sandboxd settings lint`, then correct {self.origin.file}" if self.origin.file else _OF_A_CALL),
            data={
                "file": self.origin.file,
                "key": self.origin.key,
                "line": self.origin.line,
                "column": self.origin.column,
            },
        )


def error(slug: str, message: str, origin: Origin, *, hint: str = "", fatal: bool = True) -> Problem:
    return Problem(Severity.ERROR, slug, message, origin, hint, fatal)


def warning(slug: str, message: str, origin: Origin, *, hint: str = "") -> Problem:
    return Problem(Severity.WARNING, slug, message, origin, hint)


def first_fatal(problems: Iterable[Problem]) -> Problem | None:
    """Return the first problem that makes settings unusable, or None."""
    return next((problem for problem in problems if problem.fatal), None)
