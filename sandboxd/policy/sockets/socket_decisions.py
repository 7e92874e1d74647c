"""Decisions on Unix sockets, for commands, their environment and `explain`.

| | the path, symbolic links followed | |
| --- | --- | --- |
| 1 | is the daemon's, or lies in a directory of the daemon | deny, whatever is listed |
| 2 | is listed, or lies below a listed directory | allow |
| 3 | is in the session's private `/tmp` or `/dev/shm` | allow |
| 4 | is known to act outside the sandbox (`policy.sockets.control_sockets`) | deny, also with `allowAllUnixSockets` |
| 5 | `allowAllUnixSockets` | allow |
| 6 | anything else | deny |

A listed path counts where it leads, but not through a symbolic link which the command itself could have made: that
would turn a harmless entry into any socket of this machine.

A socket that was bound in the session is reached wherever it is, but for row 1. Rows 2 and 3 are about places. Where
the command can write, it can put any socket of the same file system, by a link or a rename. There they open only
sockets that existed when the command started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sandboxd.paths import is_below
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.model import NetworkPolicy, SocketRule
from sandboxd.policy.sockets.control_sockets import canonical_socket_path, control_socket
from sandboxd_client.records import dataclass

KEY = "sandbox.network.allowUnixSockets"


@dataclass(frozen=True, slots=True)
class ListedSocket:
    """A rule and its real path; not `trusted` if the command could redirect it."""

    rule: SocketRule
    real: str
    trusted: bool = True


@dataclass(frozen=True, slots=True)
class OpenSockets:
    """Sockets that a policy opens; `control` are dangerous beside the table's."""

    listed: tuple[ListedSocket, ...] = ()
    everything: bool = False
    own: tuple[str, ...] = ()
    control: tuple[str, ...] = ()


def open_sockets(network: NetworkPolicy, ends: Sequence[tuple[str, bool]], own: Sequence[str]) -> OpenSockets:
    """Return the sockets of a policy; `ends` are real paths and trust, in order."""
    return OpenSockets(
        listed=tuple(ListedSocket(rule, *end) for rule, end in zip(network.allow_unix_sockets, ends, strict=True)),
        everything=network.allow_all_unix_sockets,
        own=tuple(own),
        control=network.control_sockets,
    )


def decide_socket(path: str, sockets: OpenSockets, *, private: bool = False, brought: str = "") -> Decision:
    """Decide with ALLOW or DENY on a path without symbolic links, empty for none.

    `private`: the socket is the session's own. `brought` is the reason why the place does not open this very socket."""
    if not path.startswith("/"):
        return _deny(Reason.SOCKET_NOT_LISTED, "a socket without a path is never reachable")
    path = canonical_socket_path(path)
    if any(is_below(path, canonical_socket_path(own)) for own in sockets.own):
        return _deny(Reason.SOCKET_OWN, f"{path} belongs to sandboxd itself")
    listed = [one for one in sockets.listed if is_below(path, canonical_socket_path(one.real))]
    for one in listed:
        if one.trusted and not brought:
            text = f"{path} is listed in {KEY}"
            return Decision(Behavior.ALLOW, Reason.SOCKET_ALLOWED, text, one.rule.path, one.rule.origin)
    if private and not brought:
        return Decision(Behavior.ALLOW, Reason.SESSION_TMP, f"{path} is the session's own")
    gives = control_socket(path) or ("acts outside the sandbox" if path in sockets.control else None)
    if gives is not None:
        return _deny(Reason.SOCKET_CONTROL, f"{path} is closed: a client of it {gives}")
    if sockets.everything:
        return Decision(Behavior.ALLOW, Reason.SOCKET_ALLOWED, "every Unix socket may be used (allowAllUnixSockets)")
    if brought and (private or any(one.trusted for one in listed)):
        return _deny(Reason.SOCKET_BROUGHT, f"{path} is in a place that the command can write, and {brought}")
    if listed:
        text = f"a listed path leads to {path} through a symbolic link that the command can change"
        return _deny(Reason.SOCKET_REDIRECTED, text)
    return _deny(Reason.SOCKET_NOT_LISTED, f"{path} is not listed in {KEY}")


def by_place(decision: Decision, sockets: OpenSockets) -> bool:
    """Return whether a decision opens a socket by its place: row 2 or 3."""
    return decision.reason is Reason.SESSION_TMP or (decision.allowed and not sockets.everything)


def with_condition(decision: Decision) -> Decision:
    """Add the condition of a place that commands can write to a decision's text."""
    text = f"{decision.text}, if it exists when a command starts or is bound in the sandbox: commands can write there"
    return replace(decision, text=text)


def _deny(reason: Reason, text: str) -> Decision:
    return Decision(Behavior.DENY, reason, text)
