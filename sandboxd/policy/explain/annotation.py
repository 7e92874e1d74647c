"""The block of violations below a command's standard error.

A block has a seal over the text before it, made with a key that no command knows, so `strip` never takes text that only
looks like a block for one. A model cannot check a seal. So every tag of that name in the command's own output is
escaped (`<` becomes `&lt;`), in whatever look-alike letters and with whatever unseen characters in it, and `strip`
gives back exactly what `annotate` was given."""

from __future__ import annotations

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final

from sandboxd.policy.display import quoted
from sandboxd.policy.violation import Violation

BEGIN: Final = "<sandbox_violations>\n"
END: Final = "</sandbox_violations>"
MOST_LINES: Final = 20
FORGED: Final = "none recorded; the command itself wrote a block in the text above"
_SEAL: Final = "seal "
_SEAL_LENGTH: Final = 32

_BRACKETS: Final = (
    "<\uff1c\ufe64\u226e\u2039\u00ab\u02c2\u3008\u2329\u27e8\u276c\u276e\u2770\u2991\u29fc\u27ea\u300a\u226a\u22d8\u22d6"
    "\u227a\u1438"
)
"""Characters that are read as the beginning of a tag."""
_CODES: Final = {f"#x{ord(bracket):04x}": bracket for bracket in _BRACKETS[1:]} | {"lt": "<"}
_MARK: Final = re.compile(rf"([{_BRACKETS}])|&((?:amp;)*)({'|'.join(_CODES)});")
"""A beginning of a tag, plain or escaped."""
_ALIKE: Final = {
    letter: folded
    for folded, letters in {
        "s": "5\ua731\u0282\u0455\u054f\u13da\u13d5\ua4e2",
        "a": "4@\u0251\u1d00\u0430\u03b1\u13aa\ua4ee",
        "n": "\u0274\u039d\u0578\u057c\u03b7\ua4e0",
        "d": "\u0257\u1d05\u0501\u056a\u13a0\ua4d3",
        "b": "8\u0299\u0185\u0432\u044c\u03b2\u13f4\ua4d0",
        "o": "0\u1d0f\u043e\u03bf\u03c3\u0585\ua4f3",
        "x": "\u00d7\u0445\u03c7\ua4eb",
        "v": "\u1d20\u0475\u03bd\u2228\u22c1\u13d9\ua4e6",
        "i": "l1|!\u0131\u0269\u026a\u029f\u0456\u04cf\u03b9\u2223\u13a5\u13de\ua4e1\ua4f2",
        "t": "7\u1d1b\u0442\u03c4\u13a2\ua4d4",
        "/": "\\\u2044\u2215\u29f8\u2571",
        "_": "-.\u02cd\u2212\u00af\u203e",
        " ": "\u115f\u1160\u3164\uffa0\u2800",
    }.items()
    for letter in letters
}
"""Characters that are read as another one, in small letters; `i` stands for `l`, too."""
_PAIRS: Final = {"db": "D", "vi": "V"}
"""Signs of two letters, as U+33C8 is one."""
_UNSEEN: Final = " *+"
_WORDS: Final = ("sandbox", "vioiation")
_NAME: Final = re.compile(
    rf"{_UNSEEN}(?:/{_UNSEEN})?"
    + rf"{_UNSEEN}(?:_{_UNSEEN})?".join(
        _UNSEEN.join(word).replace(f"d{_UNSEEN}b", f"(?:d{_UNSEEN}b|D)").replace(f"v{_UNSEEN}i", f"(?:v{_UNSEEN}i|V)")
        for word in _WORDS
    )
)
"""The name of the block in folded text."""


_SEQUENCE: Final = re.compile(r"(?:\x1b\[|\x9b)[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
"""A terminal sequence, which clients do not show."""


class _Folds(dict[int, str]):
    """Table for `str.translate`: each character becomes the one it reads as."""

    def __missing__(self, code: int) -> str:
        folded = _folded(chr(code))
        if len(self) < _MOST_FOLDS:
            self[code] = folded
        return folded


def _folded(character: str) -> str:
    if character.isspace() or unicodedata.category(character) in _NOT_SEEN:
        return " "
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    seen = "".join(one for one in plain if unicodedata.category(one) not in _NOT_SEEN)
    if seen in _PAIRS:
        return _PAIRS[seen]
    seen = _ALIKE.get(seen, seen)
    if unicodedata.category(character) in ("Pc", "Pd"):
        return "_"
    return seen if len(seen) == 1 and seen in "sandboxvit/_ " else "."


_MOST_FOLDS: Final = 10_000
_NOT_SEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Mn", "Me", "Zs", "Zl", "Zp"})
_FOLDS: Final = _Folds()


def annotate(text: str, violations: Sequence[Violation], key: bytes, *, lost: int = 0) -> str:
    """Return `text` with one block of these violations at its end, renewed or new.

    Without violations and tags, `text` stays as it is. `lost` counts violations that could not be recorded."""
    plain = strip(text, key)
    text = _escaped(plain)
    if not violations and text == plain:
        return text
    lines = [line_of(violation) for violation in violations[:MOST_LINES]]
    if len(violations) > MOST_LINES:
        lines.append(f"and {len(violations) - MOST_LINES} more")
    if not violations:
        lines.append(FORGED)
    if lost:
        lines.append(f"{lost} more were too many to be listed")
    body = "\n".join(lines) + "\n"
    joint = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{joint}{BEGIN}{body}{_SEAL}{_seal(text, body, key)}\n{END}"


def strip(text: str, key: bytes) -> str:
    """Return `text` without the block of `annotate`, and white space after it."""
    whole = text.rstrip()
    if not whole.endswith("\n" + END):
        return text
    before, begin, block = whole[: -len(END)].rpartition(BEGIN)
    body, seal_word, seal = block.rpartition(_SEAL)
    if not begin or not seal_word or len(seal) != _SEAL_LENGTH + 1:
        return text
    for candidate in (before, before.removesuffix("\n")):
        if hmac.compare_digest(seal[:-1].encode("utf-8", "replace"), _seal(candidate, body, key).encode()):
            return _unescaped(candidate)
    return text


def _escaped(text: str) -> str:
    def once_more(found: re.Match[str]) -> str:
        if found[1] is None:
            return f"&amp;{found[2]}{found[3]};"
        return "&lt;" if found[1] == "<" else f"&#x{ord(found[1]):04x};"

    return _of_tags(text, once_more)


def _unescaped(text: str) -> str:
    def once_less(found: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1]
        return f"&{found[2].removeprefix('amp;')}{found[3]};" if found[2] else _CODES[found[3]]

    return _of_tags(text, once_less)


def _of_tags(text: str, changed: Callable[[re.Match[str]], str]) -> str:
    """Change the beginning of each tag of the name, in any look-alike spelling."""
    folded = _SEQUENCE.sub(lambda found: " " * len(found[0]), text).translate(_FOLDS)
    return _MARK.sub(lambda found: changed(found) if _NAME.match(folded, found.end()) else found[0], text)


def line_of(violation: Violation) -> str:
    """Return a violation as one line for display."""
    line = f"{violation.kind.value} {violation.operation} {quoted(violation.target)}: {violation.outcome}"
    if violation.count > 1:
        line += f", {violation.count} times"
    if violation.rule is not None:
        line += f", by the rule {violation.rule}"
    if violation.origin is not None:
        line += f" in {violation.origin}"
    if violation.inferred:
        line += " (guessed from the output)"
    if violation.hint:
        line += f" ({violation.hint})"
    return _MARK.sub(_shown, " ".join(line.split()))


def _shown(found: re.Match[str]) -> str:
    if found[1] is None:
        return found[0]
    return "\\x3c" if found[1] == "<" else f"\\u{ord(found[1]):04x}"


def _seal(text: str, body: str, key: bytes) -> str:
    data = f"{len(text)}\n{text}{body}".encode("utf-8", "surrogatepass")
    return hmac.new(key, data, hashlib.sha256).hexdigest()[:_SEAL_LENGTH]
