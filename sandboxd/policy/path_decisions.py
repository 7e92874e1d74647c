"""Decisions on paths, for people who ask: may this be read or written, and which rule says so.

What is in force at a path comes from the same code that orders the mounts (`plan.standing`), so an answer here is what
the sandbox does. This module only turns it into words.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sandboxd.policy.decision import ONLY_MANAGED, Behavior, Decision, Reason
from sandboxd.policy.policy import PathRule


class Access(StrEnum):
    """What can be done at a path inside the sandbox."""

    NONE = "none"
    READ = "read"
    WRITE = "write"
    OWN = "own"
    """The sandbox's own: the session's `/tmp`, `/dev`, `/proc`. The host's is not seen."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What decided: a rule, or for built-in ones a reason in words (`rule` is None then). `path` is where it holds."""

    path: str
    text: str
    rule: PathRule | None = None


@dataclass(frozen=True, slots=True)
class PathStanding:
    """What is in force at a path. `real` is where `path` leads, symlinks followed. Each cause is None when nothing of
    that kind applies."""

    path: str
    real: str
    access: Access
    read_denied: Cause | None = None
    read_opened: Cause | None = None
    write_opened: Cause | None = None
    write_denied: Cause | None = None
    protected: Cause | None = None
    is_session_tmp: bool = False
    managed_reads_only: bool = False
    """What is denied is opened again by managed settings alone."""


def decide_path(standing: PathStanding, *, write: bool) -> Decision:
    """ALLOW or DENY, never ASK: a sandbox that runs cannot be widened."""
    return _decide_write(standing) if write else _decide_read(standing)


def _decide_read(standing: PathStanding) -> Decision:
    if standing.access is Access.OWN:
        return _own(standing, "read")
    if standing.read_denied is not None:
        return _from_cause(
            Behavior.DENY, Reason.PATH_DENIED, f"reading {_name(standing)} is denied", standing.read_denied,
            hint=_way_to_read(standing),
        )  # fmt: skip
    if standing.read_opened is not None:
        return _from_cause(
            Behavior.ALLOW, Reason.PATH_ALLOWED, f"{_name(standing)} can be read", standing.read_opened,
            hint="to close it, remove that rule or deny the path itself in filesystem.denyRead",
        )  # fmt: skip
    return Decision(
        Behavior.ALLOW,
        Reason.READ_DEFAULT,
        f"{_name(standing)} can be read: nothing denies it",
        hint="to close it, add it to filesystem.denyRead",
    )


def _way_to_read(standing: PathStanding) -> str:
    if standing.managed_reads_only and standing.read_denied is not None and standing.read_denied.rule is not None:
        return ONLY_MANAGED
    return "add the path to filesystem.allowRead to open it inside the denied directory, or remove the rule"


def _decide_write(standing: PathStanding) -> Decision:
    name = _name(standing)
    if standing.access is Access.OWN:
        return _own(standing, "written")
    for cause, hint in (
        (standing.read_denied, "what cannot be read cannot be written; see filesystem.denyRead"),
        (standing.write_denied, "remove the rule; filesystem.denyWrite beats every allowWrite"),
    ):
        if cause is not None:
            return _from_cause(Behavior.DENY, Reason.PATH_DENIED, f"writing {name} is denied", cause, hint=hint)
    if standing.protected is not None:  # also where nothing is opened: whoever opens it should know
        text = f"writing {name} is denied"
        return _from_cause(Behavior.DENY, Reason.PATH_PROTECTED, text, standing.protected, hint=_LIFT)
    if standing.write_opened is None:
        return Decision(
            Behavior.DENY,
            Reason.PATH_NOT_WRITABLE,
            f"{name} cannot be written: it is in no writable directory",
            hint="add the path to filesystem.allowWrite",
        )
    reason = Reason.PATH_ALLOWED if standing.write_opened.rule is not None else Reason.WORKING_DIRECTORY
    return _from_cause(
        Behavior.ALLOW, reason, f"{name} can be written", standing.write_opened,
        hint="to close it, add it to filesystem.denyWrite",
    )  # fmt: skip


_LIFT = (
    "to open it all the same, name exactly this path in filesystem.allowWrite of your user settings "
    "(allowGitConfig for git's configuration)"
)


def _own(standing: PathStanding, verb: str) -> Decision:
    if standing.is_session_tmp:
        text = f"{standing.path} can be {verb}: /tmp in the sandbox is the session's own directory, not the host's"
        return Decision(Behavior.ALLOW, Reason.SESSION_TMP, text, hint="name a path in /tmp in a rule to share it")
    text = f"{standing.path} belongs to the sandbox's own /dev or /proc; the host's is not seen"
    return Decision(Behavior.ALLOW, Reason.PATH_ALLOWED, text)


def _name(standing: PathStanding) -> str:
    return standing.path if standing.path == standing.real else f"{standing.path} (which leads to {standing.real})"


def _from_cause(behavior: Behavior, reason: Reason, text: str, cause: Cause, *, hint: str) -> Decision:
    if cause.rule is None:
        return Decision(behavior, reason, f"{text}: {cause.text}", hint=hint)
    rule = cause.rule
    return Decision(behavior, reason, f"{text} by {cause.text} in {rule.origin}", cause.text, rule.origin, hint)
