"""Constructs of the profile language that some macOS may refuse, and what stands in their place. Pure.

A daemon compiles a small profile for each construct when it starts. What is refused is expressed in another way, and
`check` names it. Text that takes the place of a parameter is ASCII: other letters of an expression become `[^ -~]+`,
which refuses more."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class Construct:
    """A doubtful construct: a rule to compile with parameter `X`, and the consequence of its absence."""

    name: str
    rule: str
    value: str
    instead: str


def whole_probe(constructs: Sequence[Construct]) -> tuple[str, dict[str, str]]:
    """Return a profile with all of these, and its parameters."""
    numbered = list(enumerate(constructs))
    text = " ".join(one.rule.replace('"X"', f'"X{number}"') for number, one in numbered)
    return f"(version 1) (allow default) {text}", {f"X{number}": one.value for number, one in numbered if one.value}


MESSAGE, REGEX, ADDRESS, TIOCSTI, EXTENSION, DOMAIN = "message", "regex", "address", "tiocsti", "extension", "domain"

CONSTRUCTS = (
    Construct(
        MESSAGE, '(deny file-write* (literal "/dev/null/x") (with message (param "X")))', "tag",
        "the tag of a command stands in the text of its profile",
    ),
    Construct(
        REGEX, '(deny file-write* (regex (param "X")))', "^/dev/null/x$",
        "expressions stand in the text of a profile, and a letter outside ASCII matches any other such letter",
    ),
    Construct(
        ADDRESS, '(deny network-outbound (remote ip (string-append "localhost:" (param "X"))))', "1",
        "ports stand in the text of a profile",
    ),
    Construct(
        TIOCSTI, "(deny file-ioctl (ioctl-command 2147578994))", "",
        "commands at a terminal get a pseudo-terminal of their own",
    ),
    Construct(
        EXTENSION, '(allow file-ioctl (extension "com.apple.sandbox.pty"))', "",
        "allowPty opens no new terminals",
    ),
    Construct(
        DOMAIN, '(allow user-preference-read (preference-domain "x"))', "",
        "preferences cannot be read, locale and language among them",
    ),
)  # fmt: skip

_PARAM = r'\(param "(\w+)"\)'
_WITHOUT = {
    TIOCSTI: r"\(deny file-ioctl \(ioctl-command [^)]*\)[^\n]*\n",
    EXTENSION: r"\n  \(require-all [^\n]*\n[^\n]*\n    \(extension [^)]*\)\)(?=\))",
    DOMAIN: r"\(allow user-preference-read[^\n]*\n(  \(preference-domain [^\n]*\n)+",
}


def _string(expression: str) -> str:
    """Write an expression as a string of the language: ASCII, backslashes and quotes doubled."""
    plain = re.sub(r"[^\x20-\x7e]+", "[^ -~]+", expression)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


_WRITTEN: Mapping[str, tuple[str, Callable[[str], str]]] = {
    REGEX: (rf"\(regex {_PARAM}\)", lambda value: f"(regex {_string(value)})"),
    ADDRESS: (rf'\(string-append "localhost:" {_PARAM}\)', lambda value: f'"localhost:{value}"'),
    MESSAGE: (rf"\(with message {_PARAM}\)", lambda value: f'(with message "{value}")'),
}


def express(text: str, parameters: Mapping[str, str], refused: frozenset[str]) -> tuple[str, dict[str, str]]:
    """Return a profile and its parameters without the refused constructs."""
    left = dict(parameters)
    for name, (pattern, write) in _WRITTEN.items():
        if name in refused:
            pieces = re.split(pattern, text)  # every second piece is the name of a parameter
            pieces[1::2] = [write(parameters[one]) for one in pieces[1::2]]
            left = {one: value for one, value in left.items() if one not in re.findall(pattern, text)}
            text = "".join(pieces)
    for name in refused & set(_WITHOUT):
        text = re.sub(_WITHOUT[name], "\n", text)
    return text, left
