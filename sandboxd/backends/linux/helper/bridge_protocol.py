"""The protocol between the daemon and the helper `apply-seccomp`, as bytes.

Pure; docs/helper.md describes it. One stream socket carries one launch. The helper sends frames (type, length,
payload): first its ticket, which has a fixed size, then the frames that `EventDecoder` turns into the event records
below. The daemon sends one `Configuration` (launch_configuration.py), and later single control bytes. All numbers are
32 bits wide and little-endian, except where a socket address has its own order.

Encoder and decoder are together, so that the daemon, its tests and a fake helper agree by construction. The helper
(vendor/seccomp/apply-seccomp.c) repeats the layouts in C."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum

from sandboxd.backends.linux.helper.notifications import (
    CONNECT,
    LISTENS,
    LOST,
    REFUSED,
    Notification,
    decode_notification,
    encode_notification,
)
from sandboxd.errors import InternalError, LaunchError
from sandboxd.policy.display import neutralise
from sandboxd_client.records import dataclass

VERSION = 3
"""The version of the protocol, in the ticket and in the configuration; either side refuses another one."""

GO = b"G"
"""Control byte: start the command, which a configuration with Flags.WAIT holds back."""

CLAIM = b"C"
"""To a prepared sandbox: the words of its command follow (`encode_claim`), and GO."""

KILL = b"K"
"""Control byte: TERM to everything in the sandbox, KILL after `grace_ms`. A second one: KILL at once. Before the start:
call the launch off."""

OFF = b"O"
"""Before the start: call the launch off. Two texts of `TEXT_SIZE` bytes follow (`encode_off`)."""

TEXT_SIZE = 400

HARMLESS = b"H"
"""The last byte to a launch with Flags.STAY that has reported its end: the repository clean-up is complete."""

PARTLY = b"P"
"""The same after a partial clean-up: process 1 prints a warning, and the status stays the command's."""

OPTIONS = b"A"
"""Sent, with the descriptor of a file of NUL separated bubblewrap options at offset 0, to a `launch-args`."""

OPTIONS_DESCRIPTOR = 7
"""The number for bubblewrap's `--args` in a launch with options by descriptor."""

INFO_DESCRIPTOR = 8
"""The number for bubblewrap's `--info-fd`: a pipe, whose reading end comes along with the ticket. bubblewrap holds the
reading end too, so that its write cannot fail: a failure would end it and leave its child waiting for ever."""

INIT_WORDS = ("/proc/self/fd/4", "init")
"""The command that bubblewrap runs: the helper again, by the descriptor that its first stage has opened."""

MAX_LISTENERS = 16
DESCRIPTORS_MAX = MAX_LISTENERS + 1
MAX_PAYLOAD = 1024
MAX_TICKET = 64
TICKET_SIZE = 8 + 4 + MAX_TICKET
"""The bytes of a ticket frame, always."""

_FRAME = struct.Struct("<II")
_TICKET = struct.Struct(f"<I{MAX_TICKET}s")


class ProtocolError(LaunchError):
    """The other side broke the protocol.

    Helper and daemon are of different versions, or the peer is not the helper."""

    def __init__(self, message: str) -> None:
        super().__init__(
            "bridge_protocol", message, hint="helper and daemon may be of different versions: `sandboxd restart`"
        )


def encode_off(reason: str, hint: str) -> bytes:
    """Encode a call-off with the reason and hint that process 1 prints.

    Each is cut to what fits into one message."""
    return OFF + b"".join(_padded(text) for text in (reason, hint))


def encode_claim(arguments: Iterable[bytes]) -> bytes:
    """Encode the command of a prepared sandbox; its owner sends the environment in the same form."""
    words = tuple(arguments)
    text = b"".join(word + b"\0" for word in words)
    return CLAIM + struct.pack("<III", 0, len(words), len(text)) + text


def _padded(text: str) -> bytes:
    data = neutralise(text).encode("utf-8", "backslashreplace")[:TEXT_SIZE]
    return data.decode("utf-8", "ignore").encode().ljust(TEXT_SIZE, b"\0")


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
    LISTENS = LISTENS


def encode_ticket(ticket: str) -> bytes:
    """Encode the first frame of the launch stage, for tests and fakes.

    Raises InternalError for a malformed ticket."""
    if not ticket.isascii() or "\0" in ticket or not 0 < len(ticket) <= MAX_TICKET:
        raise InternalError("ticket_invalid", f"a ticket has 1 to {MAX_TICKET} ASCII characters")
    return _FRAME.pack(FrameType.TICKET, _TICKET.size) + _TICKET.pack(VERSION, ticket.encode())


def decode_ticket(data: bytes) -> str:
    """Decode the ticket from the first TICKET_SIZE bytes of a connection.

    The peer's credentials identify the process that claims it, which becomes bubblewrap. Raises ProtocolError."""
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
    """Descriptors came with this frame.

    `listeners` sockets in the order of the configuration, then the network namespace."""

    listeners: int


@dataclass(frozen=True, slots=True)
class Started:
    """The command runs: its exec succeeded, or it was killed at that moment."""


@dataclass(frozen=True, slots=True)
class ExecFailed:
    """The command could not be started; `errno` is the system's reason.

    `status` is the exit status: 125 for a failed set-up, 126 not executable, 127 not found."""

    status: int
    errno: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The command has ended, and the sandbox with it.

    `status` is as in a shell, 128+N for a `signal` N; `signal` is 0 after a normal exit. 137 and 9 also when the owner
    died or the grace after KILL was over."""

    status: int
    signal: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The set-up failed before the start; process 1 has printed `message`."""

    message: str


Event = Descriptors | Started | ExecFailed | Exited | Failed | Notification

# The order of events. None is the ticket. Notifications of system calls come any number of times between start and
# end, and are not in the table.
_NEXT: dict[type[Event] | None, frozenset[type[Event]]] = {
    None: frozenset({Descriptors, Failed}),
    Descriptors: frozenset({Started, ExecFailed, Exited, Failed}),
    Started: frozenset({Exited, Failed}),
    ExecFailed: frozenset({Exited, Failed}),
    Exited: frozenset(),
    Failed: frozenset(),
}


def encode_event(event: Event) -> bytes:
    """Encode an event as the helper sends it, for tests and fakes."""
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
        case _:
            number, payload = encode_notification(event)
            kind = FrameType(number)
    return _FRAME.pack(kind, len(payload)) + payload


class EventDecoder:
    """Decoder of the helper's bytes after the ticket; no I/O.

    After an error the stream has no meaning any more: every further call raises the same error."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._last: type[Event] | None = None
        self._error: ProtocolError | None = None

    def feed(self, data: bytes) -> tuple[Event, ...]:
        """Return the events that are complete with `data`, in order.

        Raises ProtocolError. Events before the fault in the same piece are dropped with it: the peer is not
        trustworthy."""
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
        """The incomplete bytes and the name of the last event, for `resumed`."""
        return bytes(self._buffer), "" if self._last is None else self._last.__name__

    @classmethod
    def resumed(cls, buffer: bytes, last: str) -> EventDecoder:
        """Make a decoder from the `state` of another one.

        Raises ProtocolError for an unknown event."""
        decoder = cls()
        decoder._buffer += buffer
        found = [kind for kind in _NEXT if kind is not None and kind.__name__ == last]
        if last and not found:
            raise ProtocolError(f"unknown event {last!a}")
        decoder._last = found[0] if found else None
        return decoder

    def finish(self) -> None:
        """Check the end of the stream. Raises ProtocolError inside a frame."""
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
            if isinstance(event, Notification) and self._last is Started:
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
