"""Crash entries of a daemon as documents (docs/restarts.md).

There is one for each running command, for each session that has running commands or outlives its connection, and for
the daemon where there are others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from sandboxd import __version__
from sandboxd.app.handover import DaemonRecord, RunningDaemon, opened_with
from sandboxd.daemon.restart.crash_store import CrashEntry, IsOldEnough
from sandboxd.handover.crash_documents import DAEMON
from sandboxd.handover.document import Outgoing
from sandboxd.handover.record import NO_DESCRIPTOR
from sandboxd.rpc.socket import ListeningSocketRecord
from sandboxd.runtime.command import Command
from sandboxd.runtime.command_record import State
from sandboxd.runtime.session import SandboxSession


def crash_entries(parts: RunningDaemon, is_old_enough: IsOldEnough) -> Iterator[CrashEntry]:
    """Yield the entries that the crash store has to hold now."""
    found = False
    for session in parts.sessions.all():
        running = [one for one in session.commands() if one.state is State.RUNNING and is_old_enough(one.wrap_id)]
        if session.closed or not (running or session.spec.detached):
            continue
        found = True
        yield CrashEntry(session.id, session.id, partial(_session, session))
        for command in running:
            yield CrashEntry(command.wrap_id, session.id, partial(_command, parts, session, command))
    if found:
        yield CrashEntry(DAEMON, "", partial(_daemon, parts))


def _session(session: SandboxSession, outgoing: Outgoing) -> bool:
    outgoing.add("session", session.kept(opened_with(session)), session.id)
    return True


def _command(parts: RunningDaemon, session: SandboxSession, command: Command, outgoing: Outgoing) -> bool:
    if parts.launch_handover is None or not parts.launch_handover.keep(command.wrap_id, outgoing):
        return False
    outgoing.add("session", session.kept(opened_with(session), command), session.id)
    return True


def _daemon(parts: RunningDaemon, outgoing: Outgoing) -> bool:
    outgoing.add(
        "daemon",
        DaemonRecord(
            version=__version__,
            lock=NO_DESCRIPTOR,  # the kernel releases it when this daemon ends; the next one takes it
            listener=ListeningSocketRecord(NO_DESCRIPTOR, parts.listening.path, made=False, own=True),
            temporary=parts.temporary.record,
            feed=parts.feed.record(),
            annotation_key=parts.blocked.key,
            generation=parts.policies.generation,
            started_at=parts.state.started_at,
            restarts=parts.state.restarts,
        ),
    )
    return True
