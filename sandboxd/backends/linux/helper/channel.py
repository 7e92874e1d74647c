"""The connection of a helper: bytes both ways, the descriptors that come with them, and which process has sent them.
Nothing here waits, and nothing here knows what the bytes mean (`bridge_protocol`).
"""

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
    """No `data` is the end. `sender` is a process by its number in our namespace; `is_cut` when there were more
    descriptors than could be taken."""

    data: bytes
    sender: int | None
    is_cut: bool


class Channel:
    """Owns the connection, and `descriptors` until somebody takes them out. None for one that is over."""

    def __init__(self, connection: socket.socket | None) -> None:
        self.descriptors: list[int] = []
        """Those that were received, in order."""
        self._connection = connection or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._outgoing = memoryview(b"")
        self._loop = asyncio.get_running_loop()
        if connection is None:
            self._connection.close()
        else:
            # Each message then says which process it came from, by its pid in our namespace (unix(7)): the init stage
            # of the helper is a grandchild of the launch and has only the number 1 in its own.
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
        """What is still to be sent."""
        return bytes(self._outgoing)

    def watch(self, readable: Callable[[], None]) -> None:
        self._loop.add_reader(self._connection.fileno(), readable)

    def receive(self, most: int) -> Received:
        """Raises BlockingIOError, OSError."""
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
        """Behind whatever still waits to be sent; nothing when the connection is over."""
        if self.is_open:
            self._outgoing = memoryview(self.outgoing + data)
            self.flush()

    def flush(self) -> None:
        """Send what waits, now as far as the kernel takes it and the rest when it does."""
        if not self.is_open:
            return
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[self._connection.send(self._outgoing) :]
        except BlockingIOError:
            self._loop.add_writer(self._connection.fileno(), self.flush)
            return
        except OSError:
            self._outgoing = memoryview(b"")  # reading will meet the end of the connection and say so
        self._loop.remove_writer(self._connection.fileno())

    def resume(self, outgoing: bytes, descriptors: tuple[int, ...]) -> None:
        """What an earlier daemon had not sent and not taken. Until `send` or `flush` nothing is sent."""
        self._outgoing = memoryview(outgoing)
        self.descriptors = list(descriptors)

    def send_at_once(self, byte: bytes) -> None:
        """Before whatever waits. Reading will meet the end of the connection and say so."""
        with contextlib.suppress(OSError):
            self._connection.send(byte)

    def send_file(self, byte: bytes, content: bytes) -> None:
        """In a memory file, which whoever gets it can read to its end. Raises OSError."""
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
        """Hear of nothing more."""
        if self.is_open:
            self._loop.remove_reader(self._connection.fileno())

    def let_go(self) -> Descriptor:
        """The connection, which somebody else has now, and the descriptors too."""
        self.descriptors = []
        if not self.is_open:
            return NO_DESCRIPTOR
        self._unwatch()
        return Descriptor(self._connection.detach())

    def hang_up(self) -> None:
        """The other end hears that it is over, also where a service manager keeps this one for the next daemon."""
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
