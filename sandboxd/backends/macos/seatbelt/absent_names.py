"""Protected names that are not there yet, as regular expressions. Pure.

Existing names are path entries of the same table and scan as on Linux (`plan.filesystem.path_entries`). A Seatbelt rule
can also name what does not exist, at any depth:

- `WORKSPACE` names below every writable directory that is a workspace, outside `node_modules`;
- `hooks` of every git directory, submodules and linked worktrees included. `git init` and `git clone` copy sample hooks
  there, so the environment tells them not to (`environment.py`);
- not `config` of a git directory that does not exist yet: without writing it there is no `git init`.

The names are matched in every spelling that the volume takes for the same (`case_folding`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sandboxd.backends.macos.seatbelt.case_folding import fold, quote
from sandboxd.backends.macos.seatbelt.path_patterns import END, LONGEST, alternatives, checked
from sandboxd.policy.paths.protected_names import SKIPPED_DIRECTORIES, ProtectedIn, rows

_ANYWHERE = "(/[^/]+)*"
_HOOKS = "hooks"


def workspace_names(root: str) -> Iterator[str]:
    """Return expressions for a workspace's protected names, at any depth."""
    before = f"^{_base(root)}{_ANYWHERE}/"
    yield from alternatives(before, _folded(row.name for row in rows(ProtectedIn.WORKSPACE)), END)


def skipped_directories(root: str) -> str:
    """Return the directories that these names do not apply to.

    Installed packages, and git's own files (a branch may be called `.vscode`)."""
    names = "|".join(map(quote, sorted({*SKIPPED_DIRECTORIES, ".git"})))
    return checked(f"^{_base(root)}{_ANYWHERE}/({names})/", root)


def hook_directories(root: str) -> Iterator[str]:
    """Return expressions for the hooks of all git directories below a directory.

    A branch may be called `hooks`, so a submodule's name ends before the directories that git makes in it."""
    if all(row.name != _HOOKS for row in rows(ProtectedIn.GIT_DIR)):
        return
    git = f"^{_base(root)}{_ANYWHERE}/{fold('.git')}"
    yield checked(f"{git}/{fold(_HOOKS)}{END}", root)
    yield checked(f"{git}/{fold('worktrees')}/[^/]+/{fold(_HOOKS)}{END}", root)
    yield checked(f"{git}/{fold('modules')}(/[^/]+)+/{fold(_HOOKS)}{END}", root)


def inside_refs(root: str) -> str:
    """Return expressions for branches, and their logs, of submodules."""
    return checked(f"^{_base(root)}{_ANYWHERE}/{fold('.git')}/{fold('modules')}(/[^/]+)+/(refs|logs)/", root)


def absent_paths(base: str, paths: Iterable[str], end: str) -> Iterator[str]:
    """Return expressions for absent paths below an existing directory.

    A path that is too long for one is refused from an earlier place on, with everything below."""
    before = f"^{_base(base)}/"
    room = LONGEST - len((before + END).encode("utf-8", "surrogateescape")) - 2
    rests = sorted(path[len(base.rstrip("/")) + 1 :] for path in paths)
    short = [rest for rest in rests if _size(rest) <= room]
    yield from alternatives(before, map(fold, short), end)
    for rest in rests:
        while _size(rest) > room and "/" in rest:
            rest = rest.rpartition("/")[0]
        if rest not in short:
            beginning = rest
            while _size(beginning) > room - len("[^/]*"):
                beginning = beginning[:-1]
            yield checked(f"{before}{fold(beginning)}{'' if beginning == rest else '[^/]*'}{END}", base)


def _size(text: str) -> int:
    return len(fold(text).encode("utf-8", "surrogateescape"))


def _base(root: str) -> str:
    return "" if root == "/" else quote(root)


def _folded(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield "[^/]*".join(fold(piece) for piece in name.split("*"))
