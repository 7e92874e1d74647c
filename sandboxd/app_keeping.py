"""What a daemon keeps for the case that it crashes, as documents (`daemon/keeping.py`, docs/restarts.md): each command
that runs, the sessions that have such commands or outlive their connections, and the daemon itself when there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from sandboxd import __version__
from sandboxd.app_handover import DaemonRecord, Parts, opened_with
from sandboxd.daemon.keeping import IsRipe, Wanted
from sandboxd.handover.document import Outgoing
from sandboxd.handover.kept import DAEMON
from sandboxd.handover.record import NO_DESCRIPTOR
from sandboxd.rpc.socket import ListenerRecord
from sandboxd.runtime.command import Command
from sandboxd.runtime.command_record import State
from sandboxd.runtime.session import Session


def kept(parts: Parts, is_ripe: IsRipe) -> Iterator[Wanted]:
    """What is to be kept now."""
    found = False
    for session in parts.sessions.all():
        running = [one for one in session.commands() if one.state is State.RUNNING and is_ripe(one.wrap_id)]
        if session.closed or not (running or session.spec.detached):
            continue
        found = True
        yield Wanted(session.id, session.id, partial(_session, session))
        for command in running:
            yield Wanted(command.wrap_id, session.id, partial(_command, parts, session, command))
    if found:
        yield Wanted(DAEMON, "", partial(_daemon, parts))


def _session(session: Session, outgoing: Outgoing) -> bool:
    outgoing.add("session", session.kept(opened_with(session)), session.id)
    return True


def _command(parts: Parts, session: Session, command: Command, outgoing: Outgoing) -> bool:
    if parts.succession is None or not parts.succession.keep(command.wrap_id, outgoing):
        return False
    outgoing.add("session", session.kept(opened_with(session), command), session.id)
    return True


def _daemon(parts: Parts, outgoing: Outgoing) -> bool:
    outgoing.add(
        "daemon",
        DaemonRecord(
            version=__version__,
            lock=NO_DESCRIPTOR,  # it is free again when we are gone, and whoever takes it is the daemon
            listener=ListenerRecord(NO_DESCRIPTOR, parts.listening.path, made=False, own=True),
            temporary=parts.temporary.record,
            feed=parts.feed.record(),
            annotation_key=parts.blocked.key,
            generation=parts.policies.generation,
            started_at=parts.daemon.started_at,
            restarts=parts.daemon.restarts,
        ),
    )
    return True
