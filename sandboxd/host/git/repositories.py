"""Git directories, submodules and linked worktrees, as git would find them.

Read from the files themselves (gitrepository-layout(5), git-worktree(1)). git is not run, because it would obey the
very configuration in question."""

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
"""A path has at most 4,095 bytes; a pointer that git takes is one word longer."""
_GITDIR = "gitdir: "
_DEEPEST_MODULE = 8
_LINKED_NAMES = ("config.worktree", "commondir")


def git_directories(
    top: str, names: tuple[str, ...], seen: NameRecorder, user_configuration: GitConfiguration, work_tree: str = ""
) -> Iterator[GitDir]:
    """Yield the git directory `top` (canonical), and its submodules' and worktrees'.

    `user_configuration` holds for all repositories. `work_tree` is given where `top` was found as `.git`."""
    main, settings = _git_dir(top, names, seen, user_configuration, work_tree)
    yield main
    for module in _modules(os.path.join(top, "modules"), seen):
        yield _git_dir(module, names, seen, user_configuration)[0]
    for linked in _entries(os.path.join(top, "worktrees"), seen):
        linked_names = tuple(name for name in names if name in _LINKED_NAMES)
        yield replace(_linked_git_dir(linked, linked_names, seen, settings), worktree_config=main.worktree_config)


def repositories_around(
    root: str, names: tuple[str, ...], seen: NameRecorder, user_configuration: GitConfiguration
) -> tuple[str, list[GitDir]]:
    """Return the nearest repository of a directory, and git directories around it.

    The repository is at or above the directory, or empty. The git directories are those that the directory lies in, or
    that belong to a repository above it. Only their git config targets matter (`core.hooksPath` may lie in it)."""
    top, found = "", []
    for directory in _above(root):
        entry = resolve(os.path.join(directory, ".git"), seen)
        if entry.kind is not None and not top:
            top = directory
            git_dir = entry.real if entry.kind is PathKind.DIRECTORY else _common_of(directory, seen)
            if git_dir and not f"{root}/".startswith((f"{directory}/.git/", f"{git_dir}/")) and directory != root:
                found.append(_git_dir(git_dir, (), seen, user_configuration, directory)[0])
        if directory != root and _is_git_directory(directory, seen):
            found.append(_git_dir(directory, names, seen, user_configuration)[0])
    return top, found


def _above(directory: str) -> Iterator[str]:
    """Yield a canonical directory and those above it, without `/`."""
    while directory != "/":
        yield directory
        directory = os.path.dirname(directory)


def _common_of(directory: str, seen: NameRecorder) -> str:
    worktree = worktree_of(directory, seen)
    return worktree.common if worktree is not None and not worktree.refused else ""


def _is_git_directory(path: str, seen: NameRecorder) -> bool:
    """Return whether git takes a path for a repository (gitrepository-layout(5))."""

    def holds(name: str) -> bool:
        return resolve(os.path.join(path, name), seen).kind is not None

    return holds("HEAD") and (holds("commondir") or (holds("objects") and holds("refs")))


def worktree_of(root: str, seen: NameRecorder) -> Worktree | None:
    """Return the target of a `.git` file if it points back, and so is not planted."""
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


def obeyed_in(work_tree: str, seen: NameRecorder, user_configuration: GitConfiguration) -> tuple[GitConfigTarget, ...]:
    """Return the git config targets of a directory, wherever its `.git` file leads."""
    leads = worktree_of(work_tree, seen)
    if leads is None:
        return ()
    found = read_configuration(os.path.join(leads.common, "config"), seen)
    found += read_configuration(os.path.join(leads.git_dir, "config.worktree"), seen)
    return _obeyed(found, user_configuration, [work_tree], seen)


def physical(path: str) -> str:
    """Return the physical target of a path; empty where it depends on the process."""
    found = resolve(path, NullNameRecorder())
    return "" if found.problem == OF_A_PROCESS else found.real


def pointer_of(entry: str) -> str | None:
    """Return the git directory that a `.git` file names as text, or None."""
    text = _pointer(entry)
    if text is None or not text.startswith(_GITDIR):
        return None
    path = physical(os.path.join(os.path.dirname(entry), text[len(_GITDIR) :]))
    return path if os.path.isdir(path) else None


def pointers_of(work_tree: str) -> list[str]:
    """Return the directories that a `.git` file or link may lead to.

    git resolves a relative path in a file from beside `.git`, also where `.git` is a link to the file."""
    return [path for path in _pointers(work_tree) if os.path.isdir(path)]


def depends_on_process(work_tree: str) -> bool:
    """Return whether `.git` leads through `/proc/self` or the like."""
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


def obeyed_by(git_dir: str, user_configuration: GitConfiguration, work_tree: str) -> tuple[GitConfigTarget, ...]:
    """Return the git config targets outside a git directory. Raises `PolicyError`."""
    return _git_dir(git_dir, (), NullNameRecorder(), user_configuration, work_tree)[0].git_config_targets


def configured_worktrees(git_dir: str) -> list[str]:
    """Return the possible working trees of a git directory."""
    found = [os.path.dirname(git_dir)]
    if (back := _pointer(os.path.join(git_dir, "gitdir"))) is not None:
        found.append(os.path.dirname(physical(os.path.join(git_dir, back))))
    if (value := _configured_worktree(git_dir)) is not None:
        found.append(physical(os.path.join(git_dir, value)))
    return list(filter(None, found))


def confirmed_worktree(git_dir: str) -> str | None:
    """Return `core.worktree` when its target points back, as for a submodule."""
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
    """Return whether both canonical paths are one directory, by mounts."""
    try:
        return path == root or (os.path.isdir(path) and os.path.samefile(path, root))
    except OSError:
        return False


def _configured_worktree(git_dir: str) -> str | None:
    return dict(settings_in(text_of(os.path.join(git_dir, "config"), LARGEST_CONFIG) or "")).get("core.worktree")


def _git_dir(
    path: str, names: tuple[str, ...], seen: NameRecorder, user_configuration: GitConfiguration, work_tree: str = ""
) -> tuple[GitDir, GitConfiguration]:
    """Return a git directory, no linked worktree's, and its shared configuration."""
    resolved = tuple((name, resolve(os.path.join(path, name), seen)) for name in names)
    shared = read_configuration(os.path.join(path, "config"), seen)
    is_on = (shared.get("extensions.worktreeconfig") or "").lower() in ("true", "yes", "on", "1")
    nearest = shared + read_configuration(os.path.join(path, "config.worktree"), seen) if is_on else shared
    # git runs hooks at the top of the working tree; a bare repository is its own
    places = [os.path.dirname(path) if os.path.basename(path) == ".git" else path, work_tree]
    places += [os.path.join(path, value) for key, value in nearest.settings if key == "core.worktree"]
    obeyed = _obeyed(nearest, user_configuration, places, seen)
    return GitDir(path, resolved, obeyed, worktree_config=is_on), shared + user_configuration


def _linked_git_dir(path: str, names: tuple[str, ...], seen: NameRecorder, shared: GitConfiguration) -> GitDir:
    resolved = tuple((name, resolve(os.path.join(path, name), seen)) for name in names)
    seen.visit(path, "gitdir", True)
    back = _pointer(os.path.join(path, "gitdir"))
    work_tree = ""
    if back is not None:
        entry = physical(os.path.join(path, back))
        work_tree = os.path.dirname(entry) if os.path.isfile(entry) else ""
    nearest = read_configuration(os.path.join(path, "config.worktree"), seen)
    return GitDir(path, resolved, _obeyed(nearest, shared, [work_tree], seen), worktree=work_tree)


def _obeyed(
    nearest: GitConfiguration, shared: GitConfiguration, places: list[str], seen: NameRecorder
) -> tuple[GitConfigTarget, ...]:
    """Return the files that `own` includes, and the hooks of both, for each place."""
    hooks = (one for place in filter(None, places) for all_of in (nearest, shared) for one in all_of.hooks(place, seen))
    return tuple(dict.fromkeys((*nearest.files(seen), *hooks)))


def _modules(directory: str, seen: NameRecorder, depth: int = 0) -> Iterator[str]:
    """Yield git directories of submodules; names may hold slashes and they may nest."""
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
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # git cannot reach it either
            return
        # git can use its content without listing it
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
    """Return the path in a file as git reads it: without line ends and zero bytes."""
    text = text_of(path, _LONGEST_POINTER)
    return None if text is None else text.rstrip("\r\n").partition("\0")[0]
