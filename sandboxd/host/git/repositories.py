"""Where git keeps things: git directories, submodules, linked worktrees.

Read from the files themselves (gitrepository-layout(5), git-worktree(1)); git is not run, because it would obey the
very configuration that is in question.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace

from sandboxd.errors import PolicyError
from sandboxd.host.git.config_targets import LARGEST_CONFIG, GitConfiguration, read_configuration, settings_in, text_of
from sandboxd.host.resolve import OF_A_PROCESS, NameRecorder, NullNameRecorder, resolve
from sandboxd.plan.host_facts import GitConfigTarget, GitDir, PathKind, Worktree

_LONGEST_POINTER = 8192
"""A path has at most 4,095 bytes; what git takes is longer by a word."""
_GITDIR = "gitdir: "
_DEEPEST_MODULE = 8
_LINKED_NAMES = ("config.worktree", "commondir")


def git_directories(
    top: str, names: tuple[str, ...], seen: NameRecorder, everybody: GitConfiguration, work_tree: str = ""
) -> Iterator[GitDir]:
    """The git directory `top` (canonical), those of its submodules, and those of its linked worktrees. `everybody` is
    what is configured for all repositories, `work_tree` where `top` was found as `.git`."""
    main, settings = _git_dir(top, names, seen, everybody, work_tree)
    yield main
    for module in _modules(os.path.join(top, "modules"), seen):
        yield _git_dir(module, names, seen, everybody)[0]
    for linked in _entries(os.path.join(top, "worktrees"), seen):
        own = tuple(name for name in names if name in _LINKED_NAMES)
        yield replace(_linked_git_dir(linked, own, seen, settings), worktree_config=main.worktree_config)


def repositories_around(
    root: str, names: tuple[str, ...], seen: NameRecorder, everybody: GitConfiguration
) -> tuple[str, list[GitDir]]:
    """For a canonical directory: the nearest one at or above it that has a `.git` (empty when there is none), and the
    git directories that it lies in or that belong to a repository above it. Of the latter only what their configuration
    names matters: their hooks may be kept in the directory (`core.hooksPath`), they themselves are not in it."""
    top, found = "", []
    for directory in _above(root):
        entry = resolve(os.path.join(directory, ".git"), seen)
        if entry.kind is not None and not top:
            top = directory
            git_dir = entry.real if entry.kind is PathKind.DIRECTORY else _common_of(directory, seen)
            if git_dir and not f"{root}/".startswith((f"{directory}/.git/", f"{git_dir}/")) and directory != root:
                found.append(_git_dir(git_dir, (), seen, everybody, directory)[0])
        if directory != root and _is_git_directory(directory, seen):
            found.append(_git_dir(directory, names, seen, everybody)[0])
    return top, found


def _above(directory: str) -> Iterator[str]:
    """A canonical directory and those above it, without `/`."""
    while directory != "/":
        yield directory
        directory = os.path.dirname(directory)


def _common_of(directory: str, seen: NameRecorder) -> str:
    worktree = worktree_of(directory, seen)
    return worktree.common if worktree is not None and not worktree.refused else ""


def _is_git_directory(path: str, seen: NameRecorder) -> bool:
    """As git sees it (gitrepository-layout(5)): `HEAD`, and the rest there or in another place."""

    def holds(name: str) -> bool:
        return resolve(os.path.join(path, name), seen).kind is not None

    return holds("HEAD") and (holds("commondir") or (holds("objects") and holds("refs")))


def worktree_of(root: str, seen: NameRecorder) -> Worktree | None:
    """Where the `.git` file of a directory leads. The other side has to point back: a `.git` file is content that
    anyone may have written, and following it opens the place it names."""
    entry = os.path.join(root, ".git")
    resolved = resolve(entry, seen)
    if resolved.kind is not PathKind.FILE:
        return None
    seen.visit(os.path.dirname(resolved.real), os.path.basename(resolved.real), True)
    text = _pointer(resolved.real)
    if text is None or not text.startswith(_GITDIR):
        return None
    git_dir = resolve(os.path.join(os.path.dirname(resolved.real), text[len(_GITDIR) :]), seen)
    if git_dir.kind is not PathKind.DIRECTORY:
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


def obeyed_in(work_tree: str, seen: NameRecorder, everybody: GitConfiguration) -> tuple[GitConfigTarget, ...]:
    """What git obeys in a directory whose `.git` is a file, wherever that leads and whether or not anything points
    back: git asks for that no more than it has to."""
    leads = worktree_of(work_tree, seen)
    if leads is None:
        return ()
    own = read_configuration(os.path.join(leads.common, "config"), seen)
    own += read_configuration(os.path.join(leads.git_dir, "config.worktree"), seen)
    return _obeyed(own, everybody, [work_tree], seen)


def physical(path: str) -> str:
    """Where an absolute path leads, as the kernel goes there. Empty where that depends on the process that looks."""
    found = resolve(path, NullNameRecorder())
    return "" if found.problem == OF_A_PROCESS else found.real


def pointer_of(entry: str) -> str | None:
    """The git directory that a `.git` file names, as it stands in the file system; None when it names none."""
    text = _pointer(entry)
    if text is None or not text.startswith(_GITDIR):
        return None
    path = physical(os.path.join(os.path.dirname(entry), text[len(_GITDIR) :]))
    return path if os.path.isdir(path) else None


def pointers_of(work_tree: str) -> list[str]:
    """Directories that the `.git` of a working tree may lead to, where it is a file or a link. git takes a relative
    path in a file from beside `.git`, also where that is a link to the file."""
    return [path for path in _pointers(work_tree) if os.path.isdir(path)]


def depends_on_process(work_tree: str) -> bool:
    """Whether the `.git` of a working tree leads through `/proc/self` or the like: to another place for each git."""
    return "" in _pointers(work_tree)


def _pointers(work_tree: str) -> dict[str, None]:
    entry = os.path.join(work_tree, ".git")
    real = physical(entry)
    if not real or os.path.isdir(real):
        return {real: None} if os.path.islink(entry) else {}
    text = _pointer(real)
    if text is None or not text.startswith(_GITDIR):
        return {}
    places = dict.fromkeys((work_tree, os.path.dirname(real)))
    return dict.fromkeys(physical(os.path.join(place, text[len(_GITDIR) :])) for place in places)


def obeyed_by(git_dir: str, everybody: GitConfiguration, work_tree: str) -> tuple[GitConfigTarget, ...]:
    """What git obeys beside the git directory itself when it works there. Raises `PolicyError`."""
    return _git_dir(git_dir, (), NullNameRecorder(), everybody, work_tree)[0].obeyed


def configured_worktrees(git_dir: str) -> list[str]:
    """Where the working tree of a git directory may be."""
    found = [os.path.dirname(git_dir)]
    if (back := _pointer(os.path.join(git_dir, "gitdir"))) is not None:
        found.append(os.path.dirname(physical(os.path.join(git_dir, back))))
    if (value := _configured_worktree(git_dir)) is not None:
        found.append(physical(os.path.join(git_dir, value)))
    return list(filter(None, found))


def confirmed_worktree(git_dir: str) -> str | None:
    """The value of `core.worktree` when what it names points back: as in the git directory of a submodule."""
    value = _configured_worktree(git_dir)
    if value is None:
        return None
    entry = os.path.join(physical(os.path.join(git_dir, value)), ".git")
    return value if pointer_of(entry) == git_dir else None


def _confirmed(root: str, git_dir: str, common: str) -> bool:
    if git_dir == common:
        value = _configured_worktree(git_dir)
        return value is not None and _is_directory_at(physical(os.path.join(git_dir, value)), root)
    back = _pointer(os.path.join(git_dir, "gitdir"))
    if back is None or os.path.dirname(os.path.dirname(git_dir)) != common:
        return False
    at, name = os.path.split(physical(os.path.join(git_dir, back)))
    return name == ".git" and _is_directory_at(at, root)


def _is_directory_at(path: str, root: str) -> bool:
    """Whether both canonical paths are one directory: it has several where its file system is mounted in several
    places, and no command can give it another one."""
    try:
        return path == root or (os.path.isdir(path) and os.path.samefile(path, root))
    except OSError:
        return False


def _configured_worktree(git_dir: str) -> str | None:
    return dict(settings_in(text_of(os.path.join(git_dir, "config"), LARGEST_CONFIG) or "")).get("core.worktree")


def _git_dir(
    path: str, names: tuple[str, ...], seen: NameRecorder, everybody: GitConfiguration, work_tree: str = ""
) -> tuple[GitDir, GitConfiguration]:
    """One that is not a linked worktree's, and the configuration that it shares with those."""
    resolved = tuple((name, resolve(os.path.join(path, name), seen)) for name in names)
    shared = read_configuration(os.path.join(path, "config"), seen)
    is_on = (shared.get("extensions.worktreeconfig") or "").lower() in ("true", "yes", "on", "1")
    own = shared + read_configuration(os.path.join(path, "config.worktree"), seen) if is_on else shared
    # git runs hooks at the top of the working tree; a bare repository is its own
    places = [os.path.dirname(path) if os.path.basename(path) == ".git" else path, work_tree]
    places += [os.path.join(path, value) for key, value in own.settings if key == "core.worktree"]
    obeyed = _obeyed(own, everybody, places, seen)
    return GitDir(path, resolved, obeyed, worktree_config=is_on), shared + everybody


def _linked_git_dir(path: str, names: tuple[str, ...], seen: NameRecorder, shared: GitConfiguration) -> GitDir:
    resolved = tuple((name, resolve(os.path.join(path, name), seen)) for name in names)
    seen.visit(path, "gitdir", True)
    back = _pointer(os.path.join(path, "gitdir"))
    work_tree = ""
    if back is not None:
        entry = physical(os.path.join(path, back))
        work_tree = os.path.dirname(entry) if os.path.isfile(entry) else ""
    own = read_configuration(os.path.join(path, "config.worktree"), seen)
    return GitDir(path, resolved, _obeyed(own, shared, [work_tree], seen), worktree=work_tree)


def _obeyed(
    own: GitConfiguration, shared: GitConfiguration, places: list[str], seen: NameRecorder
) -> tuple[GitConfigTarget, ...]:
    """The files that `own` includes, and the hooks that both name, for each place in which git may run them."""
    hooks = (one for place in filter(None, places) for all_of in (own, shared) for one in all_of.hooks(place, seen))
    return tuple(dict.fromkeys((*own.files(seen), *hooks)))


def _modules(directory: str, seen: NameRecorder, depth: int = 0) -> Iterator[str]:
    """Git directories of submodules: their names may hold slashes, and they have submodules of their own."""
    if depth > _DEEPEST_MODULE:
        return
    for path in _entries(directory, seen):
        if os.path.lexists(os.path.join(path, "HEAD")):
            yield path
            yield from _modules(os.path.join(path, "modules"), seen, depth + 1)
        else:
            yield from _modules(path, seen, depth + 1)


def _entries(directory: str, seen: NameRecorder) -> Iterator[str]:
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
    text = text_of(path, _LONGEST_POINTER)
    return None if text is None else text.rstrip("\r\n").partition("\0")[0]
