"""Where git keeps things: git directories, submodules, linked worktrees, and what their configuration points to.

Read from the files themselves (gitrepository-layout(5), git-worktree(1)); git is not run, because it would obey the
very configuration that is in question.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace

from sandboxd.errors import PolicyError
from sandboxd.host.resolve import Names, resolve
from sandboxd.plan.facts import Found, GitDir, Kind, Worktree

_LONGEST_POINTER = 8192
"""A path has at most 4,095 bytes; what git takes is longer by a word."""
_GITDIR = "gitdir: "
_LARGEST_CONFIG = 1 << 20
_DEEPEST_MODULE = 8
_LINKED_NAMES = ("config.worktree", "commondir")
_SECTION = re.compile(r"\s*\[\s*([-.A-Za-z0-9]+)(?:\s+\"((?:[^\"\\]|\\.)*)\")?\s*\]")
_VALUE = re.compile(r"\s*([A-Za-z][-A-Za-z0-9]*)\s*=\s*(.*?)\s*(?:[#;].*)?$")


def git_directories(top: str, names: tuple[str, ...], seen: Names) -> Iterator[GitDir]:
    """The git directory `top` (canonical), those of its submodules, and those of its linked worktrees."""
    main = _git_dir(top, names, seen)
    yield main
    for module in _modules(os.path.join(top, "modules"), seen):
        yield _git_dir(module, names, seen)
    for linked in _entries(os.path.join(top, "worktrees"), seen):
        own = tuple(name for name in names if name in _LINKED_NAMES)
        yield replace(_linked_git_dir(linked, own, seen), worktree_config=main.worktree_config)


def repositories_around(root: str, names: tuple[str, ...], seen: Names) -> tuple[str, list[GitDir]]:
    """For a canonical directory: the nearest one at or above it that has a `.git` (empty when there is none), and the
    git directories that it lies in or that belong to a repository above it. Of the latter only what their configuration
    names matters: their hooks may be kept in the directory (`core.hooksPath`), they themselves are not in it."""
    top, found = "", []
    for directory in _above(root):
        entry = resolve(os.path.join(directory, ".git"), seen)
        if entry.kind is not None and not top:
            top = directory
            git_dir = entry.real if entry.kind is Kind.DIRECTORY else _common_of(directory, seen)
            if git_dir and not f"{root}/".startswith((f"{directory}/.git/", f"{git_dir}/")) and directory != root:
                found.append(replace(_git_dir(git_dir, (), seen), names=()))
        if directory != root and _is_git_directory(directory, seen):
            found.append(_git_dir(directory, names, seen))
    return top, found


def _above(directory: str) -> Iterator[str]:
    """A canonical directory and those above it, without `/`."""
    while directory != "/":
        yield directory
        directory = os.path.dirname(directory)


def _common_of(directory: str, seen: Names) -> str:
    worktree = worktree_of(directory, seen)
    return worktree.common if worktree is not None and not worktree.refused else ""


def _is_git_directory(path: str, seen: Names) -> bool:
    """As git sees it (gitrepository-layout(5)): all three have to be there."""
    return all(resolve(os.path.join(path, name), seen).kind is not None for name in ("HEAD", "objects", "refs"))


def worktree_of(root: str, seen: Names) -> Worktree | None:
    """Where the `.git` file of a directory leads. The other side has to point back: a `.git` file is content that
    anyone may have written, and following it opens the place it names."""
    entry = os.path.join(root, ".git")
    resolved = resolve(entry, seen)
    if resolved.kind is not Kind.FILE:
        return None
    seen.visit(os.path.dirname(resolved.real), os.path.basename(resolved.real), True)
    text = _pointer(resolved.real)
    if text is None or not text.startswith(_GITDIR):
        return None
    git_dir = resolve(os.path.join(os.path.dirname(resolved.real), text[len(_GITDIR) :]), seen)
    if git_dir.kind is not Kind.DIRECTORY:
        return Worktree(root, git_dir.real, git_dir.real, f"{git_dir.real} does not exist")
    seen.visit(git_dir.real, "commondir", True)
    seen.visit(git_dir.real, "gitdir", True)
    common_text = _pointer(os.path.join(git_dir.real, "commondir"))
    common = git_dir.real
    if common_text is not None:
        common = resolve(os.path.join(git_dir.real, common_text), seen).real
    confirmed = _confirmed(root, git_dir.real, common)
    refused = "" if confirmed else f"{git_dir.real} does not point back at {root}"
    return Worktree(root, git_dir.real, common, refused)


def pointer_of(entry: str) -> str | None:
    """The git directory that a `.git` file names, as it stands in the file system; None when it names none."""
    text = _pointer(entry)
    if text is None or not text.startswith(_GITDIR):
        return None
    path = os.path.realpath(os.path.join(os.path.dirname(entry), text[len(_GITDIR) :]))
    return path if os.path.isdir(path) else None


def confirmed_worktree(git_dir: str) -> str | None:
    """The value of `core.worktree` when what it names points back: as in the git directory of a submodule."""
    value = dict(_settings(os.path.join(git_dir, "config"))).get("core.worktree")
    if value is None:
        return None
    entry = os.path.join(os.path.realpath(os.path.join(git_dir, value)), ".git")
    return value if pointer_of(entry) == git_dir else None


def _confirmed(root: str, git_dir: str, common: str) -> bool:
    if git_dir == common:
        value = dict(_settings(os.path.join(git_dir, "config"))).get("core.worktree")
        return value is not None and os.path.realpath(os.path.join(git_dir, value)) == root
    back = _pointer(os.path.join(git_dir, "gitdir"))
    if back is None or os.path.dirname(os.path.dirname(git_dir)) != common:
        return False
    return os.path.realpath(os.path.join(git_dir, back)) == os.path.join(root, ".git")


def _git_dir(path: str, names: tuple[str, ...], seen: Names) -> GitDir:
    resolved = tuple((name, resolve(os.path.join(path, name), seen)) for name in names)
    seen.visit(path, "config", True)
    settings = tuple(_settings(os.path.join(path, "config")))
    is_on = dict(settings).get("extensions.worktreeconfig", "false").lower() in ("true", "yes", "on", "1", "")
    return GitDir(path, resolved, tuple(_referenced(path, settings, seen)), worktree_config=is_on)


def _linked_git_dir(path: str, names: tuple[str, ...], seen: Names) -> GitDir:
    resolved = tuple((name, resolve(os.path.join(path, name), seen)) for name in names)
    seen.visit(path, "gitdir", True)
    back = _pointer(os.path.join(path, "gitdir"))
    work_tree = ""
    if back is not None:
        entry = os.path.realpath(os.path.join(path, back))
        work_tree = os.path.dirname(entry) if os.path.isfile(entry) else ""
    return GitDir(path, resolved, worktree=work_tree)


def _referenced(git_dir: str, settings: Iterable[tuple[str, str]], seen: Names) -> Iterator[Found]:
    """Files and directories outside the git directory that its configuration has git obey."""
    work_tree = os.path.dirname(git_dir)
    for key, value in settings:
        if key == "core.hookspath":
            base = work_tree
        elif key.startswith("include") and key.endswith(".path"):
            base = git_dir
        else:
            continue
        path = os.path.join(base, os.path.expanduser(value))
        resolved = resolve(path, seen)
        if resolved.kind is not None:
            yield Found(resolved.real, resolved.real, resolved.kind, resolved.hard_links)


def _settings(config: str) -> Iterator[tuple[str, str]]:
    """(lower-case key, value) of a configuration file; enough of git-config(1) for paths. A zero byte ends a value."""
    text = _text(config, _LARGEST_CONFIG)
    if text is None:
        return
    section = ""
    for line in text.split("\n"):  # as git does
        if match := _SECTION.match(line):
            section = match[1].lower() + (f".{match[2]}" if match[2] is not None else "")
            line = line[match.end() :]
        if match := _VALUE.match(line):
            yield f"{section}.{match[1].lower()}", match[2].strip('"').partition("\0")[0]


def _modules(directory: str, seen: Names, depth: int = 0) -> Iterator[str]:
    """Git directories of submodules: their names may hold slashes, and they have submodules of their own."""
    if depth > _DEEPEST_MODULE:
        return
    for path in _entries(directory, seen):
        if os.path.lexists(os.path.join(path, "HEAD")):
            yield path
            yield from _modules(os.path.join(path, "modules"), seen, depth + 1)
        else:
            yield from _modules(path, seen, depth + 1)


def _entries(directory: str, seen: Names) -> Iterator[str]:
    seen.visit(os.path.dirname(directory), os.path.basename(directory))
    seen.visit(directory, "*")
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # nor does git get there
            return
        # git does not have to list it to use what is there
        raise PolicyError(
            "scan_failed",
            f"cannot search {directory} for git directories: {error.strerror}",
            hint="make the directory readable, or make a smaller directory writable",
            data={"path": directory},
        ) from error
    for name in names:
        path = os.path.join(directory, name)
        if os.path.isdir(path) and not os.path.islink(path):
            yield path


def _pointer(path: str) -> str | None:
    """The path in a file, to the letter as git reads it: line ends go, spaces stay, and a zero byte ends it."""
    text = _text(path, _LONGEST_POINTER)
    return None if text is None else text.rstrip("\r\n").partition("\0")[0]


def _text(path: str, limit: int) -> str | None:
    """The beginning of a regular file. A command may have put a pipe there, at which reading would never end."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fsdecode(os.read(file, limit)) if stat.S_ISREG(os.fstat(file).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(file)
