"""The spellings of one path. Pure.

`/tmp`, `/var` and `/etc` are links into `/private`, and the kernel compares real paths. Volumes keep the Unicode form
in which a name was typed, which may differ from a rule's."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Literal

from sandboxd.paths import is_below

_LINKED = ("/tmp", "/var", "/etc")
_SIGNS = re.compile("([\u212a\u037e\u1fef])")


def real_spelling(path: str) -> str:
    """Return the kernel's path. `/run` is `/var/run`, as in rules on sockets."""
    if is_below(path, "/run"):
        path = "/var" + path
    for link in _LINKED:
        if is_below(path, link):
            return "/private" + path
    return path


def path_spellings(path: str) -> tuple[str, ...]:
    """Return the real path, then its other spellings."""
    real = real_spelling(path)
    found = [real]
    for link in _LINKED:
        if is_below(real, f"/private{link}"):
            found.append(real.removeprefix("/private"))
    return _forms(found)


def expression_spellings(expression: str) -> tuple[str, ...]:
    """Return the spellings of an anchored expression with a literal beginning."""
    for link in _LINKED:
        for before in (f"^/private{link}", f"^{link}"):
            rest = expression[len(before) :]
            if expression.startswith(before) and rest[:1] in ("/", "(", "$", ""):
                return _forms([f"^/private{link}{rest}", f"^{link}{rest}"])
    return _forms([expression])


def _forms(texts: list[str]) -> tuple[str, ...]:
    forms = list(texts)
    for text in texts:
        if not text.isascii():
            forms += ["".join(_normalized(text, form)) for form in ("NFC", "NFD")]
    return tuple(dict.fromkeys(forms))


def _normalized(text: str, form: Literal["NFC", "NFD"]) -> Iterator[str]:
    """Normalise all but the signs that stand for an ASCII character, which expressions name beside it."""
    for part in _SIGNS.split(text):
        yield part if _SIGNS.fullmatch(part) else unicodedata.normalize(form, part)
