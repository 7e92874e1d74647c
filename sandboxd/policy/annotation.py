"""What was blocked, as lines below a command's standard error, and back. Pure.

A block has a seal over the text before it, made with a key that no command knows. So text that only looks like a block
(a command may write what it likes) is never taken for one, and `strip` gives back exactly what `annotate` was given.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from sandboxd.policy.violation import Violation

BEGIN: Final = "<sandbox_violations>\n"
END: Final = "</sandbox_violations>"
MOST_LINES: Final = 20
_SEAL: Final = "seal "
_SEAL_LENGTH: Final = 32


def annotate(text: str, violations: Sequence[Violation], key: bytes, *, lost: int = 0) -> str:
    """`text` with one block of these violations at its end; as it was when there are none. A block that is there
    already is renewed. `lost` is how many there were beside them that nobody recorded."""
    text = strip(text, key)
    if not violations:
        return text
    lines = [line_of(violation) for violation in violations[:MOST_LINES]]
    if len(violations) > MOST_LINES:
        lines.append(f"and {len(violations) - MOST_LINES} more")
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
            return candidate
    return text


def line_of(violation: Violation) -> str:
    """One violation on one line, for people and models."""
    line = f"{violation.kind.value} {violation.operation} {violation.target}: {violation.outcome}"
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
