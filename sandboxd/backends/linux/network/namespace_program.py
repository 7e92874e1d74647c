"""Namespace programs: steps in the namespaces of a sandbox, and their encoding.

docs/helper.md describes the format. `namespaces` (see `namespace_worker.py`) runs the steps in order and
stops at the first failure. The answer has the number of that step. Sockets come back in the order of their steps. Pure.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from enum import IntEnum

from sandboxd.backends.linux.network.netlink import Batch, Family
from sandboxd.errors import InternalError
from sandboxd.policy.hosts.host_patterns import IPAddress
from sandboxd_client.records import dataclass

MAX_PROGRAM = 64 * 1024
MAX_SOCKETS = 64
STREAM, DATAGRAM = 1, 2
"""SOCK_STREAM, SOCK_DGRAM."""
_NETLINK_FAMILY, _RAW = 16, 3  # AF_NETLINK, SOCK_RAW

SocketOption = tuple[int, int, int]
"""Level, name and int value for setsockopt(2)."""

_HEAD = struct.Struct("=II")
_NETLINK = struct.Struct("=II")
_OPEN = struct.Struct("=6I28s")
_MOUNT = struct.Struct("=II")
_CALL = struct.Struct("=II10i")
_OPTION = struct.Struct("=IIi")
_ANSWER = struct.Struct("=II")
ANSWER_SIZE = _ANSWER.size


class SocketUse(IntEnum):
    """The operation on a new socket. CONNECT does not block, so it may be pending."""

    BIND = 0
    LISTEN = 1
    CONNECT = 2


@dataclass(frozen=True, slots=True)
class Configure:
    """Netlink messages to be acknowledged; `purpose` is for the error."""

    batch: Batch
    purpose: str

    def encode(self) -> bytes:
        return _step(1, _NETLINK.pack(self.batch.protocol, self.batch.acknowledgements) + self.batch.messages)


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """A step that opens a non-blocking socket; `options` are set first."""

    kind: int
    address: IPAddress
    port: int
    then: SocketUse
    backlog: int = 0
    options: tuple[SocketOption, ...] = ()

    @property
    def purpose(self) -> str:
        verb = {SocketUse.BIND: "bind", SocketUse.LISTEN: "listen", SocketUse.CONNECT: "connect"}[self.then]
        return f"{verb} at {self.address}, port {self.port}"

    def encode(self) -> bytes:
        if self.address.version == 4:
            family, address = Family.V4, struct.pack("=H", Family.V4) + struct.pack(">H", self.port)
            address += self.address.packed + bytes(8)
        else:
            family, address = Family.V6, struct.pack("=H", Family.V6) + struct.pack(">HI", self.port, 0)
            address += self.address.packed + bytes(4)
        body = _OPEN.pack(family, self.kind, 0, self.then, self.backlog, len(address), address)
        return _step(2, body + b"".join(_OPTION.pack(*option) for option in self.options))


@dataclass(frozen=True, slots=True)
class OpenNetlink:
    """A step that opens a non-blocking netlink socket."""

    protocol: int
    purpose = "open a netlink socket"

    def encode(self) -> bytes:
        address = struct.pack("=HHII", _NETLINK_FAMILY, 0, 0, 0)
        return _step(2, _OPEN.pack(_NETLINK_FAMILY, _RAW, self.protocol, SocketUse.BIND, 0, len(address), address))


class MountMethod(IntEnum):
    """The source of a late mount."""

    SAME = 0
    """The existing file or directory."""
    READ_ONLY = 1
    """The existing file or directory, read-only."""
    ENTRY = 3
    """Whatever stands at the name, read-only, or the mount at a source; no symlink is followed."""
    COPY = 4
    """The mount at the source."""
    TAKE = 5
    """No mount: what is mounted there is copied, with all below, for a PUT."""
    SHOW = 6
    """The thing at the source, on a name made for it, if that is still possible."""
    HIDE = 7
    """No mount: that at the target goes."""
    PUT = 8
    """The tree of this number: those that come with the program, then the copies."""

    @classmethod
    def _missing_(cls, value: object) -> MountMethod | None:
        """Read the number of an earlier version, for a path that might be missing."""
        return cls.READ_ONLY if value == 2 else None


_IF_THERE = 1 << 16


@dataclass(frozen=True, slots=True)
class LateMount:
    """One mount in the sandbox's mount namespace; `source` is for COPY, SHOW and ENTRY, `tree` for PUT.

    `if_there`: no mount where the path has gone, or leads elsewhere by now."""

    how: MountMethod
    target: str
    source: str = ""
    tree: int = 0
    if_there: bool = False

    @property
    def purpose(self) -> str:
        return f"pin {self.target}" if self.how is MountMethod.ENTRY else f"mount {self.target}"

    def encode(self) -> bytes:
        target, source = os.fsencode(self.target), os.fsencode(self.source)
        how = self.how + self.tree | (_IF_THERE if self.if_there else 0)
        return _step(3, _MOUNT.pack(how, len(target) + 1) + target + b"\0" + source + b"\0")


class Then(IntEnum):
    """The use of the result of a system call; TRY ignores a failure as well."""

    DROP = 0
    KEEP = 1
    GIVE = 2
    TRY = 3


@dataclass(frozen=True, slots=True)
class SystemCall:
    """A step that makes one system call; an argument of type `Kept` is an earlier result."""

    name: str
    arguments: tuple[int | str | Kept, ...]
    then: Then = Then.DROP
    purpose: str = ""

    def encode(self) -> bytes:
        text, words = b"", []
        for one in (*self.arguments, *(0,) * (5 - len(self.arguments))):
            if isinstance(one, str):
                words += [1, len(text)]
                text += os.fsencode(one) + b"\0"
            else:
                words += [2, one.number] if isinstance(one, Kept) else [0, one]
        return _step(5, _CALL.pack(_NUMBERS[self.name][_IS_ARM], self.then, *words) + (text or b"\0"))


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of an earlier step, by its number among those that were kept."""

    number: int


_IS_ARM = os.uname().machine == "aarch64"
_NUMBERS = {  # on x86_64 and aarch64
    "mount": (165, 40), "mkdirat": (258, 34), "mknodat": (259, 33), "openat": (257, 56), "umask": (95, 166),
    "unshare": (272, 97), "open_tree": (428, 428), "fsconfig": (431, 431), "fspick": (433, 433),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Continuation:
    """The last step of a program whose rest follows (`NamespaceWorker.stay`)."""

    purpose = "wait for the rest of the program"

    def encode(self) -> bytes:
        return _step(4, b"")


Step = Configure | OpenSocket | OpenNetlink | LateMount | SystemCall | Continuation


def _step(kind: int, body: bytes) -> bytes:
    padding = bytes(-len(body) % 4)
    return _HEAD.pack(kind, len(body) + len(padding)) + body + padding


@dataclass(frozen=True, slots=True)
class NamespaceProgram:
    """Steps, and their bytes. Raises InternalError beyond the helper's limits."""

    steps: tuple[Step, ...]
    encoded: bytes
    sockets: int
    has_mounts: bool = False
    stays: bool = False
    """True when a second part follows."""

    @classmethod
    def of(cls, steps: Iterable[Step]) -> NamespaceProgram:
        steps = tuple(steps)
        encoded = b"".join(step.encode() for step in steps)
        sockets = sum(isinstance(step, OpenSocket | OpenNetlink) or gives(step) for step in steps)
        if not steps or len(encoded) > MAX_PROGRAM or sockets > MAX_SOCKETS:
            raise InternalError("namespace_program", f"{len(encoded)} bytes and {sockets} sockets in one program")
        has_mounts = any(isinstance(step, LateMount) for step in steps)
        return cls(steps, encoded, sockets, has_mounts, isinstance(steps[-1], Continuation))

    def step(self, stage: int) -> Step | None:
        """Return the step of this stage of an answer."""
        number = stage - FIRST_STEP
        return self.steps[number] if 0 <= number < len(self.steps) else None

    def describe(self, stage: int) -> str:
        """Describe the failure at this stage of an answer."""
        if (step := self.step(stage)) is not None:
            return f"cannot {step.purpose}"
        return STAGES.get(stage, f"an unknown stage ({stage}) failed")


def gives(step: Step) -> bool:
    """Return whether a step hands out a descriptor that may be no socket."""
    return isinstance(step, SystemCall) and step.then is Then.GIVE


COMPLETE = 0
FIRST_STEP = 16
STAGES = {
    1: "cannot start a process for the namespace program",
    2: "cannot find the user namespace of the sandbox",
    3: "cannot enter the user namespace of the sandbox",
    4: "cannot enter the network namespace of the sandbox",
    5: "the helper does not support the namespace program: it may be of another version",
    6: "cannot enter the mount namespace of the sandbox",
}


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The answer: `stage` COMPLETE, or that of the failure, with its `errno`."""

    stage: int
    errno: int

    @classmethod
    def decode(cls, data: bytes) -> ProgramResult:
        """Decode an answer. Raises ValueError when it is incomplete."""
        try:
            return cls(*_ANSWER.unpack(data))
        except struct.error:
            raise ValueError(f"an answer of {len(data)} bytes") from None
