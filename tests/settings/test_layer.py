"""One file: what it says, where, and everything that is wrong with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.settings.key_table import TABLE
from sandboxd.settings.known_keys import KNOWN, UnknownKeyKind
from sandboxd.settings.layer import MOST_PROBLEMS, RESTRICTION_UNKNOWN, layer_from_values, nearest_key, parse_layer
from sandboxd.settings.origins import Source
from sandboxd.settings.problems import Severity
from sandboxd.settings.schema import all_keys, json_schema

ROOT = Path(__file__).resolve().parents[2]


def problems(text: str, source: Source = Source.USER) -> list[str]:
    return [str(problem) for problem in parse_layer(text, source, "/s.json").problems]


def test_an_unknown_key_names_the_nearest_one_and_its_place() -> None:
    """An unknown key names the nearest one and its place."""
    text = '{\n  "sandbox": {"network": {"allow": ["ok.test"]}}\n}'
    assert problems(text) == [
        "/s.json:2:27: warning: unknown key sandbox.network.allow has no effect "
        "(did you mean sandbox.network.allowedDomains?)"
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("sandbox.network.allow", "sandbox.network.allowedDomains"),
        ("sandbox.network.deny", "sandbox.network.deniedDomains"),
        ("sandbox.network.allowedDomain", "sandbox.network.allowedDomains"),
        ("sandbox.network.allowUnixSocket", "sandbox.network.allowUnixSockets"),
        ("sandbox.allowedDomains", "sandbox.network.allowedDomains"),
        ("sandbox.denyRead", "sandbox.filesystem.denyRead"),
        ("sandbox.alowWrite", "sandbox.filesystem.allowWrite"),
        ("sandbox.excludeCommands", "sandbox.excludedCommands"),
        ("sandbox.enable", "sandbox.enabled"),
        ("sandbox.Enabled", "sandbox.enabled"),
        ("sandbox.fileSystem", "sandbox.filesystem"),
        ("sandbx", "sandbox"),
        ("network", "sandbox.network"),
        ("permission", "permissions"),
        ("permissions.denied", "permissions.deny"),
        ("sandbox.xyzzy", None),
        ("colour", None),
    ],
)
def test_nearest_key(written: str, meant: str | None) -> None:
    assert nearest_key(written) == meant


def test_keys_of_other_programs_are_no_news() -> None:
    foreign = {key: 1 for key, kind in KNOWN.items() if kind is UnknownKeyKind.FOREIGN and "." not in key}
    text = json.dumps(foreign | {"permissions": {"defaultMode": "x", "blockReadsOutsideWorkingDirectories": True}})
    assert problems(text) == []
    assert len(problems('{"colour": 1}')) == 1


@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ('"enabled": "yes"', 'sandbox.enabled must be true or false, not "yes"'),
        ('"enabled": 1', "sandbox.enabled must be true or false, not 1"),
        ('"enabled": null', None),
        ('"mandatoryDenySearchDepth": true', "sandbox.mandatoryDenySearchDepth must be a whole number, not true"),
        ('"mandatoryDenySearchDepth": 11', "sandbox.mandatoryDenySearchDepth must be at most 10, not 11"),
        ('"mandatoryDenySearchDepth": 0', "sandbox.mandatoryDenySearchDepth must be at least 1, not 0"),
        ('"mandatoryDenySearchDepth": 2.5', "sandbox.mandatoryDenySearchDepth must be a whole number, not 2.5"),
        ('"excludedCommands": "docker"', 'sandbox.excludedCommands must be a list in [ ], not "docker"'),
        ('"excludedCommands": [""]', 'sandbox.excludedCommands must be a text that is not empty, not ""'),
        ('"network": []', "sandbox.network must be an object in { }, not []"),
        (
            '"network": {"allowedDomains": ["a", 3]}',
            "sandbox.network.allowedDomains must be a text in double quotes, not 3",
        ),
        (
            '"network": {"allowedDomains": {"a": 1}}',
            'sandbox.network.allowedDomains must be a list in [ ], not {"a": 1}',
        ),
        ('"network": {"checkServerName": "on"}', "must be one of 'off', 'log', 'enforce' or 'deny', not \"on\""),
        ('"network": {"allowLocalPorts": [0]}', "sandbox.network.allowLocalPorts must be at least 1"),
        ('"network": {"allowLocalPorts": ["a"]}', "a range such as 8000-8010"),
        ('"network": {"deniedDomainReasons": ["a"]}', 'must be an object in { }, not ["a"]'),
        ('"network": {"httpProxyPort": "80"}', 'sandbox.network.httpProxyPort must be a whole number, not "80"'),
        ('"enabledPlatforms": ["windows"]', "must be one of 'linux', 'macos' or 'wsl'"),
    ],
)
def test_wrong_types_are_errors_with_a_place(fragment: str, expected: str | None) -> None:
    text = f'{{"sandbox": {{\n  {fragment}}}}}'
    layer = parse_layer(text, Source.USER, "/s.json")
    if expected is None:
        assert not layer.problems
        return
    (problem,) = layer.problems
    assert expected in problem.message
    assert problem.severity is Severity.ERROR and problem.fatal
    assert problem.origin.line == 2 and (problem.origin.column or 0) > 3
    assert layer.broken and not layer.values
    error = problem.as_error()
    assert error.slug == "settings_wrong_type"
    assert error.data["file"] == "/s.json" and error.data["line"] == 2 and error.data["key"].startswith("sandbox.")
    assert error.message.startswith("/s.json:2:")


def test_all_mistakes_are_reported_at_once() -> None:
    found = problems('{"sandbox": {"enabled": 1, "typo": 2, "network": {"httpProxyPort": 0}, "allowPty": "x"}}')
    assert len(found) == 4


@pytest.mark.parametrize("data", [b"", b"{", b'{"a":1,"a":2}', b"{\0}", b'{"\xff":1}', b"\xff\xfe{\0}\0"])
def test_a_broken_file_is_a_broken_layer_and_never_an_empty_one(data: bytes) -> None:
    """A broken file is a broken layer and never an empty one."""
    layer = parse_layer(data, Source.USER, "/s.json")
    assert layer.broken and not layer.values
    assert layer.problems[0].origin.file == "/s.json" and layer.problems[0].origin.line == 1


@pytest.mark.parametrize("data", [b'\xef\xbb\xbf{"sandbox":{"enabled":true,},}', b'{"sandbox":{"enabled":true}}//x'])
def test_what_people_write_is_fine(data: bytes) -> None:
    """What people write is fine."""
    layer = parse_layer(data, Source.USER, "/s.json")
    assert not layer.problems and "sandbox.enabled" in layer.values


def test_bad_rules_are_errors_unless_they_only_allow() -> None:
    layer = parse_layer('{"permissions": {"allow": ["Bash(ls)", "Bash(", "WebFetch(a.test)"]}}', Source.USER, "/s.json")
    assert [entry.value for entry in layer.values["permissions.allow"]] == ["Bash(ls)"]  # type: ignore[union-attr]
    assert [(p.severity, p.fatal, p.origin.column) for p in layer.problems] == [
        (Severity.ERROR, False, 40),
        (Severity.ERROR, False, 49),
    ]
    for kind in ("deny", "ask"):
        assert parse_layer(json.dumps({"permissions": {kind: ["Bash("]}}), Source.USER).broken


def test_a_bare_deny_says_that_it_does_not_reach_the_shell() -> None:
    assert "denies the tool and not shell commands" in problems('{"permissions": {"deny": ["Grep"]}}')[0]
    assert problems('{"permissions": {"deny": ["Bash", "WebSearch"]}}') == []


@pytest.mark.parametrize(
    ("text", "meant"),
    [("bash(rm:*)", "Bash(rm:*)"), ("READ(./x)", "Read(./x)"), ("WebFech(domain:a.test)", "WebFetch(domain:a.test)"),
     ("Multiedit(x)", "MultiEdit(x)"), ("write", "Write")],
)  # fmt: skip
def test_a_rule_for_no_tool_says_which_is_meant(text: str, meant: str) -> None:
    """It closes nothing, and looks as if it did."""
    for kind in ("allow", "deny", "ask"):
        (found,) = problems(json.dumps({"permissions": {kind: [text]}}))
        assert found.startswith("/s.json:1:") and "has no effect" in found and f"(did you mean {meant}?)" in found
    assert problems('{"permissions": {"deny": ["Grep(x)", "mcp__a__b", "TodoWrite", "Task(x)", "BashOutput"]}}') == []


def test_settings_of_a_call_have_no_position() -> None:
    layer = layer_from_values({"sandbox": {"enabled": 1}}, Source.CLI)
    (problem,) = layer.problems
    assert problem.origin.file is None and problem.origin.line is None
    assert str(problem) == "cli: error: sandbox.enabled must be true or false, not 1"
    assert problem.as_error().message == "cli: sandbox.enabled must be true or false, not 1"


def test_trust_belongs_to_the_source() -> None:
    assert not parse_layer("{}", Source.PROJECT).may_widen
    assert not parse_layer("{}", Source.PROJECT, may_widen=True).may_widen
    assert parse_layer("{}", Source.LOCAL).may_widen
    refused = parse_layer("{}", Source.LOCAL, may_widen=False, distrust="because")
    assert not refused.may_widen and refused.distrust == "because"


# --- the schema ---


def test_the_committed_schema_is_the_current_one() -> None:
    """To renew it: ./dev run settings schema > docs/settings.schema.json"""
    committed = json.loads((ROOT / "docs" / "settings.schema.json").read_text(encoding="utf-8"))
    assert committed == json_schema()


def test_the_schema_has_every_default_and_description() -> None:
    schema = json_schema()
    found: dict[str, object] = {}

    def walk(section: dict[str, Any], prefix: str) -> None:
        for name, field in section["properties"].items():
            assert field["description"], prefix + name
            inner = [one["$ref"].rpartition("/")[2] for one in field.get("anyOf", ()) if "$ref" in one]
            if inner:
                assert field["default"] == {}
                walk(schema["$defs"][inner[0]], f"{prefix}{name}.")
            else:
                found[prefix + name] = field["default"]

    walk(schema, "")
    assert set(found) == set(all_keys()) == set(TABLE)
    for key, default in found.items():
        wanted = TABLE[key].default
        assert default == wanted or (wanted == () and default in ([], {})), key


def test_a_file_full_of_keys_does_not_keep_the_daemon_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for: list[str] = []
    monkeypatch.setattr("sandboxd.settings.layer.nearest_key", looked_for.append)
    layer_from_values({f"sandbo{number}": 1 for number in range(1000)}, Source.PROJECT)
    assert len(looked_for) == 20
    assert nearest_key("sandbox." + "enabled" * 100) is None


@pytest.mark.parametrize(
    ("value", "counts"), [(["/srv"], True), (False, True), (True, True), ([], False), ({}, False), (None, False)]
)
def test_a_misspelt_restriction_counts_after_many_keys(value: Any, counts: bool) -> None:
    for odd, before in ((1, 20), (None, 1100)):
        section = {**{f"odd{number}": odd for number in range(before)}, "dnyRead": value}
        layer = layer_from_values({"sandbox": {"filesystem": section}}, Source.PROJECT)
        unenforced = [one.origin.key for one in layer.problems if one.slug == RESTRICTION_UNKNOWN]
        assert ("sandbox.filesystem.dnyRead" in unenforced) == counts
    assert len(problems('{"sandbox": {' + ", ".join(f'"odd{n}": 1' for n in range(19)) + ', "enbled": true}}')) == 20


def test_a_file_full_of_keys_takes_no_more_time_than_it_is_long() -> None:
    """Counted in steps of the interpreter: a file that is twice as long may not take four times as many."""

    def steps(text: str) -> int:
        counted = 0

        def count(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal counted
            frame.f_trace_opcodes = True
            counted += event == "opcode"
            return count

        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for one such frame when tracing begins
        sys.settrace(count)
        try:
            parse_layer(text, Source.PROJECT, "/s.json")
        finally:
            sys.settrace(before)
        return counted

    for form in ("{%s}", '{"sandbox": {"network": {"deniedDomainReasons": {%s}}}}'):
        short, long = (steps(form % ", ".join(f'"k{n}.test": "x"' for n in range(many))) for many in (150, 300))
        assert long < 2.5 * short


def test_problems_are_bounded_and_errors_come_first() -> None:
    keys = ", ".join(f'"k{number}": 1' for number in range(MOST_PROBLEMS + 50))
    listed = parse_layer(f'{{{keys}, "permissions": {{"deny": ["Read("]}}}}', Source.PROJECT, "/s.json")
    assert listed.broken and len(listed.problems) == MOST_PROBLEMS + 1
    assert listed.problems[0].slug == "rule_syntax"
    assert listed.problems[-1].message == "51 more problems are not listed"


# --- keys that restrict ---


@pytest.mark.parametrize(
    "tree",
    [
        {"sandbox": {"filesystem": {"denyReed": ["~/x"]}}},
        {"sandbox": {"filesystem": {"DENYREAD": ["~/x"]}}},
        {"sandbox": {"network": {"blockedHosts": ["a.test"]}}},
        {"sandbox": {"network": {"requireTls": True}}},
        {"sandbox": {"denyRead": ["~/x"]}},
        {"sandbox": {"new": {"deep": {"readOnly": ["~/x"]}}}},
        {"sandbox": {"new": [{"forbiddenPaths": ["~/x"]}]}},
        {"sandbox": {"credentials": {"denyKeychain": True}}},
        {"permissions": {"denyEdit": ["x"]}},
        {"permissions": {"denied": ["Read(x)"]}},
        {"denyEdit": ["x"]},
        {"deny": ["Read(x)"]},
        {"filesystem": {}, "denyRead": ["~/x"]},
        {"strictAllowlist": True},
    ],
)
def test_an_unknown_restricting_key_is_a_named_error(tree: Any) -> None:
    for source in (Source.USER, Source.PROJECT, Source.MANAGED):
        layer = parse_layer(json.dumps(tree), source, "/s.json")
        found = [problem for problem in layer.problems if problem.slug == "restriction_unknown"]
        assert len(found) == 1 and not layer.broken
        assert found[0].origin.line == 1 and found[0].origin.key in found[0].message


@pytest.mark.parametrize(
    "tree",
    [
        {"sandbox": {"filesystem": {"denyReed": []}}},
        {"sandbox": {"network": {"requireTls": False}}},
        {"sandbox": {"new": {"readOnly": None, "colour": "x"}}},
        {"sandbox": {"credentials": {"awsPairs": [{"deny": 1}]}, "network": {"tlsTerminate": {"only": 1}}}},
        {"permissions": {"blockReadsOutsideWorkingDirectories": True, "disableBypassPermissionsMode": "disable"}},
        {"strictKnownMarketplaces": [], "blockedMarketplaces": ["x"], "allowManagedHooksOnly": True},
        {"deniedThings": ["x"], "readOnlyMode": True},
        {"hooks": {"deny": ["x"]}, "env": {"denyRead": "x"}},
    ],
)
def test_a_key_that_restricts_nothing_or_no_commands_is_not(tree: Any) -> None:
    layer = parse_layer(json.dumps(tree), Source.USER, "/s.json")
    assert "restriction_unknown" not in {problem.slug for problem in layer.problems}


def test_a_misspelt_restriction_is_named_with_a_hint() -> None:
    (found,) = problems('{"sandbox": {"filesystem": {"denyReed": ["~/x"]}}}')
    assert found.startswith("/s.json:1:29: error: ") and "(did you mean sandbox.filesystem.denyRead?)" in found
    keys = {f"k{number}": 1 for number in range(MOST_PROBLEMS + 50)} | {"sandbox": {"denyX": 1}}
    layer = parse_layer(json.dumps(keys), Source.USER, "/s.json")
    assert "restriction_unknown" in {problem.slug for problem in layer.problems}


def test_credentials_of_another_form_break_the_file() -> None:
    for entry in ({"path": "~/x"}, {"path": "~/x", "mode": "hide"}, "~/x", {"path": "", "mode": "deny"}):
        assert parse_layer(json.dumps({"sandbox": {"credentials": {"files": [entry]}}}), Source.USER).broken


_NAMES = st.sampled_from(["sandbox", "network", "denyNew", "only", "plain", "filesystem", "denyRead", "permissions"])
_TREES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([True, False, None, [], ["x"], {}, "x", 1]),
    lambda inner: st.dictionaries(_NAMES, inner, max_size=3),
)


@given(st.dictionaries(_NAMES, _TREES, max_size=3))
def test_no_tree_keeps_the_parser_from_an_answer(tree: dict[str, Any]) -> None:
    first, second = (layer_from_values(tree, Source.USER).problems for _ in range(2))
    assert first == second


# --- every key of the published schema that restricts something ---

_PUBLISHED: dict[str, tuple[Any, str]] = {
    # what shell commands are kept from
    "permissions.deny": (["Read(x)"], "enforced"),
    "permissions.ask": (["Bash(x)"], "enforced"),
    "permissions.blockReadsOutsideWorkingDirectories": (True, "enforced"),
    "permissions.denyInsteadOfPrompting": (True, "enforced"),
    "permissions.disableBypassPermissionsMode": ("disable", "enforced"),
    "allowManagedPermissionRulesOnly": (True, "enforced"),
    "sandbox.enabled": (True, "enforced"),
    "sandbox.failIfUnavailable": (True, "enforced"),
    "sandbox.autoAllowBashIfSandboxed": (False, "enforced"),
    "sandbox.allowUnsandboxedCommands": (False, "enforced"),
    "sandbox.allowAppleEvents": (False, "enforced"),
    "sandbox.filesystem.denyRead": (["x"], "enforced"),
    "sandbox.filesystem.denyWrite": (["x"], "enforced"),
    "sandbox.filesystem.denyEdit": (["x"], "enforced"),
    "sandbox.filesystem.allowManagedReadPathsOnly": (True, "enforced"),
    "sandbox.network.deniedDomains": (["a.test"], "enforced"),
    "sandbox.network.strictAllowlist": (True, "enforced"),
    "sandbox.network.allowManagedDomainsOnly": (True, "enforced"),
    "sandbox.credentials.files": ([{"path": "x", "mode": "deny", "injectHosts": ["a.test"]}], "enforced"),
    "sandbox.credentials.envVars": ([{"name": "X", "mode": "mask"}], "enforced"),
    # what would open more, and does not here
    "sandbox.filesystem.disabled": (True, "unsupported"),
    "sandbox.allowNestedUserNamespaces": (True, "unsupported"),
    "sandbox.credentials.allowPlaintextInject": (True, "unsupported"),
    "sandbox.credentials.awsPairs": ([{"denied": "x"}], "unsupported"),
    "sandbox.credentials.sigv4": ({"streaming": "deny"}, "unsupported"),
    "sandbox.network.tlsTerminate": ({}, "unsupported"),
    # deprecated, for `permissions.deny`
    "ignorePatterns": (["x"], "refused"),
    "permissions.ignorePatterns": (["x"], "refused"),
    # newer than what is known
    "permissions.blockExecutionOutsideWorkingDirectories": (True, "refused"),
    "sandbox.network.blockedPorts": ([22], "refused"),
    **dict.fromkeys(
        # the file tools, modes and other parts of that program
        (
            "permissions.blockWritesOutsideWorkingDirectories", "permissions.disableAutoMode", "disableAutoMode",
            "permissions.defaultMode", "disableAllHooks", "allowManagedHooksOnly", "allowManagedMcpServersOnly",
            "allowManagedModsOnly", "allowedHttpHookUrls", "allowedMcpServers", "allowedProviders", "availableModels",
            "blockedMarketplaces", "deniedMcpServers", "disableAgentView", "disableArtifact",
            "disableBrowserExternalNavigation", "disableBundledSkills", "disableClaudeAiConnectors",
            "disableCommandPluginSources", "disableDeepLinkRegistration", "disableDesktopLocalSessions",
            "disabledMcpjsonServers", "disableMobileSimulatorTools", "disableRemoteControl", "disableSideloadFlags",
            "disableSkillShellExecution", "disableWorkflows", "enforceAvailableModels", "httpHookAllowedEnvVars",
            "isolatePeerMachines", "maxEffortLevel", "requiredMaximumVersion", "requiredMinimumVersion",
            "sshHostAllowlist", "strictKnownMarketplaces", "strictPluginOnlyCustomization", "useAutoModeDuringPlan",
        ),
        ("disable", "foreign"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("key", _PUBLISHED)
def test_each_published_restriction_has_a_meaning(key: str) -> None:
    """https://code.claude.com/docs/en/settings-reference"""
    value, expected = _PUBLISHED[key]
    tree: Any = value
    for name in reversed(key.split(".")):
        tree = {name: tree}
    layer = parse_layer(json.dumps(tree), Source.MANAGED, "/s.json")
    slugs = [problem.slug for problem in layer.problems]
    assert not layer.broken
    if expected == "enforced":
        assert slugs == [] and key in layer.values
    else:
        told = {"foreign": [], "unsupported": ["settings_unsupported_key"], "refused": ["restriction_unknown"]}
        assert slugs == told[expected]
