"""Tables and paragraphs that show text as data: no markup, no escape sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text
from textual.widgets import DataTable


def plain(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, end="")


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def wrapped(rows: Iterable[tuple[str, str]]) -> Text:
    """Return labels and values, a paragraph each."""
    text = Text()
    for label, value in rows:
        text.append(f"{label}: " if label else "", style="bold")
        text.append(f"{value}\n")
    text.rstrip()
    return text


class Rows(DataTable[Text]):
    """A table whose cursor stays on its row when the rows change."""

    def __init__(self, *columns: str, id: str) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=1)
        self._labels = columns
        self._rows: list[tuple[str, tuple[str, ...], str]] = []

    def on_mount(self) -> None:
        for label in self._labels:
            self.add_column(plain(label), key=label)

    def fill(self, rows: Iterable[tuple[str, Sequence[str], str]]) -> None:
        """Show rows of key, cells and style."""
        wanted = [(key, tuple(cells), style) for key, cells, style in rows]
        if wanted == self._rows or not self.columns:
            return
        chosen, line, self._rows = self.chosen, self.cursor_row, wanted
        self.clear()
        for key, cells, style in wanted:
            self.add_row(*(plain(cell, style) for cell in cells), key=key)
        place = next((number for number, row in enumerate(wanted) if row[0] == chosen), min(line, len(wanted) - 1))
        self.move_cursor(row=max(place, 0))

    @property
    def chosen(self) -> str:
        """Return the key of the row with the cursor, empty without any."""
        return self._rows[self.cursor_row][0] if 0 <= self.cursor_row < len(self._rows) else ""
