"""The tables of docs/commands.md: every row is executed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandboxd.policy.commands.command_decisions import GATES, decide_command
from sandboxd.policy.commands.command_patterns import parse_command_pattern
from sandboxd.policy.commands.exclusion import decide_exclusion
from sandboxd.policy.commands.shell_syntax import read_line
from sandboxd.policy.model import CommandPolicy, CommandRule, Policy
from sandboxd.settings.origins import Origin, Source

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
ORIGIN = Origin(Source.LOCAL, "test")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without group titles."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip(" ") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if not row[0].startswith("**")]


def code(cell: str) -> str:
    """Return the text of a code span, with its pipes and line ends."""
    ticks = re.match(r"`+", cell)
    assert ticks, cell
    body = cell[len(ticks[0]) : -len(ticks[0])]
    return body.replace("\\|", "|").replace("⏎", "\n")


def commands(*patterns: str) -> tuple[CommandRule, ...]:
    return tuple(CommandRule(pattern, ORIGIN) for pattern in patterns)


@pytest.mark.parametrize(("pattern", "command", "matches"), rows("Patterns"))
def test_patterns(pattern: str, command: str, matches: str) -> None:
    (simple,) = read_line(code(command)).commands
    words = [word.text for word in simple.words]
    assert parse_command_pattern(code(pattern)).matches(words) is (matches == "yes")


@pytest.mark.parametrize(("command", "runs", "because"), rows("Excluded commands"))
def test_excluded_commands(command: str, runs: str, because: str) -> None:
    exclusion = decide_exclusion(commands("docker", "gh *", "npm run build"), code(command))
    assert exclusion.excluded is (runs == "outside"), exclusion.why
    assert because


@pytest.mark.parametrize(("command", "behaviour"), rows("Rules about commands"))
def test_rules(command: str, behaviour: str) -> None:
    policy = Policy(
        enabled=True,
        commands=CommandPolicy(
            auto_allow=False,
            allow=commands("git rev-parse:*", "cd:*", "./x.sh:*", "ls:*"),
            ask=commands("git push:*"),
            deny=commands("rm:*"),
        ),
    )
    assert decide_command(policy, code(command)).behavior.value == behaviour


def test_the_page_lists_the_gates_in_their_order() -> None:
    named = [row[0].replace(" ", "_") + "_gate" for row in rows("The gates, in order")]
    assert named == [gate.__name__ for gate in GATES]
