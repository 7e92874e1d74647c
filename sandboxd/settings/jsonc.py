"""Parser of JSON with comments and trailing commas, which keeps positions.

A `Document` is a tree of nodes with positions, so that a problem can name its line and `settings.jsonc_edit` can change
one value without the rest. No known library keeps positions and the text between values and refuses what JSON refuses:
JSON5 parsers accept single quotes, hexadecimal numbers and bare words, which other readers of the file would not.

Stricter than `json.loads`: a duplicate key, NUL, half a surrogate pair, NaN and nesting deeper than `MAX_DEPTH` are
errors. Grammar: RFC 8259 plus the comments of JSON with Comments."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from sandboxd.errors import SettingsError
from sandboxd_client.records import dataclass, field

MAX_BYTES = 4 * 1024 * 1024
"""The limit for a settings file, checked before parsing."""
MAX_PROJECT_BYTES = 256 * 1024
"""The limit for a file that a command may have written: parsing megabytes delays all clients by seconds."""
MAX_PROJECT_VALUES = 2000
"""The limit of keys and values in such a file, and one named by a call: a policy of very many rules delays all."""
MAX_DEPTH = 64
MAX_NUMBER_LENGTH = 64

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
  | (?P<line_comment>//[^\n]*)
  | (?P<block_comment>/\*.*?\*/)
  | (?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")
  | (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z_.]))
  | (?P<word>(?:true|false|null)(?![0-9A-Za-z_]))
  | (?P<mark>[{}\[\]:,])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None}
_FEWER = "replace rules about single files by one with a pattern, such as Read(secrets/**)"
_TRIVIA = frozenset({"space", "line_comment", "block_comment"})


class JsoncError(SettingsError):
    """The text is not JSON with comments. `data` has `line`, `column` and `offset`."""


@dataclass(frozen=True, slots=True)
class JsonNode:
    """One value, written as `text[start:end]`; `value` is the plain Python value."""

    start: int
    end: int
    value: Any
    members: tuple[Member, ...] = ()
    items: tuple[JsonNode, ...] = ()
    _by_key: dict[str, Member] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Index of the members, made at the first look-up: an object may have very many."""

    @property
    def is_object(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_array(self) -> bool:
        return isinstance(self.value, list)

    def member(self, key: str) -> Member | None:
        if self.members and not self._by_key:
            self._by_key.update((member.key.value, member) for member in reversed(self.members))
        return self._by_key.get(key)


@dataclass(frozen=True, slots=True)
class Member:
    key: JsonNode
    node: JsonNode


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed text without its byte-order mark; `had_mark` says that it had one."""

    text: str
    root: JsonNode
    had_mark: bool = False
    _lines: tuple[int, ...] = field(default=(), repr=False)

    def position(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset, both from 1, columns in characters."""
        return _position(self._lines, offset)

    def find(self, *path: str | int) -> JsonNode | None:
        """Return the node at a path of keys and indexes, or None."""
        node: JsonNode | None = self.root
        for step in path:
            if node is None:
                return None
            if isinstance(step, int):
                node = node.items[step] if 0 <= step < len(node.items) else None
            else:
                member = node.member(step)
                node = member.node if member else None
        return node


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    start: int
    end: int


def parse_jsonc(data: bytes | str, most: int | None = None) -> Document:
    """Parse a whole settings text, of at most this number of keys and values.

    Raises `JsoncError` (slugs `settings_too_large`, `settings_not_utf8`, `settings_nul`, `settings_empty`,
    `settings_syntax`, `settings_duplicate_key`, `settings_too_deep`, `settings_not_an_object`)."""
    text, had_mark = _decode(data)
    return _Parser(text, had_mark, most).document()


def tokens(text: str) -> Iterator[Token]:
    """Yield every token, white space and comments included; raises `JsoncError`."""
    offset, size = 0, len(text)
    while offset < size:
        match = _TOKEN.match(text, offset)
        if match is None:
            raise _bad_token(text, offset)
        yield Token(str(match.lastgroup), offset, match.end())
        offset = match.end()


def is_trivia(token: Token) -> bool:
    """Return whether a token is white space or a comment."""
    return token.kind in _TRIVIA


def _decode(data: bytes | str) -> tuple[str, bool]:
    if isinstance(data, bytes):
        if len(data) > MAX_BYTES:
            raise JsoncError(
                "settings_too_large",
                f"{len(data)} bytes, the limit is {MAX_BYTES}",
                hint="split the rules, or use patterns",
            )
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            before = data[: error.start]
            line = before.count(b"\n") + 1
            column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
            raise JsoncError(
                "settings_not_utf8",
                f"not UTF-8: byte 0x{data[error.start]:02x}",
                hint="save the file as UTF-8",
                data={"line": line, "column": column, "offset": error.start},
            ) from None
    else:
        text = data
    had_mark = text.startswith("\ufeff")
    return text.removeprefix("\ufeff"), had_mark


class _Parser:
    """Recursive descent over the significant tokens; `MAX_DEPTH` bounds the recursion."""

    def __init__(self, text: str, had_mark: bool, most: int | None) -> None:
        self.text = text
        self.most = most
        self.left = len(text) if most is None else most
        self.had_mark = had_mark
        self.lines = _line_starts(text)
        nul = text.find("\0")
        if nul >= 0:
            raise self.error("settings_nul", "contains a NUL character", nul, hint="replace the file by a text file")
        self.tokens = (token for token in tokens(text) if token.kind not in _TRIVIA)
        self.brackets: list[int] = []
        self.token = self.next()

    def document(self) -> Document:
        if self.token is None:
            raise self.error("settings_empty", "is empty", 0, hint="write an empty object into it, or delete it")
        root = self.value(0)
        if not self.at_end():
            raise self.syntax("unexpected text after the end of the settings")
        if not root.is_object:
            raise self.error("settings_not_an_object", "settings must be an object in { }", root.start)
        return Document(self.text, root, self.had_mark, self.lines)

    def next(self) -> Token | None:
        return next(self.tokens, None)

    def take(self) -> Token:
        token = self.token
        assert token is not None
        self.left -= self.text[token.start] not in ":,]}"
        if self.left < 0:
            message = f"has more than {self.most} keys and values, the limit here"
            raise self.error("settings_too_large", message, token.start, hint=_FEWER)
        self.token = self.next()
        return token

    def mark(self) -> str:
        """Return the current token if it is punctuation, else the empty string."""
        token = self.token
        return self.text[token.start] if token is not None and token.kind == "mark" else ""

    def at_end(self) -> bool:
        return self.token is None

    def at_string(self) -> bool:
        return self.token is not None and self.token.kind == "string"

    def value(self, depth: int) -> JsonNode:
        token = self.token
        if token is None:
            raise self.syntax("a value is missing")
        if token.kind == "mark":
            opening = self.text[token.start]
            if opening not in "{[":
                raise self.syntax(f"a value is missing before {opening!r}")
            if depth >= MAX_DEPTH:
                raise self.error("settings_too_deep", f"nested deeper than {MAX_DEPTH} levels", token.start)
            self.brackets.append(token.start)
            node = self.object(depth) if opening == "{" else self.array(depth)
            self.brackets.pop()
            return node
        self.take()
        return JsonNode(token.start, token.end, self.scalar(token))

    def object(self, depth: int) -> JsonNode:
        start = self.take().start
        members: list[Member] = []
        seen: dict[str, JsonNode] = {}
        while self.mark() != "}":
            if not self.at_string():
                raise self.syntax('expected a key in double quotes or "}"')
            token = self.take()
            key = JsonNode(token.start, token.end, self.scalar(token))
            if key.value in seen:
                line, column = _position(self.lines, seen[key.value].start)
                raise self.error(
                    "settings_duplicate_key",
                    f"duplicate key {key.value!r}, first in line {line}, column {column}",
                    key.start,
                    hint="merge the two values under one key",
                    first_line=line,
                    first_column=column,
                )
            seen[key.value] = key
            if self.mark() != ":":
                raise self.syntax("expected ':' after the key")
            self.take()
            members.append(Member(key, self.value(depth + 1)))
            if self.mark() == ",":
                self.take()
            elif self.mark() != "}":
                raise self.syntax("expected ',' or '}'")
        end = self.take().end
        return JsonNode(start, end, {str(m.key.value): m.node.value for m in members}, members=tuple(members))

    def array(self, depth: int) -> JsonNode:
        start = self.take().start
        items: list[JsonNode] = []
        while self.mark() != "]":
            items.append(self.value(depth + 1))
            if self.mark() == ",":
                self.take()
            elif self.mark() != "]":
                raise self.syntax("expected ',' or ']'")
        end = self.take().end
        return JsonNode(start, end, [item.value for item in items], items=tuple(items))

    def scalar(self, token: Token) -> Any:
        written = self.text[token.start : token.end]
        if token.kind == "word":
            return _WORDS[written]
        if token.kind == "number":
            if len(written) > MAX_NUMBER_LENGTH:
                raise self.error("settings_syntax", "the number is too long", token.start)
            return float(written) if set(written) & set(".eE") else int(written)
        return self.string(written[1:-1], token.start)

    def string(self, body: str, start: int) -> str:
        if "\\" not in body:
            return body
        value = _ESCAPE.sub(_unescape, body)
        if any("\ud800" <= character <= "\udfff" for character in value):
            # A pair of surrogates is written as two escapes, and stands for one character (RFC 8259, section 7).
            try:
                value = value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                raise self.error("settings_syntax", "half a surrogate pair in a string", start) from None
        if "\0" in value:
            raise self.error("settings_nul", "contains a NUL character", start)
        return value

    def syntax(self, message: str) -> JsoncError:
        offset = self.token.start if self.token is not None else len(self.text.rstrip())
        if self.token is None:
            message += ", but the text ends here"
        return self.error("settings_syntax", message, offset, hint=self.open_bracket())

    def open_bracket(self) -> str:
        """At the end of the text, name the bracket that is open."""
        if self.token is not None or not self.brackets:
            return ""
        line, column = _position(self.lines, self.brackets[-1])
        return f"the {self.text[self.brackets[-1]]} of line {line}, column {column} is not closed"

    def error(self, slug: str, message: str, offset: int, *, hint: str = "", **data: Any) -> JsoncError:
        line, column = _position(self.lines, offset)
        return JsoncError(slug, message, hint=hint, data={"line": line, "column": column, "offset": offset, **data})


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if code[0] == "u" else _ESCAPES[code]


_SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"<<<<<<<|=======|>>>>>>>"), "finish the merge: keep one of the two versions"),
    (re.compile(r"(?i:true|false|null|none|yes|no|on|off|undefined)\b"), "write true, false or null, in small letters"),
    (re.compile(r"(?i:nan|[+-]?infinity)|[+.]|-?0[0-9xX]|[0-9]"), "write a number as 12 or 0.5"),
    (re.compile(r"#"), "begin comments with //"),
    (re.compile(r"[A-Za-z_$]"), "put keys and texts in double quotes"),
    (re.compile(r"[\u2018-\u201f]"), 'write the quotes of JSON: "'),
    (re.compile(r"\s|\ufeff"), "write a plain space in place of this white space"),
    (re.compile(r";"), "separate values by commas"),
)
"""The beginning of text that is not a token, and the hint for it."""


def _bad_token(text: str, offset: int) -> JsoncError:
    hint = next((hint for pattern, hint in _SPELLINGS if pattern.match(text, offset)), "")
    rest = text[offset : offset + 2]
    if rest == "/*":
        message = "a comment is not closed"
    elif rest[0] == '"':
        line_end = text.find("\n", offset)
        whole = text[offset : line_end if line_end >= 0 else len(text)]
        message = (
            "a string has an invalid escape or control character" if '"' in whole[1:] else "a string is not closed"
        )
    elif rest[0] == "'":
        message = "a string in single quotes"
    else:
        message = f"unexpected {rest[0]!r}"
    line, column = _position(_line_starts(text), offset)
    return JsoncError("settings_syntax", message, hint=hint, data={"line": line, "column": column, "offset": offset})


def _line_starts(text: str) -> tuple[int, ...]:
    return (0, *(match.end() for match in re.finditer("\n", text)))


def _position(lines: tuple[int, ...], offset: int) -> tuple[int, int]:
    line = bisect_right(lines, offset)
    return line, offset - lines[line - 1] + 1
