"""The overlays of sessions: a directory of the host, and over it what the commands of a session write.

One overlay is made for each session, since two over one upper directory are undefined. It is mounted in a mount
namespace that a descriptor keeps and no process is in; the first command lends its user namespace. Each command gets a
copy of that mount. The kernel remembers names that it has looked up, so each copy begins with forgetting them: what
programs outside have made or replaced meanwhile is seen."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import os
import shutil
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sandboxd.backends.linux.bwrap.mount_check import escaped
from sandboxd.backends.linux.network.namespace_program import (
    MAX_PROGRAM,
    Kept,
    LateMount,
    MountMethod,
    NamespaceProgram,
    Step,
    SystemCall,
    Then,
)
from sandboxd.backends.linux.network.namespace_request import HeldDescriptor, NamespaceError
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker
from sandboxd.errors import LaunchError
from sandboxd.handover.record import Descriptor
from sandboxd.paths import is_below, mount_field
from sandboxd.plan.filesystem.mounts import Mount, Operation
from sandboxd_client.records import dataclass, field

_AT_CWD, _CLOSE_ON_EXEC = -100, os.O_CLOEXEC
_NEW_MOUNTS = 0x20000  # CLONE_NEWNS
_NO_SETUID_NO_DEVICES = 2 | 4  # MS_NOSUID, MS_NODEV
_CLONE = 1  # OPEN_TREE_CLONE, FSPICK_CLOEXEC
_RECONFIGURE = 7  # FSCONFIG_CMD_RECONFIGURE
_OWN_NAMESPACE = "/proc/self/ns/mnt"
_SPECIAL = frozenset(",:\\")
"""Characters with a meaning in the options of a mount."""
MOST_ENTRIES, MOST_LISTED = 300, 50_000
"""Entries of the host's directory that are shown one by one, and those among which they are chosen. A session's first
command makes a name for each, which takes half a millisecond on a busy disk."""
MOST_MOUNTS = 500
"""Mounts of one command in its overlays, without those inside of them."""


@dataclass(frozen=True, slots=True)
class OverlayRecord:
    """One overlay, for the next daemon."""

    root: str
    namespace: Descriptor
    point: str


@dataclass(slots=True)
class _Keeper:
    """The mount of one overlay at `point` in a namespace that it keeps."""

    point: str
    namespace: int = -1
    mount: int = -1
    """Of one in memory: the mount, whose room is asked for."""
    is_own: bool = True
    making: asyncio.Lock = field(default_factory=asyncio.Lock)
    directories: asyncio.Task[list[str]] | None = None
    """Makes its directories, and finds the names in them."""


When = Callable[[], Awaitable[None]]


async def at_once() -> None:
    """Wait for nothing."""


class SessionOverlays:
    """All overlays of a daemon, by their directories: `upper`, `work` and `view` in each."""

    def __init__(self, worker: NamespaceWorker) -> None:
        self._worker = worker
        self._keepers: dict[str, _Keeper] = {}
        self._decided: dict[str, frozenset[str]] = {}

    def decide(self, directory: str, paths: Mapping[str, str]) -> frozenset[str]:
        """Return which of these directories a session has overlays of, once and for all of its commands.

        The kernel lays nothing over a directory with mounts of the host in it."""
        decided = self._decided.get(directory)
        if decided is None:
            mounts, found = Path("/proc/self/mountinfo").read_bytes(), []
            for name, path in paths.items():
                real = os.path.realpath(path)
                unfit = _SPECIAL.intersection(real) or has_mounts(real, mounts)
                if f"{directory}/{name}" in self._keepers or not unfit:
                    found.append(path)
            decided = self._decided[directory] = frozenset(found)
        return decided

    def make_directories(self, overlays: Sequence[Mount]) -> None:
        """Begin with the directories of those that have not been made."""
        for one in overlays:
            keeper = self._keeper(one)
            if keeper.namespace < 0 and (keeper.directories is None or _has_failed(keeper.directories)):
                making = asyncio.to_thread(_make_directories, os.path.dirname(one.source), one.target)
                keeper.directories = asyncio.get_running_loop().create_task(making, name=f"overlay-{keeper.point}")

    def are_kept(self, overlays: Sequence[Mount]) -> bool:
        """Return whether all of these have been made, so that a command needs only copies."""
        kept = map(self._kept, overlays)
        return all(one is not None and one.namespace >= 0 for one in kept)

    def _kept(self, overlay: Mount) -> _Keeper | None:
        """Return the keeper of an overlay, unless its directory went with a session that a restart has lost."""
        root = os.path.dirname(overlay.source)
        keeper = self._keepers.get(root)
        if keeper is not None and keeper.namespace >= 0 and not os.path.isdir(root):
            self.forget((overlay,))
            return None
        return keeper

    def _keeper(self, overlay: Mount) -> _Keeper:
        root = os.path.dirname(overlay.source)
        return self._kept(overlay) or self._keepers.setdefault(root, _Keeper(f"{root}/view"))

    async def trees(
        self, network: int, overlays: Sequence[Mount], size: int | None, when: When = at_once
    ) -> list[HeldDescriptor]:
        """Return a mount for each overlay, to be put once. Raises NamespaceError, LaunchError.

        `network` is a namespace of a sandbox, borrowed while this runs. None is made before `when` has returned."""
        found: list[HeldDescriptor] = []
        try:
            for one in overlays:
                found += await self._tree(network, one, size, when)
        except BaseException:
            close_all(found)
            raise
        return found

    async def _tree(self, network: int, overlay: Mount, size: int | None, when: When) -> list[HeldDescriptor]:
        keeper = self._keeper(overlay)
        async with keeper.making:
            if keeper.namespace < 0:
                found = await self._made(keeper, network, overlay, size, when)
            else:
                found = await self._worker.take(keeper.namespace, NamespaceProgram.of(_copy(keeper)))
        if size is not None and keeper.mount < 0:
            keeper.mount = os.dup(found[0].fileno())
        return found

    async def _made(
        self, keeper: _Keeper, network: int, overlay: Mount, size: int | None, when: When
    ) -> list[HeldDescriptor]:
        """Make an overlay, and return the first copy of its mount."""
        root = os.path.dirname(overlay.source)
        self.make_directories((overlay,))
        assert keeper.directories is not None
        try:
            names = await asyncio.shield(keeper.directories)
            await when()
            program = NamespaceProgram.of((*_make(root, overlay, size, names), _clone(keeper)))
            namespace, *found = await self._worker.take(network, program)
        except NamespaceError:
            keeper.directories = None  # who made room for the next attempt may have removed some
            raise
        except OSError as error:
            keeper.directories = None
            hint = "check the free space there, or: sandboxd settings set sandbox.filesystem.tmp private"
            message = f"cannot make the directories of {overlay.target}: {error.strerror}"
            raise LaunchError("overlay_failed", message, hint=hint) from error
        if self._keepers.get(root) is not keeper:
            close_all((namespace, *found))
            raise LaunchError("launch_failed", "its session has ended", hint="run the command in another session")
        keeper.namespace = namespace.detach()
        return found

    def look_anew(self, overlays: Sequence[Mount]) -> Iterator[asyncio.Future[list[socket.socket]]]:
        """Make the kernel look up names in these overlays again, where their copies exist.

        Yield futures of that, which raise NamespaceError."""
        for keeper in filter(None, map(self._kept, overlays)):
            if keeper.namespace >= 0 and keeper.is_own:
                yield self._worker.start(keeper.namespace, NamespaceProgram.of(_forget_names(keeper)))

    def is_full(self, overlays: Sequence[Mount]) -> bool:
        """Return whether one in memory has no room left."""
        for keeper in filter(None, (self._keepers.get(os.path.dirname(one.source)) for one in overlays)):
            with contextlib.suppress(OSError):
                if keeper.mount >= 0 and os.fstatvfs(keeper.mount).f_bavail == 0:
                    return True
        return False

    def adopt(self, overlays: Sequence[Mount], process: int) -> None:
        """Go on with the overlays of a command that an earlier daemon has left running."""
        for one in overlays:
            keeper = self._keepers.setdefault(os.path.dirname(one.source), _Keeper(one.target, is_own=False))
            if keeper.namespace < 0:
                with contextlib.suppress(OSError):
                    keeper.namespace = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    async def end(self, directory: str) -> None:
        """End the overlays below the directory of a session, which may be removed then."""
        ended = self._drop(directory)
        making = [one.directories for one in ended if one.directories is not None]
        await asyncio.gather(*making, return_exceptions=True)
        if ended:
            await asyncio.to_thread(_unmount, ended)

    def forget(self, overlays: Sequence[Mount]) -> None:
        """Drop these overlays."""
        for one in overlays:
            _unmount(self._drop(os.path.dirname(one.source)))

    def _drop(self, directory: str) -> list[_Keeper]:
        self._decided.pop(directory, None)
        return [self._keepers.pop(root) for root in list(self._keepers) if is_below(root, directory)]

    def hand_over(self) -> Iterator[OverlayRecord]:
        """Yield the records of all overlays, and let go of them."""
        for root, keeper in self._keepers.items():
            if keeper.namespace >= 0 and keeper.is_own:
                yield OverlayRecord(root, Descriptor(keeper.namespace), keeper.point)
            if keeper.mount >= 0:
                os.close(keeper.mount)
        self._keepers.clear()

    def inherit(self, record: OverlayRecord) -> None:
        """Take over an overlay of an earlier daemon."""
        self._keepers[record.root] = _Keeper(record.point, record.namespace)

    async def aclose(self) -> None:
        """End all overlays; commands that run keep theirs."""
        await self.end("/")


def has_mounts(directory: str, mounts: bytes) -> bool:
    """Return whether there are mounts below a directory."""
    start = directory.rstrip("/") + "/"
    if b" " + escaped(start) not in mounts:
        return False
    return any(mount_field(line, 4).startswith(start) for line in mounts.split(b"\n") if line)


def _has_failed(task: asyncio.Task[list[str]]) -> bool:
    """Return whether it has failed, for a launch that may have ended before it noticed."""
    return task.done() and (task.cancelled() or task.exception() is not None)


def _unmount(keepers: Sequence[_Keeper]) -> None:
    """Let go of mounts, for which the kernel takes a millisecond or two."""
    for one in keepers:
        for number in filter(lambda number: number >= 0, (one.namespace, one.mount)):
            os.close(number)


async def why_no_overlays(worker: NamespaceWorker, network: int, pid: int, directory: str, lower: str = "/tmp") -> str:
    """Try an overlay in a sandbox; return why there can be none, or ""."""
    overlays = SessionOverlays(worker)
    mount = Mount(Operation.OVERLAY, lower, f"{directory}/tmp/upper")
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    if _SPECIAL.intersection(directory):
        return f"{directory} has one of the characters {''.join(sorted(_SPECIAL))}"
    try:
        trees = await overlays.trees(network, (mount,), None)
        try:
            mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            try:
                steps = cover((mount,), b"")
                await worker.start(network, NamespaceProgram.of(steps), mounts, [one.fileno() for one in trees])
            finally:
                os.close(mounts)
        finally:
            close_all(trees)
    except (NamespaceError, LaunchError) as error:
        return error.message
    except OSError as error:
        return error.strerror or str(error)
    finally:
        await overlays.aclose()
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
    return ""


def close_all(trees: Sequence[HeldDescriptor]) -> None:
    for one in trees:
        one.close()


def _make_directories(root: str, lower: str) -> list[str]:
    """Make the directories of an overlay; return names of directories that all users write in."""
    for directory in (os.path.dirname(root), root):
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
    state = os.stat(lower)
    names = _shared_names(lower)
    for part in ("upper", "work", "view", *(f"upper/{name}" for name in names)):
        path = f"{root}/{part}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            if part.startswith("upper"):
                os.chmod(path, stat.S_IMODE(state.st_mode) if part == "upper" else 0o1777)
    return names


def bound_entries(directory: str, without: frozenset[str]) -> tuple[Mount, ...]:
    """Return a mount for each file and directory that stands there, those that changed last where there are many."""
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in itertools.islice(entries, MOST_LISTED):
            with contextlib.suppress(OSError):  # it is gone
                state = entry.stat(follow_symlinks=False)
                if entry.name not in without and (stat.S_ISDIR(state.st_mode) or stat.S_ISREG(state.st_mode)):
                    found.append((state.st_ctime_ns, entry.path))
    return tuple(Mount(Operation.ENTRY, path, path) for _, path in heapq.nlargest(MOST_ENTRIES, found))


def _shared_names(lower: str) -> list[str]:
    """Return the directories of other users that all users write in, such as that of X11.

    The kernel copies no directory of another user, so such ones are there from the beginning."""
    own, found = os.geteuid(), []
    with os.scandir(lower) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                state = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(state.st_mode) and state.st_uid != own and state.st_mode & 0o002:
                    found.append(entry.name)
    return found[:64]


def _make(root: str, overlay: Mount, size: int | None, names: Sequence[str]) -> Iterator[Step]:
    """Yield the steps that make the mount of an overlay in a namespace of its own."""
    where = f"keep the changes of {overlay.target}"
    yield SystemCall("unshare", (_NEW_MOUNTS,), purpose=where)
    flags = _NO_SETUID_NO_DEVICES
    if size is not None:
        yield SystemCall("umask", (0,), Then.TRY)
        yield SystemCall("mount", ("tmpfs", root, "tmpfs", flags, f"size={size},mode=0700"), purpose=where)
        for part, mode in (("upper", 0o1777), ("work", 0o700), ("view", 0o700), ("alone", 0o1777)):
            yield SystemCall("mkdirat", (_AT_CWD, f"{root}/{part}", mode), purpose=where)
        for name in names:
            yield SystemCall("mkdirat", (_AT_CWD, f"{root}/upper/{name}", 0o1777), Then.TRY)
    if overlay.source.endswith("/alone"):
        yield SystemCall("mount", (overlay.source, f"{root}/view", "", 4096, 0), purpose=where)  # MS_BIND
    else:
        options = f"lowerdir={overlay.target},upperdir={root}/upper,workdir={root}/work,userxattr"
        yield SystemCall("mount", ("overlay", f"{root}/view", "overlay", flags, options), purpose=where)
    yield SystemCall("openat", (_AT_CWD, _OWN_NAMESPACE, _CLOSE_ON_EXEC), Then.GIVE, where)


def _copy(keeper: _Keeper) -> Iterator[Step]:
    """Yield the steps that hand out a copy of the mount."""
    if keeper.is_own:
        yield from _forget_names(keeper)
    yield _clone(keeper)


def _clone(keeper: _Keeper) -> SystemCall:
    arguments = (_AT_CWD, keeper.point, _CLONE | _CLOSE_ON_EXEC)
    return SystemCall("open_tree", arguments, Then.GIVE, f"copy the mount at {keeper.point}")


def _forget_names(keeper: _Keeper) -> Iterator[Step]:
    yield SystemCall("fspick", (_AT_CWD, keeper.point, _CLONE), Then.KEEP, f"look at {keeper.point}")
    yield SystemCall("fsconfig", (Kept(0), _RECONFIGURE, 0, 0, 0), Then.TRY)


def cover(overlays: Sequence[Mount], inside: bytes) -> list[Step]:
    """Return the steps that mount overlays and, in them, what was mounted there. Raises LaunchError.

    `inside` are the mounts of the sandbox. An overlay shows none of the mounts in the directory that it covers."""
    points = [one.target for one in overlays]
    alone = [one.target for one in overlays if one.source.endswith("/alone")]
    below = _tops(points, inside)
    tree = {path: number for number, path in enumerate([*points, *below])}
    steps: list[Step] = [LateMount(MountMethod.TAKE, path) for path in below]
    for path in sorted(tree):
        for point in alone:
            if path != point and is_below(path, point):
                steps += _names(path, point)
        steps.append(LateMount(MountMethod.PUT, path, tree=tree[path], if_there=True))
    if len(below) > MOST_MOUNTS or sum(len(step.encode()) for step in steps) > MAX_PROGRAM:
        raise LaunchError(
            "overlay_failed",
            f"{len(below):,} paths in {points[0]} are mounted one by one, of {MOST_MOUNTS:,} that are possible",
            hint="name a directory above the paths instead of each of them",
        )
    return steps


def _names(path: str, point: str) -> Iterator[Step]:
    """Yield the steps that make a place for a mount in a directory that is empty at first."""
    names = path[len(point) + 1 :].split("/")
    for count in range(1, len(names)):
        yield SystemCall("mkdirat", (_AT_CWD, "/".join((point, *names[:count])), 0o755), Then.TRY)
    if os.path.isdir(path):
        yield SystemCall("mkdirat", (_AT_CWD, path, 0o755), Then.TRY)
    else:
        yield SystemCall("mknodat", (_AT_CWD, path, stat.S_IFREG | 0o644), Then.TRY)


def _tops(points: Sequence[str], inside: bytes) -> list[str]:
    """Return the topmost mounts below these points."""
    found: list[str] = []
    starts = tuple(escaped(point.rstrip("/")) + b"/" for point in points)
    lines = (line for line in inside.split(b"\n") if line and line.split(b" ", 5)[4].startswith(starts))
    shown = {mount_field(line, 4) for line in lines}
    for path in sorted(shown, key=lambda path: path.replace("/", "\0")):
        lies_in = [point for point in points if path != point and is_below(path, point)]
        if not lies_in or path in points or path.endswith("//deleted"):
            continue
        nearest = max(lies_in, key=len)
        if not any(is_below(path, one) and is_below(one, nearest) for one in found):
            found.append(path)
    return found
