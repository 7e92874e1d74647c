"""Records of a command: its progress, and its state for the next daemon."""

from __future__ import annotations

import contextlib
import enum
import os

from sandboxd.handover.record import NO_DESCRIPTOR, Descriptor, write_record
from sandboxd.plan.host_facts import SocketsAtStart
from sandboxd.proxy.server import ProxyRecord
from sandboxd.runtime.servers.published_ports import PublishedRecord
from sandboxd.runtime.wrap import NO_OVERRIDES, Overrides, WrapRequest
from sandboxd_client.records import dataclass


class State(enum.Enum):
    WAITING = "waiting"
    CLAIMED = "claimed"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """One command between two daemons.

    `expires_in_s` is what is left to a ticket that is not claimed."""

    wrap_id: str
    command_id: str
    text: str
    cwd: str
    overrides: Overrides = NO_OVERRIDES
    state: State = State.WAITING
    pid: int | None = None
    claimed_at: float | None = None
    claimed_monotonic: float = 0.0
    started: bool = False
    status: int | None = None
    reason: str | None = None
    generation: int = 0
    expires_in_s: float = 0.0
    proxies: ProxyRecord | None = None
    reads_reported: bool = False
    inside: Descriptor = NO_DESCRIPTOR
    published: PublishedRecord | None = None
    shares_localhost: bool = False
    settings: str = ""
    """The digest of those that it was prepared under, until it starts (`HeldSettings`)."""
    sockets: SocketsAtStart | None = None
    time_s: float | None = None
    """The time that it may run."""
    kill_at: float = 0.0
    """When it is killed if SIGTERM did not end it, by `time.monotonic`."""

    @property
    def request(self) -> WrapRequest:
        """Return the part of the request that is needed after the launch."""
        return WrapRequest(
            cwd=self.cwd,
            command=self.text,
            command_id=self.command_id,
            command_text=self.text,
            overrides=self.overrides or NO_OVERRIDES,
            publish=() if self.published is None else self.published.publications,
        )


def close_descriptors(record: object) -> None:
    """Close the descriptors in a record of another daemon that could not be resumed."""
    _, descriptors = write_record(record)
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
