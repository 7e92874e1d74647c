"""bubblewrap options for a Plan. Pure; options of bubblewrap 0.8 only (bwrap(1)).

There is no `--new-session` (it breaks job control; the filter refuses the terminal ioctls it was for) and no
`--die-with-parent` (it follows the thread that spawned, not the process; the helper watches its owner itself)."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from sandboxd.backends.linux.bwrap.late_mounts import split
from sandboxd.backends.linux.landlock.confinement import writable_roots
from sandboxd.backends.linux.network.namespace_program import LateMount, MountMethod
from sandboxd.errors import PolicyError
from sandboxd.plan.filesystem.mounts import FileView, Mount, Operation
from sandboxd.plan.plan import Plan
from sandboxd_client.records import dataclass

NAMESPACES: Final = (
    "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--cap-drop", "ALL",
    "--as-pid-1",
)  # fmt: skip
"""`--unshare-user` is explicit, because bubblewrap leaves it out for root."""

KERNEL_SETTINGS: Final = ("/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi", "/proc/driver",
                          "/proc/dynamic_debug", "/proc/mtrr", "/proc/1")  # fmt: skip
"""Parts of /proc that configure the host's kernel, and that root can write.

Root needs no capability for most: `sys/kernel/core_pattern` names a program that the kernel runs on the host.
bubblewrap covers a few, but only where the *directory* is writable. Process 1 is the helper: root could write its
`oom_score_adj` and the like, too.
"""

MOST_OPTIONS = 2_000
MOST_BYTES = 100_000
MOST_WORDS = 8_900
"""bubblewrap's own limit is 9,000, of which the command needs some."""

_STAGE: Final = "/dev/.host-tmp"
"""Where the host's `/tmp` is mounted until its entries have been copied."""

_NAME_SIZE = "4096"
"""The size of an empty directory of the sandbox, which holds no data."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class BwrapOptions:
    """The options before `--`, and the mounts that they make.

    With `needs_file` there are too many for an argument list: put them, NUL separated, into a file and pass it with
    `--args FD`. `mounts` are those in the options, `late` those that have to follow before the command starts. `roots`
    are the writable places."""

    options: tuple[str, ...]
    needs_file: bool
    mounts: tuple[Mount, ...] = ()
    late: tuple[LateMount, ...] = ()
    roots: tuple[bytes, ...] = ()
    overlays: tuple[Mount, ...] = ()
    """Mounts of the session, which cover their targets before the late mounts."""
    tmp_size: int | None = None

    @property
    def lasting(self) -> tuple[LateMount, ...]:
        """Return all late mounts, those of the entries of `/tmp` at the end.

        bubblewrap makes none of these: it fails when one is removed at that moment."""
        entries = [mount for mount in self.mounts if mount.operation is Operation.ENTRY]
        if not entries:
            return self.late
        shown = (LateMount(MountMethod.SHOW, one.target, _staged(one.source)) for one in entries)
        return (*self.late, *shown, LateMount(MountMethod.HIDE, _STAGE, if_there=True))

    @property
    def searched(self) -> tuple[LateMount, ...]:
        """Return the late mounts of the host's files that may be gone when they are made."""
        return tuple(one for one in self.late if one.if_there and not one.target.startswith("/proc/"))


_rendered: WeakKeyDictionary[FileView, dict[tuple[str, bool, bool], BwrapOptions]] = WeakKeyDictionary()


def render(plan: Plan, *, weaker: bool = False, root: bool = False, entries: tuple[Mount, ...] = ()) -> BwrapOptions:
    """Return the options for a plan, cached by view.

    `weaker`: bind the outer /proc instead of mounting a new one. `root`: the command runs as root, which could write
    the kernel's settings. `entries` of one directory follow the mount there. Raises `PolicyError` when bubblewrap
    cannot take all options."""
    if entries:
        return _render(plan.view, plan.cwd, weaker, root, entries)
    known = _rendered.setdefault(plan.view, {})
    options = known.get((plan.cwd, weaker, root))
    if options is None:
        options = known[plan.cwd, weaker, root] = _render(plan.view, plan.cwd, weaker, root)
    return options


def _render(view: FileView, cwd: str, weaker: bool, root: bool, entries: tuple[Mount, ...] = ()) -> BwrapOptions:
    options: list[str] = []
    parts = split(view)
    staged = (Mount(Operation.READ_ONLY, _STAGE, posixpath.dirname(entries[0].source)),) if entries else ()
    early = (*parts.early, *staged)
    for mount in early:
        if weaker and mount.operation is Operation.PROCESSES:
            options += ("--ro-bind", "/proc", "/proc")
        else:
            options += _WORDS[mount.operation](mount)
    options += NAMESPACES
    options += ("--chdir", cwd)
    if len(options) > MOST_WORDS:
        raise PolicyError(
            "mounts_too_many",
            f"the rules need {len(options):,} arguments of bubblewrap, above 9,000; most come from {view.busiest}",
            hint="name a directory above the paths instead of each of them",
            data={"words": len(options), "rule": view.busiest},
        )
    size = sum(len(option.encode("utf-8", "surrogateescape")) + 1 for option in options)
    needs_file = len(options) > MOST_OPTIONS or size > MOST_BYTES
    configuring = KERNEL_SETTINGS if root and not weaker else ()
    settings = tuple(LateMount(MountMethod.READ_ONLY, path, if_there=True) for path in configuring)
    late, roots = (*settings, *parts.late), writable_roots(view)
    return BwrapOptions(tuple(options), needs_file, (*early, *entries), late, roots, view.overlays, view.tmp_size)


def _staged(path: str) -> str:
    return f"{_STAGE}/{posixpath.basename(path)}"


_WORDS: dict[Operation, Callable[[Mount], tuple[str, ...]]] = {
    Operation.READ_ONLY: lambda m: ("--ro-bind", m.source, m.target),
    Operation.WRITABLE: lambda m: ("--bind", m.source, m.target),
    Operation.DEVICE: lambda m: ("--dev-bind", m.source, m.target),
    Operation.DEVICES: lambda m: ("--dev", m.target),
    Operation.PROCESSES: lambda m: ("--proc", m.target),
    Operation.MASK_FILE: lambda m: ("--ro-bind", m.source, m.target),
    Operation.MASK_DIRECTORY: lambda m: (
        "--perms",
        "0111" if m.traverse_only else "0000",
        "--size",
        _NAME_SIZE,
        "--tmpfs",
        m.target,
    ),
    Operation.LISTABLE_DIRECTORY: lambda m: ("--perms", "0555", "--tmpfs", m.target),
    Operation.DIRECTORY: lambda m: ("--perms", "0111", "--dir", m.target),
    # listable, so that git does not complain; writable like the masks of private places; sticky, by which the helper
    # knows that it hides nothing of the host (notifications.c)
    Operation.REFUSE_NAME: lambda m: ("--perms", "1555", "--size", _NAME_SIZE, "--tmpfs", m.target),
    Operation.SYMLINK: lambda m: ("--symlink", m.source, m.target),
    Operation.REMOUNT_READ_ONLY: lambda m: ("--remount-ro", m.target),
}


_ROOT: Final = ("--ro-bind", "/", "/", "--unshare-user", "--cap-drop", "ALL")
_TRY_MOUNTS: Final = (
    "--dev", "/dev", "--perms", "0000", "--size", _NAME_SIZE, "--tmpfs", "/sys", "--remount-ro", "/sys",
)  # fmt: skip

PROBE_PARTS: Final = (
    ("user namespace", _ROOT),
    ("mounts", (*_ROOT, *_TRY_MOUNTS)),
    ("own /proc", (*_ROOT, "--unshare-pid", "--as-pid-1", "--proc", "/proc")),
    ("network namespace", (*_ROOT, "--unshare-net")),
    ("ipc and uts namespaces", (*_ROOT, "--unshare-ipc", "--unshare-uts")),
)
"""The parts of a sandbox, for separate trials; all others need the first."""


def probe_options(*, weaker: bool = False) -> tuple[str, ...]:
    """Return options for a minimal sandbox with one of each kind of mount."""
    processes = ("--ro-bind", "/proc", "/proc") if weaker else ("--proc", "/proc")
    return (
        "--ro-bind", "/", "/", *_TRY_MOUNTS[:2], *processes, *_TRY_MOUNTS[2:], *NAMESPACES,
    )  # fmt: skip
