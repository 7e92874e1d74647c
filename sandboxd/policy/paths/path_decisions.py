"""Decisions on paths in words: whether one may be read or written, and why.

An allowed path has its hint here, a denied one from the table of `policy.explain.hints`.

The code that orders the mounts gives the effective access (`plan.filesystem.effective_access`), so an answer is what
the sandbox does."""

from __future__ import annotations

import shlex
from enum import StrEnum

from sandboxd.policy.decision import ONLY_MANAGED, Behavior, Decision, Reason
from sandboxd.policy.display import neutralise
from sandboxd.policy.model import PLAN_MODE, PathRule
from sandboxd_client.records import dataclass


class PathAccess(StrEnum):
    """Access at a path inside the sandbox."""

    NONE = "none"
    READ = "read"
    WRITE = "write"
    OWN = "own"
    """Private to the sandbox: the session's `/tmp`, `/dev`, `/proc`. The host's is hidden."""
    OVERLAY = "overlay"
    """As on the host; what is written stays in the session."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of an access at `path`: a rule, or a built-in reason in words."""

    path: str
    text: str
    rule: PathRule | None = None


@dataclass(frozen=True, slots=True)
class EffectiveAccess:
    """The access at a path, its causes, and `real`, the path without symlinks."""

    path: str
    real: str
    access: PathAccess
    read_denied: Cause | None = None
    read_opened: Cause | None = None
    write_opened: Cause | None = None
    write_denied: Cause | None = None
    protected: Cause | None = None
    is_session_tmp: bool = False
    managed_reads_only: bool = False
    """Only managed settings can open a denied path again."""


def decide_path(effective: EffectiveAccess, *, write: bool) -> Decision:
    """Decide with ALLOW or DENY, never ASK: a running sandbox cannot be widened."""
    return _decide_write(effective) if write else _decide_read(effective)


def _decide_read(effective: EffectiveAccess) -> Decision:
    if effective.access is PathAccess.OWN:
        return _own(effective, "read")
    if effective.read_denied is not None:
        return _from_cause(
            Behavior.DENY, Reason.PATH_DENIED, f"reading {_name(effective)} is denied", effective.read_denied,
            hint=_way_to_read(effective),
        )  # fmt: skip
    if effective.read_opened is not None:
        return _from_cause(
            Behavior.ALLOW, Reason.PATH_ALLOWED, f"{_name(effective)} can be read", effective.read_opened,
            hint=_closing(effective),
        )  # fmt: skip
    return Decision(
        Behavior.ALLOW,
        Reason.READ_DEFAULT,
        f"{_name(effective)} can be read: nothing denies it",
        hint=_closing(effective),
    )


def _way_to_read(effective: EffectiveAccess) -> str:
    by_rule = effective.read_denied is not None and effective.read_denied.rule is not None
    return ONLY_MANAGED if effective.managed_reads_only and by_rule else ""


def _closing(effective: EffectiveAccess) -> str:
    return f"to close it: sandboxd deny path {shlex.quote(neutralise(effective.path))}"


def _decide_write(effective: EffectiveAccess) -> Decision:
    name = _name(effective)
    if effective.access is PathAccess.OWN:
        return _own(effective, "written")
    for cause in (effective.read_denied, effective.write_denied):
        if cause is not None and cause.rule is not None and cause.rule.origin == PLAN_MODE:
            return Decision(Behavior.DENY, Reason.PLAN_MODE, f"writing {name} is denied by {cause.text} of the session")
        if cause is not None:
            return _from_cause(Behavior.DENY, Reason.PATH_DENIED, f"writing {name} is denied", cause)
    if effective.access is PathAccess.OVERLAY:
        text = f"{name} can be written for the session alone: the host's file stays as it is"
        return Decision(Behavior.ALLOW, Reason.SESSION_TMP, text, hint=_sharing(effective))
    if effective.protected is not None:  # also where nothing is opened, as the reason for later
        text = f"writing {name} is denied"
        return _from_cause(Behavior.DENY, Reason.PATH_PROTECTED, text, effective.protected)
    if effective.write_opened is None:
        text = f"{name} cannot be written: it is in no writable directory"
        return Decision(Behavior.DENY, Reason.PATH_NOT_WRITABLE, text)
    reason = Reason.PATH_ALLOWED if effective.write_opened.rule is not None else Reason.WORKING_DIRECTORY
    return _from_cause(
        Behavior.ALLOW, reason, f"{name} can be written", effective.write_opened, hint=_closing(effective)
    )  # fmt: skip


def _sharing(effective: EffectiveAccess) -> str:
    return f"to share it with the host: sandboxd allow path {shlex.quote(neutralise(effective.path))}"


def _own(effective: EffectiveAccess, verb: str) -> Decision:
    if effective.is_session_tmp:
        text = f"{effective.path} can be {verb}: /tmp in the sandbox is the session's own directory, not the host's"
        return Decision(Behavior.ALLOW, Reason.SESSION_TMP, text, hint=_sharing(effective))
    text = f"{effective.path} belongs to the sandbox's own /dev or /proc; the host's is not seen"
    return Decision(Behavior.ALLOW, Reason.PATH_ALLOWED, text)


def _name(effective: EffectiveAccess) -> str:
    return effective.path if effective.path == effective.real else f"{effective.path} (which leads to {effective.real})"


def _from_cause(behavior: Behavior, reason: Reason, text: str, cause: Cause, *, hint: str = "") -> Decision:
    if cause.rule is None:
        return Decision(behavior, reason, f"{text}: {cause.text}", hint=hint)
    rule = cause.rule
    return Decision(behavior, reason, f"{text} by {cause.text} in {rule.origin}", cause.text, rule.origin, hint)
