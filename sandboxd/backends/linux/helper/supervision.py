"""The part of a plan's supervision that this host supports. Pure."""

from __future__ import annotations

from dataclasses import replace

from sandboxd.backends.linux.helper.launch_configuration import Flags
from sandboxd.backends.linux.seccomp.filter import needs_listener
from sandboxd.plan.filesystem.mounts import FileView
from sandboxd.plan.plan import Supervision, UnixSockets

ABSENT_NAMES = "absent-names"
"""The layer that keeps names absent by comparison, with nothing at them."""
PLACEHOLDERS = "absent-names-placeholders"
"""The layer in which at least one name is kept absent by something empty in its place."""
NOTIFICATION = "seccomp-notify"
"""The layer in which system calls are inspected as they happen."""


def layers_of(supervision: Supervision) -> tuple[str, ...]:
    return (NOTIFICATION,) if needs_listener(supervision) else ()


def absence_of(view: FileView, *, guards: bool) -> tuple[str, ...]:
    """Return the layer that keeps names absent; `guards`: the back end could do without placeholders."""
    return (ABSENT_NAMES,) if guards and not view.placeholders else (PLACEHOLDERS,)


def flags_of(supervision: Supervision) -> Flags:
    """Return the helper's flags for the calls that this filter sends it."""
    if not needs_listener(supervision):
        return Flags(0)
    internet = Flags.INTERNET | Flags.SERVERS if supervision.connects else Flags(0)
    unix = Flags.UNIX | Flags.IDENTIFY if supervision.unix_sockets is UnixSockets.LISTED else Flags(0)
    quiet = Flags(0) if supervision.writes or supervision.reads else Flags.QUIET
    owners = Flags.REFUSES_OWNERS if supervision.refuses_owners else Flags(0)
    return Flags.WATCHED | internet | unix | quiet | owners


def without_notification(supervision: Supervision, why: str) -> tuple[Supervision, tuple[str, ...]]:
    """Return the supervision without a listener, and a warning per missing part."""
    missing = []
    if supervision.writes or supervision.reads:
        missing.append(f"refused file accesses are not reported: {why}")
    if supervision.removals:
        missing.append(f"placeholders of protected names cannot be removed, so git clean -d fails on them: {why}")
    if supervision.connects:
        missing.append(f"refused connections fail late, and servers are not shared in the session: {why}")
    if supervision.unix_sockets is UnixSockets.LISTED:
        missing.append(f"no Unix socket can be made, and those in allowUnixSockets stay closed: {why}")
        supervision = replace(supervision, unix_sockets=UnixSockets.NONE)
    return replace(supervision, writes=False, reads=False, connects=False, removals=False), tuple(missing)
