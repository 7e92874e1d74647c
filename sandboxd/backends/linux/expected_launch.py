"""What the bridge waits for, and what has to be done when it comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from sandboxd.backends.base import Listeners, Observer
from sandboxd.backends.linux.bridge_protocol import Configuration


class Peer(Protocol):
    @property
    def pid(self) -> int: ...


BeforeStart = Callable[[int, int, Listeners], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Expected:
    """What waits for the owner of a ticket: the configuration for the helper, and the bubblewrap options when they are
    too long for an argument list (NUL separated)."""

    configuration: Configuration
    options: bytes | None
    observer: Observer
    before_start: BeforeStart | None = None
    """With Flags.WAIT: what has to be done before the command may start, given the pids of the sandbox's process 1 and
    of bubblewrap, and the listeners, which it may add to. What it returns is awaited. Raises SandboxdError; then the
    command does not start."""
