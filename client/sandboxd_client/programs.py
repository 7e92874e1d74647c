"""Programs and code of the host, taken only from places that no sandboxed command of this user can write.

The environment of a caller is no ground for trust: an activated virtual environment or `npm run` puts directories of a
project at the head of PATH, and the project's commands write there. Two kinds of places are safe:

- what belongs to root (or to a user that this user namespace does not know), physically, with every directory and link
  on the way, and cannot be written by this user. For root itself that says nothing, so it has to lie in a tree of the
  system as well;
- the trees of a home directory that are protected paths of every sandbox (`HOME_TREES`, rows of
  `sandboxd.policy.paths.protected_names`).
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import sys
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SYSTEM_DIRECTORIES: tuple[str, ...] = (
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
    "/run/current-system/sw/bin", "/run/current-system/profile/bin", "/nix/var/nix/profiles/default/bin",
)  # fmt: skip
"""Looked through first, whatever PATH says; the last three are those of NixOS, Guix System and a Nix for all users."""

SYSTEM_TREES = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/nix", "/gnu", "/var/guix",
    "/run/current-system", "/System", "/Library",
)  # fmt: skip
"""Where root's own programs may come from."""

HOME_TREES = (
    ".local/bin", "bin", ".cargo/bin", ".local/share/uv/tools", ".local/share/uv/python", ".local/share/pipx",
    ".local/pipx", ".pyenv",
)  # fmt: skip
"""Below the home directory: protected in every sandbox."""

OPENED_RECORD = ".local/state/sandboxd/trust/opened"
"""Below the home directory: what commands could write, as `sandboxd.settings.files.trust` records it."""

_MOST_LINKS = 40
_MOST_RECORDED = 4 * 1024 * 1024
_OVERFLOW_UID = 65534
_LIBRARY_PATHS = frozenset({"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH"})
_LOADED = frozenset({"LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES"})
_CODE_PREFIXES = ("PYTHON", "LD_", "DYLD_")
_CODE_NAMES = frozenset(
    """GCONV_PATH GETCONF_DIR LOCPATH MALLOC_TRACE NLSPATH GLIBC_TUNABLES OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES
    OPENSSL_CONF_INCLUDE BASH_ENV ENV UVLOOP_DEBUG __PYVENV_LAUNCHER__""".split()
)


@dataclass(frozen=True, slots=True)
class Search:
    """What came of looking for a program: its `path`, else the first file of that name that is not taken (`refused`)
    and `why`."""

    path: str | None
    refused: str = ""
    why: str = ""


def find(name: str, search_path: str = "", writable: Iterable[str] = ()) -> Search:
    """Look for an executable file in the directories of the system, then in those of `search_path`, and take the first
    that commands cannot write. `writable` are directories that commands are known to write."""
    refused = why = ""
    seen = set[str]()
    entries = (entry for entry in search_path.split(os.pathsep) if os.path.isabs(entry))
    for directory in (*SYSTEM_DIRECTORIES, *entries):
        path = os.path.join(directory, name)
        if path in seen:
            continue
        seen.add(path)
        if not os.path.isfile(path):
            continue
        reason = why_writable(path, writable)
        if not reason and not os.access(path, os.X_OK):
            reason = f"{path} is not executable"
        if not reason:
            return Search(path)
        if not refused:
            refused, why = path, reason
    return Search(None, refused, why)


def _real_path(path: str) -> str:
    """Where links lead, as far as this process may follow them: a link below /proc may be another process's."""
    try:
        return os.path.realpath(path)
    except OSError:
        return os.path.normpath(path)


def why_writable(path: str, writable: Iterable[str] = ()) -> str:
    """Why commands could have written what is at an absolute path; empty when they could not."""
    trees = home_trees()
    opened = tuple(map(_real_path, writable))
    try:
        for place, state in places_on(path):
            tree = next((tree for tree in trees if is_in(place, tree)), "")
            if not tree and any(is_in(tree, place) for tree in trees):
                continue  # on the way to what is protected, which is kept in its place
            if any(is_in(place, directory) and (not tree or is_in(directory, tree)) for directory in opened):
                return f"commands may write {place}"
            if tree:
                continue
            reason = _why_open(place, state)
            if reason:
                return reason
    except OSError as error:
        return f"{error.filename or path}: {error.strerror}"
    if os.geteuid() == 0 and not _of_the_system(path, trees):
        return f"{path} is in no directory of the system, and everything else may be a project of root"
    return ""


def opened_place(paths: Iterable[str], homes: Iterable[str] | None = None) -> str:
    """The recorded directory, one that commands could write, that holds one of these paths.

    Empty when there is none, the root where a record cannot be read. `homes` are those with a record: by default $HOME
    and that of the user.
    """
    real = [_real_path(path) for path in paths if path]
    for home in dict.fromkeys((os.environ.get("HOME", ""), home_of_the_user()) if homes is None else homes):
        for place in _opened(os.path.join(home, OPENED_RECORD)) if os.path.isabs(home) else ():
            if any(is_in(path, place) for path in real):
                return place
    return ""


def _opened(record: str) -> list[str]:
    import json  # only where a daemon is started

    try:
        with open(os.open(record, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            lines = file.read(_MOST_RECORDED + 1)
    except FileNotFoundError:
        return []
    except OSError:
        return ["/"]
    if len(lines) > _MOST_RECORDED:
        return ["/"]
    found = []
    for line in lines.splitlines():
        if line.startswith(b'"'):
            try:
                found.append(str(json.loads(line)))
            except ValueError:  # it was cut off
                continue
    return found


def home_of_the_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def _why_open(place: str, state: os.stat_result) -> str:
    if state.st_uid not in (0, _OVERFLOW_UID) or (state.st_uid == _OVERFLOW_UID == os.geteuid()):
        return f"{place} does not belong to root"
    if stat.S_ISLNK(state.st_mode) or state.st_mode & stat.S_ISVTX:  # the directories decide; each entry on its own
        return ""
    by_others = bool(state.st_mode & stat.S_IWOTH)
    if by_others or (os.geteuid() != 0 and os.access(place, os.W_OK)):
        return f"{place} can be written by you"
    return ""


def _of_the_system(path: str, trees: tuple[str, ...]) -> bool:
    real = os.path.realpath(path)
    allowed = (*SYSTEM_TREES, *SYSTEM_DIRECTORIES, *trees)
    return any(is_in(path, tree) for tree in allowed) and any(is_in(real, tree) for tree in allowed)


def places_on(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every directory and link that an absolute path leads through, as they really lie, and its end. Raises OSError."""
    waiting = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    at, links = "/", 0
    yield at, os.lstat(at)
    while waiting:
        part = waiting.pop()
        if part == "..":
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, part)
        state = os.lstat(here)
        yield here, state
        if not stat.S_ISLNK(state.st_mode):
            at = here
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(here)
        at = "/" if target.startswith("/") else at
        waiting.extend(part for part in reversed(target.split("/")) if part not in ("", "."))


def home_trees() -> tuple[str, ...]:
    """The protected trees of the home that the user database names: $HOME may be what a project wants it to be, and a
    daemon with another home protects other ones."""
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ()
    if not os.path.isabs(home) or os.path.realpath(home) != os.path.realpath(os.environ.get("HOME") or home):
        return ()
    home = os.path.realpath(home)
    return () if home == "/" else tuple(os.path.join(home, tree) for tree in HOME_TREES)


def is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def without_code(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables by which an interpreter, the dynamic linker, the C library or OpenSSL loads
    code (ld.so(8), python(1), openssl-env(7)). What the dynamic linker is told stays where commands cannot write it."""
    kept = dict(environment)
    for name, value in environment.items():
        if name in _LIBRARY_PATHS or name in _LOADED:
            rest = _safe_entries(value, loaded=name in _LOADED)
            if rest:
                kept[name] = rest
            else:
                del kept[name]
        elif name in _CODE_NAMES or name.startswith(_CODE_PREFIXES):
            del kept[name]
    return kept


def _safe_entries(value: str, *, loaded: bool) -> str:
    """The absolute entries that commands cannot write. The linker separates by colons, and what it loads by spaces too;
    a name without a slash is looked for in directories that have passed."""
    entries = value.replace(" ", ":").split(":") if loaded else value.replace(";", ":").split(":")
    kept = (
        entry
        for entry in entries
        if entry
        and "$" not in entry
        and ((loaded and "/" not in entry) or (os.path.isabs(entry) and not why_writable(entry)))
    )
    return ":".join(kept)


def isolated_path() -> list[str]:
    """The directories that this interpreter imports from when it is started with -I: not those of PYTHONPATH, of the
    script and of the user site, except where a .pth file names them too (site.py)."""
    left_out = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    if not sys.flags.safe_path and sys.path:
        left_out.add(sys.path[0])
    user = getattr(sys.modules.get("site"), "USER_SITE", None) or ""
    kept = [entry for entry in sys.path if os.path.isabs(entry) and entry not in left_out and entry != user]
    return kept + [entry for entry in _added(kept) if entry in left_out]


def _added(directories: Iterable[str]) -> Iterator[str]:
    for directory in directories:
        if os.path.basename(directory) not in ("site-packages", "dist-packages") or not os.path.isdir(directory):
            continue
        for name in os.listdir(directory):
            if name.endswith(".pth"):
                with open(os.path.join(directory, name), encoding="utf-8", errors="surrogateescape") as file:
                    yield from (os.path.join(directory, line.rstrip()) for line in file if line.strip())
