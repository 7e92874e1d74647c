"""Patterns for commands, beyond the table of docs/commands.md."""

from __future__ import annotations

import pytest

from sandboxd.policy.commands.command_patterns import CommandPatternError, parse_command_pattern, parse_exclusion


@pytest.mark.parametrize("text", ["", " ", "*", "**", ":*", " :*", "* *", " * ", "*:*"])
def test_an_exclusion_of_everything_is_an_error(text: str) -> None:
    with pytest.raises(CommandPatternError) as caught:
        parse_exclusion(text)
    assert caught.value.slug in ("command_pattern_matches_all", "command_pattern_empty")
    assert caught.value.hint


@pytest.mark.parametrize("text", ["* build", "*docker", "* *x"])
def test_an_exclusion_names_its_program(text: str) -> None:
    with pytest.raises(CommandPatternError):
        parse_exclusion(text)
    parse_command_pattern(text)


@pytest.mark.parametrize("text", ["a\nb", "a\0b", "'a", "a" * 2000])
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(CommandPatternError):
        parse_command_pattern(text)


def test_a_rule_for_everything_is_fine_where_it_closes() -> None:
    for text in ("*", ":*"):
        assert parse_command_pattern(text).matches_all
        assert parse_command_pattern(text).matches(["anything"])


def test_words_with_spaces_do_not_pretend_to_be_several() -> None:
    assert not parse_command_pattern("uv run:*").matches(["uv run", "x"])
    assert not parse_command_pattern("npm run build").matches(["npm", "run build"])
    assert not parse_command_pattern("git push *x").matches(["git push", "x"])
    assert parse_command_pattern("echo 'a b'").matches(["echo", "a b"])


def test_names_by_directory() -> None:
    pattern = parse_command_pattern("curl:*")
    assert not pattern.matches(["/usr/bin/curl"])
    assert pattern.matches(["/usr/bin/curl", "x"], by_name=True)
    assert parse_command_pattern("/usr/bin/curl").matches(["/usr/bin/curl", "x"])
    assert not pattern.matches(["curl/"], by_name=True)
    assert not pattern.matches([], by_name=True)


def test_a_wildcard_takes_linear_time() -> None:
    pattern = parse_command_pattern("a" + "*a" * 400 + "*b")
    assert not pattern.matches(["a" * 8000])
    assert pattern.matches(["a" * 8000 + "b"])


@pytest.mark.parametrize(
    ("pattern", "words", "matches"),
    [
        ("a*b", "ab", True),
        ("a*b", "a b", True),
        ("a*b", "axb b", True),
        ("a*b", "a", False),
        ("ab*ba", "aba", False),
        ("a *b:*", "a xb", True),
        ("a *b:*", "a xbc xb y", True),
        ("a *b:*", "a xbc", False),
        ("a **  c", "a b c", True),
        ("a*:*", "abc d", True),
        ("a*:*", "b", False),
    ],
)
def test_wildcards(pattern: str, words: str, matches: bool) -> None:
    assert parse_command_pattern(pattern).matches(words.split()) is matches
