"""What the daemon and the helper `apply-seccomp` say to each other, as bytes. Pure; docs/helper.md is the description.

One stream socket carries one launch. The helper sends frames (type, length, payload): first its ticket, which has a
fixed size, then what `EventDecoder` turns into the event records below, whatever pieces they arrive in. The daemon
sends one `Configuration`, and later single control bytes. All numbers are 32 bits wide and little-endian, except where
a socket address has its own order.

The encoder of the one side and the decoder of the other are both here, so that the daemon, its tests and a fake helper
agree by construction. The helper itself (vendor/seccomp/apply-seccomp.c) repeats the layouts in C.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from ipaddress import IPv4Address, IPv6Address, ip_address

from sandboxd.backends.linux.notifications import (
    CONNECT,
    LOST,
    REFUSED,
    Connecting,
    Lost,
    RefusedCall,
    decode_notification,
    encode_notification,
)
from sandboxd.errors import CallerError, InternalError, LaunchError

VERSION = 2
"""Of everything in this file. Said in the ticket and in the configuration; either side refuses another one."""

GO = b"G"
"""Control byte: start the command, which a configuration with Flags.WAIT holds back."""

KILL = b"K"
"""Control byte: TERM to everything in the sandbox, and after `grace_ms` the end. A second one: the end at once. Before
the start it calls the launch off."""

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
MAX_PORT_RANGES = 64
DESCRIPTORS_MAX = MAX_LISTENERS + 1
MAX_FILTER = 4096 * 8
MAX_ARGUMENTS = 4 * 1024 * 1024
MAX_PAYLOAD = 1024
MAX_TICKET = 64
MAX_INFO = 4096
TICKET_SIZE = 8 + 4 + MAX_TICKET
"""How many bytes the ticket takes, always."""

_MAGIC = 0x43584253  # "SBXC"
_HEAD = struct.Struct("<11I")
_LISTENER = struct.Struct("<II28s")
_PORTS = struct.Struct("<HH")
_LIMIT = struct.Struct("<I")
_CONFINEMENT = struct.Struct("<6I")
_FRAME = struct.Struct("<II")
_TICKET = struct.Struct(f"<I{MAX_TICKET}s")
_AF_INET, _AF_INET6 = 2, 10


class ProtocolError(LaunchError):
    """The other side broke the protocol: helper and daemon do not belong together, or something else is speaking."""

    def __init__(self, message: str) -> None:
        super().__init__(
            "bridge_protocol", message, hint="helper and daemon may be of different versions: `sandboxd restart`"
        )


# ---- From the daemon --------------------------------------------------------------------------------------------


class Flags(IntFlag):
    """WAIT holds the command back until GO. UNFILTERED says that there is no filter, which has to be said. WATCHED: the
    filter sends calls to the helper; then INTERNET says that TCP connects are asked about, UNIX that Unix sockets
    connected by the helper, after asking. BOUNDED: there is a limit on processes. CONFINED: there is a Confinement."""

    WAIT = 1
    UNFILTERED = 2
    WATCHED = 4
    INTERNET = 8
    UNIX = 16
    CONFINED = 32
    BOUNDED = 64


_NO_FLAGS = Flags(0)
_KNOWN_FLAGS = 127


def _contradict(flags: int) -> bool:
    unwatched = not flags & Flags.WATCHED
    return bool(flags & (Flags.INTERNET | Flags.UNIX) if unwatched else flags & Flags.UNFILTERED)


@dataclass(frozen=True, slots=True)
class Listener:
    """A TCP socket that the helper opens inside the sandbox's network namespace, listening, and hands out."""

    address: IPv4Address | IPv6Address
    port: int
    backlog: int = 1024

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535 or not 0 <= self.backlog <= 0x7FFFFFFF:
            raise InternalError("listener_invalid", f"impossible port or backlog: {self.port}, {self.backlog}")

    @classmethod
    def tcp(cls, address: str, port: int, backlog: int = 1024) -> Listener:
        """The same from an address as text. ValueError when it is none."""
        return cls(ip_address(address), port, backlog)


@dataclass(frozen=True, slots=True)
class Confinement:
    """What the helper asks of Landlock, in the kernel's numbers: the accesses to files that are `handled`, that is,
    refused where they are not granted, what is `scoped`, and the `flags` with which it is put in force. `everywhere` is
    granted below `/`, `granted` below each of the `roots` and to what the standard streams have open for writing."""

    handled: int
    scoped: int = 0
    flags: int = 0
    everywhere: int = 0
    granted: int = 0
    roots: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """The numbers; the paths go elsewhere."""
        return _CONFINEMENT.pack(self.handled, self.scoped, self.flags, self.everywhere, self.granted, len(self.roots))


@dataclass(frozen=True, slots=True)
class Configuration:
    """What to run (`arguments`, the name first, searched in PATH), and under what: `filter` is a program of seccomp.py,
    empty only together with Flags.UNFILTERED. `grace_ms` lies between TERM and the end after KILL. `asked_ports` are
    ranges (first, last) of ports of the loopback where, with Flags.INTERNET, connects are asked about too. `removals`
    are patterns of the names of variables that the command does not get. `processes` is how many the command may have
    (RLIMIT_NPROC). That and `confinement` need no flag here.

    Raises CallerError (`argv_empty`, `argv_nul`, `argv_too_large`) for arguments that no process can have,
    InternalError for the rest, so a configuration that exists can be sent.
    """

    arguments: tuple[bytes, ...]
    filter: bytes
    listeners: tuple[Listener, ...] = ()
    grace_ms: int = 2000
    flags: Flags = _NO_FLAGS
    asked_ports: tuple[tuple[int, int], ...] = ()
    removals: tuple[bytes, ...] = ()
    processes: int | None = None
    confinement: Confinement | None = None

    def __post_init__(self) -> None:
        if not self.arguments:
            raise CallerError("argv_empty", "there is no command to run", hint="give at least the program's name")
        roots = () if self.confinement is None else self.confinement.roots
        if any(b"\0" in item for item in (*self.removals, *roots)):
            raise InternalError("configuration_invalid", "a pattern or a path with a zero byte")
        if any(b"\0" in item for item in self.arguments):
            raise CallerError("argv_nul", "an argument contains a zero byte", hint="no program can be given one")
        if (size := sum(len(item) + 1 for item in (*self.removals, *roots, *self.arguments))) > MAX_ARGUMENTS:
            raise CallerError(
                "argv_too_large",
                f"the arguments take {size} bytes, at most {MAX_ARGUMENTS} are possible",
                hint="put the data into a file, or pass it on standard input",
            )
        if len(self.filter) % 8 or len(self.filter) > MAX_FILTER:
            raise InternalError("configuration_invalid", f"{len(self.filter)} bytes are no seccomp program")
        if bool(self.filter) == bool(self.flags & Flags.UNFILTERED):
            raise InternalError("configuration_invalid", "either a filter or Flags.UNFILTERED")
        if _contradict(self.flags) or self.flags & (Flags.BOUNDED | Flags.CONFINED):
            raise InternalError("configuration_invalid", f"flags that contradict each other: {self.flags!r}")
        if len(self.listeners) > MAX_LISTENERS or len(self.asked_ports) > MAX_PORT_RANGES:
            raise InternalError("configuration_invalid", "too many listeners or ranges of ports")
        if not all(0 <= first <= last <= 0xFFFF for first, last in self.asked_ports):
            raise InternalError("configuration_invalid", f"impossible ports: {self.asked_ports}")
        if not 0 <= self.grace_ms <= 0xFFFFFFFF:
            raise InternalError("configuration_invalid", f"impossible grace: {self.grace_ms} ms")
        if self.processes is not None and not 0 < self.processes <= 0xFFFFFFFF:
            raise InternalError("configuration_invalid", f"impossible limit: {self.processes} processes")

    def encode(self) -> bytes:
        """The message for the helper: head, listeners, ports, filter, limit, confinement; patterns, roots, arguments,
        these with zero bytes."""
        confinement, roots = b"", tuple[bytes, ...]()
        if self.confinement is not None:
            confinement, roots = self.confinement.encode(), self.confinement.roots
        texts = (*self.removals, *roots, *self.arguments)
        arguments = b"".join(item + b"\0" for item in texts)
        listeners = b"".join(_LISTENER.pack(one.backlog, *_socket_address(one)) for one in self.listeners)
        ports = b"".join(_PORTS.pack(*one) for one in self.asked_ports)
        limit = b"" if self.processes is None else _LIMIT.pack(self.processes)
        head = _HEAD.pack(
            _MAGIC,
            VERSION,
            _HEAD.size + sum(map(len, (listeners, ports, self.filter, limit, confinement, arguments))),
            self.flags | (Flags.BOUNDED if limit else 0) | (Flags.CONFINED if confinement else 0),
            self.grace_ms,
            len(self.listeners),
            len(self.filter),
            len(texts),
            len(arguments),
            len(self.asked_ports),
            len(self.removals),
        )
        return head + listeners + ports + self.filter + limit + confinement + arguments

    @classmethod
    def decode(cls, message: bytes) -> Configuration:
        """The inverse, with the checks that the helper makes too. Raises ProtocolError."""
        if len(message) < _HEAD.size:
            raise ProtocolError("the configuration is cut off")
        magic, version, length, flags, grace_ms, listeners, program, texts, size, ports, removals = _HEAD.unpack_from(
            message
        )
        if magic != _MAGIC or version != VERSION:
            raise ProtocolError("the configuration has another version")
        start_of_ports = _HEAD.size + listeners * _LISTENER.size
        start_of_program = start_of_ports + ports * _PORTS.size
        start_of_limit = start_of_program + program
        is_bounded, is_confined = bool(flags & Flags.BOUNDED), bool(flags & Flags.CONFINED)
        start_of_confinement = start_of_limit + is_bounded * _LIMIT.size
        start_of_arguments = start_of_confinement + is_confined * _CONFINEMENT.size
        if (
            flags & ~_KNOWN_FLAGS
            or bool(program) == bool(flags & Flags.UNFILTERED)
            or _contradict(flags)
            or listeners > MAX_LISTENERS
            or ports > MAX_PORT_RANGES
            or program % 8
            or program > MAX_FILTER
            or not removals < texts <= size <= MAX_ARGUMENTS
            or length != start_of_arguments + size
            or length != len(message)
            or message[-1]
            or message.count(0, start_of_arguments) != texts
        ):
            raise ProtocolError("the configuration is malformed")
        processes = _LIMIT.unpack_from(message, start_of_limit)[0] if is_bounded else None
        if processes == 0:
            raise ProtocolError("the configuration is malformed")
        items = tuple(message[start_of_arguments:-1].split(b"\0"))
        confinement, first = None, removals
        if is_confined:
            handled, scoped, restricting, everywhere, granted, roots = _CONFINEMENT.unpack_from(
                message, start_of_confinement
            )
            first += roots
            if first >= texts:
                raise ProtocolError("the configuration is malformed")
            confinement = Confinement(handled, scoped, restricting, everywhere, granted, items[removals:first])
        return cls(
            arguments=items[first:],
            filter=message[start_of_program:start_of_limit],
            listeners=tuple(_read_listener(message, _HEAD.size + n * _LISTENER.size) for n in range(listeners)),
            grace_ms=grace_ms,
            flags=Flags(flags & ~(Flags.BOUNDED | Flags.CONFINED)),
            asked_ports=tuple(_PORTS.iter_unpack(message[start_of_ports:start_of_program])),
            removals=items[:removals],
            processes=processes,
            confinement=confinement,
        )


def _socket_address(listener: Listener) -> tuple[int, bytes]:
    """Length and bytes of the address as the kernel takes it (ip(7), ipv6(7)): only the port is in network order."""
    port = struct.pack(">H", listener.port)
    if isinstance(listener.address, IPv4Address):
        return 16, struct.pack("<H", _AF_INET) + port + listener.address.packed + bytes(8)
    return 28, struct.pack("<H", _AF_INET6) + port + bytes(4) + listener.address.packed + bytes(4)


def _read_listener(message: bytes, start: int) -> Listener:
    backlog, length, raw = _LISTENER.unpack_from(message, start)
    (family,), (port,) = struct.unpack_from("<H", raw), struct.unpack_from(">H", raw, 2)
    if (family, length) == (_AF_INET, 16):
        return Listener(IPv4Address(raw[4:8]), port, backlog)
    if (family, length) == (_AF_INET6, 28):
        return Listener(IPv6Address(raw[8:24]), port, backlog)
    raise ProtocolError(f"a listener of address family {family}")


# ---- From the helper --------------------------------------------------------------------------------------------


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


def decode_birth(text: bytes) -> int | None:
    """The process number of process 1 from what bubblewrap writes to its `--info-fd` (bwrap(1)): one JSON object; None
    while that is not whole. Raises ProtocolError for anything else."""
    if len(text) > MAX_INFO:
        raise ProtocolError("too much is said about process 1")
    if not text.endswith(b"}\n"):
        return None
    try:
        pid = json.loads(text)["child-pid"]
    except (ValueError, KeyError, TypeError, RecursionError):
        pid = None
    if type(pid) is not int or pid <= 0:
        raise ProtocolError("bubblewrap does not say which process is process 1")
    return pid


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
