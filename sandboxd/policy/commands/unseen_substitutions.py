"""Detection of substitutions and word breaks that the shell grammar overlooks.

Those are backticks in a here-document, in a quoted default of an expansion or escaped within backticks, and words
parted by white space that the shell takes for a part of the word.

It knows where text is literal, where a substitution may begin, and the characters between two words. Text without a
node in the grammar makes the line unreadable, which is the safe answer for every kind of rule."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

_BEGINNING = re.compile(rb"\\.|`|\$\(", re.DOTALL)
_LITERAL = frozenset({"raw_string", "ansi_c_string", "comment", "heredoc_start"})
_SUBSTITUTIONS = frozenset({"command_substitution", "arithmetic_expansion", "process_substitution"})
_BEFORE = (b" ", b"\t", b"\n", b";", b"|", b"&", b"(", b"<", b">", b"=")
_BEFORE_COMMENT = (b"", b" ", b"\t", b"\n", b";", b"|", b"&", b"(", b")")
_ENDS_A_PROGRAM = re.compile(rb"[;&|<>\n]")
_WHOLE = _LITERAL | _SUBSTITUTIONS | {"string", "expansion"}
_IN_A_WORD = re.compile(rb"[^\s;&|()<>`]")
_PROMPT = re.compile(rb"@P\}\Z")
_CONTINUATION = re.compile(rb"\\\n")
_TEST = re.compile(rb"\[\[?[ \t]|\[\[\n|\(\(")
_BLANKS = b" \t\n-"
"""The hyphen is here because the grammar drops it as an argument before a here-document."""
_OPEN = frozenset(
    {"string", "translated_string", "heredoc_body", "heredoc_redirect", "expansion", "arithmetic_expansion"}
)
"""Nodes with text between their children."""


def overlooks_something(text: bytes, root: Node) -> bool:
    """Return whether `text` may run a program that its tree `root` does not show."""
    known: set[int] = set()
    literal: list[tuple[int, int]] = []
    ticks: list[tuple[int, int]] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type in _SUBSTITUTIONS:
            known.add(node.start_byte)
            if text[node.start_byte : node.start_byte + 1] == b"`":
                known.add(node.end_byte - 1)
                ticks.append((node.start_byte, node.end_byte))
        elif node.type == "comment" and text[: node.start_byte][-1:] not in _BEFORE_COMMENT:
            return True  # part of a word
        elif node.type in _LITERAL or (node.type == "heredoc_body" and _is_quoted(node)):
            literal.append((node.start_byte, node.end_byte))
            continue
        elif node.type == "expansion" and _PROMPT.search(node.text or b""):
            return True  # its value is expanded once more, as a prompt is
        elif _is_misread(text, node):
            return True
        elif node.type == "word" and (node.text or b"").startswith(b"\n"):
            return True  # a line that begins with a backslash, taken for an argument of the line before
        if node.type == "process_substitution" and text[: node.start_byte][-1:] not in _BEFORE:
            return True  # part of a word
        if node.type not in _OPEN and not _is_parted_by_blanks(text, node):
            return True
        stack.extend(node.children)
    return _has_unknown_beginning(text, known, sorted(literal), ticks)


def _has_unknown_beginning(
    text: bytes, known: set[int], literal: list[tuple[int, int]], ticks: list[tuple[int, int]]
) -> bool:
    position = 0
    for start, end in [*literal, (len(text), len(text))]:
        while (match := _BEGINNING.search(text, position, max(start, position))) is not None:
            position = match.end()
            if match[0] == b"\\\n" and _parts_oddly(text, match.start()):
                return True
            escaped = match[0].startswith(b"\\")
            if not escaped and match.start() not in known:
                return True
            if match[0] == b"\\`" and any(first < match.start() < last for first, last in ticks):
                return True
        position = max(position, end)
    return False


def _parts_oddly(text: bytes, place: int) -> bool:
    """Return whether a continued line breaks a word, as the grammar does there."""
    before, after = text[max(0, place - 64) : place], text[place + 2 : place + 3]
    within = before[-1:] not in (b" ", b"\t") and after not in (b" ", b"\t")
    return within or before.rstrip(b" \t")[-1:] in (b"", b"\n")


def _is_misread(text: bytes, node: Node) -> bool:
    if not node.is_named:  # a keyword that begins a word is none
        return node.type.isalpha() and _IN_A_WORD.match(text, node.end_byte) is not None
    if node.type == "simple_expansion" and any(
        one.end_byte != other.start_byte for one, other in pairwise(node.children)
    ):
        return True  # the word behind a lone `$`, taken for the name of a variable
    has_words = node.type == "command" or node.type.endswith("_redirect")
    return (has_words and _parts_a_word(node)) or (node.type == "test_command" and _is_no_test(node))


def _parts_a_word(node: Node) -> bool:
    """Return whether one word stands as two in the grammar, as in cu`true`rl."""
    others = ("_redirect", "_descriptor", "_body", "_start", "_end")
    parts = [child for child in node.children if child.is_named and not child.type.endswith(others)]
    return any(one.end_byte == other.start_byte for one, other in pairwise(parts))


def _is_no_test(node: Node) -> bool:
    """Return whether what the grammar takes for a test begins with a pattern (`[a]`), or is several programs.

    For the shell `[` is a program: in `[ a || b ]` it ends before the operator."""
    text = node.text or b""
    if not _TEST.match(text) or text.startswith((b"[[", b"((")):
        return not _TEST.match(text)
    plain, stack = bytearray(text), list(node.children)
    while stack:
        child = stack.pop()
        if child.type in _WHOLE:
            plain[child.start_byte - node.start_byte : child.end_byte - node.start_byte] = b" " * len(child.text or b"")
        else:
            stack.extend(child.children)
    return _ENDS_A_PROGRAM.search(_CONTINUATION.sub(b"", plain)) is not None


def _is_quoted(body: Node) -> bool:
    """Return whether a here-document has a quoted delimiter, so nothing expands."""
    start = body.parent and next((child for child in body.parent.children if child.type == "heredoc_start"), None)
    return start is not None and re.search(rb"['\"\\]", start.text or b"") is not None


def _is_parted_by_blanks(text: bytes, node: Node) -> bool:
    """Return whether only the shell's blanks stand between the children of a node."""
    end = 0 if node.parent is None else node.start_byte
    for child in node.children:
        if _CONTINUATION.sub(b"", text[end : child.start_byte]).strip(_BLANKS):
            return False
        end = max(end, child.end_byte)
    return True
