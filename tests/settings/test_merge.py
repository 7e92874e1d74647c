"""The merge table: who may say what, which value wins, and what is reported about the others."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from sandboxd.settings.key_table import TABLE
from sandboxd.settings.layer import Layer, Placed, layer_from_values, parse_layer
from sandboxd.settings.merge import PRECEDENCE, Settings, changed_keys, merge
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.schema import all_keys

# For each key that is one value: a looser and a stricter one. Written down here on purpose, and not taken from the
# table under test.
SCALARS: dict[str, tuple[Any, Any]] = {
    "sandbox.enabled": (False, True),
    "sandbox.failIfUnavailable": (False, True),
    "sandbox.autoAllowBashIfSandboxed": (True, False),
    "sandbox.allowUnsandboxedCommands": (True, False),
    "sandbox.allowOverrides": (True, False),
    "sandbox.network.strictAllowlist": (False, True),
    "sandbox.network.onUnlisted": ("ask", "deny"),
    "sandbox.network.useWebFetchRules": (True, False),
    "sandbox.network.allowAllUnixSockets": (True, False),
    "sandbox.network.allowLocalBinding": (True, False),
    "sandbox.network.transparent": (True, False),
    "sandbox.network.checkServerName": ("off", "enforce"),
    "sandbox.filesystem.allowGitConfig": (True, False),
    "sandbox.filesystem.tmp": ("host", "private"),
    "sandbox.filesystem.home": ("overlay", "host"),
    "sandbox.filesystem.owners": ("pretend", "refuse"),
    "sandbox.enableWeakerNestedSandbox": (True, False),
    "sandbox.enableWeakerNetworkIsolation": (True, False),
    "sandbox.allowAppleEvents": (True, False),
    "sandbox.allowPty": (True, False),
    "sandbox.prepareSandboxes": (True, False),
    "sandbox.mandatoryDenySearchDepth": (1, 9),
    "sandbox.limits.maxProcesses": (9000, 100),
    "sandbox.limits.processes": (9000, 100),
    "sandbox.limits.memory": (1 << 40, 1 << 30),
    "sandbox.limits.cpu": (8.0, 0.5),
    "sandbox.limits.time": (3600.0, 60.0),
    "sandbox.limits.tmp": (1 << 30, 1 << 24),
    "sandbox.reportViolations": ("off", "all"),
}
OPENING: dict[str, list[Any]] = {
    "permissions.allow": ["Bash(a)", "WebFetch(domain:a.test)"],
    "permissions.additionalDirectories": ["/a", "/b"],
    "sandbox.excludedCommands": ["a", "b"],
    "sandbox.network.allowedDomains": ["a.test", "b.test"],
    "sandbox.network.allowUnixSockets": ["/a", "/b"],
    "sandbox.network.allowLocalPorts": [1, "2-3"],
    "sandbox.network.tls.exclude": ["a.test", "b.test"],
    "sandbox.network.allowMachLookup": ["a", "b"],
    "sandbox.network.allowMachRegister": ["a", "b"],
    "sandbox.filesystem.allowWrite": ["/a", "/b"],
    "sandbox.filesystem.allowRead": ["/a", "/b"],
}
CLOSING: dict[str, list[Any]] = {
    "permissions.deny": ["Bash(a)", "Read(/a)"],
    "permissions.ask": ["Bash(a)", "Bash(b)"],
    "sandbox.network.deniedDomains": ["a.test", "b.test"],
    "sandbox.network.deniedResolvedAddresses": ["10.0.0.0/8", "fd00::/8"],
    "sandbox.network.tls.terminate": ["a.test", "*"],
    "sandbox.filesystem.denyWrite": ["/a", "/b"],
    "sandbox.filesystem.denyRead": ["/a", "/b"],
    "sandbox.filesystem.denyEdit": ["/a", "/b"],
    "sandbox.environment.remove": ["A", "B_*"],
}
STRICTEST: dict[str, tuple[Any, Any]] = {
    "sandbox.network.maxNewNames": (900, 9),
    "permissions.blockReadsOutsideWorkingDirectories": (False, True),
    "permissions.denyInsteadOfPrompting": (False, True),
    "permissions.disableBypassPermissionsMode": ("", "disable"),
}
SHAPING: dict[str, Any] = {
    "sandbox.enabledPlatforms": ["macos"],
    "sandbox.network.parentProxy": "http://proxy.test:3128",
}
CALLER_ONLY: dict[str, Any] = {"sandbox.ignoreUnknownRestrictions": True}
MANAGED_ONLY: dict[str, Any] = {
    "allowManagedPermissionRulesOnly": True,
    "sandbox.allowProjectTrust": False,
    "sandbox.network.allowManagedDomainsOnly": True,
    "sandbox.filesystem.allowManagedReadPathsOnly": True,
    "sandbox.bwrapPath": "/bin/bwrap",
}
USER_OR_MANAGED: dict[str, Any] = {
    "sandbox.network.httpProxyPort": 8080,
    "sandbox.network.socksProxyPort": 1080,
    "sandbox.prompts.notify": [["/usr/bin/notify", "x"]],
    "audit.enabled": True,
    "audit.path": "/var/log/a",
    "audit.maxBytes": 8192,
    "audit.keep": 3,
    "audit.onFull": "drop",
}
CREDENTIALS: dict[str, list[Any]] = {
    "sandbox.credentials.files": [{"path": "/a", "mode": "deny"}, {"path": "/b", "mode": "mask"}],
    "sandbox.credentials.envVars": [{"name": "A", "mode": "deny"}, {"name": "B", "mode": "mask"}],
    "sandbox.credentials.mask": [{"env": "A"}, {"file": "/b", "pattern": "token=*"}],
}
OBJECTS = {
    "sandbox.ignoreViolations", "sandbox.network.deniedDomainReasons", "sandbox.network.requests", "sandbox.presets",
    "sandbox.profiles", "sandbox.network.maxUpload",
}  # fmt: skip
BY_A_PERSON: dict[str, Any] = {
    "sandbox.credentials.inject": [{"host": "a.test", "header": "X-Key", "from": "env:A"}],
}
TRUSTED = (Source.MANAGED, Source.CLI, Source.FLAG, Source.LOCAL, Source.USER)


def layer(source: Source, *pairs: tuple[str, Any], file: str | None = None, may_widen: bool | None = None) -> Layer:
    tree: dict[str, Any] = {}
    for key, value in pairs:
        *path, name = key.split(".")
        inner = tree
        for step in path:
            inner = inner.setdefault(step, {})
        inner[name] = value
    made = layer_from_values(tree, source, may_widen=may_widen)
    assert not made.problems, made.problems
    return Layer(made.source, file, made.values, (), made.may_widen, made.distrust)


def value(settings: Settings, key: str) -> Any:
    return settings.effective()[key]


def test_every_key_of_the_schema_has_a_row_and_a_case_here() -> None:
    assert tuple(TABLE) == tuple(key for key in TABLE if key in all_keys())
    assert set(TABLE) == set(all_keys())
    mine = (
        SCALARS.keys() | OPENING.keys() | CLOSING.keys() | SHAPING.keys() | MANAGED_ONLY.keys() | USER_OR_MANAGED.keys()
    )
    mine = mine | BY_A_PERSON.keys()
    assert mine | OBJECTS | STRICTEST.keys() | CALLER_ONLY.keys() | CREDENTIALS.keys() == set(all_keys())


@pytest.mark.parametrize("key", CREDENTIALS)
def test_credentials_are_joined_whoever_names_them(key: str) -> None:
    mine, theirs = CREDENTIALS[key]
    layers = [layer(Source.USER, (key, [mine])), layer(Source.PROJECT, (key, [theirs, mine]))]
    assert value(merge(layers), key) == [mine, theirs]
    assert merge(layers).ignored == ()


@pytest.mark.parametrize("source", [*Source])
def test_only_a_caller_can_insist(source: Source) -> None:
    settings = merge([layer(source, ("sandbox.ignoreUnknownRestrictions", True))])
    assert value(settings, "sandbox.ignoreUnknownRestrictions") is (source is Source.CLI)
    assert bool(settings.ignored) is (source is not Source.CLI)
    strict = layer(Source.CLI, ("sandbox.ignoreUnknownRestrictions", True), may_widen=False)
    assert value(merge([strict]), "sandbox.ignoreUnknownRestrictions") is False


def test_only_managed_permission_rules_allow_and_everybodys_deny() -> None:
    managed = layer(
        Source.MANAGED, ("allowManagedPermissionRulesOnly", True), ("permissions.allow", ["Edit(//m)", "Bash(m)"])
    )
    user = layer(
        Source.USER, ("permissions.allow", ["Edit(//u)", "Bash(u)"]), ("permissions.deny", ["Read(//u)"]),
        ("sandbox.filesystem.allowWrite", ["/w"]),
    )  # fmt: skip
    settings = merge([user, managed])
    assert value(settings, "permissions.allow") == ["Edit(//m)", "Bash(m)"]
    assert value(settings, "permissions.deny") == ["Read(//u)"]
    assert value(settings, "sandbox.filesystem.allowWrite") == ["/w"]
    assert [ignored.value for ignored in settings.ignored] == ["Edit(//u)", "Bash(u)"]
    assert settings.locked("permissions.allow") and not settings.locked("permissions.deny")
    alone = layer(Source.USER, ("allowManagedPermissionRulesOnly", True), ("permissions.allow", ["Bash(u)"]))
    assert value(merge([alone]), "permissions.allow") == ["Bash(u)"]


def test_defaults() -> None:
    effective = merge([]).effective()
    assert effective["sandbox.enabled"] is True
    assert effective["sandbox.failIfUnavailable"] is True
    assert effective["sandbox.autoAllowBashIfSandboxed"] is True
    assert effective["sandbox.allowUnsandboxedCommands"] is True
    assert effective["sandbox.network.transparent"] is True
    assert effective["sandbox.network.onUnlisted"] == "ask"
    assert effective["sandbox.network.checkServerName"] == "log"
    assert effective["sandbox.mandatoryDenySearchDepth"] == 3
    assert effective["sandbox.reportViolations"] == "writes"
    assert effective["audit.onFull"] == "block"
    assert (effective["audit.maxBytes"], effective["audit.keep"]) == (16 * 1024 * 1024, 10)
    assert [key for key, row in TABLE.items() if isinstance(row.default, tuple) and effective[key] != []] == []
    assert {key for key, found in effective.items() if found is None} == {
        "sandbox.enabledPlatforms",
        *(f"sandbox.limits.{name}" for name in ("memory", "cpu", "time", "tmp")),
        "sandbox.network.httpProxyPort",
        "sandbox.network.socksProxyPort",
        "sandbox.network.parentProxy",
        "sandbox.network.maxNewNames",
        "sandbox.bwrapPath",
        "audit.path",
    }
    off = {key for key, found in effective.items() if found is False}
    assert off == {
        "audit.enabled",
        "sandbox.allowAppleEvents",
        "sandbox.allowPty",
        "sandbox.enableWeakerNestedSandbox",
        "sandbox.enableWeakerNetworkIsolation",
        "allowManagedPermissionRulesOnly",
        "sandbox.ignoreUnknownRestrictions",
        "sandbox.filesystem.allowGitConfig",
        "sandbox.filesystem.allowManagedReadPathsOnly",
        "sandbox.network.allowAllUnixSockets",
        "sandbox.network.allowLocalBinding",
        "sandbox.network.allowManagedDomainsOnly",
        "sandbox.network.strictAllowlist",
        "permissions.blockReadsOutsideWorkingDirectories",
        "permissions.denyInsteadOfPrompting",
    }


@pytest.mark.parametrize("key", SCALARS)
@pytest.mark.parametrize(("higher", "lower"), list(pairwise(TRUSTED)))
def test_the_higher_source_wins(key: str, higher: Source, lower: Source) -> None:
    for first, second in (SCALARS[key], SCALARS[key][::-1]):
        settings = merge([layer(lower, (key, second)), layer(higher, (key, first))])
        assert value(settings, key) == first
        assert settings.scalar(key).origin.source is higher


@pytest.mark.parametrize("key", SCALARS)
def test_a_project_file_may_tighten_and_not_loosen(key: str) -> None:
    """A project file may tighten and not loosen."""
    loose, strict = SCALARS[key]
    assert value(merge([layer(Source.PROJECT, (key, strict))]), key) == strict

    for source in TRUSTED:
        settings = merge([layer(source, (key, strict)), layer(Source.PROJECT, (key, loose))])
        assert value(settings, key) == strict
        assert [(found.key, found.value, found.origin.source) for found in settings.ignored] == [
            (key, loose, Source.PROJECT)
        ]
        assert "may only tighten" in settings.ignored[0].reason


@pytest.mark.parametrize("key", SCALARS)
def test_a_project_file_does_not_override_what_its_user_said(key: str) -> None:
    loose, strict = SCALARS[key]
    settings = merge([layer(Source.USER, (key, loose)), layer(Source.PROJECT, (key, strict))])
    assert value(settings, key) == loose
    assert [found.key for found in settings.ignored] == [key]


@pytest.mark.parametrize("key", SCALARS)
def test_overrides_of_one_command_only_tighten(key: str) -> None:
    loose, strict = SCALARS[key]
    for source in (Source.MANAGED, Source.USER):
        tightened = merge([layer(source, (key, loose)), layer(Source.CLI, (key, strict), may_widen=False)])
        assert value(tightened, key) == strict
        kept = merge([layer(source, (key, strict)), layer(Source.CLI, (key, loose), may_widen=False)])
        assert value(kept, key) == strict


@pytest.mark.parametrize("key", SCALARS)
def test_the_command_line_never_overrides_managed_policy(key: str) -> None:
    loose, strict = SCALARS[key]
    settings = merge([layer(Source.CLI, (key, loose)), layer(Source.MANAGED, (key, strict))])
    assert value(settings, key) == strict
    assert [(found.key, found.value) for found in settings.ignored] == [(key, loose)]
    lock = settings.locked(key)
    assert lock is not None and lock.origin is not None and lock.origin.source is Source.MANAGED
    assert merge([layer(Source.CLI, (key, loose))]).locked(key) is None


@pytest.mark.parametrize("key", SCALARS)
def test_two_files_of_one_source_give_the_strictest(key: str) -> None:
    loose, strict = SCALARS[key]
    for first, second in ((loose, strict), (strict, loose)):
        layers = [layer(Source.MANAGED, (key, first), file="/a"), layer(Source.MANAGED, (key, second), file="/b")]
        assert value(merge(layers), key) == strict
        assert value(merge(layers[::-1]), key) == strict


@pytest.mark.parametrize("key", SHAPING)
def test_what_shapes_is_replaced_and_never_comes_from_a_project(key: str) -> None:
    wanted = SHAPING[key]
    default = merge([]).effective()[key]
    for source in TRUSTED:
        assert value(merge([layer(source, (key, wanted))]), key) == wanted
    settings = merge([layer(Source.PROJECT, (key, wanted))])
    assert value(settings, key) == default
    assert [found.key for found in settings.ignored] == [key]


def test_lists_that_are_one_value_are_replaced_as_a_whole() -> None:
    key, high, low = "sandbox.enabledPlatforms", ["linux"], ["macos", "wsl"]
    settings = merge([layer(Source.USER, (key, low)), layer(Source.LOCAL, (key, high))])
    assert value(settings, key) == high


def test_the_last_file_counts_without_strictness() -> None:
    key = "sandbox.network.httpProxyPort"
    layers = [layer(Source.MANAGED, (key, 1000), file="/10"), layer(Source.MANAGED, (key, 2000), file="/20")]
    assert value(merge(layers), key) == value(merge(layers[::-1]), key) == 2000


@pytest.mark.parametrize("key", OPENING | CLOSING)
def test_lists_are_joined_highest_first_each_entry_once(key: str) -> None:
    one, two = (OPENING | CLOSING)[key]
    settings = merge([layer(Source.USER, (key, [two, one])), layer(Source.MANAGED, (key, [one]))])
    assert value(settings, key) == [one, two]
    assert [entry.origin.source for entry in settings.entries(key)] == [Source.MANAGED, Source.USER]


@pytest.mark.parametrize("key", OPENING)
def test_a_project_file_opens_nothing(key: str) -> None:
    """A project file opens nothing."""
    one, two = OPENING[key]
    settings = merge([layer(Source.USER, (key, [one])), layer(Source.PROJECT, (key, [one, two]))])
    assert value(settings, key) == [one]
    assert [(found.key, found.value, found.origin.source) for found in settings.ignored] == [
        (key, one, Source.PROJECT),
        (key, two, Source.PROJECT),
    ]


@pytest.mark.parametrize("key", CLOSING)
def test_a_project_file_closes(key: str) -> None:
    one, two = CLOSING[key]
    settings = merge([layer(Source.USER, (key, [one])), layer(Source.PROJECT, (key, [two]))])
    assert value(settings, key) == [one, two]
    assert not settings.ignored


@pytest.mark.parametrize("key", MANAGED_ONLY)
def test_managed_only_keys(key: str) -> None:
    wanted = MANAGED_ONLY[key]
    default = merge([]).effective()[key]
    for source in (Source.CLI, Source.FLAG, Source.LOCAL, Source.USER, Source.PROJECT):
        settings = merge([layer(source, (key, wanted))])
        assert value(settings, key) == default, source
        assert [found.key for found in settings.ignored] == [key]
        assert "managed settings only" in settings.ignored[0].reason
    settings = merge([layer(Source.MANAGED, (key, wanted))])
    assert value(settings, key) == wanted
    assert settings.locked(key) is not None
    assert merge([]).locked(key) is not None


@pytest.mark.parametrize("key", USER_OR_MANAGED)
def test_some_keys_are_for_users_and_managed_settings(key: str) -> None:
    wanted = USER_OR_MANAGED[key]
    default = merge([]).effective()[key]
    for source in (Source.MANAGED, Source.USER):
        if key != "audit.onFull":
            assert value(merge([layer(source, (key, wanted))]), key) == wanted
    for source in (Source.CLI, Source.FLAG, Source.LOCAL, Source.PROJECT):
        settings = merge([layer(source, (key, wanted))])
        assert value(settings, key) == default
        assert [found.key for found in settings.ignored] == [key]


@pytest.mark.parametrize("key", STRICTEST)
def test_the_strictest_counts_from_every_file(key: str) -> None:
    loose, strict = STRICTEST[key]
    for one in Source:
        for other in Source:
            for pair in ((loose, strict), (strict, loose)):
                layers = [layer(one, (key, pair[0]), file="/a"), layer(other, (key, pair[1]), file="/b")]
                assert value(merge(layers), key) == strict
    assert value(merge([]), key) in (loose, None)


def test_strictest_counts_whoever_says_it() -> None:
    for key, loose, strict in (("audit.enabled", False, True), ("audit.onFull", "drop", "block")):
        for managed, user in ((loose, strict), (strict, loose)):
            settings = merge([layer(Source.MANAGED, (key, managed)), layer(Source.USER, (key, user))])
            assert value(settings, key) == strict
    assert value(merge([layer(Source.USER, ("audit.onFull", "drop"))]), "audit.onFull") == "drop"
    for key in ("sandbox.network.allowManagedDomainsOnly", "sandbox.filesystem.allowManagedReadPathsOnly"):
        settings = merge(
            [layer(Source.MANAGED, (key, True), file="/a"), layer(Source.MANAGED, (key, False), file="/b")]
        )
        assert value(settings, key) is True


def test_allow_managed_domains_only() -> None:
    hosts, rules = "sandbox.network.allowedDomains", "permissions.allow"
    managed = layer(
        Source.MANAGED,
        ("sandbox.network.allowManagedDomainsOnly", True),
        (hosts, ["m.test"]),
        (rules, ["WebFetch(domain:n.test)"]),
    )
    own = [
        layer(source, (hosts, ["x.test", "m.test"]), (rules, ["WebFetch(domain:y.test)", "Bash(ls)"]))
        for source in (Source.CLI, Source.FLAG, Source.LOCAL, Source.USER)
    ]
    denied = layer(Source.USER, ("sandbox.network.deniedDomains", ["z.test"]), file="/b")
    settings = merge([managed, denied, *own])
    assert value(settings, hosts) == ["m.test"]
    assert value(settings, rules) == ["WebFetch(domain:n.test)", "Bash(ls)"]
    assert value(settings, "sandbox.network.deniedDomains") == ["z.test"]
    assert {found.value for found in settings.ignored} == {"x.test", "WebFetch(domain:y.test)"}
    lock = settings.locked(hosts)
    assert lock is not None and "allowManagedDomainsOnly" in lock.reason
    assert value(merge(own), hosts) == ["x.test", "m.test"]
    assert merge(own).locked(hosts) is None


def test_allow_managed_read_paths_only() -> None:
    key = "sandbox.filesystem.allowRead"
    managed = layer(Source.MANAGED, ("sandbox.filesystem.allowManagedReadPathsOnly", True), (key, ["/m"]))
    own = layer(Source.USER, (key, ["/x"]), ("sandbox.filesystem.denyRead", ["/d"]))
    settings = merge([own, managed])
    assert value(settings, key) == ["/m"]
    assert value(settings, "sandbox.filesystem.denyRead") == ["/d"]
    assert settings.locked(key) is not None


@pytest.mark.parametrize("source", [*Source])
def test_only_a_person_names_a_credential(source: Source) -> None:
    for key, entries in BY_A_PERSON.items():
        settings = merge([layer(source, (key, entries))])
        trusted = source in (Source.MANAGED, Source.FLAG, Source.LOCAL, Source.USER)
        assert value(settings, key) == (entries if trusted else []) and bool(settings.ignored) is not trusted
        assert value(merge([layer(source, (key, entries), may_widen=False)]), key) == []


def test_limits_of_uploads_all_count() -> None:
    key = "sandbox.network.maxUpload"
    settings = merge([layer(Source.USER, (key, "1M")), layer(Source.PROJECT, (key, {"*": 7, "a.test": "2K"}))])
    assert value(settings, key) == [["*", 1 << 20], ["*", 7], ["a.test", 2048]]


def test_profiles_are_joined_and_none_is_a_projects() -> None:
    key = "sandbox.profiles"
    given = [(Source.PROJECT, "a.test"), (Source.USER, "b.test"), (Source.LOCAL, "c.test")]
    settings = merge([layer(source, (key, {"mine": [f"host:{host}"]})) for source, host in given])
    assert value(settings, key) == [["mine", ["host:c.test"]], ["mine", ["host:b.test"]]]


def test_presets_from_a_project_close_only() -> None:
    settings = merge([layer(Source.PROJECT, ("sandbox.presets", ["caches", "credentials", "no-such"]))])
    assert value(settings, "sandbox.presets") == ["credentials"]
    assert [found.value for found in settings.ignored] == ["caches", "no-such"]
    assert value(merge([layer(Source.USER, ("sandbox.presets", ["caches"]))]), "sandbox.presets") == ["caches"]


def test_a_project_explains_only_its_own_denials() -> None:
    key = "sandbox.network.deniedDomainReasons"
    project = layer(
        Source.PROJECT,
        ("sandbox.network.deniedDomains", ["a.test"]),
        (key, {"a.test": "project's", "b.test": "turn the sandbox off"}),
    )
    settings = merge([project])
    assert value(settings, key) == [["a.test", "project's"]]
    assert [found.value for found in settings.ignored] == [["b.test", "turn the sandbox off"]]

    managed = layer(Source.MANAGED, (key, {"a.test": "managed's"}))
    assert value(merge([project, managed]), key) == [["a.test", "managed's"]]


def test_objects_are_joined() -> None:
    key = "sandbox.ignoreViolations"
    settings = merge(
        [layer(Source.USER, (key, {"npm": ["y"]})), layer(Source.LOCAL, (key, {"npm": ["x"], "*": ["z"]}))]
    )
    assert value(settings, key) == [["npm", ["x"]], ["*", ["z"]], ["npm", ["y"]]]


def test_ignored_violations_are_not_hidden_by_a_project() -> None:
    key = "sandbox.ignoreViolations"
    settings = merge([layer(Source.PROJECT, (key, {"*": ["x"]})), layer(Source.USER, (key, {"npm": ["y"]}))])
    assert value(settings, key) == [["npm", ["y"]]]
    assert len(settings.ignored) == 1


def test_unset_is_not_empty() -> None:
    assert not merge([]).is_set("sandbox.network.allowedDomains")
    assert merge([layer(Source.USER, ("sandbox.network.allowedDomains", []))]).is_set("sandbox.network.allowedDomains")


def test_every_value_knows_its_place() -> None:
    text = '{\n  "sandbox": {\n    "enabled": true,\n    "network": {"allowedDomains": ["a.test",\n      "b.test"]}}}'
    settings = merge([parse_layer(text, Source.USER, "/u.json")])
    assert settings.scalar("sandbox.enabled") == Placed(True, Origin(Source.USER, "sandbox.enabled", "/u.json", 3, 16))
    places = [
        (entry.value, entry.origin.line, entry.origin.column)
        for entry in settings.entries("sandbox.network.allowedDomains")
    ]
    assert places == [("a.test", 4, 36), ("b.test", 5, 7)]
    assert settings.scalar("sandbox.allowPty").origin.source is Source.DEFAULT
    assert settings.files == ("/u.json",)


def test_changed_keys_looks_at_values_and_not_at_places() -> None:
    one = merge([parse_layer('{"sandbox": {"enabled": false}}', Source.USER, "/u")])
    moved = merge([parse_layer('\n\n{"sandbox": {"enabled": false, "network": {}}}', Source.LOCAL, "/l")])
    other = merge([parse_layer('{"sandbox": {"enabled": false, "excludedCommands": ["a"]}}', Source.USER, "/u")])
    assert changed_keys(one, moved) == ()
    assert changed_keys(one, other) == ("sandbox.excludedCommands",)
    assert changed_keys(one, merge([])) == ("sandbox.enabled",)


def test_a_broken_layer_makes_the_whole_result_unusable() -> None:
    settings = merge([parse_layer("{", Source.PROJECT, "/p"), layer(Source.USER, ("sandbox.enabled", True))])
    fatal = settings.fatal()
    assert fatal is not None and fatal.origin.file == "/p"


# --- properties ---


def _values() -> st.SearchStrategy[list[tuple[str, Any]]]:
    def one_of(key: str) -> st.SearchStrategy[tuple[str, Any]]:
        if key in SCALARS:
            return st.sampled_from(SCALARS[key]).map(lambda found: (key, found))
        if key in SHAPING:
            return st.just((key, SHAPING[key]))
        if key in MANAGED_ONLY:
            return st.just((key, MANAGED_ONLY[key]))
        entries = (OPENING | CLOSING)[key]
        return st.lists(st.sampled_from(entries), unique=True, max_size=2).map(lambda found: (key, found))

    keys = [*SCALARS, *SHAPING, *MANAGED_ONLY, *OPENING, *CLOSING]
    chosen = st.lists(st.sampled_from(keys), unique=True, max_size=12)
    return chosen.flatmap(lambda names: st.tuples(*(one_of(name) for name in names)).map(list))


def _layers(sources: tuple[Source, ...]) -> st.SearchStrategy[list[Layer]]:
    one = st.tuples(st.sampled_from(sources), _values(), st.sampled_from(["/a", "/b", "/c"]))
    return st.lists(one, max_size=6, unique_by=lambda found: (found[0], found[2])).map(
        lambda many: [layer(source, *pairs, file=f"{file}-{source}") for source, pairs, file in many]
    )


@hypothesis_settings(max_examples=50)
@given(_layers(tuple(PRECEDENCE[:-1])), st.randoms(use_true_random=False))
def test_the_order_of_files_does_not_matter(layers: list[Layer], shuffle: random.Random) -> None:
    other = list(layers)
    shuffle.shuffle(other)
    one, two = merge(layers), merge(other)
    assert one.effective() == two.effective()
    assert one.values == two.values


@hypothesis_settings(max_examples=50)
@given(_layers(TRUSTED), _values())
def test_a_project_file_never_widens_anything(layers: list[Layer], written: list[tuple[str, Any]]) -> None:
    project = layer(Source.PROJECT, *written, file="/project")
    assert_no_wider(merge([*layers, project]), merge(layers))


@hypothesis_settings(max_examples=50)
@given(_layers(TRUSTED), _values())
def test_overrides_never_widen_anything(layers: list[Layer], written: list[tuple[str, Any]]) -> None:
    override = layer(Source.CLI, *written, file="/overrides", may_widen=False)
    assert_no_wider(merge([*layers, override]), merge(layers))


def assert_no_wider(narrow: Settings, wide: Settings) -> None:
    """By the literal tables above, key by key."""
    after, before = narrow.effective(), wide.effective()
    words = ["off", "ask", "log", "writes", "deny", "enforce", "all", "host", "overlay", "private", "pretend", "refuse"]

    def number(found: Any) -> float:
        return words.index(found) if isinstance(found, str) else float("inf") if found is None else found

    for key, (loose, strict) in SCALARS.items():
        direction = 1 if number(strict) > number(loose) else -1
        assert direction * number(after[key]) >= direction * number(before[key]), key
    for key in OPENING:
        assert {*map(str, after[key])} <= {*map(str, before[key])}, key
    for key in CLOSING:
        assert {*after[key]} >= {*before[key]}, key
    for key in SHAPING | MANAGED_ONLY:
        assert after[key] == before[key], key


@pytest.mark.parametrize(
    ("key", "wanted", "default"),
    [
        ("audit.path", "/home/u/a", None),
        ("audit.keep", 1, 10),
        ("audit.keep", 1000, 10),
        ("audit.maxBytes", 4096, 16 * 1024 * 1024),
        ("audit.onFull", "drop", "block"),
    ],
)
def test_managed_audit_settings_stand_alone(key: str, wanted: object, default: object) -> None:
    mine = layer(Source.USER, ("audit.enabled", True), (key, wanted))
    assert value(merge([mine]), key) == wanted
    settings = merge([mine, layer(Source.MANAGED, ("audit.enabled", True))])
    assert value(settings, key) == default
    (ignored,) = settings.ignored
    assert ignored.key == key and "audit.enabled is on in managed settings" in ignored.reason
    lock = settings.locked(key)
    assert lock is not None and lock.origin is not None and lock.origin.source is Source.MANAGED
    assert merge([mine]).locked(key) is None


def test_a_user_may_ask_more_of_a_managed_audit_log() -> None:
    mine, theirs = layer(Source.USER, ("audit.onFull", "block")), [("audit.enabled", True), ("audit.onFull", "drop")]
    assert value(merge([mine, layer(Source.MANAGED, *theirs)]), "audit.onFull") == "block"
    assert value(merge([layer(Source.MANAGED, *theirs)]), "audit.onFull") == "drop"
