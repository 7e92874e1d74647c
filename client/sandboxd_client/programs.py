"""Programs and code of the host that no command of this user can write.

The environment of a caller is no basis for trust: an activated virtual environment or `npm run` puts directories of a
project at the head of PATH, and the project's commands write there. Two kinds of places are safe:

- places that belong to root (or to a user that this user namespace does not know), with every directory and link on
  the way, and that this user cannot write. For root itself they must also be below a tree of the system;
- the trees of a home directory that are protected paths of every sandbox (`HOME_TREES`, rows of
  `sandboxd.policy.paths.protected_names`)."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import sys

from sandboxd_client.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SYSTEM_DIRECTORIES: tuple[str, ...] = (
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
    "/run/current-system/sw/bin", "/run/current-system/profile/bin", "/nix/var/nix/profiles/default/bin",
)  # fmt: skip
"""Searched before PATH; the last three are those of NixOS, Guix System and a Nix for all users."""

SYSTEM_TREES = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/nix", "/gnu", "/var/guix",
    "/run/current-system", "/System", "/Library",
)  # fmt: skip
"""Trees for root's programs."""

HOME_TREES = (
    ".local/bin", "bin", ".cargo/bin", ".local/share/uv/tools", ".local/share/uv/python", ".local/share/pipx",
    ".local/pipx", ".pyenv",
)  # fmt: skip
"""Trees below the home directory that every sandbox protects."""

OPENED_RECORD = ".local/state/sandboxd/trust/opened"
"""Record of directories that commands could write, below the home directory (`sandboxd.settings.files.trust`)."""

_MAX_LINKS = 40
_MAX_RECORD = 4 * 1024 * 1024
_OVERFLOW_UID = 65534
_LIBRARY_PATHS = frozenset({"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH"})
_PRELOADED = frozenset({"LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES"})
_CODE_PREFIXES = ("PYTHON", "LD_", "DYLD_")
_CODE_NAMES = frozenset(
    """GCONV_PATH GETCONF_DIR LOCPATH GUIX_LOCPATH LOCALE_ARCHIVE MALLOC_TRACE NLSPATH NIS_PATH TZDIR HOSTALIASES
    RESOLV_HOST_CONF GLIBC_TUNABLES OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES OPENSSL_CONF_INCLUDE SSLKEYLOGFILE
    BASH_ENV ENV UVLOOP_DEBUG __PYVENV_LAUNCHER__""".split()
)
_BUS_NAMES = ("DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS")


@dataclass(frozen=True, slots=True)
class Search:
    """The result of the search for a program."""

    path: str | None
    refused: str = ""  # the first file of that name that commands could write
    why: str = ""  # the reason of the refusal


def find(name: str, search_path: str = "", writable: Iterable[str] = ()) -> Search:
    """Return the first executable file of this name that commands cannot write.

    The directories of the system come before those of `search_path`. `writable` are directories that commands are known
    to write."""
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
    """Return the target of links, as far as this process may follow them."""
    try:
        return os.path.realpath(path)
    except OSError:
        return os.path.normpath(path)


def why_writable(path: str, writable: Iterable[str] = ()) -> str:
    """Return why commands could have written an absolute path, or ""."""
    trees = home_trees()
    opened = tuple(map(_real_path, writable))
    try:
        for place, state in places_on(path):
            tree = next((tree for tree in trees if is_in(place, tree)), "")
            if not tree and any(is_in(tree, place) for tree in trees):
                continue  # a parent of a protected tree: the sandbox keeps it in place
            if any(is_in(place, directory) and (not tree or is_in(directory, tree)) for directory in opened):
                return f"commands may write {place}"
            if tree:
                continue
            reason = _why_writable_place(place, state)
            if reason:
                return reason
    except OSError as error:
        return f"{error.filename or path}: {error.strerror}"
    if os.geteuid() == 0 and not _is_system_path(path, trees):
        return f"{path} is outside the directories of the system, and root's projects may have written it"
    return ""


def opened_place(paths: Iterable[str], homes: Iterable[str] | None = None) -> str:
    """Return the recorded directory, writable by commands, above a path.

    Empty without one, the root where a record cannot be read. `homes` are those with a record: by default $HOME and
    that of the user."""
    real = [_real_path(path) for path in paths if path]
    for home in dict.fromkeys((os.environ.get("HOME", ""), home_of_the_user()) if homes is None else homes):
        for place in _opened(os.path.join(home, OPENED_RECORD)) if os.path.isabs(home) else ():
            if any(is_in(path, place) for path in real):
                return place
    return ""


def _opened(record: str) -> list[str]:
    import json  # needed only to start a daemon

    try:
        with open(os.open(record, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            lines = file.read(_MAX_RECORD + 1)
    except FileNotFoundError:
        return []
    except OSError:
        return ["/"]
    if len(lines) > _MAX_RECORD:
        return ["/"]
    found = []
    for line in lines.splitlines():
        if line.startswith(b'"'):
            try:
                found.append(str(json.loads(line)))
            except ValueError:  # truncated
                continue
    return found


def home_of_the_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def _why_writable_place(place: str, state: os.stat_result) -> str:
    if state.st_uid not in (0, _OVERFLOW_UID) or (state.st_uid == _OVERFLOW_UID == os.geteuid()):
        return f"{place} does not belong to root"
    if stat.S_ISLNK(state.st_mode) or state.st_mode & stat.S_ISVTX:  # their directory or entries decide
        return ""
    by_others = bool(state.st_mode & stat.S_IWOTH)
    if by_others or (os.geteuid() != 0 and os.access(place, os.W_OK)):
        return f"{place} can be written by you"
    return ""


def _is_system_path(path: str, trees: tuple[str, ...]) -> bool:
    real = os.path.realpath(path)
    allowed = (*SYSTEM_TREES, *SYSTEM_DIRECTORIES, *trees)
    return any(is_in(path, tree) for tree in allowed) and any(is_in(real, tree) for tree in allowed)


def places_on(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each physical place on an absolute path. Raises OSError."""
    waiting = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    at, links = "/", 0
    yield at, os.lstat(at)
    while waiting:
        part = waiting.pop()
        if part == "..":
            at = os.path.dirname(at)
            continue
        place = os.path.join(at, part)
        state = os.lstat(place)
        yield place, state
        if not stat.S_ISLNK(state.st_mode):
            at = place
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(place)
        at = "/" if target.startswith("/") else at
        waiting.extend(part for part in reversed(target.split("/")) if part not in ("", "."))


def home_trees() -> tuple[str, ...]:
    """Return the protected trees of the home that the user database names.

    A project can set $HOME, and a daemon with another home protects other trees."""
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
    """Return the environment without variables that load code.

    Interpreters, the dynamic linker, the C library and OpenSSL read them (ld.so(8), python(1), openssl-env(7)), or the
    files that they name. Entries for the linker that commands cannot write stay."""
    kept = dict(environment)
    for name, value in environment.items():
        if name in _LIBRARY_PATHS or name in _PRELOADED:
            rest = _safe_entries(value, loaded=name in _PRELOADED)
            if rest:
                kept[name] = rest
            else:
                del kept[name]
        elif name in _CODE_NAMES or name.startswith(_CODE_PREFIXES) or _leads_to_a_file(name, value):
            del kept[name]
    return kept


def _leads_to_a_file(name: str, value: str) -> bool:
    """Return whether a value is a zone's path, or a bus that is a program (tzset(3), sd_bus_set_address(3))."""
    if name == "TZ":
        return value.lstrip(":").startswith("/") or ".." in value.split("/")
    return name in _BUS_NAMES and "unixexec:" in value


def _safe_entries(value: str, *, loaded: bool) -> str:
    """Return the absolute entries that commands cannot write.

    The linker separates entries by colons, and preloaded names by spaces too. It searches a name without a slash in
    directories that have passed."""
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
    """Return the import path of this interpreter under -I.

    It lacks PYTHONPATH, the script's directory and the user site, except where a .pth file names them (site.py)."""
    left_out = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    if not sys.flags.safe_path and sys.path:
        left_out.add(sys.path[0])
    user = getattr(sys.modules.get("site"), "USER_SITE", None) or ""
    kept = [entry for entry in sys.path if os.path.isabs(entry) and entry not in left_out and entry != user]
    return kept + [entry for entry in _pth_entries(kept) if entry in left_out]


def _pth_entries(directories: Iterable[str]) -> Iterator[str]:
    for directory in directories:
        if os.path.basename(directory) not in ("site-packages", "dist-packages") or not os.path.isdir(directory):
            continue
        for name in os.listdir(directory):
            if name.endswith(".pth"):
                with open(os.path.join(directory, name), encoding="utf-8", errors="surrogateescape") as file:
                    yield from (os.path.join(directory, line.rstrip()) for line in file if line.strip())
