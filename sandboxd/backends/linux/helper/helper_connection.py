"""One connection at the bridge."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from sandboxd.backends.base import AnswerConnect, ConnectAttempt, Listeners, Observer, SandboxNetwork
from sandboxd.backends.linux.bwrap.init_pid import InitPidReader
from sandboxd.backends.linux.bwrap.launch_processes import LaunchProcesses, OrphanSearch
from sandboxd.backends.linux.helper.bridge_protocol import (
    GO,
    KILL,
    OPTIONS,
    TICKET_SIZE,
    Descriptors,
    Event,
    EventDecoder,
    ExecFailed,
    Exited,
    Failed,
    ProtocolError,
    Started,
    decode_ticket,
    encode_claim,
    encode_off,
)
from sandboxd.backends.linux.helper.channel import Channel, Received
from sandboxd.backends.linux.helper.expected_launch import Aftermath, ExpectedLaunch, Preparation
from sandboxd.backends.linux.helper.launch_records import LinkRecord
from sandboxd.backends.linux.helper.notifications import (
    AGAIN,
    Connecting,
    Listens,
    Lost,
    MadeName,
    RefusedCall,
    ReportedAccess,
    encode_answer,
)
from sandboxd.backends.linux.seccomp.notified_calls import call_name
from sandboxd.errors import DaemonError, InternalError, LaunchError
from sandboxd.handover.record import Descriptor
from sandboxd.policy.violation import FOREIGN_OWNER, SET_USER_ID, DenialEvent, ViolationKind, ViolationSource

OUTDATED = frozenset({"settings_changed", "mount_failed", "mount_misplaced"})
"""Errors after which another wrap may succeed at once: settings or files have changed since this one."""
AGAIN_BY_ITSELF = "`sandboxd run` and `run` of the clients now prepare it again; after `wrap` or `spawn`, call it again"
TRY_AGAIN = "run the command again, or see `sandboxd status`"
_READ = 4096
"""Bytes read from one helper in a turn of the event loop: some dozens of events, each with a decision or a record."""
_MOST_UNTAKEN = 64 << 10
"""Bytes of answers that a helper may leave unread. The real helper reads them before it asks more."""
_END = Received(b"", None, False)


class Registry(Protocol):
    """The bridge, as its connections use it."""

    log: Any
    made: Callable[[str, str, int], object]
    orphans: OrphanSearch

    def claim(self, link: HelperConnection, ticket: str) -> ExpectedLaunch | None: ...
    def lost(self, link: HelperConnection) -> None: ...


class HelperConnection:
    """A launch without a ticket yet, afterwards the helper of a running sandbox."""

    def __init__(
        self, bridge: Registry, connection: socket.socket | None, pid: int, pidfd: int, before: LinkRecord | None = None
    ) -> None:
        """`before` is the record of the same connection from an earlier daemon."""
        self.ticket: str | None = None
        self._bridge = bridge
        self._channel = Channel(connection)
        self._may_have_started = False
        """True after GO until the helper says so: no client may take a command that ran for one that did not."""
        self._processes = LaunchProcesses(pid, pidfd, bridge.orphans.ask)
        self._loop = asyncio.get_running_loop()
        self._observer: Observer | None = None
        self._opening = b""
        self._decoder = EventDecoder()
        self._birth: InitPidReader | None = None
        self._listeners: Listeners | None = None  # until they are handed on
        self._status: int | None = None
        self._preparation: Preparation | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._aftermath: Aftermath | None = None  # of one that stays, until it has been begun
        self._stays = False
        self._closing = False
        if before is not None:
            self._recall(before)
        if not self._closing:
            self._channel.watch(self.readable)
            self._processes.watch()

    # from one daemon to the next

    def _recall(self, before: LinkRecord) -> None:
        self._opening = before.opening
        self._processes.resume(before.init_pid, before.init)
        self._decoder = EventDecoder.resumed(before.decoder_buffer, before.decoder_last)
        self._channel.resume(before.outgoing, before.descriptors)
        self._status = before.status
        self._closing = before.closing
        self._stays = before.stays

    def resume(
        self,
        ticket: str,
        observer: Observer,
        preparation: Preparation | None,
        interrupted: bool,
        aftermath: Aftermath | None,
    ) -> None:
        """Go on with a claimed launch.

        `preparation` is the pending set-up; `interrupted` means that a restart has interrupted it."""
        self.ticket, self._observer, self._preparation = ticket, observer, preparation
        self._aftermath = aftermath
        if self._closing:
            self._processes.await_end(self._gone)
        elif self._decoder.state[1] == Exited.__name__:
            self._loop.call_soon(self._clear_up)
        elif interrupted:
            error = LaunchError("launch_failed", "the daemon was restarted meanwhile", hint="run the command again")
            self._loop.call_soon(self._give_up, error)
        elif self._decoder.state[1] == Started.__name__:
            self._channel.send(AGAIN)  # the earlier daemon left connects unanswered
        else:
            self._channel.flush()

    def pause(self) -> None:
        """Stop reading."""
        self._channel.pause()
        self._processes.pause()
        if self._birth is not None:
            self._birth.pause()

    @property
    def preparing(self) -> asyncio.Task[None] | None:
        """The task of the sandbox set-up while it runs."""
        return None if self._preparing is None or self._preparing.done() else self._preparing

    @property
    def kept(self) -> LinkRecord | None:
        """A record for the crash store while the command runs; releases nothing.

        Without buffers: they change all the time, and the helper sends and reads whole messages."""
        last = self._decoder.state[1]
        if last != Started.__name__ or self._closing:
            return None
        return LinkRecord(
            connection=self._channel.descriptor,
            pid=self._processes.bubblewrap,
            pidfd=Descriptor(self._processes.pidfd),
            init_pid=self._processes.init,
            init=Descriptor(self._processes.init_pidfd),
            decoder_last=last,
            stays=self._stays,
        )

    def hand_over(self) -> LinkRecord:
        """Release everything as it is. Nothing more is reported."""
        preparing = self.preparing is not None
        if self._preparing is not None:
            self._preparing.cancel()
        self._abandon()
        self._close_birth()
        buffer, last = self._decoder.state
        outgoing, descriptors = self._channel.outgoing, tuple(map(Descriptor, self._channel.descriptors))
        record = LinkRecord(
            connection=self._channel.let_go(),
            pid=self._processes.bubblewrap,
            pidfd=Descriptor(self._processes.pidfd),
            opening=self._opening,
            init_pid=self._processes.init,
            init=Descriptor(self._processes.init_pidfd),
            decoder_buffer=buffer,
            decoder_last=last,
            descriptors=descriptors,
            status=self._status,
            outgoing=outgoing,
            closing=self._closing,
            preparing=preparing,
            stays=self._stays,
        )
        self._processes.let_go()
        self._observer = None
        return record

    def readable(self) -> None:
        try:
            if self.ticket is None:
                self._read_ticket()
            else:
                self._read_events()
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            self._bridge.log("bridge_link_failed", error=str(error), ticket=self.ticket)
            self._fail(f"its helper failed: {error}")
        except Exception as error:  # a defect of sandboxd: the launch must fail now, and not at its timeout
            self._bridge.log("bridge_link_failed", error=repr(error), ticket=self.ticket, exc_info=True)
            self._fail("a fault of sandboxd; the log has the details")

    def _read_ticket(self) -> None:
        data = self._channel.receive(TICKET_SIZE - len(self._opening)).data
        self._opening += data
        if not data:
            self.close()
        elif len(self._opening) == TICKET_SIZE:
            self._claim(decode_ticket(self._opening))

    def _read_events(self) -> None:
        try:
            data, sender, is_cut = self._channel.receive(_READ)
        except ConnectionResetError:  # the helper ended with a KILL unread
            data, sender, is_cut = _END
        if data and sender is not None:
            self._processes.heard_from(sender)
        if is_cut:
            raise ProtocolError("more descriptors than there are listeners, or too many open files")
        if len(self._channel.outgoing) > _MOST_UNTAKEN:
            raise ProtocolError("the helper does not read the answers to its questions")
        if data:
            for event in self._decoder.feed(data):
                self._happened(event)
        else:
            self._decoder.finish()
            self._finish()

    def _watch_birth(self) -> None:
        descriptors = self._channel.descriptors
        if len(descriptors) > 1:
            raise ProtocolError("more than one descriptor with a ticket")
        if descriptors:
            self._birth = InitPidReader(descriptors.pop(), self._born, self._birth_unclear)

    def _born(self, pid: int) -> None:
        if self._processes.init is None and self._preparation is not None:
            try:
                self._preparation.born(pid, self._processes.bubblewrap)
            except Exception as error:
                self._bridge.log("bridge_link_failed", error=repr(error), ticket=self.ticket, exc_info=True)
                self._fail("a fault of sandboxd; the log has the details")

    def _birth_unclear(self, error: Exception) -> None:
        self._bridge.log("bridge_link_failed", error=str(error), ticket=self.ticket)

    def _close_birth(self) -> None:
        if self._birth is not None:
            self._birth.close()

    def _happened(self, event: Event) -> None:
        match event:
            case Descriptors(listeners):
                self._take_listeners(listeners)
            case Started():
                self._may_have_started = False
                self._tell().started()
            case ExecFailed(status, number):
                self._may_have_started = False
                self._tell().failed(f"the command could not be run: {os.strerror(number)} (status {status})")
            case Failed(message):
                self._may_have_started = False
                self._tell().failed(message)
            case Exited(status, signal):
                self._status = -signal or status
                self._clear_up()
            case RefusedCall():
                self._tell().refused(_refusal(event))
            case MadeName(path, inode):
                self._bridge.made(self.ticket or "", path, inode)
            case Lost(count):
                self._tell().lost(count)
            case Listens():
                self._tell().listens()
            case Connecting(question, family, address, port, pid, process, file):
                attempt = ConnectAttempt(family, address, port, pid, process, file)
                self._tell().connecting(attempt, self._answer_to(question))

    def _clear_up(self) -> None:
        """Run the aftermath, then hang up.

        Process 1 is alone in the sandbox, and ends at the hang-up: the client that waits for it finds the host in its
        final state."""
        aftermath, self._aftermath = self._aftermath, None
        if aftermath is None:
            return
        under_way = aftermath()
        if isinstance(under_way, bytes):
            self._hang_up(under_way)
        else:
            under_way.add_done_callback(lambda done: self._hang_up(b"" if done.cancelled() else done.result()))

    def _hang_up(self, last: bytes) -> None:
        """Hang up. Without a last byte the command does not look successful."""
        if last:
            self._channel.send_at_once(last)
        self._channel.hang_up()
        self._finish()

    def _tell(self) -> Observer:
        if self._observer is None:
            raise ProtocolError("an event without a ticket")
        return self._observer

    def _answer_to(self, question: int) -> AnswerConnect:
        open_questions = [question]  # empty once answered: the helper may reuse the number

        def answer(errno: int) -> None:
            while open_questions:
                self._channel.send(encode_answer(open_questions.pop(), errno))

        return answer

    def _claim(self, ticket: str) -> None:
        expected = self._bridge.claim(self, ticket)
        if expected is None:
            # Closing is the refusal: the helper reports a ticket that was used, has expired or never was.
            self._bridge.log("bridge_ticket_unknown")
            self._finish()
            return
        self.ticket = ticket
        self._observer = expected.observer
        self._preparation = expected.preparation
        self._aftermath, self._stays = expected.aftermath, expected.aftermath is not None
        self._observer.claimed(self._processes.bubblewrap)
        self._watch_birth()
        if expected.options is not None:
            self._channel.send_file(OPTIONS, expected.options)
        self._channel.send(expected.configuration.encode())

    def _take_listeners(self, count: int) -> None:
        received = self._channel.descriptors
        if len(received) != count + 1 or count < 2:
            raise ProtocolError(f"{len(received)} descriptors for {count} listeners")
        self._channel.descriptors = []
        *listeners, namespace = received
        http, socks, *others = (socket.socket(fileno=number) for number in listeners)
        self._listeners = Listeners(http, socks, namespace, others)
        if self._preparation is None:
            self._hand_over()
        else:
            self._prepare(self._preparation, self._listeners)

    def _hand_over(self) -> None:
        listeners, self._listeners = self._listeners, None
        if listeners is not None:
            self._tell().listening(listeners)

    def _prepare(self, preparation: Preparation, listeners: Listeners) -> None:
        try:
            if self._processes.init is None:
                raise ProtocolError("no message of process 1 has come before its listeners")
            more = preparation.complete(self._processes.init, self._processes.bubblewrap, listeners)
            inside = listeners.inside
            more = self._tell().starting(inside) if more is None else self._then_starting(more, inside)
        except DaemonError as error:
            self._give_up(error)
            return
        if more is None:
            self._go()
        else:
            self._preparing = self._loop.create_task(self._prepare_more(more), name=f"prepare-{self.ticket}")

    async def _then_starting(self, more: Awaitable[None], inside: SandboxNetwork | None) -> None:
        """Ask the observer last: nothing may change between its answer and the start."""
        await more
        checking = self._tell().starting(inside)
        if checking is not None:
            await checking

    async def _prepare_more(self, more: Awaitable[None]) -> None:
        try:
            await more
        except (DaemonError, OSError) as error:
            self._give_up(error)
        except Exception:
            self._give_up(InternalError("internal_error", "a fault of sandboxd; the log has the details"))
            raise
        else:
            self._go()

    def claim(self, arguments: Iterable[bytes]) -> bool:
        """Give a prepared sandbox its command; return whether it is still there."""
        self._channel.send(encode_claim(arguments))
        return self._channel.is_open and not self._closing

    def _go(self) -> None:
        self._may_have_started = True
        self._channel.send(GO)
        self._hand_over()  # after GO: connections meanwhile wait in the backlog

    def _give_up(self, error: Exception) -> None:
        self._bridge.log("bridge_preparation_failed", error=str(error), ticket=self.ticket)
        reason = error.message if isinstance(error, DaemonError) else str(error)
        hint = error.hint if isinstance(error, DaemonError) else ""
        outdated = isinstance(error, DaemonError) and error.slug in OUTDATED
        self._tell().failed(f"the sandbox could not be completed: {reason}", outdated=outdated)
        self._channel.send(encode_off(reason, AGAIN_BY_ITSELF if outdated else hint or TRY_AGAIN))
        self._finish()  # its helper waits for GO, and ends with status 125

    def _abandon(self) -> None:
        if self._preparation is not None:
            self._preparation.abandon()
            self._preparation = None

    def _finish(self) -> None:
        """End the connection, and report the end when process 1 is gone.

        A dying process 1 closes its descriptors before the kernel has killed the rest of its namespace."""
        if self._closing:
            return
        self._closing = True
        self._abandon()
        self._disconnect()
        self._processes.await_end(self._gone)

    @property
    def is_disconnected(self) -> bool:
        return self._closing

    def _gone(self) -> None:
        observer, self._observer = self._observer, None
        self.close()
        if observer is not None:
            observer.ended(self._status)

    def _disconnect(self) -> None:
        self._close_birth()
        self._channel.disconnect()

    def _fail(self, reason: str) -> None:
        """Kill the command of a helper that breaks the protocol."""
        if self._observer is not None:
            if self._may_have_started:
                self._observer.started()
            self._observer.failed(reason)
            self.kill()
        self._finish()

    def terminate(self) -> None:
        self._channel.send_at_once(KILL)

    def kill(self) -> None:
        """End process 1 and bubblewrap: either takes the whole namespace along."""
        self._processes.kill()

    @property
    def ends(self) -> tuple[int, ...]:
        """The known pidfds of process 1 and bubblewrap."""
        return self._processes.ends

    def close(self) -> None:
        """Drop the connection and all descriptors; nothing more is reported."""
        if self._processes.is_closed:
            return
        self._abandon()
        if self._preparing is not None and self._preparing is not asyncio.current_task():
            self._preparing.cancel()
        self._disconnect()
        self._processes.close()
        self._channel.close()
        if self._listeners is not None:
            self._listeners.close()
            self._listeners = None
        self._bridge.lost(self)


_KINDS = {
    ReportedAccess.READ: ViolationKind.READ,
    ReportedAccess.WRITE: ViolationKind.WRITE,
    ReportedAccess.UNIX_SOCKET: ViolationKind.UNIX_SOCKET,
}


def _refusal(call: RefusedCall) -> DenialEvent:
    operation = call_name(call.call, os.uname().machine)
    if call.errno == errno.EPERM:  # nothing was refused
        operation = SET_USER_ID if "chmod" in operation else FOREIGN_OWNER if "chown" in operation else operation
    return DenialEvent(
        kind=_KINDS[call.access],
        operation=operation,
        target=call.path + "…" * call.is_cut,
        source=ViolationSource.SECCOMP,
        process=call.process,
        count=call.count,
    )
