"""Every `sandboxd …` in a message or hint of the code is a command line that its own tables accept."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sandboxd.cli.main import COMMANDS, described_commands

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"(?:: |`|run: |with |run |see |^)sandboxd ([a-z]+)((?: [^\s`,;:()]+)*)")


def texts() -> Iterator[tuple[str, str]]:
    """Each text of the code that is not documentation, with its place."""
    for folder in ("sandboxd", "client/sandboxd_client"):
        for file in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(file.read_text())
            documentation = {
                id(node.body[0].value)
                for node in ast.walk(tree)
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                and node.body
                and isinstance(node.body[0], ast.Expr)
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr):
                    text = "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values)
                    yield text, f"{file.relative_to(ROOT)}:{node.lineno}"
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                    yield node.value, f"{file.relative_to(ROOT)}:{node.lineno}"


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
    assert not wrong, "\n".join(wrong)
    assert seen > 40, "the search finds them"
