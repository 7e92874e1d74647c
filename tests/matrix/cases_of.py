"""The cases: read from `cases/*.toml`, one file for each group.

A case is a line of shell, what stands on the host before it, and what must hold on the host after it. An attack must
break one of its checks when it is run bare, else it shows nothing here; work must meet all of them bare."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CASES = Path(__file__).with_name("cases")
KINDS = ("attack", "work")
NEEDS = ("hosts", "deny_read", "deny_write", "commands", "root", "user")
"""Needs of a case, of the sandbox or of the account: hosts allowed by name, reading denied, writing denied below a
writable directory, several commands that share a session, root, an ordinary user."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `checks` maps a name of `checks.CHECKS` to its argument."""

    group: str
    name: str
    kind: str
    run: str
    checks: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    """Shell text that a person runs in the project first, outside."""
    then: str = ""
    """Shell text that a person runs in the project afterwards, outside."""
    needs: frozenset[str] = frozenset()
    programs: tuple[str, ...] = ()
    """Programs without which the case is not tried."""
    twin: str = ""
    """For an attack: the work in the same group that differs only in what is allowed."""


_OWN = {"name", "kind", "run", "files", "before", "then", "needs", "programs", "twin"}


def read_cases(place: Path = CASES) -> list[Case]:
    """All cases, sorted by group, in the order of the files. ValueError for a file that says something unknown."""
    cases = [case for path in sorted(place.glob("*.toml")) for case in _of_file(path)]
    names = [(case.group, case.name) for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two cases have the name {' / '.join(name)}")
    for case in cases:
        if case.twin and (case.group, case.twin) not in names:
            raise ValueError(f"{case.group} / {case.name}: its twin {case.twin!r} is no case")
    return cases


def _of_file(path: Path) -> Iterator[Case]:
    from matrix.checks import CHECKS

    for entry in tomllib.loads(path.read_text())["case"]:
        checks = {key: value for key, value in entry.items() if key not in _OWN}
        own = {key: value for key, value in entry.items() if key in _OWN}
        where = f"{path.name}: {entry.get('name')}"
        if unknown := set(checks) - set(CHECKS):
            raise ValueError(f"{where}: unknown checks {sorted(unknown)}")
        own["needs"] = frozenset(own.get("needs", ()))
        own["programs"] = tuple(own.get("programs", ()))
        if own.get("kind") not in KINDS or own["needs"] - set(NEEDS) or not checks:
            raise ValueError(f"{where}: unknown kind or needs, or nothing to check")
        yield Case(group=path.stem, checks=checks, **own)
