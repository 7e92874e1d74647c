"""No project file allows anything that was not allowed without it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.policy.build import build_policy
from sandboxd.policy.commands.command_decisions import decide_command
from sandboxd.policy.decision import Behavior
from sandboxd.policy.hosts.host_decisions import decide_host
from sandboxd.policy.hosts.host_patterns import parse_host
from sandboxd.policy.model import Policy
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.layer import layer_from_values
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source

STRICTNESS = {Behavior.ALLOW: 0, Behavior.ASK: 1, Behavior.DENY: 2}
HOSTS = ["ok.test", "a.ok.test", "no.test", "10.0.0.1", "127.0.0.1", "example.com"]
COMMANDS = ["ls", "docker ps", "docker ps; curl x", "git push", "rm x", "sh -c 'rm x'", "", "'"]

_hosts = st.lists(st.sampled_from(["ok.test", "*.ok.test", "no.test", "*", "10.0.0.1", "127.0.0.1"]), max_size=3)
_commands = st.lists(st.sampled_from(["docker", "curl:*", "git push:*", "ls", "rm:*"]), max_size=3)
_paths = st.lists(st.sampled_from(["~", "~/a", ".", "./b", "/tmp/**", "*.c"]), max_size=3)
_rules = st.lists(
    st.sampled_from(["Bash", "Bash(docker:*)", "Bash(rm:*)", "WebFetch(domain:ok.test)", "Read(~/a)", "Edit(./b)"]),
    max_size=3,
)
_switch = st.booleans()


def _some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


FILES = _some(
    permissions=_some(allow=_rules, deny=_rules, ask=_rules),
    sandbox=_some(
        enabled=_switch,
        failIfUnavailable=_switch,
        autoAllowBashIfSandboxed=_switch,
        allowUnsandboxedCommands=_switch,
        enabledPlatforms=st.sampled_from([["linux"], ["macos"], []]),
        excludedCommands=_commands,
        presets=st.lists(st.sampled_from(["caches", "credentials"]), max_size=2),
        network=_some(
            allowedDomains=_hosts,
            deniedDomains=_hosts,
            strictAllowlist=_switch,
            onUnlisted=st.sampled_from(["ask", "deny"]),
            useWebFetchRules=_switch,
            allowManagedDomainsOnly=_switch,
            allowUnixSockets=st.just(["/a.sock"]),
        ),
        filesystem=_some(
            allowWrite=_paths, denyWrite=_paths, denyRead=_paths, allowRead=_paths, allowGitConfig=_switch
        ),
    ),
)


def policy_of(files: list[tuple[Source, dict[str, Any]]]) -> Policy:
    layers = [layer_from_values(values, source) for source, values in files]
    return build_policy(merge(layers), PathScope("/home/u", "/home/u/p"))


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from([Source.MANAGED, Source.LOCAL, Source.USER]), FILES),
        max_size=3,
        unique_by=lambda f: f[0],
    ),
    FILES,
)
def test_a_project_file_allows_nothing_new(files: list[tuple[Source, dict[str, Any]]], project: dict[str, Any]) -> None:
    without, with_project = policy_of(files), policy_of([*files, (Source.PROJECT, project)])
    for host in HOSTS:
        before = decide_host(without.network, parse_host(host), 443).behavior
        assert STRICTNESS[decide_host(with_project.network, parse_host(host), 443).behavior] >= STRICTNESS[before], host
    for command in COMMANDS:
        for unavailable in ("", "no bwrap"):
            for outside in (False, True):
                one = decide_command(without, command, dangerously_disable=outside, unavailable=unavailable)
                two = decide_command(with_project, command, dangerously_disable=outside, unavailable=unavailable)
                # Into the sandbox and without a question is stricter than outside it and without one.
                rank_one = (STRICTNESS[one.behavior] == 2, one.sandboxed, STRICTNESS[one.behavior])
                rank_two = (STRICTNESS[two.behavior] == 2, two.sandboxed, STRICTNESS[two.behavior])
                assert rank_two >= rank_one, command
    for name in ("allow_write", "allow_read"):
        assert {rule.path for rule in getattr(with_project.files, name)} <= {
            r.path for r in getattr(without.files, name)
        }
    for name in ("deny_write", "deny_read"):
        assert {rule.path for rule in getattr(with_project.files, name)} >= {
            r.path for r in getattr(without.files, name)
        }
    assert with_project.files.allow_git_config <= without.files.allow_git_config
    assert {s.path for s in with_project.network.allow_unix_sockets} <= {
        s.path for s in without.network.allow_unix_sockets
    }
