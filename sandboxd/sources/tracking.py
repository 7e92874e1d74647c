"""Whether git tracks a file, answered from the index without running git (a repository can make git run programs).

A project's `settings.local.json` is the user's own word only when it did not come with the repository. Every doubt is
answered with "tracked". Format: gitformat-index(5), versions 2 to 4.
"""

from __future__ import annotations

import os
import stat
import struct

MAX_INDEX = 128 * 1024 * 1024
MAX_ENTRIES = 500_000
"""Read one by one, which keeps everybody waiting: half a second."""
_SLASH = ord("/")
_ENTRY = 62
_EXTENDED = 0x4000
_DIRECTORY_MODE = 0o040000


def tracked_by_git(path: str) -> bool:
    """True when a repository tracks `path` (absolute), or when that cannot be told; False when it surely does not,
    which includes having no repository. A link counts by its own name and by what it leads to."""
    directory, name = os.path.split(path)
    spellings = {os.path.join(os.path.realpath(directory), name), os.path.realpath(path)}
    return any(_tracked(spelling) for spelling in spellings)


def _tracked(path: str) -> bool:
    root, git_dir = _repository(os.path.dirname(path))
    if root is None:
        return False
    if git_dir is None:
        return True
    name = os.path.relpath(path, root).encode("utf-8", "surrogateescape")
    try:
        if any(entry.startswith("sharedindex.") for entry in os.listdir(git_dir)):
            return True  # a split index keeps its entries in two files
        index = _read_index(os.path.join(git_dir, "index"))
        return index is not None and index_lists(index, name)
    except (OSError, ValueError, struct.error, IndexError):
        return True


def index_lists(index: bytes, name: bytes) -> bool:
    """Whether an index lists `name`, or a directory above it (sparse index). Raises ValueError for another format, and
    for one that would take long to read."""
    signature, version, count = struct.unpack_from(">4sII", index)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index that we know")
    if count > MAX_ENTRIES:
        above = [name[:at] + b"/" for at, letter in enumerate(name) if letter == _SLASH]
        if version < 4 and all(index.find(one + b"\0") < 0 for one in (name, *above)):
            return False  # there the names stand as they are
        raise ValueError("too many entries")
    offset, previous = 12, b""
    for _ in range(count):
        mode = struct.unpack_from(">I", index, offset + 24)[0]
        flags = struct.unpack_from(">H", index, offset + 60)[0]
        start = offset + _ENTRY + (2 if flags & _EXTENDED and version >= 3 else 0)
        if version == 4:
            strip, start = _variable_length(index, start)
            end = index.index(b"\0", start)
            entry = previous[: len(previous) - strip] + index[start:end]
            offset = end + 1
        else:
            end = index.index(b"\0", start)
            entry = index[start:end]
            offset += (end - offset + 8) // 8 * 8
        if entry == name or (stat.S_IFMT(mode) == _DIRECTORY_MODE and name.startswith(entry)):
            return True
        if entry > name:
            return False  # entries are sorted by name
        previous = entry
    return False


def _variable_length(index: bytes, offset: int) -> tuple[int, int]:
    byte = index[offset]
    value = byte & 0x7F
    while byte & 0x80:
        offset += 1
        byte = index[offset]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, offset + 1


def _repository(directory: str) -> tuple[str | None, str | None]:
    """The root and the git directory of the repository around a directory: (None, None) without a repository,
    (root, None) when there is one that cannot be read."""
    while True:
        candidate = os.path.join(directory, ".git")
        try:
            mode = os.stat(candidate).st_mode
        except FileNotFoundError:
            pass
        except OSError:
            return directory, None
        else:
            if stat.S_ISDIR(mode):
                return directory, candidate
            return directory, _linked(candidate, directory)
        parent = os.path.dirname(directory)
        if parent == directory:
            return None, None
        directory = parent


def _linked(pointer: str, directory: str) -> str | None:
    """Where the `.git` file of a worktree or submodule points."""
    try:
        descriptor = _opened(pointer)
    except (OSError, ValueError):
        return None
    with open(descriptor, "rb") as file:
        text = file.read(8192)
    if not text.startswith(b"gitdir:"):
        return None
    return os.path.join(directory, os.fsdecode(text[7:].strip()))


def _read_index(path: str) -> bytes | None:
    """The index, or None when there is none: nothing has been added yet."""
    try:
        descriptor = _opened(path)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        return file.read(MAX_INDEX)  # not mapped: whoever shortens it meanwhile would end us


def _opened(path: str) -> int:
    """A descriptor of a file that somebody else has put there: a named pipe is not waited for. Raises OSError,
    ValueError for what is no file, or too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_INDEX:
        os.close(descriptor)
        raise ValueError("not a file of sensible size")
    return descriptor
