"""Hand-over records of the Linux back end: the bridge and its launches."""

from __future__ import annotations

from sandboxd.backends.linux.network.capture import Ability
from sandboxd.backends.linux.network.namespace_program import LateMount
from sandboxd.handover.record import NO_DESCRIPTOR, Descriptor
from sandboxd.plan.filesystem.mounts import Mount
from sandboxd.plan.host_facts import Territory
from sandboxd.plan.network import NetworkPlan
from sandboxd.plan.plan import ProcessLimit
from sandboxd.policy.model import NO_LIMITS, Limits
from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """One connection of a helper, with its unread and unsent bytes.

    `connection` is none when it is over and only the end of `init`, or else of `pidfd`, is awaited (`closing`)."""

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
    """Set for a launch cut between its listeners and its start: it cannot start."""
    stays: bool = False
    """Its configuration has Flags.STAY."""

    @property
    def ends(self) -> tuple[int, ...]:
        """The processes to kill when no daemon can serve the connection."""
        return tuple(number for number in (self.init, self.pidfd) if number >= 0)


@dataclass(frozen=True, slots=True)
class BridgeRecord:
    """The bridge. `strangers` are connections without a ticket."""

    listener: Descriptor
    strangers: tuple[LinkRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class CaptureRecord:
    """The capture of a launch: the ability of the host and the wanted policy."""

    ability: Ability
    network: NetworkPlan


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch.

    While unclaimed it has the encoded `configuration` and the `options`; then the `link`. `territory` is searched by
    the clean-up; `mounts`, `late` and `capture` are the pending set-up."""

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
    limits: Limits = NO_LIMITS
    processes: ProcessLimit | None = None
    guards: tuple[str, ...] = ()
    overlays: tuple[Mount, ...] = ()
    tmp_size: int | None = None
