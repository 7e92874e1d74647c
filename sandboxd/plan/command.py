"""The argv of a command. Pure.

The kernel limits one argument to 128 KiB (MAX_ARG_STRLEN, execve(2)). A longer shell text is passed in pieces that the
shell joins again, with nothing left in its positional parameters (`_joiner`)."""

from __future__ import annotations

from collections.abc import Sequence

from sandboxd.errors import CallerError, PolicyError
from sandboxd.plan.request import Argv, ShellText

MAX_WORD = 128 * 1024 - 1
LONGEST_WORD = 120 * 1024
"""Longer shell texts are cut; less than MAX_WORD, so that no piece reaches the limit."""
MAX_COMMAND = 1536 * 1024
"""The limit for all words. The kernel's limit for arguments and environment is a quarter of the stack limit, 2 MiB by
default."""


def command_argv(command: Argv | ShellText, shells: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the argv; `shells` are names and canonical paths of visible shells."""
    if isinstance(command, Argv):
        return _checked(command.words)
    shell = _shell(command, shells)
    size, options = _size(command.text), ("-l", "-c") if command.login else ("-c",)
    if size <= LONGEST_WORD:
        return _checked((shell, *options, command.text))
    if shell.endswith("/fish"):
        raise _too_long(f"a line for fish has {size:,} bytes; {LONGEST_WORD:,} can be handed over")
    pieces = _cut(command.text, size)
    return _checked((shell, *options, _joiner(len(pieces)), shell, *pieces))


def _shell(command: ShellText, shells: Sequence[tuple[str, str]]) -> str:
    if command.shell is not None and not command.shell.startswith("/"):
        return command.shell
    if shells:
        return shells[0][1]
    name = command.shell or "/bin/sh"
    raise PolicyError(
        "shell_unavailable",
        f"the shell {name} does not exist in the sandbox",
        hint="name another shell, for example: sandboxd run --shell bash -c …",
        data={"shell": name},
    )


def _joiner(count: int) -> str:
    """Return a shell text that runs its joined arguments as `-c` would.

    The words of `eval` are expanded before it runs, so the text stays when `shift` removes the parameters. `shift` is
    on the first line, so that line numbers in messages stay right."""
    joined = "".join(f"${{{number}}}" for number in range(1, count + 1))
    return f'eval "shift {count}; {joined}"'


def _cut(text: str, size: int) -> list[str]:
    """Cut a text into pieces of at most LONGEST_WORD bytes, between characters."""
    if size == len(text):
        return [text[start : start + LONGEST_WORD] for start in range(0, len(text), LONGEST_WORD)]
    step = LONGEST_WORD // 4
    return [text[start : start + step] for start in range(0, len(text), step)]


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def _checked(words: tuple[str, ...]) -> tuple[str, ...]:
    total = 0
    for word in words:
        if "\0" in word:
            raise CallerError("command_nul", "the command contains a NUL character", hint="remove the NUL character")
        size = _size(word)
        total += size + 1
        if size > MAX_WORD:
            raise _too_long(f"one argument has {size:,} bytes; the system allows {MAX_WORD:,}")
    if total > MAX_COMMAND:
        raise _too_long(f"it has {total:,} bytes; {MAX_COMMAND:,} can be handed over")
    if not words or not words[0]:
        raise CallerError("command_empty", "the command is empty", hint="give a program or a shell line")
    return words


def _too_long(detail: str) -> CallerError:
    return CallerError(
        "command_too_long",
        f"the command is too long: {detail}",
        hint="write it to a file in the working directory and run that",
    )
