"""The records of one `wrap`: what was asked, what is handed back, and what became of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxd.errors import CallerError, PolicyError
from sandboxd.policy.policy import Policy
from sandboxd.policy.publication import Publication
from sandboxd.settings.origins import Source


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a caller adds to the policy for one command (design 4, `wrap`). The settings they form are the CLI source:
    highest, except that managed policy is never loosened. `settings` is the path of a further settings file."""

    allow_domains: tuple[str, ...] = ()
    allow_write: tuple[str, ...] = ()
    allow_read: tuple[str, ...] = ()
    settings: str | None = None
    ignore_unknown_restrictions: bool = False
    restricted: bool = False
    """The caller's may only tighten."""
    variables: tuple[tuple[str, str], ...] = ()
    """What the caller's environment has, unlike the daemon's, for variables that rules mention."""
    granted_write: tuple[str, ...] = ()
    granted_read: tuple[str, ...] = ()
    """Paths that a person granted."""

    def __bool__(self) -> bool:
        callers = self.allow_domains or self.allow_write or self.allow_read or self.settings
        others = self.variables or self.granted_write or self.granted_read or self.ignore_unknown_restrictions
        return bool(callers or others)


NO_OVERRIDES = Overrides()


def check_restrictions(policy: Policy) -> tuple[str, ...]:
    """Refuse a command under settings of which a restriction is not enforced; return what a person should know when the
    caller insists. Raises `PolicyError`."""
    managed = [origin for origin in policy.unenforced if origin.source is Source.MANAGED]
    in_the_way = managed if policy.ignore_unknown_restrictions else policy.unenforced
    if not in_the_way:
        why = "is not enforced: the caller ignores unknown restrictions"
        return tuple(f"{origin} {why}" for origin in policy.unenforced)
    origin, *more = in_the_way
    others = f", and {len(more)} more like it" if more else ""
    hint = "ask whoever administers this machine"
    if not managed:
        hint = "correct the name or remove the key; `sandboxd settings lint` says more"
        if policy.allow_overrides:
            hint += "; to run without that restriction: sandboxd run --ignore-unknown-restrictions"
    raise PolicyError(
        "restriction_unknown",
        f"{origin} restricts commands by its name, and sandboxd does not know how to enforce it{others}",
        hint=hint,
        data={"key": origin.key, "file": origin.file, "keys": [one.key for one in in_the_way[:20]]},
    )


@dataclass(frozen=True, slots=True)
class WrapRequest:
    """Exactly one of `command` (a shell line) and `argv` is given. `cwd` is absolute. `environment` is what the caller
    knows of the variables the command will inherit: only used to extend values such as JAVA_TOOL_OPTIONS. `publish` are
    the ports that the host is to reach."""

    cwd: str
    command: str | None = None
    argv: tuple[str, ...] | None = None
    shell: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    command_id: str | None = None
    command_text: str | None = None
    overrides: Overrides = NO_OVERRIDES
    publish: tuple[Publication, ...] = ()

    def __post_init__(self) -> None:
        if (self.command is None) == (self.argv is None):
            raise CallerError(
                "invalid_params",
                "give either a command (a shell line) or an argv (a list), not both",
                hint="a shell line goes into command, a program with its arguments into argv",
            )
        if self.argv is not None and (not self.argv or not self.argv[0]):
            raise CallerError("command_empty", "argv is empty", hint="give the program as its first item")
        for text in (self.command, self.shell) if self.argv is None else self.argv:
            if text is not None and "\0" in text:
                raise CallerError(
                    "command_nul", "the command contains a NUL character", hint="no program can receive one; remove it"
                )
        if not os.path.isabs(self.cwd):
            raise CallerError("cwd_relative", f"cwd is not absolute: {self.cwd!r}", hint="send an absolute path")

    @property
    def text(self) -> str:
        """The command as people know it, for violations and questions."""
        if self.command_text is not None:
            return self.command_text
        return self.command if self.argv is None else " ".join(self.argv)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Wrapped:
    """The answer to a `wrap`: spawn `argv` in `cwd`, with `env_set` set and `env_unset` removed, before it expires."""

    wrap_id: str
    argv: tuple[str, ...]
    env_set: Mapping[str, str]
    env_unset: tuple[str, ...]
    cwd: str
    layers: tuple[str, ...]
    warnings: tuple[str, ...]
    expires_in_s: float
    generation: int
    published: tuple[Publication, ...] = ()


@dataclass(frozen=True, slots=True)
class WrapOutcome:
    """What became of a wrap. `started` is False when the sandbox could not be set up: then nothing was run, and
    `reason` says why. `status` is an exit status as a shell has it (128+N for a signal), None while it runs."""

    started: bool
    exited: bool
    status: int | None
    reason: str | None
    violations_lost: int = 0
