"""What the bridge waits for, and what has to be done when it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from sandboxd.backends.base import Listeners, Observer
from sandboxd.backends.linux.helper.launch_configuration import LaunchConfiguration

Aftermath = Callable[[], "asyncio.Future[bytes] | bytes"]
"""What has to be done when process 1 is alone in a sandbox, before a client hears of its end. The result is the last
byte for process 1: HARMLESS, PARTLY, or none."""


class Peer(Protocol):
    @property
    def pid(self) -> int: ...


class Preparation(Protocol):
    """What has to be done to one sandbox before its command may start. `pid` is its process 1, `bubblewrap` what made
    that, both as the daemon numbers them."""

    def born(self, pid: int, bubblewrap: int) -> None:
        """Process 1 exists, in all namespaces, with nothing mounted yet: what can be done by now may be begun."""

    def complete(self, pid: int, bubblewrap: int, listeners: Listeners) -> Awaitable[None] | None:
        """It waits for GO. What this returns is awaited; it may add to the listeners. Raises SandboxdError; then the
        command does not start."""

    def abandon(self) -> None:
        """The launch is over, or goes on in another daemon: let go of what `born` has begun."""


@dataclass(frozen=True, slots=True)
class ExpectedLaunch:
    """What waits for the owner of a ticket: the configuration for the helper, and the bubblewrap options when they are
    too long for an argument list (NUL separated)."""

    configuration: LaunchConfiguration
    options: bytes | None
    observer: Observer
    preparation: Preparation | None = None
    """With Flags.WAIT."""
    aftermath: Aftermath | None = None
    """With Flags.STAY."""
