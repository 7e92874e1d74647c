"""Settings of other programs: what is kept, left out, and refused. `tests/rpc/test_imports.py` looks at the effect."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sandboxd.settings.foreign.converters import CONVERTERS, kind_of
from sandboxd.settings.foreign.imported import Imported, SourcePlace
from sandboxd.settings.jsonc import parse_jsonc
from sandboxd.settings.layer import layer_from_values
from sandboxd.settings.origins import Source


def imported(kind: str, tree: dict[str, Any]) -> Imported:
    return CONVERTERS[kind](tree, SourcePlace("/home/u", "/home/u/p"))


def files(done: Imported) -> Any:
    return done.settings["sandbox"].get("filesystem", {})


def network(done: Imported) -> Any:
    return done.settings["sandbox"]["network"]


def left(done: Imported) -> list[str]:
    return [one.entry for one in done.left]


def refused(done: Imported) -> list[str]:
    return [one.entry for one in done.refused]


SRT = {
    "network": {
        "allowedDomains": ["code.test", "*.registry.test", "api.test:443"],
        "deniedDomains": ["bad.registry.test"],
        "allowUnixSockets": ["/run/docker.sock"],
        "allowLocalBinding": False,
    },
    "filesystem": {
        "denyRead": ["~/.ssh", "**/.env"],
        "allowRead": ["."],
        "allowWrite": [".", "/tmp", "~/cache/*", "$HOME/x"],
        "denyWrite": [".env", "config/production"],
    },
    "credentials": {
        "envVars": [{"name": "API_TOKEN", "mode": "mask"}],
        "files": [{"path": "~/.token", "mode": "deny"}],
    },
    "enableWeakerNestedSandbox": True,
    "ripgrep": {"command": "rg"},
}


def test_srt() -> None:
    done = imported("srt", SRT)
    assert not done.refused
    assert network(done) == {
        "strictAllowlist": True,
        "allowedDomains": ["code.test", "*.registry.test", "api.test:443"],
        "deniedDomains": ["bad.registry.test"],
    }
    assert files(done) == {
        "denyRead": ["~/.ssh", "**/.env", "~/.token"],
        "allowRead": ["."],
        "allowWrite": ["/tmp"],
        "denyWrite": [".env", "config/production"],
    }
    assert done.settings["sandbox"]["environment"] == {"remove": ["API_TOKEN"]}
    assert left(done) == [
        "network.allowUnixSockets", "filesystem.allowWrite: ~/cache/*", "filesystem.allowWrite: $HOME/x",
        "enableWeakerNestedSandbox",
    ]  # fmt: skip


def test_a_project_that_the_source_closes_is_closed() -> None:
    done = imported("srt", {"network": {}, "filesystem": {"allowWrite": ["/tmp", "out"]}})
    assert files(done) == {"allowWrite": ["/tmp"], "denyWrite": ["."]}
    assert left(done) == ["filesystem.allowWrite: out"]


@pytest.mark.parametrize(
    ("tree", "entry"),
    [
        ({"network": {"mitmProxy": {"socketPath": "/s"}}}, "network.mitmProxy"),
        ({"network": {"httpProxyPort": 8080}}, "network.httpProxyPort"),
        ({"network": {"deniedDomains": ["https://x.test/"]}}, "network.deniedDomains: https://x.test/"),
        ({"network": {"blockedPorts": [25]}}, "network.blockedPorts"),
        ({"filesystem": {"denyRead": ["a/../b"]}}, "filesystem.denyRead: a/../b"),
        ({"filesystem": {"denyWrite": "x"}}, "filesystem.denyWrite"),
        ({"filesystem": {"denyRead": ["{a,b}"]}}, "filesystem.denyRead: {a,b}"),
        ({"readOnly": True}, "readOnly"),
    ],
)
def test_what_closes_and_cannot_be_kept_refuses(tree: dict[str, Any], entry: str) -> None:
    assert refused(imported("srt", tree)) == [entry]


@pytest.mark.parametrize(
    ("denied", "closed"),
    [
        ("/", True),
        ("~", True),
        ("/home/*", True),
        ("/**/p", True),
        ("~/.*", False),
        ("/home/v", False),
        ("**/p", False),
    ],
)
def test_a_project_that_may_not_be_read_is_closed(denied: str, closed: bool) -> None:
    done = imported("srt", {"filesystem": {"denyRead": [denied], "allowWrite": ["."]}})
    assert ("." in files(done)["denyRead"]) is closed
    assert files(imported("srt", {"filesystem": {"denyRead": ["~"], "allowRead": ["."]}}))["denyRead"] == ["~"]


def test_fence() -> None:
    done = imported(
        "fence",
        {
            "network": {"allowedDomains": ["a.test"], "allowLocalOutbound": True, "allowLocalOutboundPorts": [5432]},
            "filesystem": {"defaultDenyRead": True, "allowRead": ["/opt/sdk"], "allowWrite": ["."], "denyWrite": ["x"]},
            "command": {"deny": ["git push", "npm publish"], "allow": ["git push origin docs"]},
            "ssh": {"allowedHosts": ["*.a.test"]},
            "devices": {"mode": "minimal"},
        },
    )
    assert not done.refused
    assert done.settings["permissions"] == {"deny": ["Bash(git push:*)", "Bash(npm publish:*)", "Bash(ssh:*)"]}
    assert network(done)["allowLocalPorts"] == [5432]
    assert files(done)["denyRead"] == ["/"] and {"/opt/sdk", "/usr", "."} <= set(files(done)["allowRead"])
    assert left(done) == ["command.allow", "ssh.allowedHosts"]
    assert refused(imported("fence", {"extends": "code"})) == ["extends"]
    assert files(imported("fence", {"filesystem": {"allowRead": ["~/x"], "denyRead": ["~"]}}))["denyRead"] == ["~", "."]


def codex(text: str) -> Imported:
    return imported("codex", tomllib.loads(text))


def test_modes_of_codex() -> None:
    done = codex(
        'sandbox_mode = "workspace-write"\napproval_policy = "never"\n'
        '[sandbox_workspace_write]\nwritable_roots = ["/srv/shared"]\nnetwork_access = true\n'
        '[shell_environment_policy]\nexclude = ["AWS_*"]\n'
    )
    assert files(done)["allowWrite"] == ["/srv/shared"]
    assert {"./.git", "/srv/shared/.git", "./.codex"} <= set(files(done)["denyWrite"])
    assert network(done) == {"strictAllowlist": False}
    assert done.settings["sandbox"]["environment"]["remove"][0].upper() == "AWS_*"
    assert left(done) == ["sandbox_workspace_write.network_access", "approval_policy"]
    modes = ("read-only", "danger-full-access")
    for text in ("", *(f'sandbox_mode = "{mode}"' for mode in modes), 'default_permissions = ":read-only"'):
        assert files(codex(text))["denyWrite"] == ["."], text
    assert not files(codex('default_permissions = ":workspace"'))["allowWrite"]
    assert refused(codex('[shell_environment_policy]\ninherit = "none"')) == ["shell_environment_policy"]
    assert refused(codex('profile = "p"')) == ["profile"]


PROFILE = """
default_permissions = "edit"
[permissions.edit.filesystem]
":minimal" = "read"
"~/docs" = "read"
"~/docs/drafts" = "write"
[permissions.edit.filesystem.":workspace_roots"]
"." = "write"
".git" = "read"
"**/*.env" = "deny"
[permissions.edit.network]
enabled = true
mode = "full"
[permissions.edit.network.domains]
"api.test" = "allow"
"**.all.test" = "allow"
"bad.test" = "deny"
"""


def test_permission_profiles_of_codex() -> None:
    done = codex(PROFILE)
    assert not done.refused
    assert files(done)["denyRead"] == ["/", "./**/*.env"]
    assert {"~/docs", ".", "~/docs/drafts", "/usr"} <= set(files(done)["allowRead"])
    assert files(done)["allowWrite"] == ["~/docs/drafts"]
    assert files(done)["denyWrite"] == ["./.git", "./**/*.env"]  # ~/docs is not writable anyway
    assert network(done)["allowedDomains"] == ["api.test", ".all.test"]
    assert network(done)["deniedDomains"] == ["bad.test"]
    limited = codex(PROFILE.replace('mode = "full"', 'mode = "limited"'))
    assert "allowedDomains" not in network(limited)
    open_reads = codex(PROFILE.replace('":minimal"', '":root"'))
    assert files(open_reads)["denyRead"] == ["./**/*.env"] and "allowRead" not in files(open_reads)
    section = "[permissions.edit.filesystem]"
    for line in ('extends = ":workspace"', "strict = true"):
        assert refused(codex(PROFILE.replace(section, f"[permissions.edit]\n{line}\n{section}"))), line


def test_claude_code_has_our_form() -> None:
    tree = {
        "model": "x",
        "hooks": {},
        "permissions": {"deny": ["Read(.env)"]},
        "sandbox": {"excludedCommands": ["docker"]},
    }
    done = imported("claude", tree)
    assert done.settings == {
        "permissions": {"deny": ["Read(.env)"]},
        "sandbox": {"excludedCommands": ["docker"], "enabled": True},
    }
    assert left(done) == ["model", "hooks"]


def test_results_are_settings_without_problems() -> None:
    for done in (imported("srt", SRT), codex(PROFILE), imported("fence", {"filesystem": {"strictDenyRead": True}})):
        assert layer_from_values(done.settings, Source.CLI).problems == ()


def test_the_program_is_told_by_name_and_keys() -> None:
    assert set(CONVERTERS) == {"srt", "codex", "fence", "claude"}
    rows: list[tuple[dict[str, Any], str]] = [
        ({}, "config.toml"), ({"permissions": {}}, "settings.json"), ({"network": {}}, "fence.jsonc"),
        ({"network": {}, "command": {}}, "x.json"), ({"filesystem": {}}, ".srt-settings.json"), ({}, "x"),
    ]  # fmt: skip
    found = [kind_of(tree, name) for tree, name in rows]
    assert found == ["codex", "claude", "fence", "fence", "srt", None]


# Files of the shape that the documentation of each program publishes: what is left out of them, and what refuses.
_SSH = [f"ssh.{key}" for key in ("allowedHosts", "deniedHosts", "allowedCommands", "inheritDeny")]
PUBLISHED: dict[str, tuple[str, list[str], list[str], tuple[str, ...]]] = {
    "srt-settings.json": ("srt", ["network.allowUnixSockets"], [], ("src/", "test/", "/tmp")),
    "fence.jsonc": (
        "fence",
        ["network.allowLocalBinding", "filesystem.allowWrite: ~/.agent*", "filesystem.allowWrite: ~/.zcompdump*"],
        [],
        ("/tmp", "~/.cache/**", "~/.agent/**", "~/.npm/_cacache"),
    ),
    "fence-ssh.json": ("fence", _SSH, ["extends"], ()),
    "codex-mode.toml": (
        "codex",
        ["shell_environment_policy.set", "approval_policy", "mcp_servers", "notify"],
        [],
        ("/srv/shared", "~/.pyenv/shims"),
    ),
    "codex-profile.toml": (
        "codex",
        ["glob_scan_max_depth", "permissions.project.network.unix_sockets", "approval_policy"],
        [],
        ("~/other",),
    ),
    "claude-settings.json": (
        "claude",
        ["sandbox.network.allowUnixSockets", "allowManagedHooksOnly", "strictKnownMarketplaces", "env"],
        [],
        ("//tmp/build", "~/.kube", ".claude/skills/"),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_kept_but_for_what_is_told(name: str) -> None:
    text = (Path(__file__).parent / "published" / name).read_text()
    tree: Any = tomllib.loads(text) if name.endswith(".toml") else parse_jsonc(text).root.value
    kind, leaves, refuses, writable = PUBLISHED[name]
    assert kind_of(tree, name) == kind
    done = imported(kind, tree)
    assert (left(done), refused(done)) == (leaves, refuses)
    assert tuple(files(done).get("allowWrite", ())) == writable
    assert layer_from_values(done.settings, Source.CLI).problems == ()
    source = tree.get("sandbox", tree)
    for section in ("network", "filesystem"):
        for key in ("deniedDomains", "denyRead", "denyWrite"):
            kept = set(done.settings["sandbox"].get(section, {}).get(key, ()))
            assert kept >= set(source.get(section, {}).get(key, ())), "what closes is kept"


def test_published_files_are_each_tried() -> None:
    assert {one.name for one in (Path(__file__).parent / "published").iterdir()} == set(PUBLISHED)
