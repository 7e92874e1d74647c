"""Every message is complete, names its place, and shows no template, no `None` and no internal name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from sandboxd.policy.build import check_settings
from sandboxd.policy.commands.command_decisions import decide_command
from sandboxd.policy.explain.explanation import explain_command, explain_host
from sandboxd.policy.model import CommandPolicy, CommandRule, Policy
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.layer import parse_layer
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import BUILT_IN, Source

SCOPE = PathScope("/home/u", "/home/u/p", own_paths=("/run/u/sandboxd",))
RAW = re.compile(r"\$\{|\{\}|\{[a-z_]+\}|\bNone\b|<[a-z_.]+ object|Traceback|\bsettings_[a-z]|Error\b")

TEXTS = [
    "",
    "{",
    "[]",
    '{"a":1,"a":2}',
    '{"a":tru}',
    "{'a':1}",
    '{"a":"\\ud800"}',
    '{"a":' + "[" * 99,
    '{"a" 1}',
    "{\0}",
    "/*",
]
SANDBOX: list[Any] = [
    1,
    {"enabled": "x", "typo": 1, "zzz": 2, "mandatoryDenySearchDepth": 99, "enabledPlatforms": ["dos"]},
    {"excludedCommands": ["*", "sh", "'x"], "presets": ["nope", "caches"], "ignoreViolations": {"*": ["*"]}},
    {
        "network": {
            "allowedDomains": ["*", "*.com", "https://a.test/x", "a b", "ok.test", "::1:443", " x "],
            "deniedDomains": ["*", "a b"],
            "deniedDomainReasons": {"a b": "x"},
            "allowUnixSockets": ["/run/docker.sock", "$NOPE", "/run/u/sandboxd/x", "/*.sock"],
            "allowAllUnixSockets": True,
            "allowLocalPorts": ["9-1"],
            "deniedResolvedAddresses": ["x"],
            "parentProxy": "x",
        }
    },
    {"network": {"allowLocalPorts": ["x", 0, True]}},
    {"filesystem": {"allowWrite": ["~x", "a/../b", "$X", "[a", "a" * 5000], "denyRead": ["~x", "$X"]}},
    {"bwrapPath": "/x", "network": {"allowManagedDomainsOnly": True}},
]
FILES = [*TEXTS, *(json.dumps({"sandbox": sandbox}) for sandbox in SANDBOX)]
FILES.append(
    json.dumps(
        {"permissions": {k: ["Bash(", "Read", "(x)", "WebFetch(x)", "Bash('x)"] for k in ("allow", "deny", "ask")}}
    )
)
FILES.append(json.dumps({"audit": {"enabled": True, "keep": 0}, "sandbx": {}}))


@pytest.mark.parametrize("source", [Source.USER, Source.PROJECT])
@pytest.mark.parametrize("text", FILES)
def test_problems_of_files(text: str, source: Source) -> None:
    found = check_settings(merge([parse_layer(text, source, "/s.json")]), SCOPE)
    assert found
    for problem in found:
        line = str(problem)
        assert line.startswith("/s.json:") and "\n" not in line
        assert not RAW.search(problem.message + problem.hint), line
        assert problem.message[0] != " " and not problem.message.endswith((".", " "))
        assert re.fullmatch(r"[a-z][a-z0-9_]+", problem.slug)
        error = problem.as_error()
        assert error.hint and "/s.json" in error.message


def test_answers_about_commands_and_hosts() -> None:
    rule = (CommandRule("docker", BUILT_IN),)
    policies = [
        Policy(),
        Policy(enabled=True, enabled_platforms=()),
        Policy(enabled=True, commands=CommandPolicy(excluded=rule, ask=rule, deny=rule)),
        Policy(
            enabled=True, fail_if_unavailable=False, commands=CommandPolicy(auto_allow=False, allow_unsandboxed=False)
        ),
    ]
    answers = [
        decide_command(
            policy, text, dangerously_disable=disable, permission_mode=mode, root=True, unavailable=unavailable
        )
        for policy in policies
        for text in (None, "", "ls", "docker ps", "docker ps; x", "'", "x" * 99_999)
        for disable in (False, True)
        for mode in (None, "open", "none")
        for unavailable in ("", "bubblewrap is not installed")
    ]
    decisions = [answer.decision for answer in answers]
    decisions += [explain_command(policy, "docker ps && curl x").decision for policy in policies]
    decisions += [explain_host(Policy(), text) for text in ("a.test", "", "a b", "::1", "a:0", "\0")]
    for decision in decisions:
        assert decision.text and "\n" not in decision.text
        assert not RAW.search(decision.text + decision.hint), decision
