"""The copies that commands see in place of files with secrets (`sandbox.credentials.mask`). Pure.

The daemon writes a copy before a plan needs it (`runtime.credentials.masked_copies`), outside of what commands see. All
masks of one file act on one copy, so that another one never shows more."""

from __future__ import annotations

import hashlib
import posixpath

from sandboxd.paths import is_below
from sandboxd.plan.filesystem.mounts import Mark, Mount, Operation, PathEntry, Visibility
from sandboxd.plan.filesystem.path_table import MarkReason, PathTable
from sandboxd.plan.host_facts import Facts, PathKind
from sandboxd.plan.request import Place
from sandboxd.policy.model import NetworkPolicy
from sandboxd_client.records import dataclass

_MASK, _INJECT = "sandbox.credentials.mask", "sandbox.credentials.inject"


@dataclass(frozen=True, slots=True)
class MaskedFile:
    """A file with the texts before its secrets; without any, all of it is one.

    `further` are those of a project, for what the others leave: such a text must not tell what a secret begins with."""

    path: str
    patterns: tuple[str, ...]
    by_project: bool
    further: tuple[str, ...] = ()

    def is_lifted_by(self, reason: MarkReason) -> bool:
        """Return whether the copy may stand where this rule closes: it is the mask's own, or a source's."""
        rule = reason.rule
        if rule is None:
            return False
        own = rule.origin.key == _MASK and rule.path == self.path
        return own or (rule.origin.key == _INJECT and not self.by_project)


def masked_files(network: NetworkPolicy) -> tuple[MaskedFile, ...]:
    found: dict[str, MaskedFile] = {}
    for path in dict.fromkeys(mask.path for mask in network.masks if mask.path):
        masks = [mask for mask in network.masks if mask.path == path]
        by_project = all(mask.by_project for mask in masks)
        first = {mask.pattern for mask in masks if by_project or not mask.by_project}
        further = {mask.pattern for mask in masks} - first
        if "" in first | further:
            first = further = set()
        found[path] = MaskedFile(path, tuple(sorted(first)), by_project, tuple(sorted(further)))
    return tuple(found.values())


def copy_path(session_tmp: str, file: MaskedFile) -> str:
    """Return the place of a copy, in a directory that ends with the session's temporary one."""
    text = "\0".join((file.path, *file.patterns, "", *file.further))
    return f"{session_tmp}-masked/{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"


def is_copy(path: str) -> bool:
    """Return whether a path is one of `copy_path`."""
    return posixpath.dirname(path).endswith("-masked")


def add_masked_files(table: PathTable, network: NetworkPolicy, place: Place, facts: Facts) -> None:
    """Mount the copies, except where another rule denies to read the file."""
    for file in masked_files(network):
        real = facts.paths[file.path].real
        entry = table.entries.get(real)
        if facts.paths[file.path].kind is not PathKind.FILE or entry is None:
            continue
        above = (path for path, one in table.entries.items() if one.marks & Mark.DENY_READ and is_below(real, path))
        reasons = (one for path in above for one in table.reasons.get(path, ()) if one.mark & Mark.DENY_READ)
        if all(map(file.is_lifted_by, reasons)):
            entry.fixed = Mount(Operation.READ_ONLY, real, copy_path(place.session_tmp, file))
            entry.shows = Visibility.HOST_READ_ONLY


def is_masked(entry: PathEntry | None) -> bool:
    """Return whether a copy stands where reading is denied."""
    return entry is not None and entry.fixed is not None and bool(entry.marks & Mark.DENY_READ)
