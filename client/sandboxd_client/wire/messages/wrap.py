"""`wrap`: the argv that runs a command inside a sandbox. `wrap.outcome`: what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sandboxd_client.wire.messages.violations import ViolationRecord


@dataclass(frozen=True, slots=True)
class OverridesRecord:
    """What is added to the policy for one command; it never loosens managed policy. `settings` is the absolute path of
    a settings file; the other paths may be relative to `cwd`. `publish` are ports inside that the host is to reach, as
    `[HOST:]PORT[:INNER]`; sandbox.network.allowLocalBinding has to permit it."""

    allow_domains: tuple[str, ...] = ()
    allow_write: tuple[str, ...] = ()
    allow_read: tuple[str, ...] = ()
    settings: str | None = None
    publish: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class WrapParams:
    """Exactly one of `command` (a shell line) and `argv`. `cwd` is absolute; without it the session's is meant. `env`
    are the variables the command will inherit, as far as they are UTF-8: used to extend and to remove some, not kept.
    `command_text` is how the command is shown to people when it is not the command itself."""

    command: str | None = None
    argv: tuple[str, ...] | None = None
    session_id: str | None = None
    cwd: str | None = None
    shell: str | None = None
    env: dict[str, str] | None = None
    command_id: str | None = None
    command_text: str | None = None
    overrides: OverridesRecord | None = None


@dataclass(frozen=True, slots=True)
class EnvironmentRecord:
    """Set first, then unset; no name is in both."""

    set: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WrapResult:
    """Spawn `argv` in `cwd` with the changed environment, once, before it expires. `command` is the same as one shell
    line. `layers` are those that are really enforced, `published` the ports that the host reaches, as
    `HOST:PORT:INNER`."""

    wrap_id: str
    argv: tuple[str, ...]
    command: str
    env: EnvironmentRecord
    cwd: str
    layers: tuple[str, ...]
    warnings: tuple[str, ...]
    expires_in_s: float
    policy_generation: int = 0
    published: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WrapOutcomeParams:
    wrap_id: str


@dataclass(frozen=True, slots=True)
class WrapOutcomeResult:
    """`started` is False when the sandbox could not be set up: then nothing was run and `reason` says why. `status` is
    as a shell has it (128+N for a signal), None while the command runs or when it never did."""

    started: bool
    exited: bool
    status: int | None
    reason: str | None
    violations: tuple[ViolationRecord, ...] = ()
    hint: str = ""
