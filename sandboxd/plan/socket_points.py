"""Unix sockets in the view: what is listed has to be there, and with `allowAllUnixSockets` what acts outside must not.

Most sockets of a host are seen in the sandbox anyway, read-only, and connecting writes nothing to a disk: it takes
write permission for the socket itself, on a read-only mount as well (unix(7)). What stands in the way is the
session's own `/tmp`, and places that may not be read. Whether a connect succeeds is decided elsewhere
(`policy.socket_decisions`); only where every socket is allowed nobody is asked, so there the dangerous ones are masked.
"""

from __future__ import annotations

from sandboxd.plan.attribution import Attribution
from sandboxd.plan.facts import Facts, Kind
from sandboxd.plan.mounts import Mark, Shows, is_below, settled_at
from sandboxd.plan.needs import closed_sockets
from sandboxd.plan.point_map import PointMap, Reason
from sandboxd.plan.request import Place
from sandboxd.policy.control_sockets import FINDABLE
from sandboxd.policy.policy import NetworkPolicy, SocketRule
from sandboxd.policy.socket_decisions import KEY, OpenSockets, decide_socket, open_sockets


def add_sockets(found: PointMap, network: NetworkPolicy, place: Place, facts: Facts) -> OpenSockets:
    """To be called when every other point is there. The result is what a command may connect to."""
    settled = Attribution(found)
    own = [facts.paths[path].real for path in (place.runtime_dir, place.temporary_base, *place.private)]
    ends = []
    for rule in network.allow_unix_sockets:
        resolved = facts.paths[rule.path]
        real, trusted = settled.leads_to(resolved)
        ends.append((real, trusted))
        if not trusted:
            found.warn(f"{rule.path}: opens nothing, since a command could change the symbolic link on the way")
        elif resolved.kind is not None and not any(is_below(real, one) for one in own):
            _add_listed(found, rule, real, resolved.kind)
    sockets = open_sockets(network, ends, own)
    if network.allow_all_unix_sockets:
        _mask_control_sockets(found, closed_sockets(network, place), facts, sockets)
    return sockets


def _add_listed(found: PointMap, rule: SocketRule, real: str, kind: Kind) -> None:
    end = settled_at(found.points, real)[-1]
    reason = Reason(Mark.ALLOW_READ, f"it is listed in {KEY}")
    if end.shows is Shows.PRIVATE and end.point.path != real and kind in (Kind.OTHER, Kind.DIRECTORY):
        found.add(real, kind, reason)
    elif end.shows is Shows.NOTHING and kind is Kind.OTHER and end.point.path != real:
        found.add(real, kind, reason)  # nothing can be read from a socket but by connecting to it
    elif end.shows is Shows.NOTHING:
        found.warn(f"{rule.path}: it is listed in {KEY}, and cannot be reached because reading it is denied")


def _mask_control_sockets(
    found: PointMap, named: tuple[str, ...], facts: Facts, sockets: OpenSockets
) -> None:
    matches = [(one.real, one.kind) for pattern in FINDABLE for one in facts.globs[pattern]]
    matches += [(facts.paths[path].real, facts.paths[path].kind) for path in named]
    for real, kind in matches:
        if kind is Kind.OTHER and not decide_socket(real, sockets).allowed:
            found.add(real, kind, Reason(Mark.DENY_READ, "it acts outside the sandbox"))
