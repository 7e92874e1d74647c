"""The tables of docs/commands.md: every row is executed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from sandboxd.policy.commands.command_decisions import GATES, decide_command
from sandboxd.policy.commands.command_patterns import parse_command_pattern
from sandboxd.policy.commands.exclusion import decide_exclusion
from sandboxd.policy.commands.shell_syntax import read_line
from sandboxd.policy.model import CommandPolicy, CommandRule, Policy
from sandboxd.settings.origins import Origin, Source
from support.pages import decision_table, table_rows

ORIGIN = Origin(Source.LOCAL, "test")


def code(cell: str) -> str:
    """Return the text of a code span, with its pipes and line ends."""
    ticks = re.match(r"`+", cell)
    assert ticks, cell
    body = cell[len(ticks[0]) : -len(ticks[0])]
    return body.replace("\\|", "|").replace("⏎", "\n")


def commands(*patterns: str) -> tuple[CommandRule, ...]:
    return tuple(CommandRule(pattern, ORIGIN) for pattern in patterns)


@pytest.mark.parametrize(("pattern", "command", "matches"), table_rows("commands.md", "Patterns"))
def test_patterns(pattern: str, command: str, matches: str) -> None:
    (simple,) = read_line(code(command)).commands
    words = [word.text for word in simple.words]
    assert parse_command_pattern(code(pattern)).matches(words) is (matches == "yes")


@pytest.mark.parametrize(("command", "runs", "because"), table_rows("commands.md", "Excluded commands"))
def test_excluded_commands(command: str, runs: str, because: str) -> None:
    exclusion = decide_exclusion(commands("docker", "gh *", "npm run build"), code(command))
    assert exclusion.excluded is (runs == "outside"), exclusion.why
    assert because


@pytest.mark.parametrize(("command", "behaviour"), table_rows("commands.md", "Rules about commands"))
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


SITUATIONS: dict[str, tuple[Policy, str | None]] = {
    "defaults": (Policy(), None),
    "`autoAllowBashIfSandboxed: false`": (Policy(commands=CommandPolicy(auto_allow=False)), None),
    "`allowUnsandboxedCommands: false`": (Policy(commands=CommandPolicy(allow_unsandboxed=False)), None),
    "mode `open`": (Policy(), "open"),
    "mode `plan`": (Policy(), "plan"),
    "mode `none`": (Policy(), "none"),
    "`enabled: false`": (Policy(enabled=False), None),
}
CELLS = [
    (command, situation, answer)
    for command, answers in decision_table().items()
    for situation, answer in answers.items()
]


@pytest.mark.parametrize(("command", "situation", "answer"), CELLS)
def test_the_decision_table(command: str, situation: str, answer: str) -> None:
    policy, mode = SITUATIONS[situation]
    rules = replace(policy.commands, excluded=commands("docker"), ask=commands("git push:*"), deny=commands("rm:*"))
    found = decide_command(
        replace(policy, commands=rules),
        "" if command.startswith("nothing") else code(command.split("`")[1].join("``")),
        dangerously_disable=command.endswith("with a wish"),
        permission_mode=mode,
        unavailable="no user namespaces" if command.endswith("without sandbox") else "",
    )
    where = "" if answer == "deny" else "inside, " if found.sandboxed else "outside, "
    assert f"{where}{found.behavior.value}" == answer


def test_the_decision_table_has_every_situation() -> None:
    assert all(list(answers) == list(SITUATIONS) for answers in decision_table().values())
    assert len(CELLS) == 11 * len(SITUATIONS)


def test_the_page_lists_the_gates_in_their_order() -> None:
    named = [
        row[0].replace(" ", "_") + "_gate"
        for row in table_rows("commands.md", "The gates, in order")
        if row[0] and len(row) == 3
    ]
    assert named == [gate.__name__ for gate in GATES]
