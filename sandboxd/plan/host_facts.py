"""Facts: what the host answered. Frozen, and easy to write literally in a test.

A path here is *canonical* when no symlink is on the way to it. Where something does not exist, the canonical path is
that of the nearest existing directory plus the missing names.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sandboxd.plan.host_queries import HostQueries
from sandboxd.plan.request import Place


class PathKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    DEVICE = "device"
    OTHER = "other"
    """A pipe or a socket."""


class PathObstacle(StrEnum):
    """Why nothing can be made in a directory, or be found there."""

    FOREIGN = "foreign"
    """It is somebody else's, or on a file system that cannot be written: nothing inside can change that."""
    OWN = "own"
    """It is this user's, who could give themselves the right."""
    ENTRY = "entry"
    """What stands in the way is no directory, and would have to give way to one."""


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symlink: `path` is where it stands (canonical directory plus its name), `target` its text."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """Where a path of the policy leads. `kind` is None when nothing is there; then `existing` is the nearest canonical
    directory that is. `links` are the symlinks followed, in order. `problem` is empty, or says why the way could not be
    followed to its end (in words). `hard_links` counts the names of a regular file. `obstacle`: nothing is there,
    and this user cannot make or find anything in `existing`; or what is no directory stands at `real` itself."""

    real: str
    kind: PathKind | None = PathKind.DIRECTORY
    existing: str = ""
    links: tuple[Symlink, ...] = ()
    problem: str = ""
    hard_links: int = 1
    obstacle: PathObstacle | None = None

    @property
    def is_closed(self) -> bool:
        """What is there cannot be seen, because this user has taken the right to search `existing` from themselves."""
        return self.kind is None and bool(self.problem) and self.obstacle is PathObstacle.OWN


@dataclass(frozen=True, slots=True)
class Found:
    """A name that a scan found: `path` is where it stands, `real` where it leads (the same unless it is a symlink).
    `links` are the symlinks followed, for a match of a pattern also those on the way to `path`, which is canonical.
    `closed` is a directory that this user cannot search at the moment and can give themselves the right to: what the
    name leads to may be in it; for a match of a pattern, anything may."""

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
    """A path that the configuration of git names, with contents that git obeys: an included file, or a `directory` of
    hooks or with a template. `listed`: it lies in a working tree, where git lists every file."""

    resolved: ResolvedPath
    directory: bool = False
    listed: bool = False


@dataclass(frozen=True, slots=True)
class GitDir:
    """A git directory. `names` are the paths asked for (`HostQueries.git_names`), resolved, in that order. `obeyed` are
    further paths that git obeys when it works there, because its configuration names them."""

    path: str
    names: tuple[tuple[str, ResolvedPath], ...] = ()
    obeyed: tuple[GitConfigTarget, ...] = ()
    worktree_config: bool = False
    """git reads `config.worktree` too (extensions.worktreeConfig)."""
    worktree: str | None = None
    """For that of a linked worktree, whose hooks and configuration are those of the common directory: where the working
    tree is (canonical; empty when it is gone)."""


@dataclass(frozen=True, slots=True)
class Worktree:
    """A directory whose `.git` leads out of it, and which the other side confirms: the git directory points back at
    it. `common` holds objects and refs. `refused` says why an unconfirmed one is not followed."""

    root: str
    git_dir: str
    common: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan found below one canonical root. `git_entries` are the `.git` files and links seen, `git_dirs` the
    git directories; `obeyed` is what git obeys where the former stand. `unreadable` are directories that could not be
    listed although the user might open them up. `top` is the nearest directory at or above the root that has a `.git`;
    looked for where commands are started."""

    root: str
    names: tuple[Found, ...] = ()
    git_entries: tuple[Found, ...] = ()
    git_dirs: tuple[GitDir, ...] = ()
    worktree: Worktree | None = None
    unreadable: tuple[str, ...] = ()
    top: str = ""
    obeyed: tuple[GitConfigTarget, ...] = ()


@dataclass(frozen=True, slots=True)
class MountAliases:
    """Files and directories that have several canonical paths, because the file system that they are on, or a part of
    it, is mounted in several places. `names`: the other paths of one. `mounted` are all mount points: what lies below
    two names of a directory differs from there on."""

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mounted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], mounted: Iterable[str]) -> MountAliases:
        """Each pair is two names of the same."""
        names: dict[str, dict[str, None]] = {}
        for one, other in pairs:
            names.setdefault(one, {})[other] = None
            names.setdefault(other, {})[one] = None
        return cls({name: tuple(others) for name, others in names.items()}, frozenset(mounted))

    def others(self, path: str) -> Iterator[str]:
        """The other canonical paths of what is, or would be, at this one."""
        here = path if self.names else ""
        while here:
            for there in self.names.get(here, ()):
                other = posixpath.join(there, path[len(here) :].strip("/")).rstrip("/") or "/"
                if other != path and not self._is_covered(other, there):
                    yield other
            if here in self.mounted or here == "/":
                return  # what is above is on another file system
            here = posixpath.dirname(here)

    def _is_covered(self, path: str, top: str) -> bool:
        """Whether something else is mounted on the way from `top`."""
        while len(path) > len(top):
            if path in self.mounted:
                return True
            path = posixpath.dirname(path)
        return False


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """`paths` and `globs` are keyed by the text of the need, `scans` by the need's root. `obeyed` is what git obeys in
    every repository of this user, `apart` what no scan has entered. `passed_by` are the symlinks that the
    `**` of a pattern has not gone through and that lead out of where it has looked, each with the canonical path that
    it leads to. `absent` are the canonical paths at which nothing was, or only a placeholder. `stamp` belongs to the
    source of the facts and proves their age."""

    paths: Mapping[str, ResolvedPath] = field(default_factory=dict)
    globs: Mapping[str, tuple[Found, ...]] = field(default_factory=dict)
    scans: Mapping[str, Scan] = field(default_factory=dict)
    obeyed: tuple[GitConfigTarget, ...] = ()
    passed_by: Mapping[str, tuple[Symlink, ...]] = field(default_factory=dict)
    stamp: object = None
    mount_aliases: MountAliases = field(default_factory=MountAliases)
    apart: tuple[str, ...] = ()
    absent: Collection[str] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)
    """The directories of bounded needs that were not seen whole, with the reasons."""

    def rest_on(self, path: str) -> bool:
        """Whether something that appears at this canonical path could make a difference."""
        return path in self.absent or any(path.startswith(f"{root}/") for root in self.scans)


@dataclass(frozen=True, slots=True)
class Territory:
    """Where a command can leave something, for the look when it has ended. `places` are the canonical directories that
    it can write, none in another, and `apart` what is not its own in them. `known` are the git directories that mounts
    protect from it. `since` is the time of its start (ns of the wall clock)."""

    places: tuple[str, ...]
    apart: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    since: int = 0


@dataclass(frozen=True, slots=True)
class Neutralised:
    """What was done about repositories that a command has made. `moved` are the paths that were moved aside, by the
    names they had. `failed` is what kept something from being done or seen, although the rest was. `unseen` says why
    there was too much to be seen whole."""

    moved: tuple[str, ...] = ()
    failed: Exception | None = None
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class SocketFile:
    """The identity of a Unix socket, in what no command can choose.

    `device` is major and minor number. `made_ns` says when the inode came to be, since its number is used again; where
    the file system does not know, when it was changed last."""

    device: tuple[int, int]
    inode: int
    made_ns: int


@dataclass(frozen=True, slots=True)
class FoundSocket:
    """A Unix socket, and the path where it stood as a command sees it.

    `bound_at` is the name by which its server has bound it, where that is known."""

    path: str
    file: SocketFile
    bound_at: str = ""


@dataclass(frozen=True, slots=True)
class SocketsAtStart:
    """The Unix sockets in places that a command can write, before it ran.

    In those that are listed, and in its own `/tmp`. By a link or a rename it can put any other one there. `writable`
    are all canonical directories that it can write. Not `complete` when there was more to look through than is."""

    found: tuple[FoundSocket, ...] = ()
    writable: tuple[str, ...] = ()
    complete: bool = True

    def paths_of(self, file: SocketFile) -> tuple[str, ...]:
        """List the paths where this very socket stood."""
        return tuple(one.path for one in self.found if one.file == file)


class FactSource(Protocol):
    """Who answers: the host, or a literal one in tests."""

    async def answer(self, needs: HostQueries) -> Facts:
        """Look. Raises `PolicyError` when a question cannot be answered completely."""
        ...

    async def resolve(self, path: str) -> ResolvedPath:
        """Where one absolute path leads now."""
        ...

    def look_again(self, path: str) -> None:
        """What was answered about this path does not hold any more."""
        ...

    def unchanged(self, facts: Facts) -> bool:
        """Whether the same questions would be answered in the same way now. Microseconds; False when in doubt."""
        ...

    def forget(self, facts: Facts) -> None:
        """Nobody will ask about these facts again."""
        ...


def session_directory(place: Place, facts: Facts) -> str:
    """The canonical path of the session's temporary directory."""
    below = posixpath.relpath(place.session_tmp, place.temporary_base)
    return posixpath.join(facts.paths[place.temporary_base].real, below)
