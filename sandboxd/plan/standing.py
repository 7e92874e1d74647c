"""What is in force at one path of a layout, for `explain`. From the points that the mounts are made of."""

from __future__ import annotations

from sandboxd.plan.facts import Resolved
from sandboxd.plan.mounts import Mark, Shows, settled_at
from sandboxd.plan.point_map import PointMap
from sandboxd.plan.points import TMP
from sandboxd.policy.path_decisions import Access, Cause, PathStanding

_ACCESS = {
    Shows.NOTHING: Access.NONE,
    Shows.HOST_READ_ONLY: Access.READ,
    Shows.HOST_WRITABLE: Access.WRITE,
    Shows.PRIVATE: Access.OWN,
}


def standing_at(found: PointMap, path: str, resolved: Resolved) -> PathStanding:
    """`resolved` is what the host says about `path`."""
    way = settled_at(found.points, resolved.real)
    end = way[-1]
    opened = denied = written = closed = protected = locked = None
    for node in way:
        marks, at = node.point.marks, node.point.path
        if marks & Mark.DENY_READ:
            denied, opened, written = _cause(found, at, Mark.DENY_READ), None, None
        elif marks & (Mark.ALLOW_READ | Mark.ALLOW_WRITE):
            if denied is not None:
                opened, denied = _cause(found, at, marks & (Mark.ALLOW_READ | Mark.ALLOW_WRITE)), None
            if marks & Mark.ALLOW_WRITE:
                written = _cause(found, at, Mark.ALLOW_WRITE)
        if marks & Mark.WORKING and denied is None and written is None:
            written = _cause(found, at, Mark.WORKING)
        if marks & (Mark.ALLOW_WRITE | Mark.WORKING):
            locked = None
        if marks & Mark.LOCKED:
            locked, written = _cause(found, at, Mark.LOCKED), None
        if marks & Mark.DENY_WRITE:
            closed = _cause(found, at, Mark.DENY_WRITE)
        if marks & Mark.LIFTED:
            protected = None
        elif marks & Mark.PROTECTED:
            protected = _cause(found, at, Mark.PROTECTED)
    if end.readable and end.shows is Shows.NOTHING and end.point.kind is not None:
        denied = Cause(end.point.path, "it belongs to the daemon itself")
    return PathStanding(
        path=path,
        real=resolved.real,
        access=_ACCESS[end.shows],
        read_denied=denied,
        read_opened=opened,
        write_opened=written,
        write_denied=closed,
        protected=protected or locked,
        managed_reads_only=found.managed_reads_only,
        is_session_tmp=end.shows is Shows.PRIVATE and (end.point.path == TMP or end.point.link == TMP),
    )


def _cause(found: PointMap, path: str, mark: Mark) -> Cause:
    reasons = [reason for reason in found.reasons.get(path, ()) if reason.mark & mark]
    for reason in reasons:
        if reason.rule is not None:
            return Cause(path, reason.text, reason.rule)
    return Cause(path, reasons[0].text if reasons else "it belongs to the sandbox itself")
