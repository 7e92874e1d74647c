"""The commands of a shell line, as far as its text tells them.

The grammar is tree-sitter-bash. It is an editor's grammar: it recovers from mistakes and makes others, so its
answer is good for rules that *close* something, and for rules that open something only together with the second,
independent reading in `policy.commands.exclusion`. Whatever it marks as an error makes the line unreadable.

Text and shape are bounded before the parser sees them (some inputs cost it seconds), and the walk uses no recursion, so
a hostile line costs at most a few milliseconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from sandboxd.policy.commands.unseen_substitutions import overlooks_something
from sandboxd_client.records import dataclass

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_TEXT = 8 * 1024
MAX_BRACKETS = 256
MAX_STATEMENTS = 512


class ParseObstacle(StrEnum):
    """Constructs that make a line more than a series of commands."""

    SUBSTITUTION = "a substitution"
    EXPANSION = "an expansion"
    REDIRECTION = "a redirection"
    ASSIGNMENT = "an assignment"
    FUNCTION = "a function"
    BACKGROUND = "a background part"
    CONTROL = "a loop, condition or other construct"


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command.

    A word that is not `literal` holds an expansion or a pattern, and `text` is as written, without its outer quotes.
    `plain_variable` marks `$NAME` and `${NAME}`, which run nothing."""

    text: str
    literal: bool = True
    plain_variable: bool = False


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One program call; `assignments` are the `NAME=value` before it, as written."""

    words: tuple[Word, ...]
    assignments: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class ShellLine:
    """A shell line, as read; with `unreadable`, a reason, it may be incomplete.

    `fed` are the texts that a pipe, a here-document or a here-string hands to a shell. `plain`: there are only programs
    with arguments, in lists, pipes and substitutions."""

    commands: tuple[SimpleCommand, ...] = ()
    obstacles: tuple[ParseObstacle, ...] = ()
    unreadable: str | None = None
    fed: tuple[str, ...] = ()
    plain: bool = False


_CONTINUATION = re.compile(r"(?<!\\)((?:\\\\)*)\\\n")
_LINE_OF_BACKSLASH = re.compile(r"\n[ \t]*(?=\\[^\n])")
"""Places where the grammar takes the next line for an argument, unless a blank is between."""
_BRACKETS = re.compile(r"[(){}\[\]`]|<<|\b(?:if|case|for|while|until|select|function)\b")
_SEPARATORS = re.compile(r"[;&|\n]+")
_UNKNOWN = re.compile(r"[*?\[{$`<>(]|\A=")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_MAGIC = re.compile(r"[*?\[\]{}$`]")


def read_line(text: str) -> ShellLine:
    """Read a shell line; never raises, as `unreadable` holds the reason."""
    problem = _too_much(text)
    return _read(text) if problem is None else ShellLine(unreadable=problem)


@lru_cache(maxsize=256)
def _read(text: str) -> ShellLine:
    text = _LINE_OF_BACKSLASH.sub(r"\g<0> ", join_continuations(text))
    data = text.encode("utf-8", "surrogatepass")
    root = _parser().parse(data).root_node
    reader = _ShellReader()
    reader.walk(root)
    problem = None
    if root.has_error or reader.broken:
        problem = "it is not complete, valid shell text"
    elif overlooks_something(data, root):
        problem = "something in it may run more than can be seen"
    return ShellLine(
        tuple(reader.commands),
        tuple(dict.fromkeys(reader.obstacles)),
        problem,
        tuple(reader.texts_for_shells()),
        problem is None and _is_plain(data, root),
    )


def join_continuations(text: str) -> str:
    """Join continued lines, where quotes, here-documents and comments are absent."""
    if "\\\n" not in text or "'" in text or "#" in text or "<<" in text:
        return text
    return _CONTINUATION.sub(r"\1", text)


def _too_much(text: str) -> str | None:
    if len(text) > MAX_TEXT:
        return f"it is longer than {MAX_TEXT} characters"
    if _CONTROL.search(text):
        return "it contains a NUL or another control character"
    brackets = sum(1 for _ in _BRACKETS.finditer(text))
    if brackets > MAX_BRACKETS or sum(1 for _ in _SEPARATORS.finditer(text)) > MAX_STATEMENTS:
        return "it is too long-winded to be read"
    return None


@cache
def _parser() -> Parser:
    # Loaded with the first command that needs it: 10 ms that most daemons never spend.
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


_SERIES = frozenset({"program", "list", "pipeline", "subshell", "compound_statement", "negated_command"})
_IGNORED = frozenset({"comment", "file_descriptor", "heredoc_start", "heredoc_end", "heredoc_content", "variable_name"})
_FEEDING = frozenset({"pipeline", "redirected_statement", "heredoc_redirect", "herestring_redirect", "negated_command"})
_OBSTACLES = {
    "redirected_statement": ParseObstacle.REDIRECTION,
    "file_redirect": ParseObstacle.REDIRECTION,
    "heredoc_redirect": ParseObstacle.REDIRECTION,
    "herestring_redirect": ParseObstacle.REDIRECTION,
    "command_substitution": ParseObstacle.SUBSTITUTION,
    "process_substitution": ParseObstacle.SUBSTITUTION,
    "arithmetic_expansion": ParseObstacle.EXPANSION,
    "expansion": ParseObstacle.EXPANSION,
    "ansi_c_string": ParseObstacle.EXPANSION,
    "translated_string": ParseObstacle.EXPANSION,
    "variable_assignment": ParseObstacle.ASSIGNMENT,
    "variable_assignments": ParseObstacle.ASSIGNMENT,
    "declaration_command": ParseObstacle.ASSIGNMENT,
    "unset_command": ParseObstacle.ASSIGNMENT,
    "function_definition": ParseObstacle.FUNCTION,
}
_LAST_REDIRECTED = frozenset({"negated_command", "list", "pipeline"})
"""Nodes that the grammar redirects as a whole, where the shell redirects their last command."""
_ARGUMENTS = frozenset(
    {"word", "string", "raw_string", "number", "concatenation", "simple_expansion", "expansion", "ansi_c_string",
     "translated_string", "command_substitution", "process_substitution", "arithmetic_expansion"}
)  # fmt: skip
_WORDS = frozenset({"word", "string", "raw_string", "number", "concatenation", "simple_expansion", "string_content"})


class _ShellReader:
    def __init__(self) -> None:
        self.commands: list[SimpleCommand] = []
        self.obstacles: list[ParseObstacle] = []
        self.broken = False
        self._texts: list[tuple[int, str]] = []  # texts that a shell may be fed, with their places
        self._fed: list[tuple[int, int]] = []  # parts of the line that end in a shell

    def texts_for_shells(self) -> Iterator[str]:
        return (text for place, text in self._texts if any(start <= place < end for start, end in self._fed))

    def walk(self, root: Node) -> None:
        stack = [root]
        while stack:
            node = stack.pop()
            if node.is_error or node.is_missing:
                self.broken = True
            if not node.is_named:
                self.token(node)
                continue
            kind = node.type
            if kind in _IGNORED:
                continue
            if kind in ("heredoc_body", "herestring_redirect"):
                text = _text(node) if kind == "heredoc_body" else _resolve(node.children[-1]).text
                self._texts.append((node.start_byte, text))
            if kind == "redirected_statement" and _redirects_no_command(node):
                self.broken = True
            if kind == "command":
                self.command(node)
                # Assignments before the program are recorded with it; only their values are walked.
                for child in reversed(node.children):
                    stack.extend(reversed(child.children) if child.type == "variable_assignment" else (child,))
                continue
            elif kind in ("declaration_command", "unset_command"):
                self.obstacles.append(ParseObstacle.ASSIGNMENT)
                words = (_resolve(child) for child in node.children if child.type != "comment")
                self.commands.append(SimpleCommand(tuple(words), (), _text(node)))
            elif kind in _OBSTACLES and not _is_plain_variable(node):
                self.obstacles.append(_OBSTACLES[kind])
            elif kind not in _SERIES and kind not in _WORDS and kind != "command_name" and kind not in _OBSTACLES:
                self.obstacles.append(ParseObstacle.CONTROL)
            stack.extend(reversed(node.children))

    def token(self, node: Node) -> None:
        if node.type == "&":
            self.obstacles.append(ParseObstacle.BACKGROUND)
        elif node.type == ";;" and node.parent is not None and node.parent.type == "program":
            self.broken = True

    def command(self, node: Node) -> None:
        words: list[Word] = []
        assignments: list[str] = []
        for child in node.children:
            if child.type == "variable_assignment":
                assignments.append(_text(child))
            elif child.type == "command_name":
                words += (_resolve(inner) for inner in child.children)
            elif child.type not in ("file_redirect", "heredoc_redirect", "herestring_redirect", "comment"):
                words.append(_resolve(child))
        words += (_resolve(word) for word in _words_behind_redirections(node))
        self.commands.append(SimpleCommand(tuple(words), tuple(assignments), _text(node)))
        self.notice_texts(node, [word.text for word in words])

    def notice_texts(self, node: Node, texts: list[str]) -> None:
        """Keep the texts that a command prints, and the parts that a shell reads."""
        name = texts[0].rpartition("/")[2] if texts else ""
        if name in ("echo", "printf"):
            self._texts.append((node.start_byte, "\n".join((" ".join(texts[1:]), *texts[1:])).replace("\\n", "\n")))
        if any(text.rpartition("/")[2] in SHELLS for text in texts):
            top = node
            while top.parent is not None and top.parent.type in _FEEDING:
                top = top.parent
            self._fed.append((top.start_byte, top.end_byte))


_REDIRECTIONS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})


def _words_behind_redirections(command: Node) -> Iterator[Node]:
    """Yield arguments behind a redirection (`git 2>x push`)."""
    statement, end = command.parent, command.end_byte
    while statement is not None and statement.type in _LAST_REDIRECTED and statement.end_byte == end:
        statement = statement.parent
    for redirection in command.children + (statement.children if statement is not None else []):
        yield from _words_behind(redirection)


def _words_behind(redirection: Node) -> list[Node]:
    if redirection.type not in _REDIRECTIONS:
        return []
    named = [child for child in redirection.children if child.is_named and child.type in _ARGUMENTS]
    return named[0 if redirection.type == "heredoc_redirect" else 1 :]


def _redirects_no_command(statement: Node) -> bool:
    """Return whether words behind a redirection belong to no command of the tree: `a | X=1 >f b` runs b."""
    last: Node | None = statement.children[0]
    while last is not None and last.type in _LAST_REDIRECTED:
        last = last.children[-1] if last.children else None
    is_command = last is not None and last.type == "command"
    return not is_command and any(_words_behind(child) for child in statement.children)


_PLAIN = frozenset(
    """program list pipeline negated_command command command_name word string string_content raw_string number
    concatenation simple_expansion expansion variable_name special_variable_name command_substitution comment
    redirected_statement file_redirect file_descriptor""".split()
) | frozenset(["&&", "||", "|", "|&", ";", "\n", "&", "!", '"', "$", "$(", ")", "`", "${", "}"])
"""Nodes and tokens that only run the programs in them. Unknown ones are not plain."""
_PLAIN_REDIRECTION = re.compile(rb"[0-9]?(?:>>?|<|&>)[ \t]*/dev/null|[0-9]?>&[ \t]*[12]")
_IN_WORDS = re.compile(rb"[$`<>();&|\n]")


def _is_plain(data: bytes, root: Node) -> bool:
    stack = [root]
    while stack:
        node = stack.pop()
        kind, text = node.type, node.text or b""
        if kind in _REDIRECTIONS:
            # `{PATH}>x` sets PATH, so a blank has to part the redirection from the word before.
            parted = data[max(0, node.start_byte - 1) : node.start_byte] in (b"", b" ", b"\t")
            if not parted or _PLAIN_REDIRECTION.fullmatch(text) is None:
                return False
            continue
        if kind == "expansion" and not _is_plain_variable(node):
            return False
        if kind == "word" and _IN_WORDS.search(re.sub(rb"\\.", b"", text, flags=re.DOTALL)):
            return False
        if kind == "command_name" and b"=" in text:
            return False
        if kind == "concatenation" and node.parent is not None and node.parent.type == "command_name":
            return False
        if kind == "redirected_statement" and node.children[0].type not in ("command", *_LAST_REDIRECTED):
            return False
        if kind not in _PLAIN:
            return False
        stack.extend(node.children)
    return True


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "surrogatepass")


def _is_plain_variable(node: Node) -> bool:
    """Return whether a node is `${NAME}` with nothing else in the braces."""
    return node.type == "expansion" and re.fullmatch(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", _text(node)) is not None


def _resolve(node: Node) -> Word:
    """Return a word with its quotes and backslashes resolved, as the shell does."""
    raw = _text(node)
    if node.type == "raw_string":
        return Word(raw[1:-1])
    if node.type == "string":
        body = raw[1:-1]
        inner = [child for child in node.children if child.is_named and child.type != "string_content"]
        if not inner and _MAGIC.search(re.sub(r"\\.|[*?\[\]{}]", "", body, flags=re.DOTALL)) is None:
            return Word(re.sub(r'\\(["\\$`])', r"\1", body))
        return Word(body, False, all(_is_variable(child) for child in inner) and bool(inner))
    if node.type in ("word", "number"):
        return _unquoted(raw)
    if node.type == "ansi_c_string":
        return Word(_ANSI.sub(_ansi, raw[2:-1]), False)
    if node.type == "translated_string":
        return Word(_resolve(node.children[-1]).text, False)
    if node.type == "concatenation":
        parts = [_resolve(child) for child in node.children]
        contiguous = all(a.end_byte == b.start_byte for a, b in zip(node.children, node.children[1:], strict=False))
        text = "".join(part.text for part in parts)
        literal = contiguous and all(part.literal for part in parts)
        return Word(text, literal, not literal and all(part.literal or part.plain_variable for part in parts))
    return Word(raw, False, _is_variable(node))


_ANSI = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", re.DOTALL)
_ANSI_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "e": "\x1b", "E": "\x1b", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def _ansi(match: re.Match[str]) -> str:
    """Return the character of an escape between `$'` and `'`."""
    code = match[1]
    if code[0] in "xuU" and len(code) > 1:
        return chr(min(int(code[1:], 16), 0x10FFFF))
    return chr(int(code, 8) & 0xFF) if code[0] in "01234567" else _ANSI_LETTERS.get(code, code)


def is_known_name(word: Word) -> bool:
    """Return whether a program's name is known; its directory may be unknown."""
    return word.literal or not _UNKNOWN.search(word.text.rpartition("/")[2])


def _is_variable(node: Node) -> bool:
    return node.type == "simple_expansion" or _is_plain_variable(node)


def _unquoted(raw: str) -> Word:
    bare = re.sub(r"\\.", "", raw, flags=re.DOTALL)
    if _MAGIC.search(bare) or bare.startswith(("~", "=")) or "\\" in bare:
        return Word(raw, False)
    return Word(re.sub(r"\\(.)", r"\1", raw, flags=re.DOTALL))


SHELLS = frozenset("sh bash dash zsh ksh mksh ash busybox toybox fish csh tcsh".split())
"""Programs that run shell text: an argument, a file, or their standard input."""
