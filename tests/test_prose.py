"""Words that hide who acts: an actor is a named role."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = re.compile(r"\b(nobody|somebody|anybody|everybody|whoever|someone|anyone|everyone|ours)\b", re.IGNORECASE)
NAMES = re.compile(r"dev\.sandboxd\.nobody")


def texts() -> list[Path]:
    """The code and the pages that are read first."""
    folders = (("sandboxd", "*.py"), ("client", "*.py"), ("docs", "*.md"), ("vendor/seccomp", "*.[ch]"))
    return [*ROOT.glob("*.md"), *(file for folder, kind in folders for file in (ROOT / folder).rglob(kind))]


def test_actors_are_named_roles() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in texts()
        for number, line in enumerate(NAMES.sub("", file.read_text()).splitlines(), 1)
        if HIDDEN.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_text_cites_a_document_that_is_elsewhere() -> None:
    cited = re.compile(r"\bdesign \d")
    found = [str(file.relative_to(ROOT)) for file in texts() if cited.search(file.read_text())]
    assert not found, found


def test_a_table_cell_holds_one_short_sentence() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {cell.strip()}"
        for file in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if line.lstrip().startswith("|")
        for cell in re.split(r"(?<!\\)\|", re.sub(r"`[^`]*`", "code", line).strip(" |"))
        if len(cell.split()) > 25
    ]
    assert not found, "move all but one sentence below the table:\n" + "\n".join(found)


def test_a_test_is_named_in_at_most_60_characters() -> None:
    long = re.compile(r"^ *(?:async )?def (test_\w{56,})\(", re.MULTILINE)
    found = [name for file in (ROOT / "tests").rglob("*.py") for name in long.findall(file.read_text())]
    assert not found, found


def test_a_docstring_begins_with_the_thing_or_a_verb() -> None:
    riddle = re.compile(r'"""(What|Whether|Who|Those|Raises|In place of|As (?:in|if|the)) ')
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in ("sandboxd", "client")
        for file in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if riddle.search(line)
    ]
    assert not found, "\n".join(found)


def test_tests_name_actors_too() -> None:
    """Comments and docstrings only: strings and names of the tested commands are data."""
    prose = re.compile(r'#[^"\n]*$|"""[^"]*"""', re.MULTILINE)
    found = [
        f"{file.relative_to(ROOT)}: {text}"
        for file in (ROOT / "tests").rglob("*.py")
        for text in prose.findall(file.read_text())
        if HIDDEN.search(text.replace("`ours`", "")) and file != Path(__file__)
    ]
    assert not found, "\n".join(found)
