"""Decision: a behavior, a reason in a fixed word, a rule and its origin."""

from __future__ import annotations

from enum import StrEnum

from sandboxd.settings.origins import Origin
from sandboxd_client.records import dataclass


class Behavior(StrEnum):
    """The answer of a decision."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class PermissionMode(StrEnum):
    """Treatment of prompts in a session; explicit ask and deny rules always hold."""

    OPEN = "open"
    """Commands that no rule allows run without a prompt."""
    PROMPT = "prompt"
    NONE = "none"
    """Every command is denied."""
    PLAN = "plan"
    """Commands run in a sandbox that only writes temporary files, and no prompt opens more."""


class Reason(StrEnum):
    """Reasons of decisions; they are in replies and logs, so no meaning changes."""

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
    PORT_CLOSED = "portClosed"
    ADDRESS_DENIED = "addressDenied"
    SERVER_NAME = "serverName"
    SERVER_UNTRUSTED = "serverUntrusted"
    REQUEST_DENIED = "requestDenied"
    REQUEST_UNCLEAR = "requestUnclear"
    REQUEST_UNSEEN = "requestUnseen"
    CREDENTIAL_MISPLACED = "credentialMisplaced"
    UPLOAD_LIMIT = "uploadLimit"
    NAME_LIMIT = "nameLimit"
    GRANTED = "granted"
    PROMPT_DENIED = "promptDenied"
    PROMPT_UNANSWERED = "promptUnanswered"
    # paths
    PATH_ALLOWED = "pathAllowed"
    PATH_NOT_WRITABLE = "pathNotWritable"
    PATH_DENIED = "pathDenied"
    PATH_PROTECTED = "pathProtected"
    PLAN_MODE = "planMode"
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


ONLY_MANAGED = "only managed settings can allow it: ask the administrator of this machine"
"""Hint of a decision that no rule of the user can change; it comes before all others."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a request, with its reason.

    `text` is one sentence for display. `rule` is the rule as its author wrote it, with its `origin`; both are None when
    a default decided. `hint` names the change that gives the other answer."""

    behavior: Behavior
    reason: Reason
    text: str
    rule: str | None = None
    origin: Origin | None = None
    hint: str = ""

    @property
    def allowed(self) -> bool:
        return self.behavior is Behavior.ALLOW
