"""The configuration of one launch, as a message to the helper. Pure.

bridge_protocol.py and docs/helper.md describe the protocol."""

from __future__ import annotations

import struct
from enum import IntFlag
from functools import lru_cache, reduce
from ipaddress import IPv4Address, IPv6Address, ip_address
from operator import or_

from sandboxd.backends.linux.helper.bridge_protocol import MAX_LISTENERS, VERSION, ProtocolError
from sandboxd.errors import CallerError, InternalError
from sandboxd_client.records import dataclass

MAX_PORT_RANGES = 64
MAX_FILTER = 4096 * 8
MAX_ARGUMENTS = 4 * 1024 * 1024

_MAGIC = 0x43584253  # "SBXC"
_HEAD = struct.Struct("<11I")
_LISTENER = struct.Struct("<II28s")
_PORTS = struct.Struct("<HH")
_LIMIT = struct.Struct("<I")
_CONFINEMENT = struct.Struct("<5I")
_GUARD = struct.Struct("<3I")
_VERSION_BEFORE = 2
_CONFINEMENT_BEFORE = struct.Struct("<6I")
"""The layout of version 2, for a launch prepared by an earlier daemon. Its extra number, the accesses granted below
`/`, is granted below the roots."""
_AF_INET, _AF_INET6 = 2, 10


class Flags(IntFlag):
    """Flags of a launch.

    - WAIT: hold the command back until GO.
    - UNFILTERED: there is no filter; must be explicit.
    - WATCHED: the filter sends calls to the helper. Only with it:
      INTERNET: ask about TCP connects. UNIX: connect Unix sockets in the helper, after asking.
      IDENTIFY: name the socket file when asking. QUIET: do not report refused file calls.
      SERVERS: tell of sockets that listen.
    - CONFINED: there is a Confinement. BOUNDED: there is a limit on processes.
    - REFUSES_OWNERS, with WATCHED: chown of root to an id that does not exist inside fails.
    - PREPARED: with WAIT, take arguments, environment and standard streams of the command from a claim.
    - GUARD: there is a Guard, which takes a confinement and a filter with its calls.
    - STAY: process 1 ends when the daemon hangs up after EXIT."""

    WAIT = 1
    UNFILTERED = 2
    WATCHED = 4
    INTERNET = 8
    UNIX = 16
    CONFINED = 32
    BOUNDED = 64
    QUIET = 128
    STAY = 256
    IDENTIFY = 512
    SERVERS = 1024
    GUARD = 2048
    REFUSES_OWNERS = 4096
    PREPARED = 8192


_NO_FLAGS = Flags(0)
_KNOWN_FLAGS = 16383
# As plain numbers: an operation on members of an enumeration takes long, and these are for each command.
_SET_BY_ITSELF = int(Flags.BOUNDED | Flags.CONFINED | Flags.GUARD)
_GUARDED, _CONFINED, _UNFILTERED = int(Flags.GUARD), int(Flags.CONFINED), int(Flags.UNFILTERED)
_FOR_GUARD = int(Flags.WATCHED | Flags.CONFINED)
_WATCHED = int(Flags.WATCHED)
_ABOUT_CALLS = int(Flags.INTERNET | Flags.UNIX | Flags.QUIET | Flags.IDENTIFY | Flags.SERVERS)


def _contradict(flags: int) -> bool:
    if flags & _GUARDED and ~flags & _FOR_GUARD:
        return True
    return bool(flags & (_UNFILTERED if flags & _WATCHED else _ABOUT_CALLS))


@lru_cache(maxsize=64)
def _size_of(texts: tuple[bytes, ...]) -> int:
    """Return the size of patterns and paths, which are the same for many commands. Raises InternalError."""
    if any(b"\0" in item for item in texts):
        raise InternalError("configuration_invalid", "a pattern or a path with a zero byte")
    return sum(map(len, texts)) + len(texts)


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket that the helper opens inside the sandbox and sends out."""

    address: IPv4Address | IPv6Address
    port: int
    backlog: int = 1024

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535 or not 0 <= self.backlog <= 0x7FFFFFFF:
            raise InternalError("listener_invalid", f"impossible port or backlog: {self.port}, {self.backlog}")

    @classmethod
    def tcp(cls, address: str, port: int, backlog: int = 1024) -> Listener:
        """Make a listener from a text address. Raises ValueError."""
        return cls(ip_address(address), port, backlog)


@dataclass(frozen=True, slots=True)
class Confinement:
    """The Landlock ruleset of the helper, in the kernel's numbers.

    `handled` accesses to files are refused where not granted. `scoped` and `flags` are those of the ruleset. `granted`
    is granted below each of the `roots`, and to files that the standard streams have open for writing."""

    handled: int
    scoped: int = 0
    flags: int = 0
    granted: int = 0
    roots: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """Encode the numbers; the paths go elsewhere."""
        return _CONFINEMENT.pack(self.handled, self.scoped, self.flags, self.granted, len(self.roots))


@dataclass(frozen=True, slots=True)
class Guard:
    """The names that stay absent, by paths of the sandbox, without a mount on each.

    `granted` is granted below each of the `zones`, mounts in which the helper makes names for the command."""

    granted: int = 0
    zones: tuple[bytes, ...] = ()
    names: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """Encode the numbers; the paths go elsewhere."""
        return _GUARD.pack(self.granted, len(self.zones), len(self.names))


@dataclass(frozen=True, slots=True)
class LaunchConfiguration:
    """The command and its restrictions.

    `arguments` starts with the program, searched in PATH. `filter` is a program of filter.py, empty only with
    Flags.UNFILTERED. `grace_ms` lies between TERM and KILL. With Flags.INTERNET, connects to the loopback are asked
    about at `asked_ports`, ranges (first, last). `removals` are name patterns of variables that the command does not
    get. `processes` is its RLIMIT_NPROC. `processes`, `confinement` and `guard` set their flags themselves.

    Raises CallerError (`argv_empty`, `argv_nul`, `argv_too_large`) for impossible arguments, InternalError for the
    rest."""

    arguments: tuple[bytes, ...]
    filter: bytes
    listeners: tuple[Listener, ...] = ()
    grace_ms: int = 2000
    flags: Flags = _NO_FLAGS
    asked_ports: tuple[tuple[int, int], ...] = ()
    removals: tuple[bytes, ...] = ()
    processes: int | None = None
    confinement: Confinement | None = None
    guard: Guard | None = None

    @property
    def _paths(self) -> tuple[bytes, ...]:
        roots = () if self.confinement is None else self.confinement.roots
        return roots if self.guard is None else (*roots, *self.guard.zones, *self.guard.names)

    def __post_init__(self) -> None:
        if not self.arguments:
            raise CallerError("argv_empty", "there is no command to run", hint="give at least the program's name")
        size = _size_of((*self.removals, *self._paths)) + sum(map(len, self.arguments)) + len(self.arguments)
        if any(b"\0" in item for item in self.arguments):
            raise CallerError("argv_nul", "an argument contains a NUL character", hint="remove the NUL character")
        if size > MAX_ARGUMENTS:
            raise CallerError(
                "argv_too_large",
                f"the arguments take {size} bytes, at most {MAX_ARGUMENTS} are possible",
                hint="put the data into a file, or pass it on standard input",
            )
        if len(self.filter) % 8 or len(self.filter) > MAX_FILTER:
            raise InternalError("configuration_invalid", f"{len(self.filter)} bytes are no seccomp program")
        flags = int(self.flags)
        if bool(self.filter) == bool(flags & _UNFILTERED):
            raise InternalError("configuration_invalid", "either a filter or Flags.UNFILTERED")
        parts = (_CONFINED if self.confinement else 0) | (_GUARDED if self.guard else 0)
        if _contradict(flags | parts) or flags & _SET_BY_ITSELF:
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
        """Encode the message for the helper.

        Order: head, listeners, ports, filter, limit, confinement, guard, then the NUL-terminated patterns, roots,
        zones, guarded names and arguments."""
        confinement = b"" if self.confinement is None else self.confinement.encode()
        guard = b"" if self.guard is None else self.guard.encode()
        texts = (*self.removals, *self._paths, *self.arguments)
        arguments = b"".join(item + b"\0" for item in texts)
        listeners = b"".join(_LISTENER.pack(one.backlog, *_socket_address(one)) for one in self.listeners)
        ports = b"".join(_PORTS.pack(*one) for one in self.asked_ports)
        limit = b"" if self.processes is None else _LIMIT.pack(self.processes)
        head = _HEAD.pack(
            _MAGIC,
            VERSION,
            _HEAD.size + sum(map(len, (listeners, ports, self.filter, limit, confinement, guard, arguments))),
            self.flags
            | (Flags.BOUNDED if limit else 0)
            | (Flags.CONFINED if confinement else 0)
            | (Flags.GUARD if guard else 0),
            self.grace_ms,
            len(self.listeners),
            len(self.filter),
            len(texts),
            len(arguments),
            len(self.asked_ports),
            len(self.removals),
        )
        return head + listeners + ports + self.filter + limit + confinement + guard + arguments

    @classmethod
    def decode(cls, message: bytes) -> LaunchConfiguration:
        """Decode a message, with the checks of the helper. Raises ProtocolError."""
        if len(message) < _HEAD.size:
            raise ProtocolError("the configuration is cut off")
        magic, version, length, flags, grace_ms, listeners, program, texts, size, ports, removals = _HEAD.unpack_from(
            message
        )
        if magic != _MAGIC or version not in (_VERSION_BEFORE, VERSION):
            raise ProtocolError("the configuration has another version")
        numbers = _CONFINEMENT if version == VERSION else _CONFINEMENT_BEFORE
        start_of_ports = _HEAD.size + listeners * _LISTENER.size
        start_of_program = start_of_ports + ports * _PORTS.size
        start_of_limit = start_of_program + program
        is_bounded, is_confined = bool(flags & Flags.BOUNDED), bool(flags & Flags.CONFINED)
        start_of_confinement = start_of_limit + is_bounded * _LIMIT.size
        start_of_guard = start_of_confinement + is_confined * numbers.size
        is_guarded = bool(flags & Flags.GUARD)
        start_of_arguments = start_of_guard + is_guarded * _GUARD.size
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
        confinement, guard, first = None, None, removals
        if is_confined:
            handled, scoped, restricting, *granted, roots = numbers.unpack_from(message, start_of_confinement)
            first += roots
            if first >= texts:
                raise ProtocolError("the configuration is malformed")
            confinement = Confinement(handled, scoped, restricting, reduce(or_, granted), items[removals:first])
        if is_guarded:
            granted_in_zones, zones, names = _GUARD.unpack_from(message, start_of_guard)
            first, end_of_zones = first + zones + names, first + zones
            if first >= texts:
                raise ProtocolError("the configuration is malformed")
            guard = Guard(granted_in_zones, items[end_of_zones - zones : end_of_zones], items[end_of_zones:first])
        return cls(
            arguments=items[first:],
            filter=message[start_of_program:start_of_limit],
            listeners=tuple(_read_listener(message, _HEAD.size + n * _LISTENER.size) for n in range(listeners)),
            grace_ms=grace_ms,
            flags=Flags(flags & ~_SET_BY_ITSELF),
            asked_ports=tuple(_PORTS.iter_unpack(message[start_of_ports:start_of_program])),
            removals=items[:removals],
            processes=processes,
            confinement=confinement,
            guard=guard,
        )


def _socket_address(listener: Listener) -> tuple[int, bytes]:
    """Return length and bytes of the kernel's socket address (ip(7), ipv6(7))."""
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
