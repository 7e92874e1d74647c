"""`wrap`: the argv of a sandboxed command. `wrap.outcome`: its outcome."""

from __future__ import annotations

from typing import Any

from sandboxd_client.records import dataclass, field
from sandboxd_client.wire.messages.violations import ViolationRecord


@dataclass(frozen=True, slots=True)
class OverridesRecord:
    """Additions to the policy for one command, within managed policy."""

    allow_domains: tuple[str, ...] = ()
    allow_write: tuple[str, ...] = ()  # relative to `cwd`, as is `allow_read`
    allow_read: tuple[str, ...] = ()
    settings: str | dict[str, Any] | None = None  # the absolute path of a settings file, or an object as in one
    publish: tuple[str, ...] | None = None  # `[HOST:]PORT[:INNER]`, where network.allowLocalBinding permits it
    limits: dict[str, Any] | None = None  # `memory` (2G), `cpu` (1.5) and `time` (10m), in place of sandbox.limits
    ignore_unknown_restrictions: bool | None = None  # run despite settings that nothing enforces


@dataclass(frozen=True, slots=True)
class WrapParams:
    """A command to wrap: exactly one of `command` (a shell line) and `argv`."""

    command: str | None = None
    argv: tuple[str, ...] | None = None
    session_id: str | None = None
    cwd: str | None = None  # absolute; default: that of the session
    shell: str | None = None
    env: dict[str, str] | None = None  # the UTF-8 variables that the command inherits; not kept
    command_id: str | None = None
    command_text: str | None = None  # the form of the command for display
    overrides: OverridesRecord | None = None
    login: bool | None = None  # `shell` reads the start-up files of a login
    prepare: bool | None = None  # a sandbox that waits for the next command of this connection, not this one
    prepared: str | None = None  # the id of one that is to run the command, if it still fits
    given: str | None = None  # it has environment and streams already: the `env_tag` of those changes


@dataclass(frozen=True, slots=True)
class EnvironmentRecord:
    """Changes to the environment: set first, then unset, no name in both."""

    set: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WrapResult:
    """A launch spec: spawn `argv` in `cwd` with `env`, once, before it expires."""

    wrap_id: str
    argv: tuple[str, ...]
    command: str  # `argv` as one shell line
    env: EnvironmentRecord
    cwd: str
    layers: tuple[str, ...]  # those in force
    warnings: tuple[str, ...]
    expires_in_s: float
    policy_generation: int = 0
    published: tuple[str, ...] = ()  # ports that the host can reach, as `HOST:PORT:INNER`
    prepared: bool = False  # the waiting sandbox runs it: give it environment and streams, and spawn nothing
    tmp: str = ""  # the directory of the host with what the session writes in /tmp, where that can be seen
    env_tag: str = ""  # the same for the same `env` of this daemon


@dataclass(frozen=True, slots=True)
class WrapOutcomeParams:
    """A wrapped command."""

    wrap_id: str
    learn: bool = False  # also return settings that would have allowed it


@dataclass(frozen=True, slots=True)
class LeftOutRecord:
    """A violation without a suggested rule."""

    target: str
    why: str


@dataclass(frozen=True, slots=True)
class LearnedRecord:
    """The settings that a command would have needed."""

    settings: dict[str, Any] = field(default_factory=dict)  # a fragment of a settings file, or empty
    left_out: tuple[LeftOutRecord, ...] = ()
    notes: tuple[str, ...] = ()  # further steps for the user


@dataclass(frozen=True, slots=True)
class WrapOutcomeResult:
    """The outcome of a command."""

    started: bool  # False: the sandbox failed, `reason` says why, and no command ran
    exited: bool
    status: int | None  # 128+N for signal N; None while it runs, when it never ran or unknown
    reason: str | None  # of a failure, or of an incomplete clean-up
    violations: tuple[ViolationRecord, ...] = ()
    hint: str = ""
    violations_lost: int = 0  # violations beyond the limit of the record
    learned: LearnedRecord | None = None
    settings_changed: bool = False  # `outdated`, because of the settings
    outdated: bool = False  # no command ran since files or settings changed: wrap it again
    signal: int | None = None  # that ended it; 0 where it ended by itself
