"""Decisions on exclusion: whether a command line runs outside the sandbox.

A line is excluded when every program that it runs is on the list, and nothing else in it could run, read or write
anything. Whatever cannot be decided is not excluded. Two readers with different mistakes have to agree on the words of
the line: the grammar of tree-sitter, and `shlex`. `docs/commands.md` has the table."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from sandboxd.policy.commands.command_patterns import MAX_PATTERN, parse_command_pattern
from sandboxd.policy.commands.shell_programs import is_harmless_assignment, runs_anything, script_of, unwrap
from sandboxd.policy.commands.shell_syntax import ShellLine, SimpleCommand, Word, join_continuations, read_line
from sandboxd.policy.commands.wide_programs import runs_others
from sandboxd.policy.model import CommandRule
from sandboxd.settings.origins import Origin, Source
from sandboxd_client.records import dataclass


class Lead(NamedTuple):
    """The real path of a program, or None, and why it is not certain."""

    real: str | None
    why: str = ""


Resolve = Callable[[str], Lead]
"""Look up where a path leads, or what a name without a slash runs."""

MAX_SHELLS = 4
_PUNCTUATION = ";&|()<>\n"
_GROUPING = frozenset({"{", "}", "!"})


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The answer for a line; `why` completes a sentence with "because"."""

    excluded: bool
    why: str
    rule: CommandRule | None = None


def path_as_written(path: str) -> Lead:
    """Resolve by text alone: plain names, and absolute paths without links."""
    if "/" not in path or (path.startswith("/") and posixpath.normpath(path) == path):
        return Lead(path)
    return Lead(None, f"where {path} leads is not known")


def decide_exclusion(rules: Sequence[CommandRule], command: str, resolve: Resolve = path_as_written) -> Exclusion:
    """Decide on a whole command line."""
    if not rules:
        return Exclusion(False, "no command is excluded")
    return _decide(tuple(rules), command, MAX_SHELLS, resolve)


def exclusion_patterns(command: str) -> tuple[str, ...]:
    """Return the exclusions that one program call could get, the narrowest first.

    Empty for a line of more than that, and for a program that runs what its arguments say."""
    line = read_line(command)
    if line.unreadable or line.obstacles or len(line.commands) != 1:
        return ()
    words = [word.text for word in line.commands[0].words if word.literal]
    if len(words) != len(line.commands[0].words) or any("*" in word for word in words):
        return ()
    patterns = [shlex.join(words)] if len(words) > 1 else []
    if len(words) > 1 and words[1][:1].isalpha():  # a subcommand
        patterns.append(f"{shlex.join(words[:2])}:*")
    patterns.append(f"{shlex.quote(words[0])}:*")
    origin = Origin(Source.LOCAL, "sandbox.excludedCommands")
    return tuple(
        pattern
        for pattern in dict.fromkeys(patterns)
        if len(pattern) <= MAX_PATTERN
        and not runs_others(parse_command_pattern(pattern))
        and decide_exclusion((CommandRule(pattern, origin),), command).excluded
    )


def why_never(text: str) -> str:
    """Return why an exclusion can match no command; empty where one could."""
    body = text.strip()
    for tail in (":*", " *"):
        body = body.removesuffix(tail)
    sample = body.replace("*", "x").strip()
    if sample.startswith("Bash("):
        return "Bash(…) is the form of a rule; an exclusion is the pattern alone"
    rule = CommandRule(text, Origin(Source.LOCAL, "sandbox.excludedCommands"))
    found = decide_exclusion((rule,), sample, Lead)
    return "" if found.excluded else found.why


def bare_pattern(text: str) -> str:
    """Return the pattern of a rule such as `Bash(yarn:*)`; any other text as it is."""
    body = text.strip()
    return body[len("Bash(") : -1] if body.startswith("Bash(") and body.endswith(")") else text


def is_exact(command: str) -> bool:
    """Return whether a command line stands for itself alone as a pattern."""
    text = command.strip()
    return len(text) <= MAX_PATTERN and text.isprintable() and "*" not in text and parse_command_pattern(text).is_exact


def _decide(rules: tuple[CommandRule, ...], text: str, shells: int, resolve: Resolve) -> Exclusion:
    line = read_line(text)
    if line.unreadable:
        return Exclusion(False, f"its programs are not certain: {line.unreadable}")
    if line.obstacles:
        return Exclusion(False, f"it has {line.obstacles[0].value}")
    if not line.commands:
        return Exclusion(False, "it runs no program")
    if not _readers_agree(text, line):
        return Exclusion(False, "its words can be read in two ways")
    resolve = resolving_in(line, resolve)
    first: Exclusion | None = None
    for simple in line.commands:
        answer = _decide_simple(rules, simple, shells, resolve)
        if not answer.excluded:
            return answer
        first = first or answer
    assert first is not None
    return first


_MOVING = frozenset({"cd", "pushd", "popd"})
_MOVED = re.compile(r"-C.*|--chdir(=.*)?|-D.*")
"""Options by which `env` and `sudo` start a program in another directory."""
MOST_PLACES = 16


def moves(line: ShellLine, but: Collection[str] = ()) -> bool:
    """Return whether a line may change the directory, except to one of `but`."""
    for simple in line.commands:
        texts = [word.text for word in simple.words]
        named = len(texts) == 2 and texts[0] == "cd" and texts[1] in but
        if not named and any(text in _MOVING or _MOVED.fullmatch(text) for text in texts):
            return True
    return False


def places_of(lines: Sequence[ShellLine]) -> tuple[str, ...]:
    """Return all directories that programs may start in; "" is the current one."""
    found = {"": None}
    for line in lines:
        for simple in line.commands:
            for word, following in zip(simple.words, (*simple.words[1:], Word("~")), strict=True):
                moved = _MOVED.fullmatch(word.text)
                if word.text not in _MOVING and not moved:
                    continue
                attached = re.sub(r"^(-C|-D|--chdir=?)", "", word.text) if moved else ""
                target = attached or following.text
                found |= {posixpath.join(place, target): None for place in [*found][:MOST_PLACES]}
                if len(found) > MOST_PLACES**2:
                    return tuple(found)
    return tuple(found)


def resolving_in(line: ShellLine, resolve: Resolve) -> Resolve:
    """Return `resolve`, without relative paths where the line moves elsewhere."""
    if not moves(line):
        return resolve

    def resolve_there(path: str) -> Lead:
        if "/" in path and not path.startswith(("/", "~")):
            return Lead(None, f"where {path} leads is not known behind a change of the directory")
        return resolve(path)

    return resolve_there


def _decide_simple(rules: tuple[CommandRule, ...], simple: SimpleCommand, shells: int, resolve: Resolve) -> Exclusion:
    for assignment in simple.assignments:
        if not is_harmless_assignment(assignment):
            name = assignment.partition("=")[0]
            return Exclusion(False, f"it sets {name}, which can change what the program does")
    words: tuple[Word, ...] | None = simple.words
    while words:
        for word in words:
            if not (word.literal or word.plain_variable or _is_pattern(word)):
                return Exclusion(False, f"{word.text!r} is only known when it runs")
        rule = _excluding_rule(rules, words, resolve)
        script, inner = script_of(words), unwrap(words)
        if rule is None and script is None and inner is None:
            path = path_of(words[0])
            why = "" if path is None else resolve(path).why
            return Exclusion(False, why or f"{simple.text[:80]!r} is not an excluded command")
        lead = resolve(path_of(words[0]) or words[0].text)
        if lead.real is None or lead.why:
            return Exclusion(False, lead.why)
        if rule is not None:
            return Exclusion(True, f"it is on the list as {rule.pattern!r}", rule)
        if script is not None:
            if shells <= 0:
                return Exclusion(False, "shells are nested too deep")
            return _decide(rules, script, shells - 1, resolve)
        words = inner
    return Exclusion(False, f"{simple.text[:80]!r} is not an excluded command")


def _excluding_rule(rules: Sequence[CommandRule], words: Sequence[Word], resolve: Resolve) -> CommandRule | None:
    """Return the rule for a program; a path means the file that it leads to."""
    program = words[0].text
    if "/" not in program:
        return matching_rule([rule for rule in rules if "/" not in _head_and_rest(rule.pattern)[0]], words)
    path = path_of(words[0])
    lead = Lead(None) if path is None else resolve(path)
    if lead.real is None or lead.why:
        return None
    return rule_of_path(rules, words, lead.real, resolve)


def path_of(word: Word) -> str | None:
    """Return the path that a word names; a quoted `~` is an ordinary name."""
    if "/" not in word.text:
        return None
    if word.literal:
        return f"./{word.text}" if word.text.startswith("~") else word.text
    home = word.text.startswith("~/") and not re.search(r"[*?\[\]{}$`\\]", word.text)
    return word.text if home else None


def rule_of_path(
    rules: Sequence[CommandRule], words: Sequence[Word], real: str, resolve: Resolve, *, by_text: bool = False
) -> CommandRule | None:
    """Return the rule about the program file `real` and the arguments of `words`."""
    for rule in rules:
        head, rest = _head_and_rest(rule.pattern)
        if "/" in head and _leads_to(head, real, resolve):
            behind = (Word("program"), *(Word(word.text) if by_text else word for word in words[1:]))
            if matching_rule([CommandRule(f"program {rest}".strip(), rule.origin)], behind) is not None:
                return rule
    return None


def head_of(text: str) -> str:
    """Return the program of a pattern, as it is written."""
    return _head_and_rest(text)[0]


def _head_and_rest(text: str) -> tuple[str, str]:
    """Return the program of a pattern, and its arguments' pattern."""
    pattern = parse_command_pattern(text)
    if pattern.wildcard:
        head, _, rest = "*".join(pattern.wildcard).partition(" ")
    else:
        head, rest = "".join(pattern.words[:1]), shlex.join(pattern.words[1:])
    return head, f"{rest} *" if rest and pattern.open_ended else rest


def _leads_to(head: str, real: str, resolve: Resolve) -> bool:
    """Return whether a pattern's program is this file; `*` is a part of one name."""
    fixed, star, _ = head.partition("*")
    name = posixpath.basename(real)
    if not star:
        return resolve(head).real == real and (posixpath.basename(head) == name or not runs_anything(name))
    directory = fixed[: fixed.rindex("/") + 1] if "/" in fixed else ""
    above = directory.rstrip("/") or "/"
    base = resolve(above if "/" in above else f"{above}/").real if directory else None
    if base is None or runs_anything(name):
        return False
    expected = head[len(directory) :].split("/")
    found = real[len(base.rstrip("/")) + 1 :].split("/") if real.startswith(base.rstrip("/") + "/") else []
    parts = ("[^/]*".join(map(re.escape, part.split("*"))) for part in expected)
    return len(found) == len(expected) and all(map(re.fullmatch, parts, found))


def matching_rule(rules: Sequence[CommandRule], words: Sequence[Word]) -> CommandRule | None:
    """Return the rule that surely matches: only literal words can be equal."""
    texts = [word.text if word.literal else "\0" + word.text for word in words]
    known = all(word.literal for word in words)
    for rule in rules:
        pattern = parse_command_pattern(rule.pattern)
        if (known or not pattern.wildcard) and pattern.matches(texts):
            return rule
    return None


def _is_pattern(word: Word) -> bool:
    """Return whether a word is a file pattern or brace list: it runs nothing."""
    return not word.literal and not any(character in word.text for character in "$`<>()")


def _readers_agree(text: str, line: ShellLine) -> bool:
    """Return whether shlex finds the same commands with the same words."""
    # shlex takes a quoted ";" for a separator: the readers disagree then, which is the safe answer.
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
