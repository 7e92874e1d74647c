"""The one shape of an answer: what was decided, why in a fixed word, and which rule of which file says so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sandboxd.settings.origins import Origin


class Behavior(StrEnum):
    """What happens to the thing asked about."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Reason(StrEnum):
    """Why. A fixed list: used in replies, logs, violations and tests, so a name here never changes its meaning."""

    # commands
    SANDBOX_DISABLED = "sandboxDisabled"
    PLATFORM_NOT_ENABLED = "platformNotEnabled"
    SANDBOX_OVERRIDE = "sandboxOverride"
    OVERRIDE_FORBIDDEN = "overrideForbidden"
    NO_COMMAND = "noCommand"
    EXCLUDED = "excluded"
    SANDBOXED = "sandboxed"
    SANDBOX_UNAVAILABLE = "sandboxUnavailable"
    PERMISSION_MODE = "permissionMode"
    ROOT_REFUSED = "rootRefused"
    RULE = "rule"
    # hosts
    HOST_ALLOWED = "hostAllowed"
    HOST_DENIED = "hostDenied"
    HOST_NOT_LISTED = "hostNotListed"
    HOST_INVALID = "hostInvalid"
    LOCAL_ADDRESS = "localAddress"
    ADDRESS_DENIED = "addressDenied"
    SERVER_NAME = "serverName"
    GRANTED = "granted"
    PROMPT_DENIED = "promptDenied"
    PROMPT_UNANSWERED = "promptUnanswered"
    # paths
    PATH_ALLOWED = "pathAllowed"
    PATH_NOT_WRITABLE = "pathNotWritable"
    PATH_DENIED = "pathDenied"
    PATH_PROTECTED = "pathProtected"
    PATH_KEPT = "pathKept"
    READ_DEFAULT = "readDefault"
    WORKING_DIRECTORY = "workingDirectory"
    SESSION_TMP = "sessionTmp"
    # Unix sockets
    SOCKET_ALLOWED = "socketAllowed"
    SOCKET_NOT_LISTED = "socketNotListed"
    SOCKET_CONTROL = "socketControl"
    SOCKET_OWN = "socketOwn"
    SOCKET_REDIRECTED = "socketRedirected"
    SOCKET_BROUGHT = "socketBrought"


ONLY_MANAGED = "only managed settings can allow it: ask whoever administers this machine"
"""The hint of a decision that no rule of the user's can change. No other hint stands above it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`text` is one sentence for people. `rule` is the rule as its author wrote it, `origin` where it stands; both are
    None when a default decided. `hint` says what to change to get the other answer."""

    behavior: Behavior
    reason: Reason
    text: str
    rule: str | None = None
    origin: Origin | None = None
    hint: str = ""

    @property
    def allowed(self) -> bool:
        return self.behavior is Behavior.ALLOW
