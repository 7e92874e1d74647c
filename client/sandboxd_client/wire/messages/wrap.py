"""`wrap`: the argv that runs a command inside a sandbox. `wrap.outcome`: what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sandboxd_client.wire.messages.violations import ViolationRecord


@dataclass(frozen=True, slots=True)
class OverridesRecord:
    """What is added to the policy for one command; it never loosens managed policy. `settings` is the absolute path of
    a settings file; the other paths may be relative to `cwd`. `publish` are ports inside that the host is to reach, as
    `[HOST:]PORT[:INNER]`; sandbox.network.allowLocalBinding has to permit it. `ignore_unknown_restrictions`: run the
    command although a key of the settings restricts commands by its name and is not enforced."""

    allow_domains: tuple[str, ...] = ()
    allow_write: tuple[str, ...] = ()
    allow_read: tuple[str, ...] = ()
    settings: str | None = None
    publish: tuple[str, ...] | None = None
    ignore_unknown_restrictions: bool | None = None


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
    """With `learn`, also which settings would have let it pass."""

    wrap_id: str
    learn: bool = False


@dataclass(frozen=True, slots=True)
class LeftOutRecord:
    """Something that was blocked and that no rule is suggested for."""

    target: str
    why: str


@dataclass(frozen=True, slots=True)
class LearnedRecord:
    """`settings` is a fragment of a settings file, empty when there is nothing to add; `notes` is what a person has to
    know or do beside it."""

    settings: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[LeftOutRecord, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WrapOutcomeResult:
    """`started` is False when the sandbox could not be set up: then nothing was run and `reason` says why; else it says
    what was not well, such as a look at a part only of what the command has left. `status` is
    as a shell has it (128+N for a signal), None while the command runs or when it never did. `violations_lost` is how
    many were not recorded because there were too many. `outdated`: nothing was run since files or settings are others
    than when it was wrapped (`settings_changed`: the settings); wrap it again."""

    started: bool
    exited: bool
    status: int | None
    reason: str | None
    violations: tuple[ViolationRecord, ...] = ()
    hint: str = ""
    violations_lost: int = 0
    learned: LearnedRecord | None = None
    settings_changed: bool = False
    outdated: bool = False
