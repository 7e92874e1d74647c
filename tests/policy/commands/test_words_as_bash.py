"""Lines are read into the words that bash makes of them: what bash runs, with each argument, is in the reading."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.policy.commands.shell_syntax import SimpleCommand, Word, read_line
from support.fuzzing import examples

TELLER = r"""
command_not_found_handle() { printf '%s\0' "$#" "$@" >&9; [ "$1" != q ]; }
PATH=/nonexistent
eval -- "$1"
"""
"""No program is found, so bash tells of each with its arguments; `q` fails."""
PIECES = (
    "p", "q", "r", "p", "q", "a", "-x", "--", "1", "''", '""', "'x y'", '"x y"', "\\ ", "\\\\", "\\'", '\\"', '"\\""',
    '"\\a"', "'\\'", "a'b'\"c\"d", "#", "a#b", "x=1", "=", "~", "*", "{a,b}", "[a]", "[", "]", "?", "!", "\\\n",
    "\"a\nb\"", "'a\nb'", "$X", "${X}", '"$X"', "$'t\\tu'", "\\$X", "'$X'", "'(p)'", "\\;", "';'", "\\&", "time",
    "then", "do", "}", "{", "é", "%", "^", "@", ",", ":", "$(r)", "`r`", '"$(r)"',
)  # fmt: skip
JOINTS = (
    " ", " ", " ", " ", "  ", "\t", "", "; ", " && ", " || ", " | ", "\n", " & ", ";", " |& ", " >f ", " 2>&1 ", " <f ",
    " >>f ",
)  # fmt: skip
FRAMES = (
    "{}", "{}", "{}", "{}", "({})", "{{ {}; }}", "! {}", "if {}; then p z; fi", "for v in a; do {}; done", "{} # p q",
    "p <<E\n{}\nE", "p <<'E'\n{}\nE", "case a in a) {};; esac", "while {}; do break; done", "p <<< {}", "p $({})",
    'p "$({})"', "[ {} ]", "[[ {} ]]", "[\n{} ]",
)  # fmt: skip


@st.composite
def lines(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(("p", "q", "r")))
    for _ in range(draw(st.integers(1, 6))):
        text += draw(st.sampled_from(JOINTS)) + draw(st.sampled_from(PIECES))
    return draw(st.sampled_from(FRAMES)).format(text)


def run_by_bash(text: str) -> Iterator[tuple[str, ...]]:
    """Yield what bash runs, word by word."""
    with tempfile.TemporaryDirectory() as directory, open(f"{directory}/told", "w+b") as told:
        open(f"{directory}/f", "w").close()
        subprocess.run(
            ["/bin/bash", "--norc", "--noprofile", "-c", f'exec 9>"$0"; {TELLER}', told.name, text],
            cwd=directory, env={"X": "v w", "LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30, check=False,
        )  # fmt: skip
        words = told.read().decode(errors="surrogateescape").split("\0")[:-1]
    while words:
        count = int(words[0])
        yield tuple(words[1 : count + 1])
        del words[: count + 1]


def may_be(command: SimpleCommand, argv: tuple[str, ...]) -> bool:
    """Whether a command as read can be what bash ran."""
    for start, word in enumerate(command.words):
        if are_these(command.words[start:], argv):
            return True
        if word.text not in ("!", "time", "{", "then", "do", "-p", "--"):
            return False
    return False


def are_these(words: Sequence[Word], argv: tuple[str, ...]) -> bool:
    literal = [word.literal for word in words]
    known = len(words) if all(literal) else literal.index(False)
    same = tuple(word.text for word in words[:known]) == argv[:known]
    return same and (known < len(words) or known == len(argv))


def missed(text: str) -> list[tuple[str, ...]]:
    """Programs that bash runs of a readable line and that the reading has not."""
    line = read_line(text)
    if line.unreadable is not None:
        return []
    return [argv for argv in run_by_bash(text) if not any(may_be(command, argv) for command in line.commands)]


@settings(max_examples=examples(150))
@given(lines() | st.text("pqr pq ;&|<>()'\"`$#!\\\n{}[]=-*", max_size=24).map(lambda tail: "p " + tail))
def test_bash_runs_what_is_read(text: str) -> None:
    assert not missed(text)


@pytest.mark.parametrize(
    ("text", "ran"),
    [
        ("p 'a b'\\ c; q && r", [("p", "a b c"), ("q",)]),
        ("p $X | r \"$X\"", [("p", "v", "w"), ("r", "v w")]),
        ("p <<E\n$(r)\nE", [("p",), ("r",)]),
    ],
)  # fmt: skip
def test_bash_tells_what_it_runs(text: str, ran: list[tuple[str, ...]]) -> None:
    assert sorted(run_by_bash(text)) == ran
    assert not missed(text)


def test_a_missed_program_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read_line("p a")
    monkeypatch.setitem(globals(), "read_line", lambda text: reading)
    assert missed("p a; r b") == [("r", "b")]
