"""The words that are executed, and that a real shell takes a cut text as if it had come whole."""

from __future__ import annotations

import subprocess

import pytest

from sandboxd.errors import CallerError, PolicyError
from sandboxd.plan.command import LONGEST_WORD, MAX_COMMAND, MAX_WORD, command_argv
from sandboxd.plan.request import Argv, ShellText

SHELLS = (("/bin/bash", "/usr/bin/bash"), ("/bin/sh", "/usr/bin/dash"))


def test_a_program_and_a_shell_line() -> None:
    assert command_argv(Argv(("a", "b c", "")), SHELLS) == ("a", "b c", "")
    assert command_argv(ShellText("echo hi"), SHELLS) == ("/usr/bin/bash", "-c", "echo hi")
    assert command_argv(ShellText("x", "zsh"), ()) == ("zsh", "-c", "x")


@pytest.mark.parametrize(
    ("command", "slug"),
    [
        (Argv(("a\0b",)), "command_nul"), (ShellText("echo\0"), "command_nul"),
        (ShellText("é" * 90_000 + "\0"), "command_nul"),
        (Argv(()), "command_empty"), (Argv(("",)), "command_empty"),
        (Argv(("a", "x" * (MAX_WORD + 1))), "command_too_long"), (ShellText("x" * MAX_COMMAND), "command_too_long"),
        (Argv(("x" * 1000,) * 2000), "command_too_long"),
    ],
)  # fmt: skip
def test_what_no_program_can_receive(command: Argv | ShellText, slug: str) -> None:
    with pytest.raises(CallerError) as caught:
        command_argv(command, SHELLS)
    assert caught.value.slug == slug and caught.value.hint


@pytest.mark.parametrize("shell", [None, "/usr/bin/zsh"])
def test_a_shell_that_cannot_be_seen(shell: str | None) -> None:
    with pytest.raises(PolicyError) as caught:
        command_argv(ShellText("x", shell), ())
    assert caught.value.slug == "shell_unavailable"


TAIL = "printf '%s\\n' \"$@\"\ncat <<E\n$(echo here)\nE\nexit 7"


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
@pytest.mark.parametrize("letter", ["x", "é", "€", "\udcff"])
@pytest.mark.parametrize("size", [LONGEST_WORD - 60, LONGEST_WORD + 1, 300_000])
def test_a_long_text_runs_as_if_it_were_short(shell: str, letter: str, size: int) -> None:
    size //= len(letter.encode("utf-8", "surrogateescape"))
    text = f"#! not a program\nv='{letter * size}'\necho $#:$0:${{#v}}\n" + TAIL
    words = command_argv(ShellText(text, shell), ((shell, shell),))
    assert all(len(word.encode("utf-8", "surrogateescape")) <= MAX_WORD for word in words)
    done = subprocess.run(words, capture_output=True, env={"LC_ALL": "C"})
    count = len((letter * size).encode("utf-8", "surrogateescape"))
    assert done.stdout.decode() == f"0:{shell}:{count}\n\nhere\n"
    assert (done.returncode, done.stderr) == (7, b"")


def test_line_numbers_in_messages_stay_right() -> None:
    done = subprocess.run(
        command_argv(ShellText("#" * 200_000 + "\nnothing-of-that-name", "/bin/bash"), (("/bin/bash", "/bin/bash"),)),
        capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin"},
    )  # fmt: skip
    assert "line 2: nothing-of-that-name" in done.stderr
