"""What the daemon and the helper `apply-seccomp` say to each other, as bytes. Pure; docs/helper.md is the description.

One stream socket carries one launch. The helper sends frames (type, length, payload): first its ticket, which has a
fixed size, then what `EventDecoder` turns into the event records below, whatever pieces they arrive in. The daemon
sends one `Configuration` (launch_configuration.py), and later single control bytes. All numbers are 32 bits wide and
little-endian, except where a socket address has its own order.

The encoder of the one side and the decoder of the other are together, so that the daemon, its tests and a fake helper
agree by construction. The helper itself (vendor/seccomp/apply-seccomp.c) repeats the layouts in C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from sandboxd.backends.linux.helper.notifications import (
    CONNECT,
    LOST,
    REFUSED,
    Connecting,
    Lost,
    RefusedCall,
    decode_notification,
    encode_notification,
)
from sandboxd.errors import InternalError, LaunchError
from sandboxd.policy.display import neutralise

VERSION = 3
"""Of everything in these two files. Said in the ticket and in the configuration; either side refuses another one."""

GO = b"G"
"""Control byte: start the command, which a configuration with Flags.WAIT holds back."""

KILL = b"K"
"""Control byte: TERM to everything in the sandbox, and after `grace_ms` the end. A second one: the end at once. Before
the start it calls the launch off."""

OFF = b"O"
"""Before the start: the launch is called off, and two texts of `SAID` bytes follow. See `encode_off`."""

SAID = 400

HARMLESS = b"H"
"""The last byte to a launch with Flags.STAY that has told of its end: what the command has left was looked through."""

PARTLY = b"P"
"""The same where it was too much to be looked through whole: process 1 says so, and the status stays the command's."""

OPTIONS = b"A"
"""Sent, with the descriptor of a file of NUL separated bubblewrap options at offset 0, to a `launch-args`."""

OPTIONS_DESCRIPTOR = 7
"""The number for bubblewrap's `--args` in a launch with options by descriptor."""

INFO_DESCRIPTOR = 8
"""The number for bubblewrap's `--info-fd`: a pipe, whose reading end comes along with the ticket. bubblewrap holds that
too, so that it can always write: a failure would end it, and what it has forked would wait for ever."""

INIT_WORDS = ("/proc/self/fd/4", "init")
"""The command that bubblewrap runs: the helper again, by the descriptor that its first stage has opened."""

MAX_LISTENERS = 16
DESCRIPTORS_MAX = MAX_LISTENERS + 1
MAX_PAYLOAD = 1024
MAX_TICKET = 64
TICKET_SIZE = 8 + 4 + MAX_TICKET
"""How many bytes the ticket takes, always."""

_FRAME = struct.Struct("<II")
_TICKET = struct.Struct(f"<I{MAX_TICKET}s")


class ProtocolError(LaunchError):
    """The other side broke the protocol: helper and daemon do not belong together, or something else is speaking."""

    def __init__(self, message: str) -> None:
        super().__init__(
            "bridge_protocol", message, hint="helper and daemon may be of different versions: `sandboxd restart`"
        )


def encode_off(reason: str, hint: str) -> bytes:
    """Call a launch off, and have process 1 say why and what to do, each cut to what fits into one message."""
    return OFF + b"".join(_said(text) for text in (reason, hint))


def _said(text: str) -> bytes:
    data = neutralise(text).encode("utf-8", "backslashreplace")[:SAID]
    return data.decode("utf-8", "ignore").encode().ljust(SAID, b"\0")


class FrameType(IntEnum):
    TICKET = 1
    DESCRIPTORS = 2
    STARTED = 3
    EXIT = 4
    EXEC_FAILED = 5
    FAILED = 6
    REFUSED = REFUSED
    LOST = LOST
    CONNECT = CONNECT


def encode_ticket(ticket: str) -> bytes:
    """What the launch stage sends first. For tests and fakes. Raises InternalError for what is no ticket."""
    if not ticket.isascii() or "\0" in ticket or not 0 < len(ticket) <= MAX_TICKET:
        raise InternalError("ticket_invalid", f"a ticket has 1 to {MAX_TICKET} ASCII characters")
    return _FRAME.pack(FrameType.TICKET, _TICKET.size) + _TICKET.pack(VERSION, ticket.encode())


def decode_ticket(data: bytes) -> str:
    """The ticket in the first TICKET_SIZE bytes of a connection. The peer's credentials say who claims it: the process
    that will be bubblewrap. Raises ProtocolError."""
    if len(data) != TICKET_SIZE or _FRAME.unpack_from(data) != (FrameType.TICKET, _TICKET.size):
        raise ProtocolError("the first message is not a ticket")
    version, padded = _TICKET.unpack_from(data, _FRAME.size)
    if version != VERSION:
        raise ProtocolError(f"the helper speaks version {version} of the protocol, not {VERSION}")
    ticket = padded.rstrip(b"\0")
    if not ticket or b"\0" in ticket or not ticket.isascii():
        raise ProtocolError("the ticket is malformed")
    return str(ticket.decode("ascii"))


@dataclass(frozen=True, slots=True)
class Descriptors:
    """With this frame came descriptors: `listeners` sockets in the order of the configuration, then the network
    namespace."""

    listeners: int


@dataclass(frozen=True, slots=True)
class Started:
    """The command runs (its exec succeeded, or it was killed at that very moment)."""


@dataclass(frozen=True, slots=True)
class ExecFailed:
    """The command could not be started: `status` is the exit status that follows from it (125 for a fault of the
    set-up, 126 not executable, 127 not found), `errno` the system's reason."""

    status: int
    errno: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The command has ended, and the sandbox with it. `status` is as a shell has it, 128+N for a `signal` N; `signal`
    is 0 when the command ended by itself. 137 and 9 also when the owner died or the grace after KILL was over."""

    status: int
    signal: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The set-up failed before the command was started; `message` is what the person was told."""

    message: str


Event = Descriptors | Started | ExecFailed | Exited | Failed | RefusedCall | Lost | Connecting

# What may follow what: a helper speaks in this order and no other. None is the ticket. What is said of system calls
# comes any number of times between the start and the end, and is not in the table.
_NEXT: dict[type[Event] | None, frozenset[type[Event]]] = {
    None: frozenset({Descriptors, Failed}),
    Descriptors: frozenset({Started, ExecFailed, Exited, Failed}),
    Started: frozenset({Exited, Failed}),
    ExecFailed: frozenset({Exited, Failed}),
    Exited: frozenset(),
    Failed: frozenset(),
}


def encode_event(event: Event) -> bytes:
    """The frame for an event, as the helper sends it. For tests and fakes."""
    match event:
        case Descriptors(listeners):
            kind, payload = FrameType.DESCRIPTORS, struct.pack("<I", listeners)
        case Started():
            kind, payload = FrameType.STARTED, b""
        case Exited(status, signal):
            kind, payload = FrameType.EXIT, struct.pack("<II", status, signal)
        case ExecFailed(status, errno):
            kind, payload = FrameType.EXEC_FAILED, struct.pack("<II", status, errno)
        case Failed(message):
            kind, payload = FrameType.FAILED, message.encode(errors="replace")
        case RefusedCall() | Lost() | Connecting():
            number, payload = encode_notification(event)
            kind = FrameType(number)
    return _FRAME.pack(kind, len(payload)) + payload


class EventDecoder:
    """Turns the helper's bytes after the ticket into events. Does no I/O and keeps what is incomplete.

    After an error the stream has no meaning any more: every further call raises the same error.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._last: type[Event] | None = None
        self._error: ProtocolError | None = None

    def feed(self, data: bytes) -> tuple[Event, ...]:
        """The events that are complete with `data`, in order. Raises ProtocolError; events before the fault in the
        same piece are lost with it, since nothing that such a peer says can be relied upon."""
        if self._error is not None:
            raise self._error
        self._buffer += data
        try:
            return tuple(self._take())
        except ProtocolError as error:
            self._error = error
            raise

    @property
    def state(self) -> tuple[bytes, str]:
        """What is incomplete, and the name of the last event: what another decoder needs to go on."""
        return bytes(self._buffer), "" if self._last is None else self._last.__name__

    @classmethod
    def resumed(cls, buffer: bytes, last: str) -> EventDecoder:
        """A decoder that goes on where another one was (`state`). Raises ProtocolError for an event that is none."""
        decoder = cls()
        decoder._buffer += buffer
        found = [kind for kind in _NEXT if kind is not None and kind.__name__ == last]
        if last and not found:
            raise ProtocolError(f"there is no event {last!a}")
        decoder._last = found[0] if found else None
        return decoder

    def finish(self) -> None:
        """To be called when the stream has ended. Raises ProtocolError when it ended inside a frame."""
        if self._error is not None:
            raise self._error
        if self._buffer:
            self._error = ProtocolError("the helper's last message is cut off")
            raise self._error

    def _take(self) -> Iterable[Event]:
        while len(self._buffer) >= _FRAME.size:
            kind, length = _FRAME.unpack_from(self._buffer)
            if length > MAX_PAYLOAD:
                raise ProtocolError(f"a message of {length} bytes")
            if len(self._buffer) < _FRAME.size + length:
                return
            event = _decode_event(kind, bytes(self._buffer[_FRAME.size : _FRAME.size + length]))
            del self._buffer[: _FRAME.size + length]
            if isinstance(event, RefusedCall | Lost | Connecting) and self._last is Started:
                yield event
                continue
            if type(event) not in _NEXT[self._last]:
                before = self._last.__name__ if self._last else "the ticket"
                raise ProtocolError(f"{type(event).__name__} after {before}")
            self._last = type(event)
            yield event


def _decode_event(kind: int, payload: bytes) -> Event:
    try:
        match kind:
            case FrameType.DESCRIPTORS:
                (listeners,) = struct.unpack("<I", payload)
                if listeners > MAX_LISTENERS:
                    raise ProtocolError(f"{listeners} listeners")
                return Descriptors(listeners)
            case FrameType.STARTED:
                struct.unpack("", payload)
                return Started()
            case FrameType.EXIT:
                return Exited(*struct.unpack("<II", payload))
            case FrameType.EXEC_FAILED:
                return ExecFailed(*struct.unpack("<II", payload))
            case FrameType.FAILED:
                return Failed(payload.decode(errors="replace"))
        notification = decode_notification(kind, payload)
    except (struct.error, ValueError):
        raise ProtocolError(f"a message of type {kind} with {len(payload)} bytes") from None
    if notification is not None:
        return notification
    raise ProtocolError(f"a message of unknown type {kind}")
