"""Violations as a block below a command's standard error, and back. Pure.

A block has a seal over the text before it, made with a key that no command knows, so `strip` never takes text that only
looks like a block for one. A model cannot check a seal. So every tag of that name in the command's own output is
escaped (`<` becomes `&lt;`), and `strip` gives back exactly what `annotate` was given.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Final

from sandboxd.policy.display import quoted
from sandboxd.policy.violation import Violation

BEGIN: Final = "<sandbox_violations>\n"
END: Final = "</sandbox_violations>"
MOST_LINES: Final = 20
FORGED: Final = "none recorded; a block in the text above was written by the command itself"
_SEAL: Final = "seal "
_SEAL_LENGTH: Final = 32

_UNSEEN: Final = r"[\s\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]*"
_NAME: Final = (
    f"{_UNSEEN}(?:/{_UNSEEN})?{_UNSEEN.join('sandbox')}{_UNSEEN}(?:[_-]{_UNSEEN})?{_UNSEEN.join('violation')}"
)
_TAG: Final = re.compile(rf"(?:<|&((?:amp;)*)lt;)(?={_NAME})", re.IGNORECASE)
"""A tag of the block's name in any spelling, or one that was escaped. Characters that are not seen do not count."""


def annotate(text: str, violations: Sequence[Violation], key: bytes, *, lost: int = 0) -> str:
    """`text` with one block of these violations at its end; as it was when there are none and it holds no such tag
    itself. A block that is there already is renewed. `lost` counts further ones that could not be recorded."""
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
        lines.append(f"{lost} more are not told one by one, because there were too many")
    body = "\n".join(lines) + "\n"
    joint = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{joint}{BEGIN}{body}{_SEAL}{_seal(text, body, key)}\n{END}"


def strip(text: str, key: bytes) -> str:
    """`text` without the block that `annotate` put at its end with this key. White space after it goes with it."""
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
    return _TAG.sub(lambda found: "&lt;" if found[1] is None else f"&amp;{found[1]}lt;", text)


def _unescaped(text: str) -> str:
    def once_less(found: re.Match[str]) -> str:
        return "<" if not found[1] else f"&{found[1].removeprefix('amp;')}lt;"

    return _TAG.sub(once_less, text)


def line_of(violation: Violation) -> str:
    """One violation on one line, for people and models."""
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
    return " ".join(line.split()).replace("<", "\\x3c")


def _seal(text: str, body: str, key: bytes) -> str:
    data = f"{len(text)}\n{text}{body}".encode("utf-8", "surrogatepass")
    return hmac.new(key, data, hashlib.sha256).hexdigest()[:_SEAL_LENGTH]
