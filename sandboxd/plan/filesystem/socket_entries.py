"""Unix sockets in the view: listed ones are visible, control sockets masked.

Most sockets of a host are visible inside anyway. connect(2) needs write permission for the socket itself, on a
read-only mount as well (unix(7)). The exceptions are the session's `/tmp` and paths that may not be read.
`policy.sockets.socket_decisions` decides on each connect; with `allowAllUnixSockets` there is no decision, so control
sockets are masked."""

from __future__ import annotations

from sandboxd.paths import is_below
from sandboxd.plan.filesystem.attribution import Attribution
from sandboxd.plan.filesystem.mounts import Mark, Visibility, settled_at
from sandboxd.plan.filesystem.path_table import MarkReason, PathTable
from sandboxd.plan.host_facts import Facts, PathKind
from sandboxd.plan.host_queries import closed_sockets
from sandboxd.plan.request import Place
from sandboxd.policy.model import NetworkPolicy, SocketRule
from sandboxd.policy.sockets.control_sockets import FINDABLE
from sandboxd.policy.sockets.socket_decisions import KEY, OpenSockets, decide_socket, open_sockets


def add_sockets(table: PathTable, network: NetworkPolicy, place: Place, facts: Facts) -> OpenSockets:
    """Add listed sockets, after all other entries, and return the open sockets."""
    settled = Attribution(table)
    own = [facts.paths[path].real for path in (place.runtime_dir, place.temporary_base, *place.private)]
    ends = []
    for rule in network.allow_unix_sockets:
        resolved = facts.paths[rule.path]
        real, trusted = settled.leads_to(resolved)
        ends.append((real, trusted))
        if not trusted:
            table.warn(f"{rule.path}: opens nothing, since a command could change the symbolic link on the way")
        elif resolved.kind is not None and not any(is_below(real, one) for one in own):
            _add_listed(table, rule, real, resolved.kind)
    sockets = open_sockets(network, ends, own)
    if network.allow_all_unix_sockets:
        _mask_control_sockets(table, closed_sockets(network, place), facts, sockets)
    return sockets


def _add_listed(table: PathTable, rule: SocketRule, real: str, kind: PathKind) -> None:
    end = settled_at(table.entries, real)[-1]
    reason = MarkReason(Mark.ALLOW_READ, f"it is listed in {KEY}")
    can_be_bound = kind in (PathKind.OTHER, PathKind.DIRECTORY)
    if end.shows in (Visibility.PRIVATE, Visibility.OVERLAY) and end.entry.path != real and can_be_bound:
        table.add(real, kind, reason)
    elif end.shows is Visibility.NOTHING and kind is PathKind.OTHER and end.entry.path != real:
        table.add(real, kind, reason)  # a socket can only be connected to, not read
    elif end.shows is Visibility.NOTHING:
        table.warn(f"{rule.path}: it is listed in {KEY}, and cannot be reached because reading it is denied")


def _mask_control_sockets(table: PathTable, named: tuple[str, ...], facts: Facts, sockets: OpenSockets) -> None:
    matches = [(one.real, one.kind) for pattern in FINDABLE for one in facts.globs[pattern]]
    matches += [(facts.paths[path].real, facts.paths[path].kind) for path in named]
    for real, kind in matches:
        if kind is PathKind.OTHER and not decide_socket(real, sockets).allowed:
            table.add(real, kind, MarkReason(Mark.DENY_READ, "it acts outside the sandbox"))
