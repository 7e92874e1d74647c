"""The division of a view's mounts into bubblewrap's and late mounts. Pure.

bubblewrap reads the list of all mounts after each bind, so one costs 0.2 ms where the kernel needs 0.01. It takes at
most 9,000 words, too few for the matches of a deny pattern. So it makes the frame (all mounts that need their own
source, options, or a place in an empty file system) and one mask of each kind. The rest are copies of these masks, or
directories and files mounted on themselves."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sandboxd.backends.linux.network.namespace_program import LateMount, MountMethod
from sandboxd.plan.filesystem.mounts import FileView, Mount, Operation
from sandboxd_client.records import dataclass

_MASKS = frozenset({Operation.MASK_FILE, Operation.MASK_DIRECTORY, Operation.REFUSE_NAME})
_SELF = {Operation.WRITABLE: MountMethod.SAME, Operation.READ_ONLY: MountMethod.READ_ONLY}
"""A late mount is writable only where the mount above it is writable."""
_APART = ("/dev/", "/proc/")


@dataclass(frozen=True, slots=True)
class Split:
    """`early` is for bubblewrap, `late` for the steps after it, both in order."""

    early: tuple[Mount, ...]
    late: tuple[LateMount, ...]


def split(view: FileView) -> Split:
    """Divide all effective mounts of a view."""
    links = tuple(LateMount(MountMethod.ENTRY, path, if_there=path in view.searched) for path in view.open_links)
    models = _lasting_models(view)
    late = _late_ones(view.mounts, view.searched, {model.operation: model.target for model in models})
    early = tuple(
        mount
        for mount in _with_models(view.mounts, models)
        if mount.target not in late and mount.operation is not Operation.OVERLAY
    )
    return Split(early, (*late.values(), *links))


def _lasting_models(view: FileView) -> tuple[Mount, ...]:
    """Return models for masks that only a search asks for: in the daemon's own masked directory, where none can go."""
    masked = (mount.target for mount in view.mounts if mount.traverse_only)
    place = next((path for path in masked if path not in view.searched), None)
    if place is None:
        return ()
    found = {
        mount.operation: mount for mount in view.mounts if mount.target in view.searched and not mount.traverse_only
    }
    return tuple(
        replace(found[operation], target=f"{place}/{operation.value}")
        for operation in (Operation.MASK_FILE, Operation.MASK_DIRECTORY)
        if operation in found
    )


def _with_models(mounts: Sequence[Mount], models: Sequence[Mount]) -> Iterator[Mount]:
    for mount in mounts:
        yield mount
        if models and mount.target == posixpath.dirname(models[0].target) and mount.traverse_only:
            for model in models:
                yield model
                if model.operation is Operation.MASK_DIRECTORY:
                    yield Mount(Operation.REMOUNT_READ_ONLY, model.target)


def _late_ones(
    mounts: Sequence[Mount], searched: frozenset[str], lasting: Mapping[Operation, str]
) -> dict[str, LateMount]:
    """Return late mounts by target, in order, as copies of `lasting` models or of masks among them.

    Those that only a search asks for may be gone by now."""
    sealed = {mount.target for mount in mounts if mount.operation is Operation.REMOUNT_READ_ONLY}
    shown = {mount.target: mount for mount in mounts if mount.operation is not Operation.REMOUNT_READ_ONLY}
    models = dict(lasting)
    found: list[LateMount] = []
    frame: set[str] = set()
    """Directories with mounts of bubblewrap in them, which must stay as they are."""
    for mount in mounts:
        if mount.operation in _MASKS and _is_plain(mount, sealed) and _stands_on_the_host(mount, shown):
            models.setdefault(mount.operation, mount.target)
    for mount in reversed(mounts):
        if mount.operation is Operation.REMOUNT_READ_ONLY:
            continue
        if (late := _late(mount, models, sealed)) is None or mount.target in frame or not _stands_on_the_host(
            mount, shown
        ):  # fmt: skip
            frame.update(_above(mount.target))
        else:
            found.append(replace(late, if_there=mount.target in searched))
    return {mount.target: mount for mount in reversed(found)}


def _late(mount: Mount, models: dict[Operation, str], sealed: set[str]) -> LateMount | None:
    if mount.operation in _MASKS:
        model = models.get(mount.operation)
        if model is None or model == mount.target or not _is_plain(mount, sealed):
            return None
        return LateMount(MountMethod.COPY, mount.target, model)
    how = _SELF.get(mount.operation)
    return LateMount(how, mount.target) if how is not None and mount.source == mount.target else None


def _is_plain(mount: Mount, sealed: set[str]) -> bool:
    """Return whether a mount is a mask like all others of its operation, and empty."""
    return mount.operation is not Operation.MASK_DIRECTORY or (not mount.traverse_only and mount.target in sealed)


def _stands_on_the_host(mount: Mount, shown: dict[str, Mount]) -> bool:
    """Return whether the target exists on the host, in the same state as shown."""
    if mount.target.startswith(_APART):
        return False
    above = next((shown[path] for path in _above(mount.target) if path in shown), None)
    if above is None or above.operation not in _SELF or above.source != above.target:
        return False
    return mount.operation is not Operation.WRITABLE or above.operation is Operation.WRITABLE


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = posixpath.dirname(path)
        yield path
