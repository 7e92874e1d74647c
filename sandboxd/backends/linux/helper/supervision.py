"""What of a plan's supervision this machine gives, and what the helper is told of it. Pure."""

from __future__ import annotations

from dataclasses import replace

from sandboxd.backends.linux.helper.launch_configuration import Flags
from sandboxd.backends.linux.seccomp.filter import needs_listener
from sandboxd.plan.plan import Supervision, UnixSockets

NOTIFICATION = "seccomp-notify"
"""The layer: system calls are looked at as they happen."""


def layers_of(supervision: Supervision) -> tuple[str, ...]:
    return (NOTIFICATION,) if needs_listener(supervision) else ()


def flags_of(supervision: Supervision) -> Flags:
    """How the helper is to treat what the filter of this supervision sends it."""
    if not needs_listener(supervision):
        return Flags(0)
    internet = Flags.INTERNET if supervision.connects else Flags(0)
    unix = Flags.UNIX | Flags.IDENTIFY if supervision.unix_sockets is UnixSockets.LISTED else Flags(0)
    quiet = Flags(0) if supervision.writes or supervision.reads else Flags.QUIET
    return Flags.WATCHED | internet | unix | quiet


def without_notification(supervision: Supervision, why: str) -> tuple[Supervision, tuple[str, ...]]:
    """What remains where the kernel gives no listener, and a sentence about each thing that is missing."""
    missing = []
    if supervision.writes or supervision.reads:
        missing.append(f"file accesses that are refused cannot be reported: {why}")
    if supervision.removals:
        missing.append(f"what keeps protected names absent cannot be removed, and git clean -d says so: {why}")
    if supervision.connects:
        missing.append(f"programs hear late that a connection cannot be made: {why}")
    if supervision.unix_sockets is UnixSockets.LISTED:
        missing.append(f"the Unix sockets in allowUnixSockets stay closed: {why}")
        supervision = replace(supervision, unix_sockets=UnixSockets.NONE)
    return replace(supervision, writes=False, reads=False, connects=False, removals=False), tuple(missing)
