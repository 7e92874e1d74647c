"""Decisions on commands: the gates in their order, and the rules over them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from sandboxd.policy.commands.command_decisions import CommandDecision, decide_command, denied_by_rule
from sandboxd.policy.commands.exclusion import Lead
from sandboxd.policy.decision import Behavior, Reason
from sandboxd.policy.model import CommandPolicy, CommandRule, Policy
from sandboxd.settings.origins import Origin, Source

ORIGIN = Origin(Source.LOCAL, "sandbox.excludedCommands", "/l.json", 3, 5)


def rules(*patterns: str) -> tuple[CommandRule, ...]:
    return tuple(CommandRule(pattern, ORIGIN) for pattern in patterns)


ON = Policy(enabled=True, enabled_origin=Origin(Source.USER, "sandbox.enabled", "/u.json", 1, 2))
OFF = replace(ON, enabled=False)
DOCKER = replace(ON, commands=CommandPolicy(excluded=rules("docker")))
STRICT = replace(ON, commands=CommandPolicy(allow_unsandboxed=False))
ASKING = replace(ON, commands=CommandPolicy(auto_allow=False))
STRICT_DOCKER = replace(ON, commands=CommandPolicy(allow_unsandboxed=False, excluded=rules("docker")))
STRICT_ASKING = replace(ON, commands=CommandPolicy(allow_unsandboxed=False, auto_allow=False))
FALLING_BACK = replace(ON, fail_if_unavailable=False)


def told(answer: CommandDecision) -> tuple[bool, str, str]:
    return answer.sandboxed, answer.behavior.value, answer.reason.value


@pytest.mark.parametrize(
    ("policy", "command", "keywords", "expected"),
    [
        (ON, "ls", {}, (True, "allow", "sandboxed")),
        (ASKING, "ls", {}, (True, "ask", "sandboxed")),
        (ASKING, "ls", {"permission_mode": "open"}, (True, "allow", "sandboxed")),
        (OFF, "ls", {}, (False, "allow", "sandboxDisabled")),
        (replace(ON, enabled_platforms=("macos",)), "ls", {}, (False, "allow", "platformNotEnabled")),
        (replace(ON, enabled_platforms=("macos",)), "ls", {"platform": "macos"}, (True, "allow", "sandboxed")),
        (replace(ON, enabled_platforms=()), "ls", {}, (False, "allow", "platformNotEnabled")),
        (ON, "ls", {"dangerously_disable": True}, (False, "ask", "sandboxOverride")),
        (ON, "ls", {"dangerously_disable": True, "permission_mode": "open"}, (False, "ask", "sandboxOverride")),
        (STRICT, "ls", {"dangerously_disable": True}, (True, "allow", "overrideForbidden")),
        (STRICT, "", {"dangerously_disable": True}, (True, "allow", "overrideForbidden")),
        (STRICT, "", {}, (False, "allow", "noCommand")),
        (STRICT_DOCKER, "docker ps", {"dangerously_disable": True}, (True, "allow", "overrideForbidden")),
        (STRICT_DOCKER, "docker ps", {}, (False, "allow", "excluded")),
        (STRICT_ASKING, "ls", {"dangerously_disable": True}, (True, "ask", "sandboxed")),
        (STRICT, "ls", {"dangerously_disable": True, "unavailable": "x"}, (True, "deny", "sandboxUnavailable")),
        (STRICT, "ls", {"dangerously_disable": True, "permission_mode": "open"}, (True, "allow", "overrideForbidden")),
        (replace(ON, enabled_platforms=("linux",)), "ls", {"platform": "wsl"}, (True, "allow", "sandboxed")),
        (replace(ON, enabled_platforms=("wsl",)), "ls", {"platform": "linux"}, (False, "allow", "platformNotEnabled")),
        (DOCKER, "docker ps", {"permission_mode": "plan"}, (True, "allow", "sandboxed")),
        (OFF, "ls", {"permission_mode": "plan"}, (True, "allow", "sandboxed")),
        (ON, "ls", {"permission_mode": "plan", "dangerously_disable": True}, (True, "allow", "overrideForbidden")),
        (ON, "", {"permission_mode": "plan"}, (True, "allow", "sandboxed")),
        (ASKING, "ls", {"permission_mode": "plan"}, (True, "ask", "sandboxed")),
        (FALLING_BACK, "ls", {"permission_mode": "plan", "unavailable": "x"}, (True, "deny", "sandboxUnavailable")),
        (ON, None, {}, (False, "allow", "noCommand")),
        (ON, "", {}, (False, "allow", "noCommand")),
        (ON, " \n", {}, (False, "allow", "noCommand")),
        (DOCKER, "docker ps", {}, (False, "allow", "excluded")),
        (DOCKER, "docker ps; ls", {}, (True, "allow", "sandboxed")),
        (ON, "ls", {"unavailable": "no bwrap"}, (True, "deny", "sandboxUnavailable")),
        (FALLING_BACK, "ls", {"unavailable": "no bwrap"}, (False, "ask", "sandboxUnavailable")),
        (
            replace(FALLING_BACK, commands=CommandPolicy(allow_unsandboxed=False)),
            "ls",
            {"unavailable": "no bwrap"},
            (True, "deny", "sandboxUnavailable"),
        ),
        (ON, "ls", {"permission_mode": "none"}, (True, "deny", "permissionMode")),
        (OFF, "ls", {"permission_mode": "none"}, (True, "deny", "permissionMode")),
        (ON, None, {"permission_mode": "none"}, (True, "deny", "permissionMode")),
        (ON, "ls", {"permission_mode": "open", "root": True}, (True, "deny", "rootRefused")),
        (OFF, "ls", {"permission_mode": "open", "root": True}, (True, "deny", "rootRefused")),
        (ON, "ls", {"permission_mode": "open", "root": True, "is_sandbox_env": True}, (True, "allow", "sandboxed")),
        (ON, "ls", {"root": True}, (True, "allow", "sandboxed")),
        (ON, "ls", {"permission_mode": "prompt", "root": True}, (True, "allow", "sandboxed")),
    ],
)
def test_gates(
    policy: Policy, command: str | None, keywords: dict[str, object], expected: tuple[bool, str, str]
) -> None:
    assert told(decide_command(policy, command, **keywords)) == expected  # type: ignore[arg-type]


# The order of the gates: of two that both have an answer, the earlier one gives it.
CONDITIONS: list[tuple[str, dict[str, object], Policy]] = [
    ("permissionMode", {"permission_mode": "none"}, ON),
    ("sandboxDisabled", {}, OFF),
    ("sandboxOverride", {"dangerously_disable": True}, ON),
    ("noCommand", {}, ON),
    ("excluded", {}, DOCKER),
    ("sandboxUnavailable", {"unavailable": "x"}, ON),
]


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(CONDITIONS, 2)), ids=lambda c: c[0])
def test_the_earlier_gate_answers(
    first: tuple[str, dict[str, object], Policy], second: tuple[str, dict[str, object], Policy]
) -> None:
    (reason, keywords, one), (other_reason, other_keywords, other) = first, second
    policy = replace(one, enabled=one.enabled and other.enabled, commands=other.commands if one is ON else one.commands)
    command = "" if "noCommand" in (reason, other_reason) else "docker ps"
    if reason == "noCommand" and other_reason == "excluded":
        command = ""
    answer = decide_command(policy, command, **(keywords | other_keywords))  # type: ignore[arg-type]
    nothing_to_ask = (reason, other_reason) == ("sandboxOverride", "noCommand")
    assert answer.reason.value == (other_reason if nothing_to_ask else reason)


def test_an_unknown_mode_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError):
        decide_command(ON, "ls", permission_mode="yolo")


def test_off_says_where_it_was_switched_off() -> None:
    decision = decide_command(OFF, "touch ~/x").decision
    assert decision.rule == "sandbox.enabled" and decision.origin == OFF.enabled_origin
    assert "off" in decision.text and "sandboxd enable" in decision.hint


def test_auto_allow_never_overrides_ask_and_deny_rules() -> None:
    policy = replace(ON, commands=CommandPolicy(auto_allow=True, ask=rules("git push:*"), deny=rules("rm:*")))
    assert told(decide_command(policy, "git push origin")) == (True, "ask", "rule")
    assert told(decide_command(policy, "rm -rf x")) == (True, "deny", "rule")
    assert told(decide_command(policy, "ls")) == (True, "allow", "sandboxed")
    assert told(decide_command(policy, "git push", permission_mode="open")) == (True, "ask", "rule")
    decision = decide_command(policy, "rm x").decision
    assert decision.rule == "Bash(rm:*)" and decision.origin == ORIGIN


def test_rules_hold_whichever_gate_answered() -> None:
    closing = CommandPolicy(excluded=rules("docker"), ask=rules("docker ps:*"), deny=rules("docker rm:*"))
    policy = replace(ON, commands=closing)
    assert told(decide_command(policy, "docker images")) == (False, "allow", "excluded")
    assert told(decide_command(policy, "docker ps")) == (False, "ask", "rule")
    assert told(decide_command(policy, "docker rm x")) == (False, "deny", "rule")
    assert told(decide_command(replace(policy, enabled=False), "docker rm x")) == (False, "deny", "rule")
    assert told(decide_command(policy, "docker rm x", dangerously_disable=True)) == (False, "deny", "rule")
    assert told(decide_command(policy, "docker ps", dangerously_disable=True)) == (False, "ask", "sandboxOverride")
    assert told(decide_command(policy, "docker ps", unavailable="x")) == (False, "ask", "rule")


def test_a_deny_beats_an_ask_and_an_allow() -> None:
    policy = replace(
        ON, commands=CommandPolicy(auto_allow=False, allow=rules("rm:*"), ask=rules("rm:*"), deny=rules("rm:*"))
    )
    assert decide_command(policy, "rm x").behavior is Behavior.DENY


def test_no_agent_switches_the_sandbox_off_by_itself() -> None:
    kept = decide_command(STRICT, "curl x", dangerously_disable=True)
    assert kept.sandboxed and kept.reason is Reason.OVERRIDE_FORBIDDEN
    assert "is ignored: sandbox.allowUnsandboxedCommands is false" in kept.decision.text
    for mode in (None, "prompt", "open"):
        assert decide_command(ON, "ls", dangerously_disable=True, permission_mode=mode).behavior is Behavior.ASK


def test_an_allow_names_the_key_that_allowed_it() -> None:
    auto = decide_command(ON, "ls").decision
    assert auto.rule == "sandbox.autoAllowBashIfSandboxed" and f"auto-allowed by {auto.rule}" in auto.text
    opened = decide_command(ASKING, "ls", permission_mode="open").decision
    assert opened.rule is None and "the permission mode open" in opened.text
    by_rule = decide_command(replace(ASKING, commands=CommandPolicy(auto_allow=False, allow=rules("ls:*"))), "ls")
    assert "allowed by Bash(ls:*)" in by_rule.decision.text


@pytest.mark.parametrize(
    ("line", "denied"),
    [
        ("rm x", True),
        ("ls && rm x", True),
        ("sh -c 'rm x'", True),
        ("'rm' x; : " + "x" * 9000, True),
        ("echo $(rm x) " + "x" * 9000, True),
        ("echo x " + "x" * 9000, False),
        ("$X x", False),
        ("ls", False),
        ("git push", False),
        ("", False),
    ],
)
def test_wrap_follows_explicit_denials_alone(line: str, denied: bool) -> None:
    policy = replace(ON, commands=CommandPolicy(auto_allow=False, ask=rules("git push:*"), deny=rules("rm:*")))
    decision = denied_by_rule(policy, line)
    assert (decision is not None) is denied
    assert decision is None or (decision.rule, decision.origin) == ("Bash(rm:*)", ORIGIN)


def test_the_wish_to_run_outside_is_not_remembered() -> None:
    decide_command(ON, "ls", dangerously_disable=True)
    assert told(decide_command(ON, "ls")) == (True, "allow", "sandboxed")


def test_each_part_is_allowed_by_its_own_rule() -> None:
    policy = replace(
        ON,
        commands=CommandPolicy(
            auto_allow=False, allow=rules("git rev-parse:*", "cd:*", "./x.sh:*", "make && make install")
        ),
    )
    assert told(decide_command(policy, "cd $(git rev-parse --show-toplevel) && ./x.sh")) == (True, "allow", "rule")
    assert decide_command(policy, "cd $(curl x) && ./x.sh").behavior is Behavior.ASK
    assert decide_command(policy, "X=1 ./x.sh").behavior is Behavior.ASK
    assert decide_command(policy, "$X").behavior is Behavior.ASK
    assert decide_command(policy, "make && make install").behavior is Behavior.ALLOW
    assert decide_command(policy, "./x.sh 'x").behavior is Behavior.ASK


FILES = {
    "./x.sh": "/p/x.sh", "sub/./x.sh": "/p/sub/x.sh", "sub/x.sh": "/p/sub/x.sh", "/p/sub/x.sh": "/p/sub/x.sh",
    "./link": "/p/x.sh", "/other/./x.sh": "/other/x.sh", "./y.sh": "/p/y.sh", "sub/./y.sh": "/p/sub/y.sh",
    "sub/deep/./x.sh": "/p/sub/deep/x.sh", "./sub/x.sh": "/p/sub/x.sh", "tool": "/usr/bin/tool",
    "/usr/bin/tool": "/usr/bin/tool",
}  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "command", "denied", "asked"),
    [
        ("./x.sh:*", "./x.sh a", True, True),
        ("./x.sh:*", "cd sub && ./x.sh a", True, True),  # by its text
        ("./x.sh:*", "cd $X && ./x.sh", True, True),
        ("./x.sh:*", "./link", True, True),
        ("./x.sh:*", "./y.sh", False, False),
        ("./x.sh:*", "/other/./x.sh", False, False),
        ("./sub/x.sh:*", "cd sub && ./x.sh", True, True),  # by where it leads
        ("/p/sub/x.sh", "cd sub; ./x.sh a", True, True),
        ("/p/sub/x.sh", "env -C sub ./x.sh", True, True),
        ("/p/sub/x.sh", "env --chdir=sub ./x.sh", True, True),
        ("/p/sub/x.sh", "sh -c 'cd sub; ./x.sh'", True, True),
        ("/p/sub/x.sh", "cd sub && sh -c ./x.sh", True, True),
        ("/p/sub/deep/x.sh", "cd sub; cd deep; ./x.sh", True, True),
        ("/p/sub/x.sh a:*", "cd sub; ./x.sh a b", True, True),
        ("/p/sub/x.sh a:*", "cd sub; ./x.sh c", False, True),
        ("/p/sub/x.sh", "./x.sh", False, False),
        ("/p/sub/x.sh", "cd sub && ./y.sh", False, True),  # it may be anywhere
        ("/p/sub/x.sh", "cd $X && ./y.sh", False, True),
        ("/p/sub/x.sh", "cd sub && ls", False, False),
        ("rm:*", "cd sub && ./y.sh", False, False),
        ("/usr/bin/tool:*", "tool x", True, True),
        ("/usr/bin/tool:*", "other x", False, False),
    ],
)
def test_a_closing_rule_with_a_path_matches_by_text_and_by_file(
    pattern: str, command: str, denied: bool, asked: bool
) -> None:
    def resolve(path: str) -> Lead:
        return Lead(FILES.get(path) or (path if "/" not in path or path.startswith("/") else None))

    for kind in ("deny", "ask"):
        policy = replace(ON, commands=CommandPolicy(**{kind: rules(pattern)}))  # type: ignore[arg-type]
        answer = decide_command(policy, command, resolve=resolve).behavior
        by_rule = Behavior.DENY if kind == "deny" else Behavior.ASK
        assert answer is (by_rule if denied else Behavior.ASK if asked else Behavior.ALLOW), kind


def test_a_line_of_many_programs_is_asked_about() -> None:
    asked: list[str] = []

    def resolve(path: str) -> Lead:
        asked.append(path)
        return Lead(None)

    policy = replace(ON, commands=CommandPolicy(deny=rules("/p/x.sh")))
    for command in ("; ".join(f"./p{number}" for number in range(600)), "; ".join(["cd a", "./b"] * 300)):
        answer = decide_command(policy, command, resolve=resolve)
        assert answer.behavior is Behavior.ASK and len(asked) < 1000, command[:20]
        asked.clear()


def test_no_rule_with_a_path_allows_after_a_directory_change() -> None:
    def resolve(path: str) -> Lead:
        return Lead(FILES.get(path))

    allow = rules("./x.sh:*", "cd:*", "env:*", "/p/sub/x.sh")
    policy = replace(ON, commands=CommandPolicy(auto_allow=False, allow=allow))
    for command in ("./x.sh", "./link", "cd sub && /p/sub/x.sh"):
        assert decide_command(policy, command, resolve=resolve).behavior is Behavior.ALLOW, command
    for command in ("cd sub && ./x.sh", "cd sub; ./link", "pushd sub && ./x.sh", "./x.sh && cd sub && ./x.sh"):
        assert decide_command(policy, command, resolve=resolve).behavior is Behavior.ASK, command
    everything = replace(ON, commands=CommandPolicy(auto_allow=False, allow=rules("*")))
    assert decide_command(everything, "cd sub && ./x.sh", resolve=resolve).behavior is Behavior.ALLOW


def test_the_open_mode_can_be_forbidden() -> None:
    policy = replace(ON, commands=CommandPolicy(auto_allow=False))
    assert decide_command(policy, "ls", permission_mode="open").behavior is Behavior.ALLOW
    closed = replace(policy, commands=replace(policy.commands, open_mode=False))
    assert decide_command(closed, "ls", permission_mode="open").behavior is Behavior.ASK


def test_deny_instead_of_prompting_denies_what_would_be_asked() -> None:
    commands = CommandPolicy(auto_allow=False, ask=rules("git push:*"), deny_instead_of_asking=True)
    policy = replace(ON, commands=commands)
    for command in ("ls", "git push x", "'"):
        answer = decide_command(policy, command)
        assert answer.behavior is Behavior.DENY and "denyInsteadOfPrompting" in answer.decision.text
    assert decide_command(policy, "ls", dangerously_disable=True).behavior is Behavior.DENY
    assert decide_command(policy, "ls", permission_mode="open").behavior is Behavior.ALLOW


def test_a_rule_for_the_whole_tool() -> None:
    for kind, behavior in (("allow", Behavior.ALLOW), ("ask", Behavior.ASK), ("deny", Behavior.DENY)):
        commands = CommandPolicy(**({"auto_allow": kind != "allow"} | {kind: rules("*")}))  # type: ignore[arg-type]
        assert decide_command(replace(ON, commands=commands), "anything at all").behavior is behavior
    # Also when the programs of the line are not certain.
    everything = replace(ON, commands=CommandPolicy(deny=rules("*")))
    assert decide_command(everything, "'").behavior is Behavior.DENY


def test_what_cannot_be_read_is_asked_about_where_rules_exist() -> None:
    policy = replace(ON, commands=CommandPolicy(deny=rules("rm:*")))
    for text in ("x" * 1_000_000, "echo 'x", "(" * 10_000):
        answer = decide_command(policy, text)
        assert told(answer) == (True, "ask", "rule")
        assert "not certain" in answer.decision.text
        assert told(decide_command(ON, text)) == (True, "allow", "sandboxed")
        assert told(decide_command(DOCKER, text)) == (True, "allow", "sandboxed")


@pytest.mark.parametrize("text", ["$X x", "${X:-rm} x", "{rm,x}", "/bin/r? x", "r$@m x", "`echo`rm x", 'sh -c "$X"'])
def test_an_unknown_program_name_is_asked_about(text: str) -> None:
    """It could be the one that a rule denies."""
    policy = replace(ON, commands=CommandPolicy(deny=rules("rm:*")))
    assert told(decide_command(policy, text)) == (True, "ask", "rule")
    assert told(decide_command(ON, text)) == (True, "allow", "sandboxed")


@pytest.mark.parametrize(
    "text",
    ["$HOME/bin/x", "[ -f x ] && y", "for f in *.py; do x $f; done", "x $(y)", "x=1", "x <<'E'\n`rm`\nE",
     "echo '$(rm x)'",
     "x - <<'E'\nrm\nE", "echo 'rm x' | tee y", "# rm x", "'rm x'",
     "((x++))", "[[ a == b* ]]", "bash x.sh"],
)  # fmt: skip
def test_and_ordinary_lines_are_not(text: str) -> None:
    policy = replace(ON, commands=CommandPolicy(deny=rules("rm:*")))
    assert told(decide_command(policy, text)) == (True, "allow", "sandboxed")


def test_names_are_advice_and_the_docs_say_so() -> None:
    policy = replace(ON, commands=CommandPolicy(deny=rules("curl:*")))
    assert decide_command(policy, "/proc/self/root/usr/bin/curl x").behavior is Behavior.DENY
    # A copy under another name passes the rule, and runs in the sandbox, whose limits do not look at names.
    assert told(decide_command(policy, "./c x")) == (True, "allow", "sandboxed")
    assert "sandbox" in decide_command(policy, "curl x").decision.hint


def test_the_answer_says_which_layer_refused() -> None:
    policy = replace(OFF, commands=CommandPolicy(deny=rules("rm:*")))
    assert decide_command(policy, "echo ~/private-dir/x").behavior is Behavior.ALLOW
    decision = decide_command(policy, "rm x").decision
    assert decision.reason is Reason.RULE and "Bash(rm:*)" in decision.text


def test_a_switch_that_decided_is_named_with_its_place() -> None:
    place = Origin(Source.MANAGED, "x", "/m.json", 9, 1)
    commands = CommandPolicy(
        auto_allow=False, auto_allow_origin=place, allow_unsandboxed=False, allow_unsandboxed_origin=place
    )
    policy = replace(
        ON,
        commands=commands,
        fail_if_unavailable_origin=place,
        enabled_platforms=("linux",),
        enabled_platforms_origin=place,
    )
    for answer in (
        decide_command(policy, "ls"),
        decide_command(policy, "ls", dangerously_disable=True),
        decide_command(policy, "ls", unavailable="x"),
        decide_command(replace(policy, fail_if_unavailable=False), "ls", unavailable="x"),
        decide_command(policy, "ls", platform="macos"),
    ):
        assert answer.decision.origin == place and (answer.decision.rule or "").startswith("sandbox.")


def test_without_a_sandbox_it_is_closed_by_default() -> None:
    default = decide_command(ON, "ls", unavailable="bubblewrap is not installed")
    assert default.behavior is Behavior.DENY
    assert "bubblewrap is not installed" in default.decision.text and "sandboxd check" in default.decision.hint
    chosen = decide_command(FALLING_BACK, "ls", unavailable="bubblewrap is not installed")
    assert told(chosen) == (False, "ask", "sandboxUnavailable")
    # Excluded commands need no sandbox.
    assert told(decide_command(DOCKER, "docker ps", unavailable="x")) == (False, "allow", "excluded")


def test_the_answer_names_the_excluding_rule_and_why_not() -> None:
    excluded = decide_command(DOCKER, "docker ps").decision
    assert (excluded.rule, excluded.origin) == ("docker", ORIGIN)
    kept = decide_command(DOCKER, "docker ps && curl x").decision
    assert "'curl x' is not an excluded command" in kept.text


@pytest.mark.parametrize(("pattern", "line", "told"), [("sh", "sh x.sh", True), ("docker", "docker ps", False)])
def test_each_decision_names_the_exclusion_of_a_shell(pattern: str, line: str, told: bool) -> None:
    rule = CommandRule(pattern, Origin(Source.LOCAL, "test"))
    answer = decide_command(Policy(enabled=True, commands=CommandPolicy(excluded=(rule,))), line)
    assert not answer.sandboxed
    assert ("runs what its arguments say" in answer.decision.text) is told
