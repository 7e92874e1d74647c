"""Copies of files in which stand-ins take the place of secrets.

A file with links on the way to it, or with a second name, is replaced as a whole: a command may have led the mask to
another file, of which nothing must be shown."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from sandboxd.errors import HostError, way_out
from sandboxd.plan.masked_files import MaskedFile, copy_path
from sandboxd.proxy.credentials.request_heads import Secret, take_out
from sandboxd.runtime.credentials.credential_store import beginning

MOST_BYTES: Final = 1 << 20
MOST_VALUES: Final = 1000
_STOPS: Final = rb"(?:[\s,;:)\]}<>]|\Z)"
"""End of a value in quotes: what stands behind its last quote, and behind none within."""
_PLAIN: Final = re.compile(rb"(?:[^\s\"'<]|<(?![/!])|[\"'](?!" + _STOPS + rb"))*(?<![,;])")
_IN_QUOTES: Final = rb"(?:\\.|[^\\\r\n])*?(?=%b" + _STOPS + rb")"
_QUOTED: Final = {
    b'"': re.compile(_IN_QUOTES % b'"'),
    b"'": re.compile(_IN_QUOTES % b"'"),
    b">": re.compile(rb"[^<\r\n]*(?=<)"),
}
_GOES_ON: Final = re.compile(rb"[|>][0-9+-]*|.*\\|[\"']+", re.DOTALL)
"""A value that lines below belong to, or may."""
_BELOW: Final = re.compile(rb"\r?\n[ \t]+\S")

_UNFIT: Final = (
    "commands see a placeholder in place of a whole file, where a pattern of sandbox.credentials.mask is not; correct "
    "or remove the pattern"
)

StandIn = Callable[[str, bytes], bytes]
"""Returns what stands for the value with this name."""


def write_copy(file: MaskedFile, session_tmp: str, stand_in: StandIn, secrets: Sequence[Secret] = ()) -> str:
    """Write the copy of a file, unless it is as it should be; return a warning or "". Raises HostError."""
    content = _read(file.path)
    path, text = copy_path(session_tmp, file), masked(file, content, stand_in, secrets)
    pattern = "" if content is None else _unfit(file, content)
    told = f"{_UNFIT}: {file.path}, pattern {pattern}" if pattern else ""
    try:
        with open(path, "rb") as present:
            if present.read(len(text) + 1) == text:
                return told
    except OSError:
        pass
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        new = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o444)
        with open(new, "wb") as made:
            made.write(text)
        os.rename(f"{path}.new", path)
    except OSError as error:
        raise HostError(
            "credential_copy",
            f"cannot write the copy of {file.path}: {error.strerror}",
            hint=way_out(error, "free some disk space"),
        ) from None
    return told


def masked(file: MaskedFile, content: bytes | None, stand_in: StandIn, secrets: Sequence[Secret] = ()) -> bytes:
    """Return the copy of a file.

    All of it is secret without a pattern, where one fits nothing, or when it cannot be read safely. Values of
    credentials (`secrets`) are replaced wherever they stand."""
    made: set[bytes] = set()

    def replace(name: str, value: bytes) -> bytes:
        text = value if value in made else stand_in(name, value)
        made.add(text)
        return text

    shown = None
    if content is not None and file.patterns and not _unfit(file, content):
        shown = _replaced(file.path, file.patterns, content, replace)
    if shown is not None:
        shown = take_out(secrets, shown)
        made.update(secret.stand_in for secret in secrets)
        shown = _replaced(f"{file.path}#", file.further, shown, replace)
    return stand_in(file.path, (content or b"").strip()) + b"\n" if shown is None else shown


def _unfit(file: MaskedFile, content: bytes) -> str:
    """Return a pattern that is nowhere in a file: its secret has another form, and must not be shown."""
    if not content.strip():
        return ""
    return next((one for one in file.patterns if not re.search(beginning((one,)), content)), "")


def _replaced(name: str, patterns: Sequence[str], content: bytes, stand_in: StandIn) -> bytes | None:
    places: set[tuple[int, int]] = set()
    for pattern in patterns:
        found = _values(content, re.compile(beginning((pattern,))))
        if found is None:
            return None
        places.update(found)
    shown: list[bytes] = []
    at = 0
    for count, (start, end) in enumerate(_joined(places), 1):
        shown += content[at:start], stand_in(f"{name}#{count}", content[start:end])
        at = end
    return b"".join((*shown, content[at:]))


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return places without overlaps: what one pattern hides, another one does not show."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _values(content: bytes, begins: re.Pattern[bytes]) -> list[tuple[int, int]] | None:
    """Return where values begin and end; None where one does not end in its line, or there are too many."""
    found: list[tuple[int, int]] = []
    at = 0
    while (key := begins.search(content, at)) is not None:
        start = key.end()
        quote = content[start - 1 : start]
        if quote not in _QUOTED and content[start : start + 1] in _QUOTED:
            quote, start = content[start : start + 1], start + 1
        value = _QUOTED.get(quote, _PLAIN).match(content, start)
        if value is None or _GOES_ON.fullmatch(value[0]) or (not value[0] and _BELOW.match(content, start)):
            return None
        if value[0]:
            found.append(value.span())
        at = value.end()
    return found if len(found) <= MOST_VALUES else None


def _read(path: str) -> bytes | None:
    """Return the content of a file that no link leads to; None otherwise, and for one that is too large."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        at = os.open("/", flags | os.O_DIRECTORY)
        try:
            *above, name = path.strip("/").split("/")
            for step in above:
                inner = os.open(step, flags | os.O_DIRECTORY, dir_fd=at)
                os.close(at)
                at = inner
            descriptor = os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=at)
        finally:
            os.close(at)
        with open(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1 or state.st_size > MOST_BYTES:
                return None
            content = file.read(MOST_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= MOST_BYTES else None
