"""The connection of a helper: bytes, descriptors and the sending process.

Nothing here blocks or interprets the bytes (`bridge_protocol`)."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from sandboxd.backends.linux.helper.bridge_protocol import DESCRIPTORS_MAX
from sandboxd.handover.record import NO_DESCRIPTOR, Descriptor

_INTEGERS = "i"
_UCRED = struct.Struct("3i")
_ANCILLARY = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array(_INTEGERS).itemsize) + socket.CMSG_SPACE(_UCRED.size)


class Received(NamedTuple):
    """The result of one read; no `data` is the end of the stream.

    `sender` is a pid in the daemon's namespace; `is_cut` when there were more descriptors than could be received."""

    data: bytes
    sender: int | None
    is_cut: bool


class Channel:
    """Owner of the connection and of received `descriptors` until they are taken.

    A `connection` of None makes a channel that is already closed."""

    def __init__(self, connection: socket.socket | None) -> None:
        self.descriptors: list[int] = []
        """Received descriptors, in order."""
        self._connection = connection or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._outgoing = memoryview(b"")
        self._loop = asyncio.get_running_loop()
        if connection is None:
            self._connection.close()
        else:
            # Each message then carries its sender's pid in the daemon's namespace (unix(7)): the init stage of the
            # helper is a grandchild of the launch and knows only its own number, 1.
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    @property
    def is_open(self) -> bool:
        return self._connection.fileno() >= 0

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(self._connection.fileno())

    @property
    def outgoing(self) -> bytes:
        """The bytes that are not sent yet."""
        return bytes(self._outgoing)

    def watch(self, readable: Callable[[], None]) -> None:
        self._loop.add_reader(self._connection.fileno(), readable)

    def receive(self, most: int) -> Received:
        """Read up to `most` bytes. Raises BlockingIOError, OSError."""
        data, ancillary, flags, _ = self._connection.recvmsg(most, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        sender = None
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array(_INTEGERS)
                numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
                self.descriptors.extend(numbers)
            elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                sender = _UCRED.unpack(payload)[0]
        return Received(data, sender, bool(flags & socket.MSG_CTRUNC))

    def send(self, data: bytes) -> None:
        """Send `data` after what is queued; nothing on a closed connection."""
        if self.is_open:
            self._outgoing = memoryview(self.outgoing + data)
            self.flush()

    def flush(self) -> None:
        """Send what the kernel takes now, and the rest when it can."""
        if not self.is_open:
            return
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[self._connection.send(self._outgoing) :]
        except BlockingIOError:
            self._loop.add_writer(self._connection.fileno(), self.flush)
            return
        except OSError:
            self._outgoing = memoryview(b"")  # the reader reports the end of the connection
        self._loop.remove_writer(self._connection.fileno())

    def resume(self, outgoing: bytes, descriptors: tuple[int, ...]) -> None:
        """Restore the unsent bytes and untaken descriptors of an earlier daemon.

        Nothing is sent until `send` or `flush`."""
        self._outgoing = memoryview(outgoing)
        self.descriptors = list(descriptors)

    def send_at_once(self, byte: bytes) -> None:
        """Send a byte before the queue. The reader reports the end of the connection."""
        with contextlib.suppress(OSError):
            self._connection.send(byte)

    def send_file(self, byte: bytes, content: bytes) -> None:
        """Send a byte and a memory file with `content`. Raises OSError."""
        descriptor = os.memfd_create("bwrap-options", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.lseek(descriptor, 0, os.SEEK_SET)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array(_INTEGERS, [descriptor]))]
            self._connection.sendmsg([byte], rights)
        finally:
            os.close(descriptor)

    def pause(self) -> None:
        """Stop reading."""
        if self.is_open:
            self._loop.remove_reader(self._connection.fileno())

    def let_go(self) -> Descriptor:
        """Release the connection and the descriptors to another owner."""
        self.descriptors = []
        if not self.is_open:
            return NO_DESCRIPTOR
        self._unwatch()
        return Descriptor(self._connection.detach())

    def hang_up(self) -> None:
        """End both directions, even where a service manager holds a duplicate."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def disconnect(self) -> None:
        if self.is_open:
            self._unwatch()
            self._connection.close()

    def close(self) -> None:
        self.disconnect()
        while self.descriptors:
            os.close(self.descriptors.pop())

    def _unwatch(self) -> None:
        self._loop.remove_reader(self._connection.fileno())
        self._loop.remove_writer(self._connection.fileno())
