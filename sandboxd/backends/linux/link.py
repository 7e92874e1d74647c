"""One connection at the bridge: a launch without a ticket yet, afterwards the helper of a running sandbox."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from sandboxd.backends.base import Answer, ConnectAttempt, Listeners, Observer, Refusal
from sandboxd.backends.linux.bridge_protocol import (
    DESCRIPTORS_MAX,
    GO,
    KILL,
    MAX_INFO,
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
    decode_birth,
    decode_ticket,
)
from sandboxd.backends.linux.expected_launch import Preparation
from sandboxd.backends.linux.handed_over import LinkRecord
from sandboxd.backends.linux.notifications import AGAIN, Access, Connecting, Lost, RefusedCall, encode_answer
from sandboxd.backends.linux.seccomp_notified import call_name
from sandboxd.backends.linux.stragglers import end_stragglers
from sandboxd.errors import InternalError, LaunchError, SandboxdError
from sandboxd.handover.record import NO_DESCRIPTOR, Descriptor
from sandboxd.policy.violation import ViolationKind, ViolationSource

if TYPE_CHECKING:
    from sandboxd.backends.linux.bridge import Bridge

_READ = 64 * 1024
_STRAGGLES_AFTER_S = 0.1
_UCRED = struct.Struct("3i")
_ANCILLARY = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize) + socket.CMSG_SPACE(_UCRED.size)


class Link:
    """One connection: a launch that has not named its ticket yet, and afterwards the helper of a running sandbox."""

    def __init__(
        self, bridge: Bridge, connection: socket.socket | None, pid: int, pidfd: int, before: LinkRecord | None = None
    ) -> None:
        """`before` is what an earlier daemon had of the same connection."""
        self.ticket: str | None = None
        self._bridge = bridge
        self._connection = connection or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._loop = asyncio.get_running_loop()
        self._pid = pid
        self._pidfd = pidfd
        self._outgoing = memoryview(b"")
        self._observer: Observer | None = None
        self._opening = b""
        self._decoder = EventDecoder()
        self._descriptors: list[int] = []
        self._listeners: Listeners | None = None  # until they are handed on
        self._status: int | None = None
        self._init_pid: int | None = None
        self._preparation: Preparation | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._closing = False
        self._birth = -1  # where bubblewrap tells of process 1
        self._told = b""
        self._init = -1  # pidfd of the helper's init stage, once it has spoken
        # Each message then says which process it came from, by its pid in our namespace (unix(7)): the init stage is a
        # grandchild of the launch and has only the number 1 in its own.
        if connection is not None:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        else:
            self._connection.close()
        if before is not None:
            self._recall(before)
        if not self._closing:
            self._loop.add_reader(self._connection.fileno(), self.readable)
            self._loop.add_reader(pidfd, self._bubblewrap_ended)

    # from one daemon to the next

    def _recall(self, before: LinkRecord) -> None:
        self._opening = before.opening
        self._init_pid, self._init = before.init_pid, before.init
        self._decoder = EventDecoder.resumed(before.decoder_buffer, before.decoder_last)
        self._descriptors = list(before.descriptors)
        self._status = before.status
        self._outgoing = memoryview(before.outgoing)
        self._closing = before.closing

    def resume(self, ticket: str, observer: Observer, preparation: Preparation | None, interrupted: bool) -> None:
        """Go on with a launch that was claimed. `preparation` is what would have to be done before its start;
        `interrupted` that this was under way."""
        self.ticket, self._observer, self._preparation = ticket, observer, preparation
        if self._closing:
            self._await_end()
        elif interrupted:
            error = LaunchError("launch_failed", "the daemon was restarted meanwhile", hint="run the command again")
            self._loop.call_soon(self._give_up, error)
        elif self._decoder.state[1] == Started.__name__:
            self._send(AGAIN)  # whoever was to answer a connect is gone
        elif self._outgoing:
            self._write()

    def pause(self) -> None:
        """Hear of nothing more."""
        for number in (self._connection.fileno(), self._pidfd, self._init, self._birth):
            if number >= 0:
                self._loop.remove_reader(number)

    @property
    def preparing(self) -> asyncio.Task[None] | None:
        """What has to be done before the command may start, as long as that takes."""
        return None if self._preparing is None or self._preparing.done() else self._preparing

    @property
    def kept(self) -> LinkRecord | None:
        """What another daemon needs of it as long as its command runs; lets go of nothing. What is being read or
        written is not in it: that changes all the time, and the helper sends and takes whole messages."""
        last = self._decoder.state[1]
        if last != Started.__name__ or self._closing:
            return None
        return LinkRecord(
            connection=Descriptor(self._connection.fileno()),
            pid=self._pid,
            pidfd=Descriptor(self._pidfd),
            init_pid=self._init_pid,
            init=Descriptor(self._init),
            decoder_last=last,
        )

    def hand_over(self) -> LinkRecord:
        """Let go of everything, as it is. Nothing more is told."""
        preparing = self.preparing is not None
        if self._preparing is not None:
            self._preparing.cancel()
        self._abandon()
        buffer, last = self._decoder.state
        connection = NO_DESCRIPTOR
        if self._connection.fileno() >= 0:
            self._loop.remove_reader(self._connection.fileno())
            self._loop.remove_writer(self._connection.fileno())
            connection = Descriptor(self._connection.detach())
        for pidfd in filter(lambda number: number >= 0, (self._init, self._pidfd)):
            self._loop.remove_reader(pidfd)
        record = LinkRecord(
            connection=connection,
            pid=self._pid,
            pidfd=Descriptor(self._pidfd),
            opening=self._opening,
            init_pid=self._init_pid,
            init=Descriptor(self._init),
            decoder_buffer=buffer,
            decoder_last=last,
            descriptors=tuple(map(Descriptor, self._descriptors)),
            status=self._status,
            outgoing=bytes(self._outgoing),
            closing=self._closing,
            preparing=preparing,
        )
        self._pidfd = self._init = -1
        self._observer = None
        self._descriptors = []
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
        except Exception as error:  # our own fault: the launch must hear of it now, and not when its patience is over
            self._bridge.log("bridge_link_failed", error=repr(error), ticket=self.ticket, exc_info=True)
            self._fail("a fault of sandboxd; the log has the details")

    def _read_ticket(self) -> None:
        missing = TICKET_SIZE - len(self._opening)
        data, ancillary, _, _ = self._connection.recvmsg(missing, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        self._keep_descriptors(ancillary)
        self._opening += data
        if not data:
            self.close()
        elif len(self._opening) == TICKET_SIZE:
            self._claim(decode_ticket(self._opening))

    def _read_events(self) -> None:
        try:
            data, ancillary, flags, _ = self._connection.recvmsg(_READ, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it has ended without reading all that was sent to it: a KILL that came too late
            data, ancillary, flags = b"", [], 0
        self._keep_descriptors(ancillary)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and data and self._init < 0:
                self._watch_init(_UCRED.unpack(payload)[0])
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError("more descriptors than there are listeners, or too many open files")
        if data:
            for event in self._decoder.feed(data):
                self._happened(event)
        else:
            self._decoder.finish()
            self._finish()

    def _keep_descriptors(self, ancillary: Iterable[tuple[int, int, bytes]]) -> None:
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
                self._descriptors.extend(numbers)

    def _watch_birth(self) -> None:
        if len(self._descriptors) > 1:
            raise ProtocolError("more than one descriptor with a ticket")
        if self._descriptors:
            self._birth = self._descriptors.pop()
            self._loop.add_reader(self._birth, self._birth_told)

    def _birth_told(self) -> None:
        """bubblewrap has said, or is saying, which process is process 1. It is only a hint, for an early start."""
        try:
            text = os.read(self._birth, MAX_INFO + 1)
            self._told += text
            pid = decode_birth(self._told)
        except (OSError, ProtocolError) as error:
            self._bridge.log("bridge_link_failed", error=str(error), ticket=self.ticket)
            self._close_birth()
            return
        if pid is None and text:
            return
        self._close_birth()
        if pid is not None and self._init_pid is None and self._preparation is not None:
            try:
                self._preparation.born(pid, self._pid)
            except Exception as error:
                self._bridge.log("bridge_link_failed", error=repr(error), ticket=self.ticket, exc_info=True)
                self._fail("a fault of sandboxd; the log has the details")

    def _close_birth(self) -> None:
        if self._birth >= 0:
            self._loop.remove_reader(self._birth)
            os.close(self._birth)
            self._birth = -1

    def _watch_init(self, pid: int) -> None:
        if pid not in (self._pid, 0):  # 0: sent before it was asked for, so not by process 1, which waits for us
            self._init_pid = pid
            with contextlib.suppress(ProcessLookupError):
                self._init = os.pidfd_open(pid)

    def _happened(self, event: Event) -> None:
        match event:
            case Descriptors(listeners):
                self._take_listeners(listeners)
            case Started():
                self._tell().started()
            case ExecFailed(status, number):
                self._tell().failed(f"the command could not be run: {os.strerror(number)} (status {status})")
            case Failed(message):
                self._tell().failed(message)
            case Exited(status, _):
                self._status = status
            case RefusedCall():
                self._tell().refused(_refusal(event))
            case Lost(count):
                self._tell().lost(count)
            case Connecting(question, family, address, port, pid, process):
                attempt = ConnectAttempt(family, address, port, pid, process)
                self._tell().connecting(attempt, self._answer_to(question))

    def _tell(self) -> Observer:
        if self._observer is None:
            raise ProtocolError("an event without a ticket")
        return self._observer

    def _answer_to(self, question: int) -> Answer:
        open_questions = [question]  # empty once it has been answered: the helper may ask another one by that number

        def answer(errno: int) -> None:
            while open_questions:
                self._send(encode_answer(open_questions.pop(), errno))

        return answer

    def _send(self, data: bytes) -> None:
        """Behind whatever still waits to be sent; nothing when the connection is over."""
        if self._connection.fileno() >= 0:
            self._outgoing = memoryview(bytes(self._outgoing) + data)
            self._write()

    def _claim(self, ticket: str) -> None:
        expected = self._bridge.claim(self, ticket)
        if expected is None:
            # Closing is the refusal: the helper reports a ticket that was used, has expired or never was.
            self._bridge.log("bridge_ticket_unknown")
            self.close()
            return
        self.ticket = ticket
        self._observer = expected.observer
        self._preparation = expected.preparation
        self._observer.claimed(self._pid)
        self._watch_birth()
        if expected.options is not None:
            self._send_options(expected.options)
        self._outgoing = memoryview(expected.configuration.encode())
        self._write()

    def _send_options(self, options: bytes) -> None:
        """In a memory file: bubblewrap reads it to its end."""
        descriptor = os.memfd_create("bwrap-options", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(options)
            os.lseek(descriptor, 0, os.SEEK_SET)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
            self._connection.sendmsg([OPTIONS], rights)
        finally:
            os.close(descriptor)

    def _write(self) -> None:
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[self._connection.send(self._outgoing) :]
        except BlockingIOError:
            self._loop.add_writer(self._connection.fileno(), self._write)
            return
        except OSError:
            self._outgoing = memoryview(b"")  # reading will meet the end of the connection and say so
        self._loop.remove_writer(self._connection.fileno())

    def _take_listeners(self, count: int) -> None:
        if len(self._descriptors) != count + 1 or count < 2:
            raise ProtocolError(f"{len(self._descriptors)} descriptors for {count} listeners")
        received, self._descriptors = self._descriptors, []
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
            if self._init_pid is None:
                raise ProtocolError("nobody has said which process is process 1")
            more = preparation.complete(self._init_pid, self._pid, listeners)
        except SandboxdError as error:
            self._give_up(error)
            return
        if more is None:
            self._go()
        else:
            self._preparing = self._loop.create_task(self._prepare_more(more), name=f"prepare-{self.ticket}")

    async def _prepare_more(self, more: Awaitable[None]) -> None:
        try:
            await more
        except (SandboxdError, OSError) as error:
            self._give_up(error)
        except Exception:
            self._give_up(InternalError("internal_error", "a fault of sandboxd; the log has the details"))
            raise
        else:
            self._go()

    def _go(self) -> None:
        with contextlib.suppress(OSError):  # reading will meet the end of the connection and say so
            self._connection.send(GO)
        self._hand_over()  # connections meanwhile wait in the backlog; the start of the command did not

    def _give_up(self, error: Exception) -> None:
        self._bridge.log("bridge_preparation_failed", error=str(error), ticket=self.ticket)
        self._tell().failed(f"the sandbox could not be completed: {error}")
        self._finish()  # its helper waits for GO, sees the connection close instead, and ends with status 125

    def _abandon(self) -> None:
        if self._preparation is not None:
            self._preparation.abandon()
            self._preparation = None

    def _finish(self) -> None:
        """The connection is over. A dying process 1 closes its descriptors before the kernel has killed the rest of its
        namespace, so the end is told only when process 1 itself is gone: then nobody is left in there."""
        if self._closing:
            return
        self._closing = True
        self._abandon()
        self._disconnect()
        if self._observer is None:
            self.close()
        else:
            self._await_end()

    def _await_end(self) -> None:
        last = self._init if self._init >= 0 else self._pidfd
        self._loop.add_reader(last, self._gone, last)

    def _bubblewrap_ended(self) -> None:
        """Process 1 ends with bubblewrap, once it is there. What bubblewrap has forked before may wait for ever."""
        self._loop.remove_reader(self._pidfd)
        if self._init < 0:
            self._loop.call_later(_STRAGGLES_AFTER_S, self._end_straggler)

    def _end_straggler(self) -> None:
        if self._pidfd >= 0 and self._init < 0 and not self._closing and (pids := end_stragglers()):
            self._bridge.log("bridge_straggler_ended", pids=pids, ticket=self.ticket)

    @property
    def is_disconnected(self) -> bool:
        return self._closing

    def _gone(self, last: int) -> None:
        self._loop.remove_reader(last)
        observer, self._observer = self._observer, None
        self.close()
        if observer is not None:
            observer.ended(self._status)

    def _disconnect(self) -> None:
        self._close_birth()
        if self._connection.fileno() >= 0:
            self._loop.remove_reader(self._connection.fileno())
            self._loop.remove_writer(self._connection.fileno())
            self._connection.close()

    def _fail(self, reason: str) -> None:
        """A helper that does not keep to the protocol is not trusted with a running command."""
        if self._observer is not None:
            self._observer.failed(reason)
            self.kill()
        self._finish()

    def terminate(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.send(KILL)

    def kill(self) -> None:
        """End process 1 of the sandbox and bubblewrap: either takes the other along, and the whole namespace."""
        for pidfd in self.ends:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    @property
    def ends(self) -> tuple[int, ...]:
        """The pidfds of both, as far as there are any."""
        return tuple(number for number in (self._init, self._pidfd) if number >= 0)

    def close(self) -> None:
        """Drop the connection and all descriptors; nothing more is told."""
        if self._pidfd < 0:
            return
        self._abandon()
        if self._preparing is not None and self._preparing is not asyncio.current_task():
            self._preparing.cancel()
        self._disconnect()
        for pidfd in filter(lambda number: number >= 0, (self._init, self._pidfd)):
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._pidfd = self._init = -1
        while self._descriptors:
            os.close(self._descriptors.pop())
        if self._listeners is not None:
            self._listeners.close()
            self._listeners = None
        self._bridge.lost(self)


_KINDS = {
    Access.READ: ViolationKind.READ,
    Access.WRITE: ViolationKind.WRITE,
    Access.UNIX_SOCKET: ViolationKind.UNIX_SOCKET,
}


def _refusal(call: RefusedCall) -> Refusal:
    return Refusal(
        kind=_KINDS[call.access],
        operation=call_name(call.call, os.uname().machine),
        target=call.path + "…" * call.is_cut,
        source=ViolationSource.SECCOMP,
        process=call.process,
        count=call.count,
    )
