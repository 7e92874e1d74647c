"""Mounts: their order, and the rule in force where rules meet.

The input are *path entries*: canonical paths, with marks of the rules that name them. They are visited parents before
children, with the rules in force. Four rules are the whole semantics:

1. Reading is allowed unless `DENY_READ`; below a denied region the most specific `ALLOW_READ` or `ALLOW_WRITE` re-opens
   it; on the same path the deny wins.
2. Writing is denied unless `ALLOW_WRITE`, which has to be more specific than any `DENY_READ` above it.
3. `DENY_WRITE` beats every `ALLOW_WRITE` at and below its path, however specific that is.
4. `PROTECTED` is a `DENY_WRITE` that a `LIFTED` at or below its path takes back.

A mount is made only where the visibility differs from that of the mount above. Every directory between a writable mount
and a mount below it is mounted too: a mount point cannot be renamed (EBUSY), so a command cannot move a guarded name
away together with its parent."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntFlag, StrEnum, auto

from sandboxd.paths import is_below
from sandboxd.plan.host_facts import Facts, PathKind
from sandboxd_client.records import dataclass, field


class Mark(IntFlag):
    """Marks of a path: the rules that name it."""

    NONE = 0
    ALLOW_READ = auto()
    ALLOW_WRITE = auto()
    DENY_READ = auto()
    DENY_WRITE = auto()
    WORKING = auto()
    """The working directory: writable where it can be read, but it re-opens nothing."""
    PROTECTED = auto()
    LIFTED = auto()
    UNOPENABLE = auto()
    """A directory without permission for its owner, which stays so in the sandbox. A more specific rule or a working
    directory in it can be written."""
    VISITED = auto()
    """A working directory outside that of the session: visible as on the host, and nothing more."""


class Visibility(StrEnum):
    """The state of a mounted path."""

    HOST_READ_ONLY = "read-only"
    HOST_WRITABLE = "writable"
    NOTHING = "nothing"
    """Denied, and masked."""
    PRIVATE = "private"
    """Of the sandbox itself: the session's temporary directory, `/dev`, `/proc`."""
    OVERLAY = "overlay"
    """As on the host; what a command writes is kept for its session."""


class Operation(StrEnum):
    """The operation of a `Mount`, in the order of a view."""

    READ_ONLY = "read-only"
    WRITABLE = "writable"
    OVERLAY = "overlay"
    """The host's directory, below `source`, where the session's changes are."""
    ENTRY = "entry"
    """An entry of the host's `/tmp`, read-only, if it is still there."""
    DEVICE = "device"
    DEVICES = "devices"
    PROCESSES = "processes"
    MASK_FILE = "mask-file"
    MASK_DIRECTORY = "mask-directory"
    """An empty directory that cannot be listed; with `traverse_only` it can be walked through to mounts below.
    Without a read-only remount its owner could change its mode, and would find nothing in it."""
    LISTABLE_DIRECTORY = "listable-directory"
    """An empty directory that can be listed and shows only the mounts below."""
    DIRECTORY = "directory"
    """A directory on the way to a mount inside a mask or a listable directory."""
    REFUSE_NAME = "refuse-name"
    """A cover of a placeholder, so that an absent name stays absent."""
    SYMLINK = "symlink"
    REMOUNT_READ_ONLY = "remount-read-only"
    """Makes a mask read-only, after all mounts below it."""

    @classmethod
    def _missing_(cls, value: object) -> Operation | None:
        """Read the words of version 1 of the hand-over document."""
        return {"shelf": cls.LISTABLE_DIRECTORY, "seal": cls.REMOUNT_READ_ONLY}.get(str(value))


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: `source` is a host path, the mask file, or the text of a symlink."""

    operation: Operation
    target: str
    source: str = ""
    traverse_only: bool = field(default=False, metadata={"recorded": "passage"})


@dataclass(slots=True)
class PathEntry:
    """A canonical path with its marks.

    `kind` is None for an absent path. `missing` are the placeholders to make (see `FileView`), the path itself last: to
    keep it absent, or with a `kind` to have it there. `link` is the text of a symlink at the path; `guard`: it must not
    be replaced. `fixed` is a mount of the sandbox that no rule changes, with the visibility `shows`. `force` masks a
    file although the place around it is private. `sealed`: a mask becomes read-only. `pinned`: the path must not be
    moved."""

    path: str
    kind: PathKind | None = PathKind.DIRECTORY
    marks: Mark = Mark.NONE
    missing: tuple[str, ...] = ()
    link: str | None = None
    guard: bool = False
    fixed: Mount | None = None
    shows: Visibility | None = None
    force: bool = False
    sealed: bool = True
    pinned: bool = False
    exact: bool = False
    """An absent path that is kept so by comparison of names, without a placeholder."""
    searched: bool = False
    """Only a search has found it, below the top of what it searched: another program may remove it at any time."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FileView:
    """The file system of a sandbox: one for all commands of a place."""

    mounts: tuple[Mount, ...]
    placeholders: tuple[str, ...] = ()
    """Placeholders to make on the host before the sandbox starts, parents first, and to remove after it. The path of a
    directory ends in a slash."""
    watched: tuple[tuple[str, ...], ...] = ()
    """Names without a placeholder, because a directory of that name would do harm. When all of one tuple exist after
    the sandbox has ended, the first has to be moved aside."""
    open_links: tuple[str, ...] = ()
    """Symlinks at protected or denied names in writable directories. Mounts guard their targets, but cannot keep a link
    from being replaced."""
    writable: tuple[str, ...] = ()
    """Writable paths, for messages."""
    busiest: str = ""
    """The rule that names the most paths, for messages, if there are very many mounts."""
    guards: tuple[str, ...] = ()
    """Absent names that the back end keeps absent without anything at them, and `closed`."""
    closed: tuple[str, ...] = ()
    """Protected names that exist in zones. What a person moves over one takes its mount away."""
    zones: tuple[str, ...] = ()
    """The writable mounts at, above and below which a guarded name lies."""
    facts: Facts | None = None
    """The facts of the view, for a comparison after a command."""
    places: tuple[str, ...] = ()
    """Writable directories by their canonical paths on the host, none in another; the session's temporary directory
    first."""
    searched: frozenset[str] = frozenset()
    """The mounts, links and placeholders that only a search asks for, which may be gone when they are made."""
    layers: tuple[str, ...] = ()
    """The labels of `/tmp` and the home directory."""
    tmp_size: int | None = None
    """Bytes in each overlay, which is then in memory."""
    unbound: frozenset[str] | None = None
    """Names left out where the entries of `/tmp` are bound one by one; else None."""

    @property
    def seen_outside(self) -> str:
        """Return the directory of the host with the changes in `/tmp`, or ""."""
        over = next((one.source for one in self.overlays if one.source.endswith("/tmp/upper")), "")
        return over if self.tmp_size is None else ""

    @property
    def overlays(self) -> tuple[Mount, ...]:
        """Return the overlays, parents first."""
        return tuple(mount for mount in self.mounts if mount.operation is Operation.OVERLAY)


@dataclass(slots=True)
class MountNode:
    """A path entry in the tree, with the rules in force from there downwards."""

    entry: PathEntry
    parent: MountNode | None
    readable: bool = True
    write_open: bool = False
    write_denied: bool = False
    protected: bool = False
    shows: Visibility = Visibility.NOTHING
    mounted: str = "/"
    """The nearest mount at or above."""
    opens_below: bool = False
    """A mount below has to be reachable although this path shows nothing."""


def arrange(
    entries: Mapping[str, PathEntry],
    mask_file: str,
    watched: tuple[tuple[str, ...], ...] = (),
    mounted: Iterable[str] = (),
) -> FileView:
    """Return the view of these path entries, one of which is `/`; `mounted` are mount points of the host."""
    nodes = settle(entries)
    for node in nodes:
        _mark_traversed(node)
    emitter = _Emitter(mask_file)
    for node in nodes:
        emitter.visit(node)
    emitter.leave(None)
    return _with_zones(
        tuple(mounted),
        FileView(
            mounts=tuple(emitter.mounts),
            placeholders=tuple(emitter.placeholders),
            watched=watched,
            open_links=tuple(emitter.open_links),
            writable=tuple(emitter.writable),
            guards=tuple(emitter.guards),
            closed=tuple(emitter.closed),
            places=_places(emitter.mounts),
            searched=frozenset(emitter.searched),
        ),
    )


def _with_zones(mounted: tuple[str, ...], view: FileView) -> FileView:
    """Add the zones: Landlock grants to a whole tree, so those of each topmost writable place with a guard in it."""
    if not view.guards:
        return replace(view, closed=())
    around = {above for guard in view.guards for above in at_and_above(guard)}
    tops = around.intersection(writable_tops(view))
    writable, targets = writable_in(view), [one.target for one in view.mounts if one.operation in _WRITABLE]
    overlays = [one.target for one in view.overlays]
    found = dict.fromkeys(
        path
        for path in (*targets, *mounted)
        if not tops.isdisjoint(at_and_above(path)) and (writable(path) or path in overlays or path in tops)
    )
    opened = {above for target in targets for above in at_and_above(target)}
    closed = [path for path in view.closed if path not in opened and not tops.isdisjoint(at_and_above(path))]
    return replace(view, zones=tuple(found), guards=(*view.guards, *closed), closed=tuple(closed))


def writable_tops(view: FileView, but: Collection[str] = ()) -> Iterator[str]:
    """Yield the topmost places that can be written, of those not in `but`; mounts guard the rest in them."""
    kept: set[str] = set()
    for mount in view.mounts:  # parents come first
        if mount.operation not in _CAN_BE_WRITTEN or mount.target in but:
            continue
        if not any(above in kept for above in at_and_above(mount.target)):
            kept.add(mount.target)
            yield mount.target


def _places(mounts: Sequence[Mount]) -> tuple[str, ...]:
    writable = [mount for mount in mounts if mount.operation in _WRITABLE]
    found: list[str] = []
    for source in sorted({mount.source for mount in writable}, key=_walk_order):
        if not found or not is_below(source, found[-1]):
            found.append(source)
    elsewhere = {mount.source for mount in writable if mount.source != mount.target}
    return tuple(sorted(found, key=lambda place: place not in elsewhere))


def writable_in(view: FileView) -> Callable[[str], bool]:
    """Return a test whether a command can write at a canonical path of the host.

    The nearest mount at or above decides, or a mount of the directory in another place. The test is always True where
    the mounts are unknown: a command that a restart of the daemon has left running."""
    if not view.mounts:
        return lambda path: True
    shown = {mount.target: mount for mount in view.mounts if mount.operation is not Operation.REMOUNT_READ_ONLY}
    elsewhere = [one.source for one in view.mounts if one.operation in _WRITABLE and one.source != one.target]

    def is_writable(path: str) -> bool:
        if any(is_below(path, source) for source in elsewhere):
            return True
        mount = next((shown[at] for at in at_and_above(path) if at in shown), None)
        return mount is not None and mount.operation in _WRITABLE and mount.source == mount.target

    return is_writable


_WRITABLE = (Operation.WRITABLE, Operation.DEVICE, Operation.OVERLAY)
"""DEVICE is for writable paths below /dev, such as a directory in /dev/shm."""
_CAN_BE_WRITTEN = (*_WRITABLE, Operation.DEVICES, Operation.PROCESSES)


def settled_at(entries: Mapping[str, PathEntry], path: str) -> list[MountNode]:
    """Return the settled nodes at and above one canonical path, `/` first."""
    return settle({at: entries[at] for at in at_and_above(path) if at in entries})


def settle(entries: Mapping[str, PathEntry]) -> list[MountNode]:
    """Settle all path entries, every directory right before what lies below it."""
    nodes = _tree(entries)
    for node in nodes:
        _settle(node)
    return nodes


def at_and_above(path: str) -> Iterator[str]:
    """Yield a canonical path, the directories above it, and `/` last."""
    while path != "/":
        yield path
        path = posixpath.dirname(path)
    yield "/"


def _tree(entries: Mapping[str, PathEntry]) -> list[MountNode]:
    nodes: list[MountNode] = []
    stack: list[MountNode] = []
    for path in sorted(entries, key=_walk_order):
        while stack and not is_below(path, stack[-1].entry.path):
            stack.pop()
        node = MountNode(entries[path], stack[-1] if stack else None)
        nodes.append(node)
        stack.append(node)
    return nodes


def _walk_order(path: str) -> str:
    """Return a key that sorts a directory right before everything below it."""
    return path.replace("/", "\0") if path != "/" else ""


def _settle(node: MountNode) -> None:
    """Apply the four rules of the module to a node and its parent."""
    entry, parent, marks = node.entry, node.parent, node.entry.marks
    if parent is not None:
        node.readable, node.write_open = parent.readable, parent.write_open
        node.write_denied, node.protected = parent.write_denied, parent.protected
    if marks == Mark.PROTECTED:  # nearly all nodes, and to test each mark takes a microsecond
        node.protected = True
    else:
        _apply(marks, node)
    above = parent.shows if parent is not None else Visibility.NOTHING
    node.shows = _shows(node, above)
    node.mounted = parent.mounted if parent is not None and node.shows is above else entry.path


def _apply(marks: Mark, node: MountNode) -> None:
    if marks & Mark.DENY_READ:
        node.readable = node.write_open = False
    elif marks & (Mark.ALLOW_READ | Mark.ALLOW_WRITE):
        node.readable = True
        node.write_open = node.write_open or bool(marks & Mark.ALLOW_WRITE)
    if marks & Mark.WORKING and node.readable:
        node.write_open = True
    if marks & Mark.UNOPENABLE:
        node.write_open = False
    node.write_denied = node.write_denied or bool(marks & Mark.DENY_WRITE)
    if marks & Mark.LIFTED:
        node.protected = False
    elif marks & Mark.PROTECTED:
        node.protected = True


_OWN_MARKS = Mark.PROTECTED | Mark.LIFTED | Mark.UNOPENABLE
_LEFT = {Visibility.PRIVATE: _OWN_MARKS, Visibility.OVERLAY: _OWN_MARKS | Mark.VISITED}
"""Marks without effect where a command can only change what is its session's."""


def _shows(node: MountNode, above: Visibility) -> Visibility:
    entry = node.entry
    if entry.shows is not None:
        return entry.shows
    if entry.link is not None:
        return above
    if not node.readable:
        return Visibility.NOTHING
    if node.write_open and not node.write_denied and not node.protected:
        return above if entry.kind is None else Visibility.HOST_WRITABLE
    if entry.kind is None:
        return Visibility.NOTHING if above is Visibility.HOST_WRITABLE else above
    if above in _LEFT and not entry.marks & ~_LEFT[above]:
        return above
    return Visibility.HOST_READ_ONLY


def _mark_traversed(node: MountNode) -> None:
    if node.shows is Visibility.NOTHING and not node.entry.link:
        return
    above = node.parent
    while above is not None and not above.opens_below:
        above.opens_below = True
        above = above.parent


class _Emitter:
    """Converts settled nodes into mounts, in order."""

    def __init__(self, mask_file: str) -> None:
        self._mask_file = mask_file
        self.mounts: list[Mount] = []
        self.placeholders: dict[str, None] = {}
        self.open_links: list[str] = []
        self.guards: list[str] = []
        self.closed: list[str] = []
        self.writable: list[str] = []
        self.searched: set[str] = set()
        self._made: set[str] = set()
        self._unsealed: list[str] = []

    def leave(self, path: str | None) -> None:
        """Remount the masks read-only that `path` is not in; None for all of them."""
        while self._unsealed and (path is None or not is_below(path, self._unsealed[-1])):
            self.mounts.append(Mount(Operation.REMOUNT_READ_ONLY, self._unsealed.pop()))

    def visit(self, node: MountNode) -> None:
        entry, parent = node.entry, node.parent
        self.leave(entry.path)
        if entry.link is not None:
            self._link(entry, parent)
        elif entry.fixed is not None:
            self._way_to(entry, parent)
            self._add(entry.fixed)
        elif entry.kind is None:
            self._absent(node)
        elif parent is None or node.shows is not parent.shows:
            self._mount(node)
        elif entry.pinned and node.shows is Visibility.HOST_WRITABLE:
            self._way_to(entry, parent)
            self._add(Mount(Operation.WRITABLE, entry.path, entry.path))
        if node.shows is Visibility.HOST_WRITABLE and (parent is None or parent.shows is not Visibility.HOST_WRITABLE):
            self.writable.append(entry.path)

    def _mount(self, node: MountNode) -> None:
        entry, parent = node.entry, node.parent
        if node.shows is Visibility.NOTHING:
            hidden = parent is not None and parent.shows is Visibility.PRIVATE
            if hidden and not node.opens_below and not entry.force:
                return
            self._way_to(entry, parent)
            self._make(entry)
            if entry.kind is PathKind.DIRECTORY:
                self._add(Mount(Operation.MASK_DIRECTORY, entry.path, traverse_only=node.opens_below))
                if entry.sealed:
                    self._unsealed.append(entry.path)
            else:
                self._add(Mount(Operation.MASK_FILE, entry.path, self._mask_file))
            return
        self._way_to(entry, parent)
        self._make(entry)
        operation = Operation.WRITABLE if node.shows is Visibility.HOST_WRITABLE else Operation.READ_ONLY
        if operation is Operation.WRITABLE and entry.path.startswith("/dev/"):
            operation = Operation.DEVICE
        self._add(Mount(operation, entry.path, entry.path))
        above = parent is not None and parent.shows is Visibility.HOST_WRITABLE
        if above and node.protected and operation is Operation.READ_ONLY and not entry.searched:
            self.closed.append(entry.path)

    def _absent(self, node: MountNode) -> None:
        parent, entry = node.parent, node.entry
        if parent is None or parent.shows is not Visibility.HOST_WRITABLE or node.shows is not Visibility.NOTHING:
            return
        if entry.exact and node.readable and not entry.path.startswith("/dev/"):
            self._way_to(entry, parent, entry.missing[0].rstrip("/"))
            self.guards.append(entry.path)
            return
        self._make(entry)
        self._way_to(entry, parent)
        if entry.missing[-1].endswith("/"):
            self._add(Mount(Operation.REFUSE_NAME, entry.path))
        else:
            self._add(Mount(Operation.READ_ONLY, entry.path, entry.path))

    def _make(self, entry: PathEntry) -> None:
        for path in entry.missing:
            if entry.searched and path not in self.placeholders:
                self.searched.add(path)
            self.placeholders[path] = None

    def _link(self, entry: PathEntry, parent: MountNode | None) -> None:
        if parent is None or entry.link is None:
            return
        if parent.shows is Visibility.NOTHING:
            if not entry.link:
                return
            self._way_to(entry, parent)
            self._add(Mount(Operation.SYMLINK, entry.path, entry.link))
        elif parent.shows is Visibility.HOST_WRITABLE and entry.guard:
            self._way_to(entry, parent)
            self.open_links.append(entry.path)
            if not entry.searched:
                self.closed.append(entry.path)

    def _way_to(self, entry: PathEntry, parent: MountNode | None, path: str = "") -> None:
        """Mount the directories between a mount and a mount below it, at the entry unless a path is given."""
        path = path or entry.path
        if entry.searched:
            self.searched.add(entry.path)
        elif self.searched:  # what leads to it has to be there as well
            self.searched.difference_update(*([at, f"{at}/"] for at in at_and_above(path)))
        as_on_the_host = (Visibility.HOST_READ_ONLY, Visibility.OVERLAY)
        if parent is None or parent.shows in as_on_the_host or path.startswith("/proc/"):
            return
        for directory in _between(parent.mounted, path):
            if directory in self._made:
                continue
            if entry.searched:
                self.searched.add(directory)
            if parent.shows is Visibility.HOST_WRITABLE:
                self._add(Mount(Operation.WRITABLE, directory, directory))
            elif parent.shows is Visibility.PRIVATE and posixpath.dirname(directory) == parent.mounted:
                self._add(Mount(Operation.LISTABLE_DIRECTORY, directory))
            else:
                self._add(Mount(Operation.DIRECTORY, directory))

    def _add(self, mount: Mount) -> None:
        self._made.add(mount.target)
        self.mounts.append(mount)


def _between(above: str, path: str) -> list[str]:
    """Return the directories strictly between two paths, outermost first."""
    found = []
    directory = posixpath.dirname(path)
    while directory != above and is_below(directory, above):
        found.append(directory)
        directory = posixpath.dirname(directory)
    return found[::-1]
