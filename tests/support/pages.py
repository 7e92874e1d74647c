"""Tables of the pages in docs/."""

from __future__ import annotations

import re

from support.users import CHECKOUT


def table_rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the tables below a heading, without group titles."""
    text = (CHECKOUT / "docs" / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip(" ") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if not row[0].startswith("**")]


def decision_table() -> dict[str, dict[str, str]]:
    """Return the answers of docs/commands.md, by command and situation."""
    rows = [row for row in table_rows("commands.md", "The gates, in order") if len(row) > 3]
    head = next(row for row in rows if row[0] == "command")
    return {
        row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows if row is not head and row[0][:3] != "---"
    }
