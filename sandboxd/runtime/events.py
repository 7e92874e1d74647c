"""Events of a daemon as records, for the audit log and the figures.

A question, an answer and a violation have records of their own (`runtime.prompts.prompt_records`, `policy.violation`)
and are told as they are."""

from __future__ import annotations

from collections.abc import Callable

from sandboxd.policy.decision import Decision
from sandboxd.policy.violation import Violation
from sandboxd.runtime.prompts.prompt_records import Asked, ResolvedQuestion
from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class RunPrepared:
    """A sandbox waits for its command.

    `seconds` is how long `wrap` took."""

    wrap_id: str
    command_id: str
    session_id: str
    cwd: str
    command: str
    layers: tuple[str, ...]
    warnings: tuple[str, ...]
    generation: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RunRefused:
    """`wrap` raised an error, and nothing can run."""

    session_id: str
    cwd: str
    command: str
    slug: str
    message: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The command's exec has succeeded.

    `pid` is bubblewrap's on the host."""

    wrap_id: str
    command_id: str
    session_id: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class RunEnded:
    """All processes of a command have ended.

    `status` is None when it is not known, `reason` says why a command never started."""

    wrap_id: str
    command_id: str
    session_id: str
    started: bool
    status: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection to the outside was opened.

    What was refused is a violation."""

    session_id: str
    command_id: str
    operation: str
    host: str
    port: int
    address: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A tunnel has ended, with the bytes that went out of the sandbox and into it."""

    session_id: str
    command_id: str
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class CommandDecided:
    """The answer to `should_sandbox`."""

    session_id: str | None
    command: str
    sandboxed: bool
    decision: Decision


@dataclass(frozen=True, slots=True)
class Fallback:
    """A weaker mode than requested, which the settings permit.

    `what` is a stable word, `why` a sentence."""

    what: str
    why: str
    session_id: str | None = None
    command_id: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Another policy is in force."""

    generation: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Controlled:
    """A client called a method that changes state for all clients."""

    method: str
    pid: int


Event = (
    RunPrepared
    | RunRefused
    | RunStarted
    | RunEnded
    | Connected
    | Disconnected
    | CommandDecided
    | Fallback
    | PolicyChanged
    | Controlled
    | Asked
    | ResolvedQuestion
    | Violation
)
Listener = Callable[[Event], None]
"""Must neither wait nor raise."""
Guard = Callable[[RunPrepared], None]
"""A check of a prepared run; raises SandboxdError when the command must not run."""


class Events:
    """The events of one daemon."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._guards: list[Guard] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def guard(self, guard: Guard) -> None:
        """Have `guard` asked before the argv of a command is handed out."""
        self._guards.append(guard)

    def tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def prepared(self, event: RunPrepared) -> None:
        """Report a prepared run. Raises the SandboxdError of a failed check."""
        for guard in self._guards:
            guard(event)
        self.tell(event)
