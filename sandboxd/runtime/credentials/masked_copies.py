"""Copies of files in which stand-ins take the place of secrets.

A file with links on the way to it, or with a second name, is replaced as a whole: a command may have led the mask to
another file, of which nothing must be shown."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from typing import Final

from sandboxd.errors import HostError
from sandboxd.plan.masked_files import MaskedFile, copy_path
from sandboxd.proxy.credentials.request_heads import Secret, take_out
from sandboxd.runtime.credentials.credential_store import ENDS

MOST_BYTES: Final = 1 << 20

StandIn = Callable[[str, bytes], bytes]
"""Returns what stands for the value with this name."""


def write_copy(file: MaskedFile, session_tmp: str, stand_in: StandIn, secrets: Sequence[Secret] = ()) -> None:
    """Write the copy of a file, unless it is as it should be. Raises HostError."""
    path, text = copy_path(session_tmp, file), masked(file, _read(file.path), stand_in, secrets)
    try:
        with open(path, "rb") as present:
            if present.read(len(text) + 1) == text:
                return
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
            "credential_copy", f"cannot write the copy of {file.path}: {error.strerror}", hint="free some disk space"
        ) from None


def masked(file: MaskedFile, content: bytes | None, stand_in: StandIn, secrets: Sequence[Secret] = ()) -> bytes:
    """Return the copy of a file. All of it is secret without a pattern, or when it cannot be read safely.

    Values of credentials (`secrets`) are replaced wherever they stand."""
    if content is None or not file.patterns:
        return stand_in(file.path, (content or b"").strip()) + b"\n"
    begins = b"|".join(re.escape(pattern.encode()) for pattern in sorted(file.patterns, key=len, reverse=True))
    count = 0

    def replaced(found: re.Match[bytes]) -> bytes:
        nonlocal count
        count += 1
        return found[1] + stand_in(f"{file.path}#{count}", found[2])

    return take_out(secrets, re.sub(b"(" + begins + b")(" + ENDS + b")", replaced, content))


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
