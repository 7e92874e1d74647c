"""docs/rpc.md has every method, parameter, result field and slug. To renew its table of slugs run this file."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from sandboxd.rpc.dispatch import METHODS
from sandboxd_client.wire import codes
from sandboxd_client.wire.messages.methods import METHODS as RECORDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rpc.md"
BEGIN, END = "<!-- slugs: from sandboxd_client/wire/codes.py -->", "<!-- end of slugs -->"


def slug_table() -> str:
    rows = [f"| `{slug}` | {number} | {meaning} |" for slug, number, meaning in codes.TABLE]
    return "\n".join([BEGIN, "", "| slug | code | meaning |", "| --- | --- | --- |", *rows, "", END])


def section(name: str) -> str:
    found = re.search(rf"^### {re.escape(name)}$(.*?)(?=^##)", PAGE.read_text(), re.M | re.S)
    assert found is not None, f"no section about {name}"
    return found[1]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_with_its_parameters_and_results(name: str) -> None:
    text = section(name)
    params, result = RECORDS[name].params, RECORDS[name].result
    for field in dataclasses.fields(params):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        assert re.search(rf"[{{ ]{field.name}{'' if required else r'[?]'}[,}}]", text), f"{field.name} of {name}"
    for field in dataclasses.fields(result):
        assert re.search(rf"[{{\s]{field.name}[,}}]", text), f"{field.name} of the result of {name}"


def test_no_method_is_described_that_is_not_there() -> None:
    assert re.findall(r"^### (\S+)$", PAGE.read_text(), re.M) == list(METHODS)


def test_every_slug_with_its_meaning() -> None:
    assert slug_table() in PAGE.read_text()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + slug_table() + rest.partition(END)[2])
