"""Tables of what the tests of other sandboxes expect, with the decision here and its reason where it differs.

A row of `cases/*.toml` is `[peer, input…, expected by the peer]`, or behind that `decided here, the reason`. Only facts
stand there: inputs and expectations, read in the peers' public tests."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASES = Path(__file__).with_name("cases")
PEERS = ("codex", "fence", "nono", "sandlock", "srt")


@dataclass(frozen=True, slots=True)
class PeerCase:
    """One expectation of a peer; `expected` is the decision here."""

    peer: str
    inputs: tuple[Any, ...]
    of_peer: Any
    expected: Any
    reason: str = ""


def cases_of(kind: str, inputs: int) -> list[PeerCase]:
    """Return the rows of the table `kind`, which have so many inputs."""
    found = [case_of(row, inputs) for table in tables() for row in table.get(kind, ())]
    assert found, f"there is no table {kind}"
    return found


def tables() -> Iterator[dict[str, Any]]:
    """Yield the tables of each file."""
    for path in sorted(CASES.glob("*.toml")):
        yield tomllib.loads(path.read_text())


def differences(kind: str, inputs: int, decide: Callable[..., Any]) -> list[str]:
    """Return a line for each row that is decided otherwise than the table says."""
    wrong = []
    for case in cases_of(kind, inputs):
        found = decide(*case.inputs)
        if found != case.expected:
            wrong.append(f"{case.peer}: {case.inputs} is {found!r}, and not {case.expected!r} (peer: {case.of_peer!r})")
    return wrong


def case_of(row: list[Any], inputs: int) -> PeerCase:
    """Read a row with so many inputs."""
    peer, given, (answer, *more) = row[0], tuple(row[1 : inputs + 1]), row[inputs + 1 :]
    assert peer in PEERS, row
    if not more:
        return PeerCase(peer, given, answer, answer)
    expected, reason = more
    assert expected != answer and reason, f"a difference needs a reason: {row}"
    return PeerCase(peer, given, answer, expected, reason)
