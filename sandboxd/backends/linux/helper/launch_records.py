"""What the Linux back end hands over to the next daemon: its end of the bridge, and of each launch. Plain records."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.backends.linux.network.capture import Ability
from sandboxd.backends.linux.network.namespace_program import LateMount
from sandboxd.handover.record import NO_DESCRIPTOR, Descriptor
from sandboxd.plan.filesystem.mounts import Mount
from sandboxd.plan.host_facts import Territory
from sandboxd.plan.network import NetworkPlan


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """One connection of a helper, with what was read of a message and what is still to be written. `connection` is none
    when it is over and only the end of `init`, or else of `pidfd`, is awaited (`closing`)."""

    connection: Descriptor
    pid: int
    pidfd: Descriptor
    opening: bytes = b""
    init_pid: int | None = None
    init: Descriptor = NO_DESCRIPTOR
    decoder_buffer: bytes = b""
    decoder_last: str = ""
    descriptors: tuple[Descriptor, ...] = ()
    status: int | None = None
    outgoing: bytes = b""
    closing: bool = False
    preparing: bool = False
    """It was interrupted between its listeners and its start, so that it cannot start any more."""
    stays: bool = False
    """Its configuration has Flags.STAY."""

    @property
    def ends(self) -> tuple[int, ...]:
        """What to kill when nobody can serve it any more."""
        return tuple(number for number in (self.init, self.pidfd) if number >= 0)


@dataclass(frozen=True, slots=True)
class BridgeRecord:
    """`strangers` have not named a ticket yet."""

    listener: Descriptor
    strangers: tuple[LinkRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class CaptureRecord:
    """What was promised to a launch: what the machine could capture, and what the policy wants captured."""

    ability: Ability
    network: NetworkPlan


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch. As long as nobody has claimed it there is the `configuration` that waits (encoded) with the
    `options`; then there is the `link`. `territory` is what is looked through after it; `mounts`, `late` and
    `capture` what has to be completed, until that is done."""

    launch_id: str
    placeholders: tuple[str, ...] = ()
    watched: tuple[tuple[str, ...], ...] = ()
    territory: Territory | None = None
    mounts: tuple[Mount, ...] = ()
    late: tuple[LateMount, ...] = ()
    capture: CaptureRecord | None = None
    configuration: bytes = b""
    options: bytes | None = None
    link: LinkRecord | None = None
