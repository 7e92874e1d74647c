"""Whether a command line is excluded from the sandbox (design 6.3). Pure. `docs/commands.md` has the table.

Excluded means: every program that the line runs is on the list, and there is nothing else in the line that could run,
read or write anything. Whatever cannot be decided is not excluded. Two readers have to agree on the words of the line:
the grammar of tree-sitter, and the standard library's `shlex`. Each has its mistakes, and they have different ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from sandboxd.policy.command_patterns import parse_command_pattern
from sandboxd.policy.policy import CommandRule
from sandboxd.policy.shell_programs import is_harmless_assignment, script_of, unwrap
from sandboxd.policy.shell_syntax import ShellLine, SimpleCommand, Word, join_continuations, read_line

MAX_SHELLS = 4
_PUNCTUATION = ";&|()<>\n"
_GROUPING = frozenset({"{", "}", "!"})


@dataclass(frozen=True, slots=True)
class Exclusion:
    """`why` is the rest of a sentence: "excluded because …" or "sandboxed because …"."""

    excluded: bool
    why: str
    rule: CommandRule | None = None


def decide_exclusion(rules: Sequence[CommandRule], command: str) -> Exclusion:
    """Decide for a whole command line."""
    if not rules:
        return Exclusion(False, "no command is excluded")
    return _decide(tuple(rules), command, MAX_SHELLS)


def _decide(rules: tuple[CommandRule, ...], text: str, shells: int) -> Exclusion:
    line = read_line(text)
    if line.unreadable:
        return Exclusion(False, f"what it runs cannot be told: {line.unreadable}")
    if line.obstacles:
        return Exclusion(False, f"it has {line.obstacles[0].value}")
    if not line.commands:
        return Exclusion(False, "it runs no program")
    if not _readers_agree(text, line):
        return Exclusion(False, "its words can be read in two ways")
    first: Exclusion | None = None
    for simple in line.commands:
        answer = _decide_simple(rules, simple, shells)
        if not answer.excluded:
            return answer
        first = first or answer
    assert first is not None
    return first


def _decide_simple(rules: tuple[CommandRule, ...], simple: SimpleCommand, shells: int) -> Exclusion:
    for assignment in simple.assignments:
        if not is_harmless_assignment(assignment):
            name = assignment.partition("=")[0]
            return Exclusion(False, f"it sets {name}, which can change what the program does")
    words: tuple[Word, ...] | None = simple.words
    while words:
        for word in words:
            if not (word.literal or word.plain_variable or _is_pattern(word)):
                return Exclusion(False, f"{word.text!r} is only known when it runs")
        rule = matching_rule(rules, words)
        if rule is not None:
            return Exclusion(True, f"it is on the list as {rule.pattern!r}", rule)
        script = script_of(words)
        if script is not None:
            if shells <= 0:
                return Exclusion(False, "shells are nested too deep")
            return _decide(rules, script, shells - 1)
        words = unwrap(words)
    return Exclusion(False, f"{simple.text[:80]!r} is not an excluded command")


def matching_rule(rules: Sequence[CommandRule], words: Sequence[Word]) -> CommandRule | None:
    """The rule that surely matches: a word that is not literal never equals a word of a pattern."""
    texts = [word.text if word.literal else "\0" + word.text for word in words]
    known = all(word.literal for word in words)
    for rule in rules:
        pattern = parse_command_pattern(rule.pattern)
        if (known or not pattern.wildcard) and pattern.matches(texts):
            return rule
    return None


def _is_pattern(word: Word) -> bool:
    """A file-name pattern or brace list in an argument: more arguments, and nothing runs."""
    return not word.literal and not any(character in word.text for character in "$`<>()")


def _readers_agree(text: str, line: ShellLine) -> bool:
    """Whether shlex finds the same commands with the same words. It cannot tell a quoted ";" from a separator: then
    the readers do not agree, which is the safe answer."""
    lexer = shlex.shlex(join_continuations(text), posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    lexer.commenters = "#"
    commands: list[list[str]] = [[]]
    try:
        for token in lexer:
            if not token.strip(_PUNCTUATION):
                commands.append([])
            elif commands[-1] or token not in _GROUPING:
                commands[-1].append(token)
    except ValueError:
        return False
    found = [[*simple.assignments, *(word.text for word in simple.words)] for simple in line.commands]
    return [command for command in commands if command] == found
