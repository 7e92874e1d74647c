"""Edits of a settings text touch one value, and nothing that people wrote around it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import SettingsError
from sandboxd.settings.jsonc import JsoncError, parse_jsonc
from sandboxd.settings.jsonc_edit import add_entry, remove_entry, remove_key, set_value

TEXT = """\
// head
{
    // about a
    "a": 1, // one
    "sandbox": {
        "network": {"allowedDomains": ["x"] /* why */},
        "list": [
            "p", // pp
            "q"  // qq
        ]  // tail
    },
    "z": [1, 2,],
}
"""


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    """Lines taken out and lines put in."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


@pytest.mark.parametrize(
    ("after", "out", "into"),
    [
        (set_value(TEXT, ("a",), 2), ['    "a": 1, // one'], ['    "a": 2, // one']),
        (set_value(TEXT, ("a",), 1), [], []),
        (
            set_value(TEXT, ("sandbox", "on"), True),
            ["        ]  // tail"],
            ["        ],  // tail", '        "on": true'],
        ),
        (
            add_entry(TEXT, ("sandbox", "network", "allowedDomains"), "y"),
            ['        "network": {"allowedDomains": ["x"] /* why */},'],
            ['        "network": {"allowedDomains": ["x", "y"] /* why */},'],
        ),
        (
            add_entry(TEXT, ("sandbox", "list"), "r"),
            ['            "q"  // qq'],
            ['            "q",  // qq', '            "r"'],
        ),
        (add_entry(TEXT, ("sandbox", "list"), "p"), [], []),
        (add_entry(TEXT, ("z",), 3), ['    "z": [1, 2,],'], ['    "z": [1, 2, 3,],']),
        (add_entry(TEXT, ("n", "m"), "é"), [], ['    "n": {', '        "m": ["é"]']),
        (
            remove_entry(TEXT, ("sandbox", "list"), "q"),
            ['            "p", // pp', '            "q"  // qq'],
            ['            "p" // pp'],
        ),
        (remove_entry(TEXT, ("sandbox", "list"), "p"), ['            "p", // pp'], []),
        (remove_entry(TEXT, ("sandbox", "list"), "nope"), [], []),
        (remove_entry(TEXT, ("no", "list"), "p"), [], []),
        (remove_key(TEXT, ("z",)), ['    "z": [1, 2,],'], []),
        (remove_key(TEXT, ("a",)), ['    "a": 1, // one'], []),
        (remove_key(TEXT, ("a", "b")), [], []),
    ],
)
def test_only_these_lines_change(after: str, out: list[str], into: list[str]) -> None:
    assert changed_lines(TEXT, after) == (out, into)
    assert "// head" in after and "/* why */" in after


def test_an_absent_file_gets_a_plain_layout() -> None:
    text = add_entry("", ("sandbox", "excludedCommands"), "docker")
    assert text == '{\n  "sandbox": {\n    "excludedCommands": ["docker"]\n  }\n}\n'


def test_adding_twice_adds_once_and_removing_removes_all() -> None:
    once = add_entry("{}", ("a",), "b")
    assert add_entry(once, ("a",), "b") == once
    assert parse_jsonc(remove_entry('{"a": ["b", "c", "b"]}', ("a",), "b")).root.value == {"a": ["c"]}


def test_habits_of_the_file_are_kept() -> None:
    windows = '\ufeff{\r\n\t"a": [\r\n\t\t1\r\n\t]\r\n}\r\n'
    after = add_entry(windows, ("a",), 2)
    assert after == '\ufeff{\r\n\t"a": [\r\n\t\t1,\r\n\t\t2\r\n\t]\r\n}\r\n'
    one_line = set_value('{"a":1}', ("b", "c"), True)
    assert parse_jsonc(one_line).root.value == {"a": 1, "b": {"c": True}}
    assert set_value('{"a":1}', ("b",), 2) == '{"a":1, "b": 2}'
    commas_first = '{\n  "a": 1\n  , "b": [\n    1\n  , 2\n  ]\n}'
    assert parse_jsonc(add_entry(commas_first, ("b",), 3)).root.value == {"a": 1, "b": [1, 2, 3]}
    assert set_value("{ // keep\n}", ("a",), 1) == '{ // keep\n  "a": 1\n}'


def test_true_and_one_are_not_the_same() -> None:
    assert set_value('{"a": 1}', ("a",), True) == '{"a": true}'


def test_an_edit_never_makes_a_bad_file_worse() -> None:
    with pytest.raises(JsoncError):
        set_value('{"a": ', ("b",), 1)
    with pytest.raises(SettingsError):
        set_value('{"a": 1}', ("a", "b"), 1)
    with pytest.raises(SettingsError):
        add_entry('{"a": {"b": "x"}}', ("a", "b"), "y")


# --- properties: any layout, any edit ---

_comment = st.sampled_from(["", "", " ", "\n", "\n  ", " // note\n", "/* note */", "/* a\n b */ ", "\r\n\t"])


@st.composite
def written(draw: Any, depth: int = 0) -> str:
    """A value as a user might have typed it."""

    def gap() -> str:
        return str(draw(_comment))

    kind = draw(st.sampled_from(["leaf", "list", "object"] if depth < 2 else ["leaf"]))
    if kind == "leaf":
        return str(draw(st.sampled_from(["1", '"x"', "true", '"// no, \\"]}"', "null", '"é"'])))
    entries = [str(draw(written(depth + 1))) for _ in range(draw(st.integers(0, 3)))]
    if kind == "object":
        entries = [f'"{name}"{gap()}:{gap()}{entry}' for name, entry in zip("abc", entries, strict=False)]
    tail = "," if entries and draw(st.booleans()) else ""
    body = ",".join(f"{gap()}{entry}{gap()}" for entry in entries) + tail + gap()
    return "{" + body + "}" if kind == "object" else "[" + body + "]"


@st.composite
def written_files(draw: Any) -> str:
    names = draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4))

    def gap() -> str:
        return str(draw(_comment))

    members = [f'{gap()}"{name}"{gap()}:{gap()}{draw(written())}{gap()}' for name in names]
    tail = "," if members and draw(st.booleans()) else ""
    return gap() + "{" + ",".join(members) + tail + gap() + "}" + gap()


def comments(text: str) -> list[str]:
    without_strings = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    return sorted(c.strip() for c in re.findall(r"//[^\n]*|/\*.*?\*/", without_strings, re.DOTALL))


@given(
    written_files(),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=3),
    st.sampled_from([1, "y", True, [1], {"q": 2}]),
)
def test_set_value_on_any_file(text: str, path: list[str], value: Any) -> None:
    wanted = parse_jsonc(text).root.value
    inner = wanted
    for step in path[:-1]:
        inner = inner.setdefault(step, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        with pytest.raises(SettingsError):
            set_value(text, tuple(path), value)
        return
    replaced = inner.get(path[-1])
    inner[path[-1]] = value
    after = set_value(text, tuple(path), value)
    assert json.dumps(parse_jsonc(after).root.value) == json.dumps(wanted)
    if not isinstance(replaced, list | dict):
        assert comments(after) == comments(text)


@given(written_files(), st.sampled_from("abcd"), st.sampled_from([1, "x", "new"]))
def test_lists_on_any_file(text: str, key: str, value: Any) -> None:
    wanted = parse_jsonc(text).root.value
    if key in wanted and not isinstance(wanted[key], list):
        with pytest.raises(SettingsError):
            add_entry(text, (key,), value)
        return
    added = add_entry(text, (key,), value)
    assert comments(added) == comments(text)
    assert add_entry(added, (key,), value) == added
    removed = parse_jsonc(remove_entry(added, (key,), value)).root.value
    assert value not in removed[key]
    assert [entry for entry in removed[key] if entry != value] == [e for e in wanted.get(key, []) if e != value]


@given(written_files(), st.lists(st.sampled_from("abcd"), min_size=1, max_size=2))
def test_remove_key_on_any_file(text: str, path: list[str]) -> None:
    wanted = parse_jsonc(text).root.value
    parent = wanted
    for step in path[:-1]:
        parent = parent.get(step) if isinstance(parent, dict) else None
    if isinstance(parent, dict):
        parent.pop(path[-1], None)
    assert parse_jsonc(remove_key(text, tuple(path))).root.value == wanted
