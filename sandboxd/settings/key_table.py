"""The table of settings keys: merge, effect on the sandbox, permitted sources.

docs/settings.md shows the same table.

- *replace*: the highest source that sets the key wins.
- *union*: lists are joined, the highest source first.
- *strictest*: the strictest value wins, whatever its source."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sandboxd.settings.origins import Source
from sandboxd_client.records import dataclass


class Combine(StrEnum):
    REPLACE = "replace"
    UNION = "union"
    STRICTEST = "strictest"


class Effect(StrEnum):
    """The effect of a key on the sandbox, which decides who may set it."""

    OPENS = "opens"
    """A list of permissions, a switch whose `true` permits, or a limit."""
    CLOSES = "closes"
    """A list of denials, or a switch whose `true` forbids."""
    SHAPES = "shapes"
    """A program, port or path, which only a layer that may widen can set."""
    BY_ENTRY = "by entry"
    """A list in which some entries open and others close."""


ANY_SOURCE = frozenset(Source)
MANAGED_ONLY = frozenset({Source.MANAGED})
CALLER_ONLY = frozenset({Source.CLI})
USER_OR_MANAGED = frozenset({Source.MANAGED, Source.USER})
BY_A_PERSON = frozenset({Source.MANAGED, Source.FLAG, Source.LOCAL, Source.USER})


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key; `order` lists the values of an enumeration, loosest first."""

    key: str
    combine: Combine
    effect: Effect
    default: Any
    sources: frozenset[Source] = ANY_SOURCE
    order: tuple[str, ...] = ()

    def strictness(self, value: Any) -> float | None:
        """Rank a scalar by strictness within the key; None where the key has no order.

        A limit that is not set is the loosest one."""
        if self.effect is Effect.SHAPES or isinstance(self.default, tuple):
            return None
        rank = self.order.index(value) if self.order else float("inf") if value is None else value
        return rank if self.effect is Effect.CLOSES else -rank


_N = "sandbox.network."
_F = "sandbox.filesystem."
_L = "sandbox.limits."
_R, _U, _S = Combine.REPLACE, Combine.UNION, Combine.STRICTEST
_OPENS, _CLOSES, _SHAPES = Effect.OPENS, Effect.CLOSES, Effect.SHAPES

TABLE: dict[str, KeyRow] = {
    row.key: row
    for row in (
        KeyRow("permissions.allow", _U, _OPENS, ()),
        KeyRow("permissions.deny", _U, _CLOSES, ()),
        KeyRow("permissions.ask", _U, _CLOSES, ()),
        KeyRow("permissions.additionalDirectories", _U, _OPENS, ()),
        KeyRow("permissions.blockReadsOutsideWorkingDirectories", _S, _CLOSES, False),
        KeyRow("permissions.denyInsteadOfPrompting", _S, _CLOSES, False),
        KeyRow("permissions.disableBypassPermissionsMode", _S, _CLOSES, "", order=("", "disable")),
        KeyRow("allowManagedPermissionRulesOnly", _R, _CLOSES, False, MANAGED_ONLY),
        KeyRow("sandbox.enabled", _R, _CLOSES, True),
        KeyRow("sandbox.failIfUnavailable", _R, _CLOSES, True),
        KeyRow("sandbox.enabledPlatforms", _R, _SHAPES, None),
        KeyRow("sandbox.autoAllowBashIfSandboxed", _R, _OPENS, True),
        KeyRow("sandbox.allowUnsandboxedCommands", _R, _OPENS, True),
        KeyRow("sandbox.allowOverrides", _R, _OPENS, True),
        KeyRow("sandbox.ignoreUnknownRestrictions", _R, _OPENS, False, CALLER_ONLY),
        KeyRow("sandbox.allowProjectTrust", _R, _OPENS, True, MANAGED_ONLY),
        KeyRow("sandbox.excludedCommands", _U, _OPENS, ()),
        KeyRow("sandbox.presets", _U, Effect.BY_ENTRY, ()),
        KeyRow("sandbox.profiles", _U, _OPENS, ()),
        KeyRow(_N + "allowedDomains", _U, _OPENS, ()),
        KeyRow(_N + "deniedDomains", _U, _CLOSES, ()),
        KeyRow(_N + "deniedDomainReasons", _U, Effect.BY_ENTRY, ()),
        KeyRow(_N + "requests", _U, Effect.BY_ENTRY, ()),
        KeyRow(_N + "tls.terminate", _U, _CLOSES, ()),
        KeyRow(_N + "tls.exclude", _U, _OPENS, ()),
        KeyRow(_N + "maxUpload", _U, _CLOSES, ()),
        KeyRow(_N + "maxNewNames", _S, _OPENS, None),
        KeyRow(_N + "strictAllowlist", _R, _CLOSES, False),
        KeyRow(_N + "onUnlisted", _R, _CLOSES, "ask", order=("ask", "deny")),
        KeyRow(_N + "useWebFetchRules", _R, _OPENS, True),
        KeyRow(_N + "allowManagedDomainsOnly", _R, _CLOSES, False, MANAGED_ONLY),
        KeyRow(_N + "allowUnixSockets", _U, _OPENS, ()),
        KeyRow(_N + "allowAllUnixSockets", _R, _OPENS, False),
        KeyRow(_N + "allowLocalBinding", _R, _OPENS, False),
        KeyRow(_N + "allowLocalPorts", _U, _OPENS, ()),
        KeyRow(_N + "allowMachLookup", _U, _OPENS, ()),
        KeyRow(_N + "allowMachRegister", _U, _OPENS, ()),
        # A proxy that decides in the daemon's place is the choice of the user or administrator, not of a project.
        KeyRow(_N + "httpProxyPort", _R, _SHAPES, None, USER_OR_MANAGED),
        KeyRow(_N + "socksProxyPort", _R, _SHAPES, None, USER_OR_MANAGED),
        KeyRow(_N + "parentProxy", _R, _SHAPES, None),
        KeyRow(_N + "deniedResolvedAddresses", _U, _CLOSES, ()),
        # Without capture, programs that ignore the proxy variables reach nothing: false is the stricter value.
        KeyRow(_N + "transparent", _R, _OPENS, True),
        KeyRow(_N + "checkServerName", _R, _CLOSES, "log", order=("off", "log", "enforce")),
        KeyRow(_F + "allowWrite", _U, _OPENS, ()),
        KeyRow(_F + "denyWrite", _U, _CLOSES, ()),
        KeyRow(_F + "denyEdit", _U, _CLOSES, ()),
        KeyRow(_F + "denyRead", _U, _CLOSES, ()),
        KeyRow(_F + "allowRead", _U, _OPENS, ()),
        KeyRow(_F + "tmp", _R, _CLOSES, "overlay", order=("host", "overlay", "private")),
        KeyRow(_F + "home", _R, _CLOSES, "host", order=("overlay", "host")),
        KeyRow(_F + "owners", _R, _CLOSES, "pretend", order=("pretend", "refuse")),
        KeyRow(_F + "allowGitConfig", _R, _OPENS, False),
        KeyRow(_F + "allowManagedReadPathsOnly", _R, _CLOSES, False, MANAGED_ONLY),
        # A project and a caller can neither name a secret of the user, nor the host that it goes to.
        KeyRow("sandbox.credentials.inject", _U, _OPENS, (), BY_A_PERSON),
        KeyRow("sandbox.credentials.mask", _U, _CLOSES, ()),
        KeyRow("sandbox.credentials.files", _U, _CLOSES, ()),
        KeyRow("sandbox.credentials.envVars", _U, _CLOSES, ()),
        KeyRow("sandbox.environment.remove", _U, _CLOSES, ()),
        # The daemon runs these programs outside every sandbox.
        KeyRow("sandbox.prompts.notify", _U, _OPENS, (), USER_OR_MANAGED),
        KeyRow(_L + "processes", _R, _OPENS, 8192),
        KeyRow(_L + "maxProcesses", _R, _OPENS, 8192),
        KeyRow(_L + "memory", _R, _OPENS, None),
        KeyRow(_L + "cpu", _R, _OPENS, None),
        KeyRow(_L + "time", _R, _OPENS, None),
        KeyRow(_L + "tmp", _R, _OPENS, None),
        KeyRow("sandbox.reportViolations", _R, _CLOSES, "writes", order=("off", "writes", "all")),
        KeyRow("sandbox.ignoreViolations", _U, _OPENS, ()),
        KeyRow("sandbox.enableWeakerNestedSandbox", _R, _OPENS, False),
        KeyRow("sandbox.enableWeakerNetworkIsolation", _R, _OPENS, False),
        KeyRow("sandbox.allowAppleEvents", _R, _OPENS, False),
        KeyRow("sandbox.allowPty", _R, _OPENS, False),
        KeyRow("sandbox.prepareSandboxes", _R, _OPENS, True),
        KeyRow("sandbox.mandatoryDenySearchDepth", _R, _CLOSES, 3),
        KeyRow("sandbox.bwrapPath", _R, _SHAPES, None, MANAGED_ONLY),
        KeyRow("audit.enabled", _S, _CLOSES, False, USER_OR_MANAGED),
        KeyRow("audit.path", _R, _SHAPES, None, USER_OR_MANAGED),
        KeyRow("audit.maxBytes", _R, _SHAPES, 16 * 1024 * 1024, USER_OR_MANAGED),
        KeyRow("audit.keep", _R, _SHAPES, 10, USER_OR_MANAGED),
        KeyRow("audit.onFull", _S, _CLOSES, "block", USER_OR_MANAGED, order=("drop", "block")),
    )
}

MANAGED_LISTS = {
    # Only lists that allow: denials of other sources cannot weaken managed rules.
    "permissions.allow": "allowManagedPermissionRulesOnly",
    _N + "allowedDomains": _N + "allowManagedDomainsOnly",
    _F + "allowRead": _F + "allowManagedReadPathsOnly",
}
"""Lists of which only managed entries count while the named switch is on."""
