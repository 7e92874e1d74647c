"""Shell lines as they are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.commands.shell_syntax import MAX_TEXT, ParseObstacle, join_continuations, read_line
from sandboxd.policy.commands.shell_texts import nested_texts


def programs(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in read_line(text).commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b; c && d | e", [["a", "b"], ["c"], ["d"], ["e"]]),
        ("a $(b $(c)) `d`", [["a", "$(b $(c))", "`d`"], ["b", "$(c)"], ["c"], ["d"]]),
        ("if a; then b; else c; fi", [["a"], ["b"], ["c"]]),
        ("for x in $(a); do b; done", [["a"], ["b"]]),
        ("f() { a; }; f", [["a"], ["f"]]),
        ("X=$(a) b", [["b"], ["a"]]),
        ("a > $(b)", [["a"], ["b"]]),
        ("a <<E\n$(b)\nE\n", [["a"], ["b"]]),
        ('a "x $(b) y"', [["a", "x $(b) y"], ["b"]]),
        ("a ${x:-$(b)}", [["a", "${x:-$(b)}"], ["b"]]),
        ("a <(b)", [["a", "<(b)"], ["b"]]),
        ("export X=$(a)", [["export", "X=$(a)"], ["a"]]),
        ("a 'b'\"c\"d\\ e", [["a", "bcd e"]]),
        ("case $(a) in x) b;; esac", [["a"], ["b"]]),
        ("! a | { b; }", [["a"], ["b"]]),
        ("[[ $(a) ]] && b", [["a"], ["b"]]),
        ("a 2>x b", [["a", "b"]]),
        ("a >x -b <y c 2>&1 d", [["a", "-b", "c", "d"]]),
        ("a >$(x) b", [["a", "b"], ["x"]]),
        ("a <<E b\nE", [["a", "b"]]),
        ("a <<< x b", [["a", "b"]]),
        ("! a >x b", [["a", "b"]]),
        ("a && b >x c && d", [["a"], ["b", "c"], ["d"]]),
        ("a | b >x c", [["a"], ["b", "c"]]),
        ("(a) >x; { b; } >y; c >z", [["a"], ["b"], ["c"]]),
    ],
)
def test_every_program_is_found(text: str, expected: list[list[str]]) -> None:
    assert programs(text) == expected
    assert read_line(text).unreadable is None


@pytest.mark.parametrize(
    ("text", "obstacle"),
    [
        ("a $(b)", ParseObstacle.SUBSTITUTION),
        ("a <(b)", ParseObstacle.SUBSTITUTION),
        ("a > b", ParseObstacle.REDIRECTION),
        ("a <<< b", ParseObstacle.REDIRECTION),
        ("X=1", ParseObstacle.ASSIGNMENT),
        ("export X", ParseObstacle.ASSIGNMENT),
        ("unset X", ParseObstacle.ASSIGNMENT),
        ("f() { a; }", ParseObstacle.FUNCTION),
        ("function f { a; }", ParseObstacle.FUNCTION),
        ("a &", ParseObstacle.BACKGROUND),
        ("a & b", ParseObstacle.BACKGROUND),
        ("while a; do b; done", ParseObstacle.CONTROL),
        ("((x++))", ParseObstacle.CONTROL),
        ("a ${x@P}", ParseObstacle.EXPANSION),
        ("a $((1))", ParseObstacle.EXPANSION),
        ("a $'x'", ParseObstacle.EXPANSION),
    ],
)
def test_obstacles(text: str, obstacle: ParseObstacle) -> None:
    assert obstacle in read_line(text).obstacles


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a &&", "a | ", "(a", "a )", "a;;", "if a", "${", "a <<", "$(a"])
def test_what_is_not_valid_is_unreadable(text: str) -> None:
    assert read_line(text).unreadable


@pytest.mark.parametrize(
    "text",
    ["a " * 500_000, "(" * 100_000, "$(" * 100_000, "`" * 100_000, "{" * 10_000, "if " * 100_000, "a;" * 100_000,
     "<<A\n" * 50_000, "f()" * 50_000, "[[ (" * 50_000, "a\0b", "case x in " * 10_000, '"${x' * 50_000],
)  # fmt: skip
def test_long_and_hostile_lines_are_not_read(text: str) -> None:
    line = read_line(text)
    assert line.unreadable and not line.commands


def test_a_long_chain_is_no_recursion() -> None:
    assert len(programs("&&".join(["a"] * 500))) == 500
    assert read_line("a " * (MAX_TEXT // 2 - 1)).unreadable is None


def test_continued_lines() -> None:
    assert programs("a \\\n b") == [["a", "b"]]
    assert join_continuations("a\\\\\n b") == "a\\\\\n b"
    for text in ("a '\\\n'", "a # \\\nb", "a <<E\\\nE"):
        assert join_continuations(text) == text
    assert programs("a # \\\nb") == [["a"], ["b"]]


@pytest.mark.parametrize(
    "text",
    [
        "a <<E\n`b`\nE", "a <<-E\n\t$(b)\n\tE", 'a "${x:=`b`}"', "a `a \\`b\\``", "a <<E\n${x:-`b`}\nE",
        "a ${x@P}",
        "while a\ndo'' b; do c; done", "x# ; b\n=", "a >c ''\\;", "a 2>b c`d`e",
        "a >$ b", "a >$\nb", "a <$ b", "a 2>>$ b c", ">$ a b", "a <<< $ b",
        "a | X=1 >f b c", "cu`a`rl", "c a`b`d", "a; cu`b`rl x", "x=1`a`b c",
        "[ a || b ]", "[ a && b ]", "[ a | b ]", "[ a |& b >c ]",
        "[b]", "a; [b]", "[\nb ]", "[ -f a\nb ]", "[ a ] && [\nb ]",
        "a\x0bb", "a\rb", "a;\\ # b", "a\n\\\n 'b' c", "a\\\n'b'", "a>(b) c",
    ],
)  # fmt: skip
def test_what_the_grammar_overlooks_makes_a_line_unreadable(text: str) -> None:
    """Each runs `b`, or a program with an odd name, and the tree does not say so."""
    assert read_line(text).unreadable


@pytest.mark.parametrize(
    "text",
    [
        "a <<'E'\n`b` $(b)\nE", "a - <<\"E\"\n`b`\nE", "a '`' \\` \"\\`\" $'`'", "a # `b`",
        "a \\\n  'b' \\\n  c", "a 'b\u00a0c'",
        "a <(b) > >(c)", "a $((1+2))", "a `b` \"$(c)\"", "case $x in a) b;; esac", "[ -f a ] && b",
        "[[ a == b* ]] && b", "[ -f a -o \"$(c | d)\" ]", "[ a = 'b||c' ]", "[[ a &&\n b ]]", "[[\na ]]", "((x))",
        "[ a \\\n]",
    ],
)  # fmt: skip
def test_what_only_looks_like_it_does_not(text: str) -> None:
    assert read_line(text).unreadable is None


def test_a_line_that_begins_with_a_backslash_is_a_line() -> None:
    assert programs("a\n\\b c") == programs("a\n  \\b c") == [["a"], ["b", "c"]]


def test_scripts_in_arguments() -> None:
    def scripts(text: str) -> list[str]:
        return list(nested_texts(read_line(text)))

    assert scripts("sh -c 'a b'") == ["a b"]
    assert scripts("sudo /bin/bash -xec 'a' x") == ["a"]
    assert scripts("eval a b") == ["a b"]
    assert scripts("sh x.sh; a -c b") == []
    assert scripts("bash -e -c -- 'a' b") == ["a"]
    assert scripts("alias x='a b'; trap 'c d' EXIT; watch -n 1 e") == ["a b", "c d"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo 'a b' | sh", ["a b"]),
        ("(printf 'a\\n') | sudo bash", ["a\n"]),
        ("sh <<'E'\na b\nE", ["a b\n"]),
        ("cat <<E | sh\na b\nE", ["a b\n"]),
        ("bash <<< 'a b'", ["a b"]),
        ("echo 'a b'; sh x", []),
        ("cat <<E; sh x\na\nE", []),
        ("echo 'a b' | tee c", []),
    ],
)
def test_what_a_pipe_or_a_here_document_feeds_to_a_shell(text: str, expected: list[str]) -> None:
    fed = read_line(text).fed
    assert bool(fed) is bool(expected)
    assert all(script in "".join(fed) for script in expected)


@given(st.text("ab $(){}[]<>|&;'\"`\\\n#!*=-", max_size=60))
def test_any_text_is_read_or_said_to_be_unreadable(text: str) -> None:
    line = read_line(text)
    assert line.unreadable is None or line.unreadable
