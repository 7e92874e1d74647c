"""Reads the text of a Seatbelt profile (SBPL, a dialect of TinyScheme) into lists, symbols and strings.

Strict: what the real reader might take in two ways is an error here, so a profile that passes means one thing only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


class SbplError(Exception):
    """The profile would not compile. `line` counts from 1, 0 where unknown."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.message = message
        self.line = line


class Symbol(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Form(list["Datum"]):
    """A parenthesised list, and the line it began in."""

    def __init__(self, items: list[Datum], line: int) -> None:
        super().__init__(items)
        self.line = line


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal. `raw` is #"…", in which a backslash is a backslash."""

    value: str
    raw: bool
    line: int


Datum = Symbol | Form | Text | int | float | bool

_SPACE = re.compile(r"(?:[ \t\r\n\f]|;[^\n]*(?:\n|\Z))+")
_ATOM = re.compile(r"""[^\s()'"`,;]+""")
_PLAIN = re.compile(r'[^"\\]+')
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_REAL = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)\Z")
_RADIX = {"#o": 8, "#x": 16, "#b": 2, "#d": 10}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_QUOTES = {"'": "quote", "`": "quasiquote", ",": "unquote", ",@": "unquote-splicing"}


def read_profile(text: str) -> list[Datum]:
    """Every top-level form. Raises SbplError."""
    return _Reader(text).forms()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._counted = 0

    def forms(self) -> list[Datum]:
        found: list[Datum] = []
        while not self._at_end():
            found.append(self._datum())
        return found

    def line(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _at_end(self) -> bool:
        space = _SPACE.match(self._text, self._at)
        if space:
            self._at = space.end()
        return self._at >= len(self._text)

    def _datum(self) -> Datum:
        if self._at_end():
            raise SbplError("the profile ends inside a form", self.line())
        line = self.line()
        character = self._text[self._at]
        if character == "(":
            self._at += 1
            return self._list(line)
        if character == ")":
            raise SbplError("a closing parenthesis without its opening one", line)
        if character == '"':
            self._at += 1
            return Text(self._string(line), False, line)
        if self._text.startswith('#"', self._at):
            self._at += 2
            return Text(self._raw_string(line), True, line)
        if character in "'`,":
            mark = ",@" if self._text.startswith(",@", self._at) else character
            self._at += len(mark)
            return Form([Symbol(_QUOTES[mark]), self._datum()], line)
        return self._atom(line)

    def _list(self, line: int) -> Form:
        items: list[Datum] = []
        while True:
            if self._at_end():
                raise SbplError("a parenthesis is not closed", line)
            if self._text[self._at] == ")":
                self._at += 1
                return Form(items, line)
            items.append(self._datum())

    def _string(self, line: int) -> str:
        parts: list[str] = []
        while True:
            plain = _PLAIN.match(self._text, self._at)
            if plain:
                parts.append(plain[0])
                self._at = plain.end()
            if self._at >= len(self._text):
                raise SbplError("a string is not closed", line)
            if self._text[self._at] == '"':
                self._at += 1
                return "".join(parts)
            parts.append(self._escape(line))

    def _escape(self, line: int) -> str:
        escaped = self._text[self._at + 1 : self._at + 2]
        if escaped == "x":
            digits = self._text[self._at + 2 : self._at + 4]
            if re.fullmatch("[0-9a-fA-F]{2}", digits) is None:
                raise SbplError("\\x without two digits", line)
            self._at += 4
            return chr(int(digits, 16))
        self._at += 2
        # TinyScheme drops the backslash of an escape it does not know: "\." is ".".
        return _ESCAPES.get(escaped, escaped)

    def _raw_string(self, line: int) -> str:
        end = self._text.find('"', self._at)
        if end < 0:
            raise SbplError("a string is not closed", line)
        value = self._text[self._at : end]
        if value.endswith("\\"):
            raise SbplError("a raw string that ends in a backslash: the quote may or may not be its end", line)
        self._at = end + 1
        return value

    def _atom(self, line: int) -> Datum:
        match = _ATOM.match(self._text, self._at)
        if match is None:
            raise SbplError(f"cannot read {self._text[self._at : self._at + 10]!r}", line)
        self._at = match.end()
        word = match[0]
        if word in ("#t", "#f"):
            return word == "#t"
        if _INTEGER.match(word):
            return int(word)
        if _REAL.match(word):
            return float(word)
        radix = _RADIX.get(word[:2])
        if radix is not None:
            try:
                return int(word[2:], radix)
            except ValueError:
                raise SbplError(f"not a number: {word}", line) from None
        if word.startswith("#"):
            raise SbplError(f"cannot read {word}", line)
        return Symbol(word)
