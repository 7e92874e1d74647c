"""Untrusted text is shown, never obeyed."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.display import LONGEST, neutralise


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain.test:80", "plain.test:80"),
        ("müsli/日本", "müsli/日本"),
        ("a\nb\r", "a\\x0ab\\x0d"),
        ("\x1b]52;c;AAAA\x07", "\\x1b]52;c;AAAA\\x07"),
        ("a\u202etest", "a\\u202etest"),
        ("a\U000e0041", "a\\U000e0041"),
        ("\u2028", "\\u2028"),
        ("\udcff", "\\udcff"),
        ("\x7f\x9b", "\\x7f\\x9b"),
    ],
)
def test_hidden_characters_become_visible(text: str, shown: str) -> None:
    assert neutralise(text) == shown


@given(st.text())
def test_nothing_hidden_is_left(text: str) -> None:
    shown = neutralise(text)
    assert all(unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} for c in shown)


def test_long_text_is_cut() -> None:
    assert neutralise("x" * 5000) == "x" * LONGEST + "…"
