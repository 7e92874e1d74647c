"""docs/settings.md says what the code says."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

from sandboxd.settings.jsonc import parse_jsonc
from sandboxd.settings.layer import parse_layer
from sandboxd.settings.origins import Source
from sandboxd.settings.schema import all_keys

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "settings.md").read_text(encoding="utf-8")


def test_the_tables_are_current() -> None:
    """To renew them: python docs/settings_tables.py"""
    spec = importlib.util.spec_from_file_location("settings_tables", DOCS / "settings_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.render(PAGE) == PAGE


def test_every_key_is_on_the_page() -> None:
    for key in all_keys():
        assert f"| `{key}` |" in PAGE


def test_the_examples_are_valid() -> None:
    examples = re.findall(r"```jsonc\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for example in examples:
        assert json.dumps(parse_jsonc(example).root.value)
        assert not parse_layer(example, Source.USER).problems
