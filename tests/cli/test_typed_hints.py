"""Every `sandboxd …` in a message or hint of the code is a command line that its own tables accept."""

from __future__ import annotations

import re

from sandboxd.cli.main import COMMANDS, described_commands
from support.command_lines import LINE, texts

WORDS = re.compile(r"[a-z]+ \((.*)\)$")
"""The alternatives in the usage of a command."""


def test_every_command_line_of_a_message_can_be_typed() -> None:
    tables = {name: help for name, _, help in described_commands()}
    assert set(tables) == {name for name, _, _ in COMMANDS}
    wrong, seen = [], 0
    for text, place in texts():
        for found in LINE.finditer(text):
            name, words = found[1], found[2].split()
            if name not in tables:
                if found[0].startswith(("`", "run: ")):  # else it is a sentence
                    wrong.append(f"{place}: there is no command {name}: {found[0]}")
                continue
            seen += 1
            options = {option.name for option in tables[name].options}
            given = words[: words.index("--")] if "--" in words else words
            unknown = [word for word in given if word.startswith("--") and word.partition("=")[0] not in options]
            wrong += [f"{place}: {name} has no {word}" for word in unknown]
            usage = WORDS.match(tables[name].usage)
            kinds = re.findall(r"[a-z]+", usage[1]) if usage else []
            if kinds and words and re.fullmatch(r"[a-z]+", words[0]) and words[0] not in kinds:
                wrong.append(f"{place}: {name} has no {words[0]}: {found[0]}")
    assert not wrong, "\n".join(wrong)
    assert seen > 40, "the search finds them"
