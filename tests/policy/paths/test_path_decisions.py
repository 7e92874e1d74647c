"""Decisions on paths in words: rule, file and hint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandboxd.policy.decision import Behavior, Reason
from sandboxd.policy.model import PathRule
from sandboxd.policy.paths.path_decisions import Cause, EffectiveAccess, PathAccess, decide_path
from sandboxd.settings.origins import Origin, Source

ORIGIN = Origin(Source.USER, "sandbox.filesystem.denyRead", "/home/u/.claude/settings.json", 4, 9)
RULE = PathRule("/home/u/.ssh", ORIGIN, text="~/.ssh")
DENIED = Cause("/home/u/.ssh", "~/.ssh", RULE)
BUILT_IN = Cause("/w/.git/hooks", "git runs the programs in it")


def test_a_rule_is_quoted_with_its_place() -> None:
    standing = EffectiveAccess("/home/u/.ssh/id", "/home/u/.ssh/id", PathAccess.NONE, read_denied=DENIED)
    decision = decide_path(standing, write=False)
    assert decision.text == (
        "reading /home/u/.ssh/id is denied by ~/.ssh in /home/u/.claude/settings.json:4 (sandbox.filesystem.denyRead)"
    )
    assert (decision.rule, decision.origin) == ("~/.ssh", ORIGIN)
    locked = decide_path(replace(standing, managed_reads_only=True), write=False)
    assert not decision.hint and "administrator" in locked.hint


def test_a_link_is_named_with_its_target() -> None:
    decision = decide_path(EffectiveAccess("/w/p", "/etc/passwd", PathAccess.READ), write=False)
    assert decision.text == "/w/p (which leads to /etc/passwd) can be read: nothing denies it"


@pytest.mark.parametrize(
    ("standing", "write", "reason"),
    [
        (EffectiveAccess("/a", "/a", PathAccess.READ), False, Reason.READ_DEFAULT),
        (EffectiveAccess("/a", "/a", PathAccess.READ, read_opened=DENIED), False, Reason.PATH_ALLOWED),
        (EffectiveAccess("/a", "/a", PathAccess.READ), True, Reason.PATH_NOT_WRITABLE),
        (EffectiveAccess("/a", "/a", PathAccess.READ, protected=BUILT_IN), True, Reason.PATH_PROTECTED),
        (
            EffectiveAccess("/a", "/a", PathAccess.READ, write_opened=DENIED, protected=BUILT_IN),
            True,
            Reason.PATH_PROTECTED,
        ),
        (
            EffectiveAccess("/a", "/a", PathAccess.READ, write_opened=DENIED, write_denied=DENIED),
            True,
            Reason.PATH_DENIED,
        ),
        (
            EffectiveAccess("/a", "/a", PathAccess.NONE, read_denied=DENIED, write_opened=BUILT_IN),
            True,
            Reason.PATH_DENIED,
        ),
        (EffectiveAccess("/a", "/a", PathAccess.WRITE, write_opened=DENIED), True, Reason.PATH_ALLOWED),
        (EffectiveAccess("/a", "/a", PathAccess.WRITE, write_opened=BUILT_IN), True, Reason.WORKING_DIRECTORY),
        (EffectiveAccess("/tmp/a", "/tmp/a", PathAccess.OWN, is_session_tmp=True), True, Reason.SESSION_TMP),
        (EffectiveAccess("/dev/null", "/dev/null", PathAccess.OWN), False, Reason.PATH_ALLOWED),
    ],
)
def test_every_reason(standing: EffectiveAccess, write: bool, reason: Reason) -> None:
    decision = decide_path(standing, write=write)
    assert decision.reason is reason and decision.behavior is not Behavior.ASK
    assert decision.text and "  " not in decision.text
