"""The lines that `run` tells after a command."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.cli.execution.told import told_lines


def blocked(kind: str, target: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "target": target, "count": 1, "hint": "", "rule": None, **more}


@pytest.mark.parametrize(
    ("violations", "lines"),
    [
        ([], []),
        ([blocked("limit", "memory 1G", hint="more")], []),
        (
            [blocked("network", "a.test:443", hint="open a"), blocked("network", "a.test", count=2, hint="look up a")],
            ["connecting to a.test (3 times): open a"],
        ),
        (
            [blocked("network", "a.test:443"), blocked("connect", "[::1]:9", hint="open"), blocked("write", "/x")],
            ["connecting to a.test and 1 more (sandboxd violations lists them): open", "writing /x"],
        ),
        ([blocked("read", "/x y", rule="~/x", hint="see")], ['reading "/x y", by the rule ~/x: see']),
        ([blocked("unix-socket", "/s")], ["connecting to the socket /s"]),
    ],
)
def test_one_line_for_each_kind(violations: list[dict[str, Any]], lines: list[str]) -> None:
    assert told_lines(violations) == [f"sandboxd: blocked {line}" for line in lines]


def test_what_was_not_recorded_is_counted() -> None:
    assert told_lines([], 7) == ["sandboxd: 7 more were blocked than could be recorded one by one"]
