"""The copies that commands see in place of files with secrets (`sandbox.credentials.mask`). Pure.

The daemon writes a copy before a plan needs it (`runtime.credentials.masked_copies`), outside of what commands see."""

from __future__ import annotations

import hashlib

from sandboxd.paths import is_below
from sandboxd.plan.filesystem.mounts import Mark, Mount, Operation, Visibility
from sandboxd.plan.filesystem.path_table import PathTable
from sandboxd.plan.host_facts import Facts, PathKind
from sandboxd.plan.request import Place
from sandboxd.policy.model import MaskRule, NetworkPolicy

_KEYS = frozenset({"sandbox.credentials.mask", "sandbox.credentials.inject"})


def copies_directory(session_tmp: str) -> str:
    """Return the directory of a session's copies, which ends with its temporary directory."""
    return f"{session_tmp}-masked"


def copy_path(session_tmp: str, mask: MaskRule) -> str:
    name = hashlib.sha256(f"{mask.path}\0{mask.pattern}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return f"{copies_directory(session_tmp)}/{name}"


def add_masked_files(table: PathTable, network: NetworkPolicy, place: Place, facts: Facts) -> None:
    """Mount the copies, except where another rule denies to read the file."""
    for mask in network.masks:
        if not mask.path or facts.paths[mask.path].kind is not PathKind.FILE:
            continue
        real = facts.paths[mask.path].real
        closed = [
            entry for entry in table.entries.values() if entry.marks & Mark.DENY_READ and is_below(real, entry.path)
        ]
        reasons = [reason for entry in closed for reason in table.reasons.get(entry.path, ())]
        others = [one for one in reasons if one.mark & Mark.DENY_READ and _key_of(one.rule) not in _KEYS]
        entry = table.entries.get(real)
        if entry is None or others:
            continue
        entry.fixed = Mount(Operation.READ_ONLY, real, copy_path(place.session_tmp, mask))
        entry.shows = Visibility.HOST_READ_ONLY


def _key_of(rule: object) -> str:
    return getattr(getattr(rule, "origin", None), "key", "")
