"""Records of a `wrap`: request, answer and outcome."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from sandboxd.errors import CallerError, DaemonError, LaunchError, PolicyError
from sandboxd.policy.hosts.publication import Publication
from sandboxd.policy.model import AuditPolicy, CommandPolicy, NetworkPolicy, Policy
from sandboxd.settings.origins import Source
from sandboxd_client.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Overrides:
    """Additions of a caller to the policy for one command.

    The settings they form are the CLI source: highest, except that managed policy is never loosened. `settings` is
    the path of a further settings file, or an object as JSON."""

    allow_domains: tuple[str, ...] = ()
    allow_write: tuple[str, ...] = ()
    allow_read: tuple[str, ...] = ()
    settings: str | None = None
    limits: tuple[tuple[str, str], ...] = ()
    """Keys of sandbox.limits with their values."""
    ignore_unknown_restrictions: bool = False
    restricted: bool = False
    """The caller's may only tighten."""
    variables: tuple[tuple[str, str], ...] = ()
    """Variables of rules with another value in the caller's environment than in the daemon's."""
    granted_write: tuple[str, ...] = ()
    granted_read: tuple[str, ...] = ()
    """Paths that a person granted."""
    grants: tuple[str, ...] = field(default=(), compare=False)
    """The session of these grants."""

    def __bool__(self) -> bool:
        callers = self.allow_domains or self.allow_write or self.allow_read or self.settings or self.limits
        others = self.variables or self.granted_write or self.granted_read or self.ignore_unknown_restrictions
        return bool(callers or others)


NO_OVERRIDES = Overrides()


def check_restrictions(policy: Policy) -> tuple[str, ...]:
    """Refuse a command where a restriction of the settings is not enforced.

    Return the warnings when the caller insists. Raises `PolicyError`."""
    managed = [one for one in policy.unenforced if one.origin.source is Source.MANAGED]
    in_the_way = managed if policy.ignore_unknown_restrictions else policy.unenforced
    if not in_the_way:
        why = "not enforced, since the caller ignores unknown restrictions"
        return tuple(f"{one.origin} is {why}: {one.message}" for one in policy.unenforced)
    first, *more = in_the_way
    others = f", and {len(more)} more like it" if more else ""
    hint = "ask the administrator of this machine"
    if not managed:
        hint = "correct or remove it (see: sandboxd settings lint)"
        if policy.allow_overrides:
            hint += "; to run without that restriction: sandboxd run --ignore-unknown-restrictions"
        hint += f"; {first.hint}" if first.hint else ""
    origin = first.origin
    raise PolicyError(
        "restriction_unknown",
        f"{origin}: {first.message}{others}",
        hint=hint,
        data={"key": origin.key, "file": origin.file, "keys": [one.origin.key for one in in_the_way[:20]]},
    )


SETTINGS_CHANGED = "the settings have changed since the command was prepared"


class HeldSettings:
    """Settings that a command was prepared under, compared when it starts.

    `now` is the policy in force and raises DaemonError where there is none; `look` reads files that have changed.
    `made_under` is None for a command of an earlier daemon, which has left a `digest`."""

    def __init__(
        self, made_under: Policy | None, now: Callable[[], Policy], look: Callable[[], Awaitable[None] | None]
    ) -> None:
        self._made_under = made_under
        self._now = now
        self._look = look
        self._digest = ""
        self.have_changed = False
        """True when the start was refused."""

    def close(self) -> None:
        """Let go of everything: there is nothing to start any more."""
        self._made_under, self._now, self._look = None, _no_policy, _no_look

    def resume(self, digest: str) -> None:
        self._made_under, self._digest = None, digest

    @property
    def digest(self) -> str:
        """Digest of a policy, which the next daemon compares with its own."""
        return self._digest if self._made_under is None else _digest(self._made_under)

    def check(self) -> Awaitable[None] | None:
        """Compare the settings; return an awaitable where files lie on a server.

        Raises LaunchError `settings_changed`."""
        looking = self._look()
        if looking is not None:
            return self._check_later(looking)
        self._compare()
        return None

    async def _check_later(self, looking: Awaitable[None]) -> None:
        await looking
        self._compare()

    def _compare(self) -> None:
        try:
            now = self._now()
            self.have_changed = now is not self._made_under and not self._are_alike(now)
        except DaemonError:
            self.have_changed = True
        if self.have_changed:
            raise LaunchError("settings_changed", SETTINGS_CHANGED, hint="run the command again")

    def _are_alike(self, now: Policy) -> bool:
        if self._made_under is None:
            return self._digest == _digest(now)
        return fixed_part(now) == fixed_part(self._made_under)


def fixed_part(policy: Policy) -> Policy:
    """Return the part of a policy that is fixed when a command is prepared."""
    network = replace(
        policy.network,
        allowed=(),
        denied=(),
        denied_reasons=(),
        requests=(),
        tls_exclude=(),
        strict_allowlist=False,
        managed_domains_only=False,
        denied_addresses=(),
        private_networks=False,
        parent_proxy=None,
        check_server_name=_NETWORK.check_server_name,
    )
    return replace(
        policy,
        generation=0,
        enabled=_POLICY.enabled,
        enabled_origin=_POLICY.enabled_origin,
        enabled_platforms=_POLICY.enabled_platforms,
        enabled_platforms_origin=_POLICY.enabled_platforms_origin,
        network=network,
        commands=CommandPolicy(),
        audit=AuditPolicy(),
        ignore_violations=(),
        warnings=(),
    )


_NETWORK = NetworkPolicy()
_POLICY = Policy()


def _digest(policy: Policy) -> str:
    return hashlib.sha256(repr(fixed_part(policy)).encode("utf-8", "surrogatepass")).hexdigest()


def _no_policy() -> Policy:
    raise LaunchError("settings_changed", "the command has ended", hint="run it again")


def _no_look() -> None:
    """Accept files that can no longer be compared."""


@dataclass(frozen=True, slots=True)
class WrapRequest:
    """The request: exactly one of `command` (a shell line) and `argv`.

    `cwd` is absolute. `environment` is what the caller knows of the variables the command will inherit: only used to
    extend values such as JAVA_TOOL_OPTIONS. `publish` are the ports that the host is to reach."""

    cwd: str
    command: str | None = None
    argv: tuple[str, ...] | None = None
    shell: str | None = None
    login: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    command_id: str | None = None
    command_text: str | None = None
    overrides: Overrides = NO_OVERRIDES
    publish: tuple[Publication, ...] = ()
    prepared: str | None = None
    """The prepared sandbox that is to run it, if it fits."""
    given: str | None = None
    """It has environment and streams already, with the changes of this tag."""
    owner: object = field(default=None, compare=False)
    """The connection that it comes by, which alone may claim what it has prepared."""

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
                    "command_nul", "the command contains a NUL character", hint="remove the NUL character"
                )
        if not os.path.isabs(self.cwd):
            raise CallerError("cwd_relative", f"cwd is not absolute: {self.cwd!r}", hint="send an absolute path")

    @property
    def line(self) -> str:
        """Return the command as one shell line."""
        return self.command or "" if self.argv is None else shlex.join(self.argv)

    @property
    def text(self) -> str:
        """Return the command's text for violations and questions."""
        if self.command_text is not None:
            return self.command_text
        return self.command if self.argv is None else " ".join(self.argv)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class WrapOutcome:
    """Outcome of a wrap.

    `started` is False when the sandbox could not be set up: then nothing was run, and `reason` says why. `code` is an
    exit status, -N for signal N, None while it runs."""

    started: bool
    exited: bool
    code: int | None
    reason: str | None
    violations_lost: int = 0
    settings_changed: bool = False
    """Nothing was run since the settings have changed."""
    outdated: bool = False
    """Nothing was run since settings or files have changed: to be wrapped again."""

    @property
    def status(self) -> int | None:
        """Return the exit status as a shell has it: 128+N for signal N."""
        return self.code if self.code is None or self.code >= 0 else 128 - self.code
