"""Sockets as standard streams of a command, copied to and from pipes.

A network socket takes its network with it: its holder can connect it anew. So a sandboxed command gets a pipe in its
place, and this process copies. Sockets that need no relay (connected Unix streams), and those that carry no bytes
(listening, unconnected, netlink), are passed unchanged: the sandbox decides about them.

The socket itself, which other processes may share, keeps its flags and directions. Its peer sees the end when its last
holder closes it, as without a relay."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import stat
import threading
from collections.abc import Sequence
from typing import Any

_CHUNK = 65536
_CHUNK_OF_MESSAGES = 8192  # one datagram each
_FAMILIES = ("AF_INET", "AF_INET6", "AF_UNIX", "AF_VSOCK")
_STANDARD_INPUT = 0


class Relay:
    """The copies between the standard streams of a command and pipes.

    `streams` are the descriptors for 0, 1 and 2 of the command, `passed` those to give it. A stream of another kind
    (None, or a negative number of subprocess) stays unchanged. Spawn with `passed`, then call `start`, or `abandon`
    when the spawn failed; call `finish` when the command has ended. `after` is the relay of a command that did not
    start: the bytes that it has read come first."""

    def __init__(self, streams: Sequence[int | None], after: Relay | None = None) -> None:
        self.passed = list(streams)
        self._command_ends: list[int] = []
        self._inward: list[_Direction] = []
        self._outward: list[_Direction] = []
        self._input = -1  # the command's end of its input pipe, for unread bytes
        self._unread: bytes = b"" if after is None else after._unread
        self._ended = False
        self._abandoned = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # for the next two, which the thread closes
        self._woken, self._wake = os.pipe()
        try:
            for number, descriptor in enumerate(streams):
                if descriptor is not None and descriptor >= 0 and _needs_relay(descriptor):
                    self._relay(number, descriptor)
        except BaseException:
            self.abandon()
            raise

    def _relay(self, number: int, descriptor: int) -> None:
        for one in self._outward:
            if number != _STANDARD_INPUT and os.path.sameopenfile(one.socket.fileno(), descriptor):
                self.passed[number] = self._command_ends[-1]  # one pipe keeps the order of writes to both
                return
        reader, writer = os.pipe()
        inward = number == _STANDARD_INPUT
        near_end, command_end = (writer, reader) if inward else (reader, writer)
        os.set_blocking(near_end, False)
        self.passed[number] = command_end
        self._command_ends.append(command_end)
        direction = _Direction(near_end, _duplicate(descriptor))
        if inward:
            self._input = os.dup(command_end)
            direction.held = memoryview(self._unread)
        (self._inward if inward else self._outward).append(direction)

    def start(self) -> None:
        """Start to copy, after the spawn of the command."""
        self._close_command_ends()
        if not self._inward and not self._outward:
            self._close()
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # other threads take signals
        try:
            self._thread = threading.Thread(target=self._copy, name="relay of standard streams", daemon=True)
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def finish(self, timeout: float | None = None) -> bool:
        """Wait until all output of the ended command is copied; False on time-out."""
        if self._thread is not None:
            self._ended = True
            self._notify()
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def abandon(self) -> None:
        """Stop copying at once."""
        self._abandoned = True
        self._close_command_ends()
        if self._thread is None:
            self._close()
        else:
            self._notify()

    def _notify(self) -> None:
        with self._lock:
            if self._wake >= 0:
                os.write(self._wake, b"x")

    def _close_command_ends(self) -> None:
        while self._command_ends:
            os.close(self._command_ends.pop())

    def _close(self) -> None:
        for one in (*self._inward, *self._outward):
            one.close()
        self._inward, self._outward = [], []
        if self._input >= 0:
            os.close(self._input)
            self._input = -1
        with self._lock:
            for descriptor in (self._woken, self._wake):
                if descriptor >= 0:
                    os.close(descriptor)
            self._woken = self._wake = -1

    def _copy(self) -> None:
        try:
            # Also after the end of the input: the command may read the pipe until it ends.
            while not self._abandoned and (self._outward or (self._input >= 0 and not self._ended)):
                self._step()
        finally:
            self._unread = self._unread_in_pipe() + b"".join(one.held for one in self._inward)
            self._close()

    def _unread_in_pipe(self) -> bytes:
        parts = []
        poll = select.poll()
        if self._input >= 0:
            poll.register(self._input, select.POLLIN)
        while any(events & select.POLLIN for _, events in poll.poll(0)):
            parts.append(os.read(self._input, _CHUNK))
        return b"".join(parts)

    def _step(self) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        wanted: dict[int, int] = {}
        for one in () if self._ended else self._inward:
            place, event = (one.pipe, select.POLLOUT) if one.held else (one.socket.fileno(), select.POLLIN)
            wanted[place] = event
        for one in self._outward:
            place, event = (one.socket.fileno(), select.POLLOUT) if one.held else (one.pipe, select.POLLIN)
            wanted[place] = event
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        ready = dict(poll.poll())
        if self._woken in ready:
            os.read(self._woken, 64)
        self._inward = [one for one in self._inward if one.moves_inward(ready)]
        self._outward = [one for one in self._outward if one.moves_outward(ready)]


def relay_streams(arguments: dict[str, Any], after: Relay | None = None) -> Relay:
    """Return a relay for the keyword arguments of a spawn, and change them."""
    names = ("stdin", "stdout", "stderr")
    given = [arguments.get(name) for name in names]
    streams = [
        number if stream is None else stream if isinstance(stream, int) else stream.fileno()
        for number, stream in enumerate(given)
    ]
    relay = Relay(streams, after)
    arguments.update(
        (name, passed)
        for name, stream, passed in zip(names, streams, relay.passed, strict=True)
        if passed is not None and passed != stream
    )
    return relay


class _Direction:
    """One copy direction; `held` has been read and not yet written."""

    def __init__(self, pipe: int, end: socket.socket) -> None:
        self.pipe = pipe
        self.socket = end
        self.held = memoryview(b"")
        self._chunk = _CHUNK if end.type == socket.SOCK_STREAM else _CHUNK_OF_MESSAGES

    def close(self) -> None:
        os.close(self.pipe)
        self.socket.close()

    def moves_inward(self, ready: dict[int, int]) -> bool:
        """Return whether the direction stays open."""
        try:
            if not self.held and self.socket.fileno() in ready:
                self.held = memoryview(self.socket.recv(_CHUNK, socket.MSG_DONTWAIT))
                if not self.held:
                    self.close()
                    return False
            elif self.held and self.pipe in ready:
                self.held = self.held[os.write(self.pipe, self.held) :]
        except BlockingIOError:
            pass
        except OSError:  # an end is gone: the command reads the end, or nothing
            self.close()
            return False
        return True

    def moves_outward(self, ready: dict[int, int]) -> bool:
        try:
            if not self.held and self.pipe in ready:
                self.held = memoryview(os.read(self.pipe, self._chunk))
                if not self.held:
                    self.close()
                    return False
            if self.held:
                self.held = self.held[self.socket.send(self.held, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            pass
        except OSError:  # the peer is gone: the command gets EPIPE
            self.close()
            return False
        return True


def _duplicate(descriptor: int) -> socket.socket:
    return socket.socket(fileno=os.dup(descriptor))


def _needs_relay(descriptor: int) -> bool:
    """Return whether this is a socket with a peer that is no Unix stream.

    A socket whose peer has gone counts as well."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
    except OSError:  # closed
        return False
    with _duplicate(descriptor) as one:
        families = {getattr(socket, name, None) for name in _FAMILIES}
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
        if one.family not in families or one.type not in kinds:
            return False
        is_stream = one.type == socket.SOCK_STREAM
        if is_stream and (one.family == socket.AF_UNIX or one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)):
            return False
        try:
            one.getpeername()
        except OSError as error:
            return is_stream and error.errno in (errno.ENOTCONN, errno.EINVAL)
        return True
