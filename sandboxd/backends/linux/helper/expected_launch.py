"""Records of the launches that the bridge expects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from sandboxd.backends.base import Listeners, Observer
from sandboxd.backends.linux.helper.launch_configuration import LaunchConfiguration
from sandboxd_client.records import dataclass

Aftermath = Callable[[], "asyncio.Future[bytes] | bytes"]
"""The clean-up when process 1 is alone in a sandbox, before a client sees its end. The result is the last byte for
process 1: HARMLESS, PARTLY, or none."""


class Peer(Protocol):
    @property
    def pid(self) -> int: ...


class Preparation(Protocol):
    """The set-up of one sandbox before its command may start.

    `pid` is its process 1, `bubblewrap` the parent of that, both as the daemon numbers them."""

    def born(self, pid: int, bubblewrap: int) -> None:
        """Begin what is possible: process 1 is in all its namespaces, nothing is mounted."""

    def complete(self, pid: int, bubblewrap: int, listeners: Listeners) -> Awaitable[None] | None:
        """Finish the set-up while process 1 waits for GO.

        The result is awaited; it may add to the listeners. After SandboxdError the command does not start."""

    def abandon(self) -> None:
        """Release what `born` has begun: the launch is over, or another daemon has it."""


@dataclass(frozen=True, slots=True)
class ExpectedLaunch:
    """The configuration that waits for the owner of a ticket.

    `options` are bubblewrap's options, NUL separated, when they are too long for an argument list."""

    configuration: LaunchConfiguration
    options: bytes | None
    observer: Observer
    preparation: Preparation | None = None
    """With Flags.WAIT."""
    aftermath: Aftermath | None = None
    """With Flags.STAY."""
