"""Every denial reason has a hint, a documented word and a learning text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandboxd.policy.commands.command_decisions import CommandDecision, decide_command
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.explain.hint_table import HINTS, Symptom
from sandboxd.policy.explain.hints import DENIALS, hint_for
from sandboxd.policy.explain.suggestions import TargetState, learn
from sandboxd.policy.model import CommandPolicy, CommandRule, Policy
from sandboxd.policy.violation import Violation, ViolationKind, ViolationSource
from sandboxd.settings.origins import BUILT_IN

DOCS = Path(__file__).resolve().parents[3] / "docs"
NEVER_DENY = frozenset(
    {
        Reason.SANDBOX_DISABLED, Reason.PLATFORM_NOT_ENABLED, Reason.NO_COMMAND, Reason.EXCLUDED, Reason.HOST_ALLOWED,
        Reason.GRANTED, Reason.PATH_ALLOWED, Reason.READ_DEFAULT, Reason.WORKING_DIRECTORY, Reason.SESSION_TMP,
        Reason.SOCKET_ALLOWED, Reason.OVERRIDE_FORBIDDEN,
    }
)  # fmt: skip
RULES = (CommandRule("rm:*", BUILT_IN),)
NO_PROMPTS = CommandPolicy(ask=RULES, deny_instead_of_asking=True)
CLOSED = Policy(enabled=True, commands=CommandPolicy(allow_unsandboxed=False, deny=RULES))
REFUSED_COMMANDS = (
    decide_command(CLOSED, "ls", permission_mode="none"),
    decide_command(CLOSED, "ls", permission_mode="open", root=True),
    decide_command(CLOSED, "ls", unavailable="no user namespaces"),
    decide_command(CLOSED, "rm x"),
    decide_command(Policy(enabled=True, commands=NO_PROMPTS), "rm x"),
    decide_command(Policy(enabled=True, commands=NO_PROMPTS), "$X"),
    decide_command(Policy(enabled=True, commands=NO_PROMPTS), "ls", dangerously_disable=True),
    decide_command(Policy(enabled=True, commands=replace(NO_PROMPTS, auto_allow=False)), "ls"),
    decide_command(Policy(enabled=True, fail_if_unavailable=False, commands=NO_PROMPTS), "ls", unavailable="no bwrap"),
)
OF_COMMANDS = frozenset(answer.reason for answer in REFUSED_COMMANDS)
TARGETS = (
    (ViolationKind.WRITE, "/srv/data/x"),
    (ViolationKind.READ, "/srv/data/x"),
    (ViolationKind.UNIX_SOCKET, "/srv/data/s"),
    (ViolationKind.NETWORK, "ok.test:443"),
)
STATES = {"/srv/data/x": TargetState(True, "/srv/data", "/srv"), "/srv/data/s": TargetState(True, "/srv/data")}


def test_each_reason_is_known_to_deny_or_never_to() -> None:
    assert frozenset(Reason) - NEVER_DENY == DENIALS.keys() | OF_COMMANDS
    assert not NEVER_DENY & (DENIALS.keys() | OF_COMMANDS)


@pytest.mark.parametrize("answer", REFUSED_COMMANDS, ids=lambda answer: answer.reason.value)
def test_a_refused_command_has_a_hint(answer: CommandDecision) -> None:
    assert answer.behavior is Behavior.DENY and answer.decision.hint


@pytest.mark.parametrize("reason", DENIALS)
def test_a_reason_has_a_row_of_hints_or_a_hint(reason: Reason) -> None:
    assert DENIALS[reason].hint or any(reason in row.reasons for row in HINTS)


@pytest.mark.parametrize("reason", [reason for reason in DENIALS if DENIALS[reason].hint])
def test_the_last_hint_is_shown_where_no_row_fits(reason: Reason) -> None:
    symptom = Symptom(ViolationKind.NETWORK, "CONNECT", "ok.test:443", decision=Decision(Behavior.DENY, reason, ""))
    if reason is not Reason.PATH_KEPT:  # its decisions always have a hint
        assert hint_for(symptom) and "{" not in hint_for(symptom)
        own = Decision(Behavior.DENY, reason, "", hint="own")
        assert hint_for(Symptom(ViolationKind.NETWORK, "CONNECT", "ok.test:443", decision=own)) == "own"


@pytest.mark.parametrize("reason", DENIALS)
def test_learning_suggests_a_rule_or_says_why_not(reason: Reason) -> None:
    rules, why = 0, set()
    for kind, target in TARGETS:
        refused = Violation(1, 0.0, "s", "c", kind, "op", target, reason.value, ViolationSource.SECCOMP, rule="/srv")
        lesson = learn([refused], STATES, "/home/me")
        rules += bool(lesson.settings)
        why |= {one.why for one in lesson.left_out}
    if DENIALS[reason].left_out:
        assert (rules, why) == (0, {DENIALS[reason].left_out})
    else:
        assert rules


@pytest.mark.parametrize("reason", sorted(frozenset(Reason) - NEVER_DENY))
def test_a_reason_is_a_word_of_the_documentation(reason: Reason) -> None:
    pages = ("commands.md",) if reason in OF_COMMANDS else ("violations.md", "network.md")
    assert any(f"`{reason.value}`" in (DOCS / page).read_text(encoding="utf-8") for page in pages)
