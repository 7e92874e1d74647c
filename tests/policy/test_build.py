"""Settings become a complete policy, or are refused with an origin."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandboxd.errors import SettingsError
from sandboxd.policy.build import build_policy, check_settings
from sandboxd.policy.decision import Behavior
from sandboxd.policy.hosts.host_decisions import decide_host
from sandboxd.policy.hosts.host_patterns import parse_host
from sandboxd.policy.model import PathRule, Policy
from sandboxd.policy.paths.protected_names import PROTECTED, ProtectedIn
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.key_table import TABLE
from sandboxd.settings.layer import parse_layer
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source
from sandboxd.settings.presets import PRESETS, PRIVATE_NETWORKS
from sandboxd.settings.problems import Severity

SCOPE = PathScope(
    "/home/u", "/home/u/p", {"HOME": "/home/u", "SSH_AUTH_SOCK": "/tmp/ssh-x/agent.1"}, own_paths=("/run/u/sandboxd",)
)


def settings_of(tree: Any, source: Source = Source.USER) -> Any:
    return merge([parse_layer(json.dumps(tree, indent=1), source, "/s.json")])


def build(tree: Any, source: Source = Source.USER) -> Policy:
    return build_policy(settings_of(tree, source), SCOPE)


def network(**keys: Any) -> Any:
    return {"sandbox": {"network": keys}}


def filesystem(**keys: Any) -> Any:
    return {"sandbox": {"filesystem": keys}}


def paths(rules: tuple[PathRule, ...]) -> list[str]:
    return [rule.path for rule in rules]


def warned(tree: Any) -> list[str]:
    return [problem.slug for problem in check_settings(settings_of(tree), SCOPE)]


# Each key, with a value and what can be seen of it in the policy.
OBSERVED: dict[str, tuple[Any, Any]] = {
    "permissions.allow": (["Bash(ls)"], lambda p: [rule.pattern for rule in p.commands.allow] == ["ls"]),
    "permissions.deny": (["Bash"], lambda p: [rule.pattern for rule in p.commands.deny] == ["*"]),
    "permissions.ask": (["Bash(a b:*)"], lambda p: [rule.pattern for rule in p.commands.ask] == ["a b:*"]),
    "permissions.additionalDirectories": (["../m"], lambda p: paths(p.files.allow_write) == ["/home/u/m"]),
    "permissions.blockReadsOutsideWorkingDirectories": (
        True,
        lambda p: {"/home", "/home/u", "/root", "/Users", "/mnt"} <= set(paths(p.files.deny_read)),
    ),
    "permissions.denyInsteadOfPrompting": (
        True,
        lambda p: p.commands.deny_instead_of_asking and p.network.strict_allowlist,
    ),
    "permissions.disableBypassPermissionsMode": ("disable", lambda p: not p.commands.open_mode),
    "allowManagedPermissionRulesOnly": (True, lambda p: True),
    "sandbox.ignoreUnknownRestrictions": (True, lambda p: p.ignore_unknown_restrictions),
    "sandbox.filesystem.denyEdit": (["x"], lambda p: paths(p.files.deny_write) == ["/home/u/p/x"]),
    "sandbox.credentials.files": (
        [{"path": "~/.aws", "mode": "deny"}, {"path": ".env", "mode": "mask"}],
        lambda p: paths(p.files.deny_read) == ["/home/u/.aws", "/home/u/p/.env"],
    ),
    "sandbox.credentials.envVars": (
        [{"name": "A", "mode": "deny"}, {"name": "B", "mode": "mask"}],
        lambda p: p.environment_remove == ("A", "B"),
    ),
    "sandbox.enabled": (True, lambda p: p.enabled and p.enabled_origin.line == 3),
    "sandbox.failIfUnavailable": (False, lambda p: not p.fail_if_unavailable),
    "sandbox.enabledPlatforms": (["macos"], lambda p: p.enabled_platforms == ("macos",)),
    "sandbox.autoAllowBashIfSandboxed": (False, lambda p: not p.commands.auto_allow),
    "sandbox.allowUnsandboxedCommands": (False, lambda p: not p.commands.allow_unsandboxed),
    "sandbox.allowOverrides": (False, lambda p: not p.allow_overrides),
    "sandbox.allowProjectTrust": (False, lambda p: True),
    "sandbox.excludedCommands": (["docker"], lambda p: [rule.pattern for rule in p.commands.excluded] == ["docker"]),
    "sandbox.profiles": ({"mine": ["host:a.test"]}, lambda p: p.network.allowed == ()),  # only with run --profile
    "sandbox.presets": (
        ["credentials"],
        lambda p: "/home/u/.netrc" in paths(p.files.deny_read) and not p.platform.keychain,
    ),
    "sandbox.network.allowedDomains": (["a.test"], lambda p: p.network.allowed[0].pattern.text == "a.test"),
    "sandbox.network.deniedDomains": (["*.com"], lambda p: p.network.denied[0].pattern.text == "*.com"),
    "sandbox.network.deniedDomainReasons": (
        {"a.test": "no\u202e"},
        lambda p: p.network.denied_reasons[0][1] == "no\\u202e",
    ),
    "sandbox.network.requests": (
        [{"host": "a.test", "action": "deny", "reason": "no\u202e"}],
        lambda p: (p.network.requests[0].pattern.text, p.network.requests[0].reason) == ("a.test", "no\\u202e"),
    ),
    "sandbox.network.tls.terminate": (["*"], lambda p: p.network.tls_terminate[0].pattern.text == "*"),
    "sandbox.network.tls.exclude": (["a.test"], lambda p: p.network.tls_exclude[0].pattern.text == "a.test"),
    "sandbox.network.maxUpload": (
        {"*": "1K", "a.test": 5},
        lambda p: [(one.pattern.text, one.most) for one in p.network.uploads] == [("*", 1024), ("a.test", 5)],
    ),
    "sandbox.network.maxNewNames": (9, lambda p: p.network.max_new_names == 9),
    "sandbox.prompts.notify": (
        [["notify-send", "-u", "x y"], ["./mine"], ["/opt/n"]],
        lambda p: p.notify == (("notify-send", "-u", "x y"), ("/opt/n",)),
    ),
    "sandbox.credentials.inject": (
        [{"host": "a.test", "header": "Authorization: token {value}", "from": "env:A", "paths": ["/x/**"]}],
        lambda p: (
            (p.network.credentials[0].form, p.network.credentials[0].variables) == ("token {value}", ("A",))
            and p.network.tls_terminate[0].pattern.text == "a.test"
        ),
    ),
    "sandbox.credentials.mask": (
        [{"env": "A"}, {"file": "~/a", "pattern": "token=*"}],
        lambda p: (
            [(one.variable, one.path, one.pattern) for one in p.network.masks]
            == [("A", "", ""), ("", "/home/u/a", "token=")]
            and paths(p.files.deny_read) == ["/home/u/a"]
        ),
    ),
    "sandbox.network.strictAllowlist": (True, lambda p: p.network.strict_allowlist),
    "sandbox.network.onUnlisted": ("deny", lambda p: p.network.strict_allowlist),
    "sandbox.network.useWebFetchRules": (False, lambda p: True),
    "sandbox.network.allowManagedDomainsOnly": (True, lambda p: True),
    "sandbox.network.allowUnixSockets": (["/a.sock"], lambda p: p.network.allow_unix_sockets[0].path == "/a.sock"),
    "sandbox.network.allowAllUnixSockets": (True, lambda p: p.network.allow_all_unix_sockets),
    "sandbox.network.allowLocalBinding": (True, lambda p: p.network.allow_local_binding),
    "sandbox.network.allowLocalPorts": (
        [80, "8000-8010"],
        lambda p: [(r.first, r.last) for r in p.network.allow_local_ports] == [(80, 80), (8000, 8010)],
    ),
    "sandbox.network.allowMachLookup": (["a"], lambda p: p.network.allow_mach_lookup == ("a",)),
    "sandbox.network.allowMachRegister": (["a.*"], lambda p: p.network.allow_mach_register == ("a.*",)),
    "sandbox.network.httpProxyPort": (1, lambda p: p.network.http_proxy_port == 1),
    "sandbox.network.socksProxyPort": (2, lambda p: p.network.socks_proxy_port == 2),
    "sandbox.network.parentProxy": (
        "http://p.test:3128",
        lambda p: str(p.network.parent_proxy) == "http://p.test:3128",
    ),
    "sandbox.network.deniedResolvedAddresses": (
        ["10.0.0.1/8"],
        lambda p: p.network.denied_addresses == ("10.0.0.0/8",),
    ),
    "sandbox.network.transparent": (False, lambda p: not p.network.transparent),
    "sandbox.network.checkServerName": ("enforce", lambda p: p.network.check_server_name == "enforce"),
    "sandbox.filesystem.allowWrite": (["~/x/"], lambda p: paths(p.files.allow_write) == ["/home/u/x"]),
    "sandbox.filesystem.denyWrite": (["x/**"], lambda p: paths(p.files.deny_write) == ["/home/u/p/x"]),
    "sandbox.filesystem.denyRead": (["//x"], lambda p: paths(p.files.deny_read) == ["/x"]),
    "sandbox.filesystem.allowRead": (["$HOME"], lambda p: paths(p.files.allow_read) == ["/home/u"]),
    "sandbox.filesystem.allowGitConfig": (True, lambda p: p.files.allow_git_config),
    "sandbox.filesystem.allowManagedReadPathsOnly": (True, lambda p: True),
    "sandbox.environment.remove": (["AWS_*"], lambda p: p.environment_remove == ("AWS_*",)),
    "sandbox.limits.maxProcesses": (64, lambda p: (p.max_processes, p.max_processes_origin.source) == (64, "user")),
    "sandbox.limits.processes": (64, lambda p: (p.max_processes, p.max_processes_origin.source) == (64, "user")),
    "sandbox.limits.memory": ("1.5G", lambda p: p.limits.memory == 3 << 29),
    "sandbox.limits.cpu": (1.5, lambda p: p.limits.cpu == 1.5),
    "sandbox.filesystem.tmp": ("host", lambda p: p.files.tmp == "host" and p.files.allow_write[0].path == "/tmp"),
    "sandbox.filesystem.home": ("overlay", lambda p: p.files.home == "overlay"),
    "sandbox.filesystem.owners": ("refuse", lambda p: p.files.owners == "refuse"),
    "sandbox.limits.tmp": ("16M", lambda p: p.files.tmp_size == 1 << 24),
    "sandbox.limits.time": ("1h30m", lambda p: p.limits.time_s == 5400.0),
    "sandbox.reportViolations": ("all", lambda p: p.report_violations == "all"),
    "sandbox.ignoreViolations": ({"*": ["/usr/bin"]}, lambda p: p.ignore_violations == (("*", ("/usr/bin",)),)),
    "sandbox.enableWeakerNestedSandbox": (True, lambda p: p.platform.weaker_nested_sandbox),
    "sandbox.enableWeakerNetworkIsolation": (True, lambda p: p.platform.weaker_network_isolation),
    "sandbox.allowAppleEvents": (True, lambda p: p.platform.allow_apple_events),
    "sandbox.allowPty": (True, lambda p: p.platform.allow_pty),
    "sandbox.prepareSandboxes": (False, lambda p: not p.platform.prepare_sandboxes),
    "sandbox.mandatoryDenySearchDepth": (7, lambda p: p.files.protected_search_depth == 7),
    "sandbox.bwrapPath": ("/opt/bwrap", lambda p: p.platform.bwrap_path == "/opt/bwrap"),
    "audit.enabled": (True, lambda p: p.audit.enabled),
    "audit.path": ("~/a.log", lambda p: p.audit.path == "/home/u/a.log"),
    "audit.maxBytes": (8192, lambda p: p.audit.max_bytes == 8192),
    "audit.keep": (3, lambda p: p.audit.keep == 3),
    "audit.onFull": ("drop", lambda p: p.audit.on_full == "drop"),
}


@pytest.mark.parametrize("key", TABLE)
def test_each_key_has_an_effect(key: str) -> None:
    value, seen = OBSERVED[key]
    tree: Any = value
    for step in reversed(key.split(".")):
        tree = {step: tree}
    managed = key.endswith(("Path", "ProjectTrust")) or "Managed" in key
    source = Source.MANAGED if managed else Source.USER
    source = Source.CLI if key.endswith("ignoreUnknownRestrictions") else source
    assert seen(build(tree, source))


def test_generation_and_files_are_carried() -> None:
    policy = build_policy(settings_of({}), SCOPE, 7)
    assert policy.generation == 7
    assert policy.files.settings_files == ("/s.json",)
    assert policy.enabled_origin.source is Source.DEFAULT
    assert not policy.warnings


def test_empty_or_absent_allows_nothing() -> None:
    trees: list[Any] = [{}, {"sandbox": {"enabled": True}}, network(allowedDomains=[]), {"sandbox": {"network": {}}}]
    for tree in trees:
        assert build(tree).network.allowed == ()


def test_read_rules_become_denied_reads() -> None:
    policy = build({"permissions": {"deny": ["Read(./.idea/**)", "Read(./.env)", "Read(**/id_rsa)", "Read(./.env.*)"]}})
    assert [(rule.path, rule.glob, rule.text) for rule in policy.files.deny_read] == [
        ("/home/u/p/.idea", False, "./.idea/**"),
        ("/home/u/p/.env", False, "./.env"),
        ("/home/u/p/**/id_rsa", True, "**/id_rsa"),
        ("/home/u/p/.env.*", True, "./.env.*"),
    ]
    assert {rule.origin.key for rule in policy.files.deny_read} == {"permissions.deny"}
    assert [rule.origin.line for rule in policy.files.deny_read] == [4, 5, 6, 7]


def test_edit_and_write_rules() -> None:
    policy = build(
        {"permissions": {"allow": ["Edit(~/a/**)", "Write(b)", "Read(/c)"], "deny": ["Edit(.git)", "Write:d"]}}
    )
    assert paths(policy.files.allow_write) == ["/home/u/a", "/home/u/p/b"]
    assert paths(policy.files.deny_write) == [
        "/home/u/p/.git", "/home/u/p/**/.git", "/home/u/p/d", "/home/u/p/**/d"
    ]  # fmt: skip
    assert policy.files.allow_read == () and policy.files.deny_read == ()


def test_web_rules_and_the_key_that_separates_them() -> None:
    rules = {"allow": ["WebFetch(domain:docs.ok.test)"], "deny": ["WebFetch(domain:no.test)"]}
    joined = build({"permissions": rules})
    assert [rule.pattern.text for rule in joined.network.allowed] == ["docs.ok.test"]
    assert decide_host(joined.network, parse_host("docs.ok.test"), 443).allowed
    assert not decide_host(joined.network, parse_host("ok.test"), 443).allowed
    apart = build({"permissions": rules, "sandbox": {"network": {"useWebFetchRules": False}}})
    assert apart.network.allowed == ()
    assert [rule.pattern.text for rule in apart.network.denied] == ["no.test"]


def test_a_deny_of_either_kind_beats_every_allow() -> None:
    for tree in (
        {
            "permissions": {"deny": ["WebFetch(domain:ok.test)"]},
            "sandbox": {"network": {"allowedDomains": ["ok.test"]}},
        },
        {
            "permissions": {"allow": ["WebFetch(domain:ok.test)"]},
            "sandbox": {"network": {"deniedDomains": ["ok.test"]}},
        },
        {
            "permissions": {
                "allow": ["WebFetch(domain:ok.test)"],
                "deny": ["WebFetch(domain:*.test)", "WebFetch(domain:ok.test)"],
            }
        },
    ):
        decision = decide_host(build(tree).network, parse_host("ok.test"), 443)
        assert decision.behavior.value == "deny"


def test_spellings_of_home() -> None:
    spelled = ["~", "~/", "$HOME", "/home/u/", "//home/u"]
    assert paths(build(filesystem(denyRead=spelled)).files.deny_read) == ["/home/u"] * 5


def test_trailing_stars_mean_the_directory() -> None:
    policy = build(filesystem(allowWrite=["/tmp/d/**"]))
    assert [(rule.path, rule.glob) for rule in policy.files.allow_write] == [("/tmp/d", False)]


# --- faults ---


@pytest.mark.parametrize(
    ("tree", "slug"),
    [
        (filesystem(denyRead=["~root"]), "path_other_home"),
        (filesystem(denyWrite=["$NOPE/x"]), "path_variable_unset"),
        (filesystem(denyRead=["a/[b"]), "path_glob_invalid"),
        ({"permissions": {"deny": ["Read(~root)"]}}, "path_other_home"),
        ({"permissions": {"deny": ["Edit(a/../b)"]}}, "path_dotdot"),
        ({"permissions": {"deny": ["WebFetch(domain:https://a.test/)"]}}, "host_pattern_url"),
        ({"permissions": {"deny": ["Bash('x)"]}}, "command_pattern_invalid"),
        ({"permissions": {"ask": ["Bash('x)"]}}, "command_pattern_invalid"),
        (network(deniedDomains=["a b"]), "host_pattern_invalid"),
        (network(deniedResolvedAddresses=["10.0.0.0/99"]), "network_invalid"),
        (network(parentProxy="proxy.test"), "proxy_invalid"),
        (network(parentProxy="ftp://proxy.test"), "proxy_invalid"),
        ({"sandbox": {"presets": ["no-such"]}}, "preset_unknown"),
    ],
)
def test_what_closes_and_cannot_be_understood_is_refused(tree: Any, slug: str) -> None:
    with pytest.raises(SettingsError) as caught:
        build(tree)
    error = caught.value
    assert error.slug == slug
    assert error.data["file"] == "/s.json" and error.data["line"] > 1 and "." in error.data["key"]
    assert error.message.startswith("/s.json:")
    assert error.data["problems"]


@pytest.mark.parametrize(
    ("tree", "slug"),
    [
        (filesystem(allowWrite=["~root", "x"]), "path_other_home"),
        (filesystem(allowRead=["a/../b"]), "path_dotdot"),
        (network(allowUnixSockets=["$NOPE"]), "path_variable_unset"),
        (network(allowUnixSockets=["/tmp/*.sock"]), "socket_glob"),
        (network(allowUnixSockets=["/run/u/sandboxd/sandboxd.sock"]), "socket_own"),
        (network(allowUnixSockets=["/run/u/sandboxd"]), "socket_own"),
        (network(allowLocalPorts=["9-1"]), "port_range_invalid"),
        (network(allowLocalPorts=["1-99999"]), "port_range_invalid"),
        (network(allowedDomains=["*.com"]), "host_pattern_public_suffix"),
        (network(allowedDomains=["*.co.uk"]), "host_pattern_public_suffix"),
        (network(deniedDomainReasons={"a b": "x"}), "host_pattern_invalid"),
        ({"sandbox": {"excludedCommands": ["*"]}}, "command_pattern_matches_all"),
        ({"sandbox": {"excludedCommands": [" :*"]}}, "command_pattern_matches_all"),
        ({"permissions": {"allow": ["Bash('x)"]}}, "command_pattern_invalid"),
    ],
)
def test_unusable_entries_that_open_are_left_out_and_reported(tree: Any, slug: str) -> None:
    policy = build(tree)
    assert slug in warned(tree)
    assert any("/s.json:" in warning for warning in policy.warnings)
    assert not policy.network.allowed and not policy.network.allow_unix_sockets and not policy.network.allow_local_ports
    assert not policy.commands.excluded and not policy.commands.allow
    assert paths(policy.files.allow_write) in ([], ["/home/u/p/x"]) and not policy.files.allow_read


def test_what_happens_to_unlisted_hosts_is_an_explicit_choice() -> None:
    for keys, behavior in (({"onUnlisted": "deny"}, "deny"), ({"onUnlisted": "ask"}, "ask"), ({}, "ask")):
        assert decide_host(build(network(**keys)).network, parse_host("a.test"), 443).behavior.value == behavior
    both = build(network(onUnlisted="ask", strictAllowlist=True))
    assert both.network.strict_allowlist  # the stricter of the two words counts


def test_a_url_in_the_list_does_not_break_the_others() -> None:
    tree = network(allowedDomains=["https://ok.test/path", "ok.test/", "http://*.ok.test", " ok.test ", "fine.test"])
    policy = build(tree)
    assert [rule.pattern.text for rule in policy.network.allowed] == ["fine.test"]
    errors = [warning for warning in policy.warnings if ": error: " in warning]
    assert len(errors) == 4
    assert "https://ok.test/path" in errors[0] and "write ok.test" in errors[0]


def test_overlapping_entries_are_fine() -> None:
    policy = build(network(allowedDomains=["api.ok.test", ".ok.test", "*.ok.test", "ok.test"]))
    assert len(policy.network.allowed) == 4


def test_a_broken_file_gives_no_policy() -> None:
    for text in ("", "{", '{"sandbox": {"enabled": "x"}}', '{"permissions": {"deny": ["Read("]}}'):
        settings = merge([parse_layer(text, Source.USER, "/s.json"), parse_layer("{}", Source.LOCAL, "/l.json")])
        with pytest.raises(SettingsError):
            build_policy(settings, SCOPE)


def test_an_ignored_key_is_shown() -> None:
    strict = build(network(strictAllowlist=True), Source.PROJECT)
    assert strict.network.strict_allowlist  # it only tightens, so it counts
    loose = build({"sandbox": {"excludedCommands": ["docker"]}}, Source.PROJECT)
    (warning,) = loose.warnings
    assert warning == ("/s.json:4:4: warning: sandbox.excludedCommands is ignored: project settings may only tighten")


# --- warnings ---


def test_an_unreachable_allow_list_is_reported() -> None:
    policy = build(network(allowedDomains=["ok.test"], deniedDomains=["*"]))
    (warning,) = policy.warnings
    assert "'ok.test' is allowed and can never be reached: '*' denies it" in warning and "/s.json:" in warning
    assert not decide_host(policy.network, parse_host("ok.test"), 443).allowed


def test_broad_patterns_warn() -> None:
    assert warned(network(allowedDomains=["*"])) == ["host_pattern_broad"]
    assert warned(network(allowedDomains=["*.github.io"])) == ["host_pattern_broad"]
    assert warned(network(allowedDomains=["*.ok.test", "ok.test"], deniedDomains=["*.com", "*"]))[:1] != [
        "host_pattern_broad"
    ]


MATCHED = {
    "ok.test": (True, False, False, False, False),
    "*.ok.test": (False, True, True, False, False),
    ".ok.test": (True, True, True, False, False),
    "*.test": (True, True, True, True, True),
    "*": (True, True, True, True, True),
}
NAMES = ("ok.test", "a.ok.test", "a.b.ok.test", "xok.test", "ok.test.no.test")


@pytest.mark.parametrize("pattern", MATCHED)
def test_one_table_of_host_patterns_for_every_list(pattern: str) -> None:
    for host, listed in zip(NAMES, MATCHED[pattern], strict=True):
        web = f"WebFetch(domain:{pattern})"
        for allowing in (network(allowedDomains=[pattern]), {"permissions": {"allow": [web]}}):
            assert decide_host(build(allowing).network, parse_host(host), 8443).allowed is listed, host
        by_list = network(allowedDomains=["*"], deniedDomains=[pattern])
        for denying in (by_list, {**network(allowedDomains=["*"]), "permissions": {"deny": [web]}}):
            assert decide_host(build(denying).network, parse_host(host), 8443).allowed is not listed, host
        with_port = build(network(allowedDomains=[pattern + ":443"])).network
        assert decide_host(with_port, parse_host(host), 443).allowed is listed
        assert not decide_host(with_port, parse_host(host), 8443).allowed


@pytest.mark.parametrize("name", ["*.localhost", ".localhost", "a.localhost:3000"])
def test_a_rule_for_localhost_says_that_it_opens_nothing(name: str) -> None:
    assert "host_pattern_local" in warned(network(allowedDomains=[name]))
    assert any("localhost:PORT" in warning for warning in build(network(allowedDomains=[name])).warnings)
    assert not decide_host(build(network(allowedDomains=[name])).network, parse_host("a.localhost"), 3000).allowed
    refused = decide_host(build(network()).network, parse_host("localhost"), 3002)
    assert not refused.allowed and refused.hint.endswith("sandboxd allow domain localhost:3002")
    assert decide_host(build(network(allowLocalPorts=[3002])).network, parse_host("localhost"), 3002).allowed


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "localhost:3000", "127.0.0.1:3000", "[::1]:3000"])
def test_a_rule_that_names_localhost_opens_its_ports(name: str) -> None:
    policy = build(network(allowedDomains=[name, "*"]))
    every = not name.endswith("3000")
    assert "host_pattern_local" not in warned(network(allowedDomains=[name]))
    for host in ("localhost", "127.0.0.1", "[::1]"):
        answers = {port: decide_host(policy.network, parse_host(host), port) for port in (3000, 3001, None)}
        assert [answers[3000].allowed, answers[3001].allowed, answers[None].allowed] == [True, every, every], host
        assert (answers[3000].rule, answers[3000].origin and answers[3000].origin.key) == (
            name,
            "sandbox.network.allowedDomains",
        )
    asked = {**network(allowedDomains=[name]), "permissions": {"ask": ["WebFetch(domain:localhost)"]}}
    assert decide_host(build(asked).network, parse_host("localhost"), 3000).behavior is Behavior.ASK
    closed = build(network(allowedDomains=[name], deniedDomains=["localhost"])).network
    assert not decide_host(closed, parse_host("localhost"), 3000).allowed


@pytest.mark.parametrize(
    "text", [" ./x", "./x\n", "file:///etc/passwd", "*.{pem,key}", "!./x", "C:\\x", "secrets\\*"]
)  # fmt: skip
def test_doubtful_paths_count_and_have_a_warning(text: str) -> None:
    """A denial that can hardly match anything looks as if it closed something."""
    for key in ("denyRead", "denyWrite", "allowWrite", "allowRead"):
        assert warned(filesystem(**{key: [text]})) == ["path_doubtful"], key
    assert warned(filesystem(denyRead=["./a b", "{x}", "a!b", "~/x y/z"])) == []


@pytest.mark.parametrize(
    "path",
    ["/var/run/docker.sock", "/run/docker.sock", "/run/user/1000/docker.sock", "/run/user/1000/bus",
     "/tmp/.X11-unix/X0",
     "/run/user/1000/podman/podman.sock", "/run/containerd/containerd.sock", "/run/libvirt/libvirt-sock",
     "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/user/1000/wayland-0", "~/.gnupg/S.gpg-agent.ssh",
     "/tmp/ssh-abc/agent.77", "$SSH_AUTH_SOCK", "/run/WSL/1_interop", "/run/snapd.socket", "/tmp/tmux-1000/default",
     "/run", "/var/run", "/", "/run/user/1000", "/tmp", "/run/user"],
)  # fmt: skip
def test_dangerous_sockets_are_accepted_with_a_warning(path: str) -> None:
    tree = network(allowUnixSockets=[path])
    assert warned(tree) == ["socket_dangerous"]
    assert len(build(tree).network.allow_unix_sockets) == 1


def test_ordinary_sockets_are_no_danger() -> None:
    assert warned(network(allowUnixSockets=["/tmp/s.sock", "~/app/run", "/run/postgresql/.s.PGSQL.5432"])) == []


def test_variables_in_socket_paths() -> None:
    policy = build(network(allowUnixSockets=["$SSH_AUTH_SOCK"]))
    assert policy.network.allow_unix_sockets[0].path == "/tmp/ssh-x/agent.1"


def test_all_sockets_warn() -> None:
    assert warned(network(allowAllUnixSockets=True)) == ["sockets_all_allowed"]


def test_a_pattern_that_hides_everything_warns() -> None:
    assert warned({"sandbox": {"ignoreViolations": {"*": ["*"]}}}) == ["ignore_everything"]
    assert warned({"sandbox": {"ignoreViolations": {"*": ["/usr/bin"], "git push": ["/etc/x"]}}}) == []


@pytest.mark.parametrize(
    ("program", "severity"),
    [
        *((name, Severity.ERROR) for name in "sh env:* python3 python3.11 busybox npm b*sh".split()),
        *((name, Severity.WARNING) for name in ("make test-*", "sudo docker")),
    ],
)
def test_excluding_a_program_that_runs_others_is_told_and_counts(program: str, severity: Severity) -> None:
    settings = settings_of({"sandbox": {"excludedCommands": [program]}})
    found = [(problem.slug, problem.severity) for problem in check_settings(settings, SCOPE)]
    assert found == [("exclusion_runs_anything", severity)]
    assert [rule.pattern for rule in build_policy(settings, SCOPE).commands.excluded] == [program]


@pytest.mark.parametrize(
    ("program", "counts"),
    [
        ("docker", True),
        ("/opt/tools/*", True),
        ("~/tools/x", True),
        ("./x", False),
        ("node_modules/.bin/*", False),
        (f"{SCOPE.project}/bin/x", False),
        (f"/opt/..{SCOPE.project}/bin/*", False),
        ("/srv/open/x y", False),
        ("/srv/by/one/bin/x", False),
        ("/srv/by/bin/x", True),
        ("/srv/opener/x", True),
    ],
)
def test_excluding_what_commands_can_write_is_an_error(program: str, counts: bool) -> None:
    filesystem = {"allowWrite": ["/srv/open", "/srv/by/*/bin"]}
    settings = settings_of({"sandbox": {"excludedCommands": [program], "filesystem": filesystem}})
    slugs = [problem.slug for problem in check_settings(settings, SCOPE)]
    assert slugs == ([] if counts else ["exclusion_writable"])
    assert bool(build_policy(settings, SCOPE).commands.excluded) is counts


def test_problems_come_in_order_of_place() -> None:
    tree = network(allowedDomains=["*", "a b"], allowUnixSockets=["/run/docker.sock"]) | {"typo": 1}
    found = check_settings(settings_of(tree), SCOPE)
    assert [problem.origin.line for problem in found] == sorted(problem.origin.line or 0 for problem in found)
    assert len(found) == 4


# --- presets ---


def test_the_caches_preset_opens_caches_and_no_tokens() -> None:
    policy = build({"sandbox": {"presets": ["caches"]}})
    opened = set(paths(policy.files.allow_write))
    assert {"/home/u/.cache/pip", "/home/u/.cargo/registry", "/home/u/.npm/_cacache"} <= opened
    closed = {"/home/u/" + path.removeprefix("~/") for path in PRESETS["credentials"].deny_read}
    assert not opened & closed
    programs = {f"/home/u/{row.name}" for row in PROTECTED if row.where is ProtectedIn.HOME}
    for path in opened:
        assert not any(f"{one}/".startswith(f"{path}/") or f"{path}/".startswith(f"{one}/") for one in programs), path
        assert not any(secret.startswith(path + "/") for secret in closed), path
    assert all(rule.origin.key == "sandbox.presets" for rule in policy.files.allow_write)


def test_the_credentials_preset_closes_well_known_files() -> None:
    closed = set(paths(build({"sandbox": {"presets": ["credentials"]}}).files.deny_read))
    assert {"/home/u/.ssh/id_*", "/home/u/.aws/credentials", "/home/u/.config/gh/hosts.yml", "/home/u/.netrc"} <= closed


def test_a_preset_opens_private_networks_and_no_project_does() -> None:
    assert not build(network(allowedDomains=["*"])).network.private_networks
    tree = {"sandbox": {"presets": [PRIVATE_NETWORKS]}}
    assert build(tree).network.private_networks
    assert not build(tree, Source.PROJECT).network.private_networks


def test_a_preset_either_opens_or_closes() -> None:
    for name, preset in PRESETS.items():
        assert bool(preset.allow_write or name == PRIVATE_NETWORKS) == preset.opens
        assert bool(preset.deny_read) != preset.opens
        assert preset.why
