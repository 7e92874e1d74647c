"""Host facts: the answers to host queries. Frozen, and easy to write in a test.

A path is *canonical* when no component is a symlink. The canonical path of something absent is that of the nearest
existing directory plus the missing names."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Protocol

from sandboxd.plan.host_queries import HostQueries
from sandboxd.plan.request import Place
from sandboxd_client.records import dataclass, field


class PathKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    DEVICE = "device"
    OTHER = "other"
    """A pipe or a socket."""


class PathObstacle(StrEnum):
    """The reason why nothing can be made or found in a directory."""

    FOREIGN = "foreign"
    """It belongs to another user or a read-only file system; no command can change that."""
    OWNED = "owned"
    """It belongs to the user, who could give themselves the right."""
    ENTRY = "entry"
    """A component is not a directory, and would have to be replaced by one."""


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symlink: its canonical path and the text of its target."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """The end of a path of the policy: its canonical path, and the way to it.

    `kind` is None when nothing is there; then `existing` is the nearest canonical directory. `links` are the symlinks
    followed, in order. `problem` says in words why the path could not be followed to its end. `hard_links` counts the
    names of a regular file. `obstacle`: the user cannot make or find anything in `existing`, or `real` is not a
    directory. `exact`: the kernel compares names in `existing` byte by byte, on a file system that does not wait for
    another machine. `owner` is set for a directory of another user, where the daemon is root: root in a sandbox cannot
    write it."""

    real: str
    kind: PathKind | None = PathKind.DIRECTORY
    existing: str = ""
    links: tuple[Symlink, ...] = ()
    problem: str = ""
    hard_links: int = 1
    obstacle: PathObstacle | None = None
    exact: bool = False
    owner: int | None = None

    @property
    def is_closed(self) -> bool:
        """Return whether the user has removed their own right to search `existing`."""
        return self.kind is None and bool(self.problem) and self.obstacle is PathObstacle.OWNED


@dataclass(frozen=True, slots=True)
class Found:
    """A match of a scan or pattern: its path, and `real`, which differs for a symlink.

    `links` are the symlinks followed; for a pattern also those on the way to `path`. `closed` is a directory that the
    user cannot search and could open: it may hold the target of the name, or, for a pattern, any match."""

    path: str
    real: str
    kind: PathKind | None
    hard_links: int = 1
    links: tuple[Symlink, ...] = ()
    closed: str = ""

    @property
    def is_link(self) -> bool:
        return self.path != self.real


@dataclass(frozen=True, slots=True)
class GitConfigTarget:
    """A path that the configuration of git names and git obeys.

    It is an included file, or a `directory` of hooks or a template. `listed`: git lists it in a working tree."""

    resolved: ResolvedPath
    directory: bool = False
    listed: bool = False


@dataclass(frozen=True, slots=True)
class GitDir:
    """A git directory with its resolved `git_names` and git config targets."""

    path: str
    names: tuple[tuple[str, ResolvedPath], ...] = ()
    git_config_targets: tuple[GitConfigTarget, ...] = ()
    worktree_config: bool = False
    """git reads `config.worktree` too (extensions.worktreeConfig)."""
    worktree: str | None = None
    """For a linked worktree, which has the hooks and configuration of the common directory: its canonical working tree;
    empty when it is gone."""


@dataclass(frozen=True, slots=True)
class Worktree:
    """A directory whose `.git` leads to a git directory elsewhere, which points back.

    `common` holds objects and refs. `refused` says why a link without confirmation is not followed."""

    root: str
    git_dir: str
    common: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Scan:
    """The findings below one canonical root.

    `git_entries` are `.git` files and links, `git_dirs` git directories, `git_config_targets` their git config targets.
    `unreadable` are directories that could not be listed, and that the user might open. `top` is the nearest directory
    at or above the root with a `.git`, if commands are started there."""

    root: str
    names: tuple[Found, ...] = ()
    git_entries: tuple[Found, ...] = ()
    git_dirs: tuple[GitDir, ...] = ()
    worktree: Worktree | None = None
    unreadable: tuple[str, ...] = ()
    top: str = ""
    git_config_targets: tuple[GitConfigTarget, ...] = ()


@dataclass(frozen=True, slots=True)
class MountAliases:
    """Canonical paths that are other names of each other, by mounts.

    `mounted` are all mount points: what lies below two names of a directory differs from there on."""

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mounted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], mounted: Iterable[str]) -> MountAliases:
        """Make the table from pairs of names of the same file or directory."""
        names: dict[str, dict[str, None]] = {}
        for one, other in pairs:
            names.setdefault(one, {})[other] = None
            names.setdefault(other, {})[one] = None
        return cls({name: tuple(others) for name, others in names.items()}, frozenset(mounted))

    def others(self, path: str) -> Iterator[str]:
        """Yield the other canonical paths of what is, or would be, at this one."""
        above = path if self.names else ""
        while above:
            for alias in self.names.get(above, ()):
                other = posixpath.join(alias, path[len(above) :].strip("/")).rstrip("/") or "/"
                if other != path and not self._is_covered(other, alias):
                    yield other
            if above in self.mounted or above == "/":
                return  # the next directory is on another file system
            above = posixpath.dirname(above)

    def _is_covered(self, path: str, top: str) -> bool:
        """Return whether another mount is on the way from `top`."""
        while len(path) > len(top):
            if path in self.mounted:
                return True
            path = posixpath.dirname(path)
        return False


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """All answers: `paths` and `globs` by text of the query, `scans` by root.

    `git_config_targets` are those of all repositories of the user, `excluded` directories are not entered. `unfollowed`
    are symlinks that a `**` has not followed and that lead out of its directory, with canonical targets. `absent` are
    canonical paths with nothing, or only a placeholder. `stamp` belongs to the fact source and proves the age."""

    paths: Mapping[str, ResolvedPath] = field(default_factory=dict)
    globs: Mapping[str, tuple[Found, ...]] = field(default_factory=dict)
    scans: Mapping[str, Scan] = field(default_factory=dict)
    git_config_targets: tuple[GitConfigTarget, ...] = ()
    unfollowed: Mapping[str, tuple[Symlink, ...]] = field(default_factory=dict)
    stamp: object = None
    mount_aliases: MountAliases = field(default_factory=MountAliases)
    excluded: tuple[str, ...] = ()
    absent: Collection[str] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)
    """The directories of bounded queries that were not searched fully, with the reasons."""

    def rest_on(self, path: str) -> bool:
        """Return whether something new at this canonical path could make a difference."""
        return path in self.absent or any(path.startswith(f"{root}/") for root in self.scans)


@dataclass(frozen=True, slots=True)
class Territory:
    """The directories that a command can write, for the repository clean-up.

    `places` are canonical, none in another; `excluded` are directories in them. `known` are git directories that mounts
    protect. `since` is the start of the command (ns of the wall clock)."""

    places: tuple[str, ...]
    excluded: tuple[str, ...] = field(default=(), metadata={"recorded": "apart"})
    known: tuple[str, ...] = ()
    since: int = 0


@dataclass(frozen=True, slots=True)
class Neutralised:
    """The result of a repository clean-up; `moved` are the old names of moved paths.

    `failed` is the first error; the rest was done. `unseen` says why not everything could be searched."""

    moved: tuple[str, ...] = ()
    failed: Exception | None = None
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class SocketFile:
    """The identity of a Unix socket, which no command can choose.

    `device` is major and minor number. `made_ns` is the birth of the inode, since its number is used again; without a
    birth time, its last change."""

    device: tuple[int, int]
    inode: int
    made_ns: int


@dataclass(frozen=True, slots=True)
class FoundSocket:
    """A Unix socket, its path as a command sees it, and the name of its bind(2)."""

    path: str
    file: SocketFile
    bound_at: str = ""


@dataclass(frozen=True, slots=True)
class SocketsAtStart:
    """The Unix sockets in directories that a command can write, before it ran.

    These are the listed directories and its own `/tmp`; the command can put any other socket there by a link or rename.
    `writable` are all canonical directories that it can write. `complete` is False when a limit ended the search."""

    found: tuple[FoundSocket, ...] = ()
    writable: tuple[str, ...] = ()
    complete: bool = True

    def paths_of(self, file: SocketFile) -> tuple[str, ...]:
        """Return the paths of this socket."""
        return tuple(one.path for one in self.found if one.file == file)


class FactSource(Protocol):
    """The object that answers host queries: the host, or a literal one in tests."""

    async def answer(self, needs: HostQueries) -> Facts:
        """Answer the queries. Raises `PolicyError` when one cannot be answered fully."""

    async def resolve(self, path: str) -> ResolvedPath:
        """Resolve one absolute path now."""

    async def resolve_all(self, paths: Iterable[str]) -> list[ResolvedPath]:
        """Resolve absolute paths now, in their order."""

    def look_again(self, path: str) -> None:
        """Discard answers about this path."""

    def unchanged(self, facts: Facts) -> bool:
        """Return whether the facts hold still; False in doubt. Takes microseconds."""

    def remove_made(self, targets: Iterable[str], since: float) -> str:
        """Remove empty mount targets that were made since a time; return the first or ""."""

    def forget(self, facts: Facts) -> None:
        """Discard what keeps these facts current."""


def session_directory(place: Place, facts: Facts) -> str:
    """Return the canonical path of the session's temporary directory."""
    below = posixpath.relpath(place.session_tmp, place.temporary_base)
    return posixpath.join(facts.paths[place.temporary_base].real, below)
