"""A naive model of settings: what the rules of all sources together mean for a few hosts and paths.

Paths are relative: `p` is the project, what else there is lies beside it. Files go by `support.file_model`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from support.file_model import DIRECTORY, FILE, Case, Model

HOSTS = ("one.test", "a.one.test", "two.test")
PATTERNS = ("one.test", "*.one.test", "two.test", "*.test:1")
FILES = ("home/t/f", "home/t/a/f", "home/t/a/b/f", "home/t/c/f", "outside/f", "p/f", "p/sub/f", "p/sub/in/f")
RULES = ("home/t", "home/t/a", "home/t/a/b", "home/t/a/b/f", "home/t/c", "home/t/c/f", "p/sub", "p/sub/in", "p/sub/f")


def directories_of(files: tuple[str, ...]) -> list[str]:
    return sorted({str(above) for one in files for above in Path(one).parents if str(above) != "."})


TREE = {**dict.fromkeys(directories_of(FILES), DIRECTORY), **dict.fromkeys(FILES, FILE)}


@dataclass(frozen=True)
class Rules:
    """What one settings file says, by its keys."""

    allowedDomains: tuple[str, ...] = ()
    deniedDomains: tuple[str, ...] = ()
    allowWrite: tuple[str, ...] = ()
    denyWrite: tuple[str, ...] = ()
    denyRead: tuple[str, ...] = ()
    allowRead: tuple[str, ...] = ()

    def __add__(self, other: Rules) -> Rules:
        return Rules(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def closing(self) -> Rules:
        """What counts of a file that is not trusted."""
        return Rules(deniedDomains=self.deniedDomains, denyWrite=self.denyWrite, denyRead=self.denyRead)

    def reaches(self, host: str) -> bool:
        return any(names(one, host) for one in self.allowedDomains) and not self.closed(host)

    def closed(self, host: str) -> bool:
        return any(names(one, host) for one in self.deniedDomains)

    def files(self) -> Model:
        writes, reads = (list(self.allowWrite), list(self.denyWrite)), (list(self.denyRead), list(self.allowRead))
        return Model(Case(0, TREE, *writes, *reads, "p", "p"))


def names(pattern: str, host: str) -> bool:
    """The patterns with a port name one that is never asked for."""
    return pattern == host or (pattern.startswith("*.") and host.endswith(pattern[1:]))
