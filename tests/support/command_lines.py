"""Command lines of sandboxd in the messages and hints of its code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from support.users import CHECKOUT

LINE = re.compile(r"(?:: |`|run: |with |run |see |^)sandboxd ([a-z]+)((?: [^\s`,;:()]+)*)")


def texts() -> Iterator[tuple[str, str]]:
    """Each text of the code that is not documentation, with its place."""
    for folder in ("sandboxd", "client/sandboxd_client"):
        for file in (CHECKOUT / folder).rglob("*.py"):
            tree = ast.parse(file.read_text())
            documentation = {
                id(node.body[0].value)
                for node in ast.walk(tree)
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                and node.body
                and isinstance(node.body[0], ast.Expr)
            }
            parts = {id(one) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for one in node.values}
            for node in ast.walk(tree):
                if id(node) in parts:
                    continue
                if isinstance(node, ast.JoinedStr):
                    text = "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values)
                    yield text, f"{file.relative_to(CHECKOUT)}:{node.lineno}"
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                    yield node.value, f"{file.relative_to(CHECKOUT)}:{node.lineno}"
