"""Options as tables: what is accepted, and one clear line for what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.cli.arguments import Help, Option, UsageError, parse, suggestion, visible

OPTIONS = (
    Option("--flag", "a flag"),
    Option("--word", "a word", value="WORD"),
    Option("--many", "some", value="M", many=True),
    Option("--pick", "one of", value="P", only=("a", "b")),
    Option("-c", "text", value="TEXT"),
)


def test_all_kinds_of_options() -> None:
    parsed = parse(["--flag", "--word", "w", "--many=1", "--many", "2", "--pick=a", "-c", "x y", "rest", "-"], OPTIONS)
    assert parsed.values == {"flag": True, "word": "w", "many": ["1", "2"], "pick": "a", "c": "x y"}
    assert parsed.words == ["rest", "-"] and parsed.command is None
    assert "flag" in parsed and parsed.many("other") == [] and parsed.get("nothing") is None


def test_after_two_dashes_nothing_is_an_option() -> None:
    parsed = parse(["--flag", "--", "--word", "--", "-x"], OPTIONS)
    assert parsed.command == ["--word", "--", "-x"] and list(parsed.values) == ["flag"]
    assert parse(["--"], OPTIONS).command == []


def test_where_a_command_follows_the_first_word_ends_the_options() -> None:
    for arguments in (["--flag", "rm", "--word", "--", "-x"], ["--flag", "--", "rm", "--word", "--", "-x"]):
        parsed = parse(arguments, OPTIONS, runs=True)
        assert (list(parsed.values), parsed.words) == (["flag"], [])
        assert parsed.command == ["rm", "--word", "--", "-x"]
    assert parse(["--flag"], OPTIONS, runs=True).command is None


def test_a_value_may_look_like_an_option() -> None:
    assert parse(["--word", "--flag", "-c", "--"], OPTIONS).values == {"word": "--flag", "c": "--"}
    assert parse(["--word=--x=y"], OPTIONS).get("word") == "--x=y"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--wrod", "x"], "unknown option --wrod", "did you mean --word?"),
        (["--flg"], "unknown option --flg", "did you mean --flag?"),
        (["--wor", "x"], "unknown option --wor", "did you mean --word?"),
        (["-x"], "unknown option -x", "known: "),
        (["--zzzzz=1"], "unknown option --zzzzz", "known: --flag, --word"),
        (["-cx"], "unknown option -cx", ""),
        (["--word"], "--word needs a value: --word WORD", ""),
        (["--flag=1"], "--flag takes no value", ""),
        (["--word", "a", "--word", "b"], "--word is given twice", ""),
        (["--pick", "c"], "--pick must be a or b, not c", ""),
        (["--\x1b[31m"], "unknown option --\\x1b[31m", ""),
    ],
)
def test_mistakes(arguments: list[str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(arguments, OPTIONS)
    assert caught.value.message == message
    assert caught.value.hint.startswith(hint)


def test_help_is_known_everywhere() -> None:
    assert "help" in parse(["-h"], OPTIONS) and "help" in parse(["--help"], ())
    text = Help("x [OPTION]", "Do x.", OPTIONS, ("x --flag",), negative="not done").text()
    assert text.startswith("usage: sandboxd x [OPTION]\n\nDo x.\n") and "--word WORD  a word" in text
    assert text.endswith(
        "\nexample: sandboxd x --flag\nexit status: 0 done, 1 not done, 2 a wrong command line, 125 an error\n"
    )


def test_suggestions() -> None:
    assert suggestion("statsu", ("status", "stop")) == "did you mean status?"
    assert suggestion("qqq", ("status", "stop")) == "known: status, stop"


@given(st.text())
def test_visible_text_is_one_printable_line(text: str) -> None:
    assert visible(text).isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é", "plain é"),
        ("\x1b]52;c;x\x07", "\\x1b]52;c;x\\x07"),
        ("a\u202eb", "a\\u202eb"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
        ("a\nb", "a\\nb"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown
