"""Effective access at one path of a layout, for `explain`."""

from __future__ import annotations

from sandboxd.plan.filesystem.mounts import Mark, Visibility, settled_at
from sandboxd.plan.filesystem.path_table import PathTable
from sandboxd.plan.host_facts import ResolvedPath
from sandboxd.policy.paths.path_decisions import Cause, EffectiveAccess, PathAccess

_ACCESS = {
    Visibility.NOTHING: PathAccess.NONE,
    Visibility.HOST_READ_ONLY: PathAccess.READ,
    Visibility.HOST_WRITABLE: PathAccess.WRITE,
    Visibility.PRIVATE: PathAccess.OWN,
    Visibility.OVERLAY: PathAccess.OVERLAY,
}


def effective_access_at(table: PathTable, path: str, resolved: ResolvedPath) -> EffectiveAccess:
    """Return the effective access; `resolved` is what the host says about `path`."""
    way = settled_at(table.entries, resolved.real)
    end = way[-1]
    opened = denied = written = closed = protected = locked = None
    for node in way:
        marks, at = node.entry.marks, node.entry.path
        if marks & Mark.DENY_READ:
            denied, opened, written = _cause(table, at, Mark.DENY_READ), None, None
        elif marks & (Mark.ALLOW_READ | Mark.ALLOW_WRITE):
            if denied is not None:
                opened, denied = _cause(table, at, marks & (Mark.ALLOW_READ | Mark.ALLOW_WRITE)), None
            if marks & Mark.ALLOW_WRITE:
                written = _cause(table, at, Mark.ALLOW_WRITE)
        if marks & Mark.WORKING and denied is None and written is None:
            written = _cause(table, at, Mark.WORKING)
        if marks & (Mark.ALLOW_WRITE | Mark.WORKING):
            locked = None
        if marks & Mark.UNOPENABLE:
            locked, written = _cause(table, at, Mark.UNOPENABLE), None
        if marks & Mark.DENY_WRITE:
            closed = _cause(table, at, Mark.DENY_WRITE)
        if marks & Mark.LIFTED:
            protected = None
        elif marks & Mark.PROTECTED:
            protected = _cause(table, at, Mark.PROTECTED)
    if end.readable and end.shows is Visibility.NOTHING and end.entry.kind is not None:
        denied = Cause(end.entry.path, "it belongs to the daemon itself")
    return EffectiveAccess(
        path=path,
        real=resolved.real,
        access=_ACCESS[end.shows],
        read_denied=denied,
        read_opened=opened,
        write_opened=written,
        write_denied=closed,
        protected=protected or locked,
        managed_reads_only=table.managed_reads_only,
        is_session_tmp=end.shows is Visibility.PRIVATE and not end.entry.path.startswith(("/dev", "/proc")),
    )


def _cause(table: PathTable, path: str, mark: Mark) -> Cause:
    reasons = [reason for reason in table.reasons.get(path, ()) if reason.mark & mark]
    for reason in reasons:
        if reason.rule is not None:
            return Cause(path, reason.text, reason.rule)
    return Cause(path, reasons[0].text if reasons else "it belongs to the sandbox itself")
