"""Wide grants, beside ordinary rules of the same kind."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.policy.edit_checks import wide_changes
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.policy.wide_grants import WIDE_GRANTS
from sandboxd.settings.edits import Act, Change
from sandboxd.settings.key_table import TABLE, Effect

SCOPE = PathScope(home="/home/me", project="/home/me/project")
WRITE, READ = "sandbox.filesystem.allowWrite", "sandbox.filesystem.allowRead"
HOSTS, COMMANDS = "sandbox.network.allowedDomains", "sandbox.excludedCommands"


def wide(key: str, value: Any) -> tuple[str, ...]:
    return wide_changes(Change(Act.ADD, key, value), SCOPE)


@pytest.mark.parametrize("key", [WRITE, READ])
@pytest.mark.parametrize(
    "path",
    ["/", "//", "/**", "/*", "/**/*", "~", "~/", "~/**", "~/*", "/home", "/home/me", "/etc", "/usr/", "/usr/**",
     "/usr/local/bin", "/var", "~/.claude", "~/.claude/settings.json", "/p/.claude/settings.local.json",
     "/etc/sandboxd/managed-settings.json", "/etc/claude-code", "/v*", "/[e]tc", "/???", "/h*/me", "/home/m?", "~/.*",
     "~/[.a-z]*", "~/.claude*", "~/.claude/sett*", "~/.c*/settings.json", "/**/etc", "~/./", "/etc/."],
)  # fmt: skip
def test_a_wide_path(key: str, path: str) -> None:
    (text,) = wide(key, path)
    assert ("write" if key == WRITE else "read") in text


@pytest.mark.parametrize(
    "path",
    ["~/.cache/x", "/srv/data", "/home/me/other", "/home/you/x", "./build", "~/*.log", "~/.cache*", "~/*/x", "/v*/x",
     "./**/*.o"],
)  # fmt: skip
def test_an_ordinary_path(path: str) -> None:
    assert wide(WRITE, path) == wide(READ, path) == ()


STARTED = (
    "~/.ssh ~/.ssh/authorized_keys ~/.bashrc ~/.profile ~/.config/autostart ~/.config/autostart/x.desktop ~/.local/bin "
    "~/.config/systemd ~/.config/systemd/user ~/.config ~/.local ~/.zshrc ~/.gitconfig ~/.vimrc ~/bin ~/go/bin "
    "~/x/.vscode /run/user/1000 "
    "/etc/cron.d /etc/cron.d/x /etc/profile.d /etc/ld.so.preload /etc/systemd/system /usr/lib/python3 /usr/local/sbin "
    "/var/spool /run/user /var/cache /var/log /var/lib/apt/lists /var/cache/apt/archives /var/lib/cloud/scripts "
    "/var/spool/cron /var/spool/cron/crontabs/me /run/systemd /run/user/1000/systemd/private /opt/tool/bin /boot/x "
    "/lib/systemd /root/.bashrc /nix/store ~/.pyenv/versions ~/.cargo ~/.cargo/bin ~/.config/nvim ~/.npmrc ~/.docker "
    "~/.ss* ~/.bash* ~/.config/auto* ~/.s*/x /etc/cr* /etc/*/x /**/cron.d ~/**/.ssh /dev/sda /dev/mem"
).split()


@pytest.mark.parametrize("path", STARTED)
def test_a_place_that_programs_are_started_from_or_obey(path: str) -> None:
    (text,) = wide(WRITE, path)
    assert text.startswith(path)


@pytest.mark.parametrize(
    "path",
    ["~/.ssh", "~/.ssh/id_ed25519", "~/.aws", "~/.gnupg", "~/.kube/config", "~/.netrc", "/etc/shadow", "/root",
     "./.env", "~/.docker/config.json", "~/.password-store",
     "~/.mozilla", "~/.git-credentials", "~/x/server.pem", "/dev/mem"],
)  # fmt: skip
def test_a_place_of_secrets(path: str) -> None:
    assert len(wide(READ, path)) == len(wide(WRITE, path)) == 1


@pytest.mark.parametrize("path", ["/usr/src/app", "/usr/local/src/x", "/opt/app", "/var/www", "/var/lib/jenkins/w"])
def test_a_place_among_those_of_the_system(path: str) -> None:
    assert wide(WRITE, path) == ()


SOCKETS, PORTS = "sandbox.network.allowUnixSockets", "sandbox.network.allowLocalPorts"


@pytest.mark.parametrize(
    "path",
    ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/systemd/private", "/run",
     "/run/user/1000/systemd/private", "/run/user/1000/bus", "/tmp/ssh-abc/agent.12",
     "/run/user/1000/gnupg/S.gpg-agent", "/run/user/1000/wayland-0",
     "/tmp/.X11-unix/X0", "/tmp/.X11-unix", "/run/dbus/system_bus_socket",
     "/run/user/1000",
     "~/.gnupg/S.gpg-agent", "~", "/", "/tmp/tmux-1000/default", "/run/user/1000/podman/podman.sock", "/named/agent"],
)  # fmt: skip
def test_a_control_socket_or_a_directory_of_them(path: str) -> None:
    scope = PathScope(home="/home/me", project="/home/me/project", environment={"SSH_AUTH_SOCK": "/named/agent"})
    assert len(wide_changes(Change(Act.ADD, SOCKETS, path), scope)) == 1


@pytest.mark.parametrize("path", ["/run/postgresql/.s.PGSQL.5432", "/tmp/app.sock", "./dev.sock", "/run/mysqld"])
def test_an_ordinary_socket(path: str) -> None:
    assert wide(SOCKETS, path) == ()


def test_a_link_to_a_control_socket() -> None:
    change = Change(Act.ADD, SOCKETS, "/srv/link")
    assert wide_changes(change, SCOPE, {"/srv/link": "/run/docker.sock"}.__getitem__)


@pytest.mark.parametrize("ports", ["1-65535", "1024-65535", "3000-3100", "8000-8016", 2375, "9220-9225", 22])
def test_wide_ports(ports: int | str) -> None:
    assert len(wide(PORTS, ports)) == 1


@pytest.mark.parametrize("ports", [5432, "3000-3005", "8000-8015", 8080])
def test_ordinary_ports(ports: int | str) -> None:
    assert wide(PORTS, ports) == ()


S, N = "sandbox.", "sandbox.network."


@pytest.mark.parametrize(
    ("key", "value", "ordinary"),
    [
        (S + "enabled", False, True),
        (S + "enabledPlatforms", ["macos"], ["linux", "macos", "wsl"]),
        (S + "enabledPlatforms", [], ["wsl", "linux", "macos"]),
        (S + "failIfUnavailable", False, True),
        (S + "enableWeakerNestedSandbox", True, False),
        (S + "enableWeakerNetworkIsolation", True, False),
        (S + "allowAppleEvents", True, False),
        (S + "filesystem.allowGitConfig", True, False),
        (N + "allowAllUnixSockets", True, False),
        (N + "parentProxy", "http://proxy.test:3128", "direct"),
        (N + "allowMachLookup", ["*"], ["com.x.y"]),
        (N + "allowUnixSockets", ["/run/docker.sock"], []),
        (N + "allowLocalPorts", ["1-65535"], [5432]),
        (S + "excludedCommands", ["sudo"], ["gh"]),
        (N + "requests", [{"host": "*", "action": "allow"}], [{"host": "*", "action": "deny"}]),
    ],
)
def test_a_switch_or_list_that_is_set(key: str, value: Any, ordinary: Any) -> None:
    assert len(wide_changes(Change(Act.SET, key, value), SCOPE)) == 1
    assert wide_changes(Change(Act.SET, key, ordinary), SCOPE) == ()
    assert wide_changes(Change(Act.UNSET, key), SCOPE) == ()


def test_every_key_that_opens_is_in_the_table_or_named_here() -> None:
    """A new key that opens something needs a decision."""
    ordinary = {
        "sandbox.autoAllowBashIfSandboxed",  # the default; the sandbox stays
        "sandbox.allowUnsandboxedCommands",  # the default; a person answers each time
        "sandbox.allowOverrides",  # the default; for those who call, not for what they run
        "sandbox.ignoreUnknownRestrictions",  # a caller's only
        "sandbox.allowProjectTrust",  # managed settings only
        "sandbox.network.useWebFetchRules",  # the default; the rules themselves are looked at
        "sandbox.network.allowLocalBinding",  # only with --publish
        "sandbox.network.allowMachRegister",
        "sandbox.network.transparent",  # the default
        "sandbox.network.tls.exclude",  # with rules for requests, the host is closed then
        "sandbox.network.maxNewNames",  # a limit
        "sandbox.credentials.inject",  # opens no host, and commands never hold the value
        *(f"sandbox.limits.{name}" for name in ("maxProcesses", "processes", "memory", "cpu", "time", "tmp")),
        "sandbox.prepareSandboxes",  # a matter of speed; the sandbox is the same
        "sandbox.profiles",  # only with run --profile, whose options open as much
        "sandbox.prompts.notify",  # counts in files of the user and administrator only
        "sandbox.ignoreViolations",  # hides, and opens nothing
        "sandbox.allowPty",
    }
    opening = {key for key, row in TABLE.items() if row.effect in (Effect.OPENS, Effect.BY_ENTRY)}
    named = {key for row in WIDE_GRANTS for key in row.keys}
    assert opening - {"sandbox.network.deniedDomainReasons"} - named == ordinary
    assert named <= set(TABLE)


@pytest.mark.parametrize(
    "host", ["*", "169.254.169.254", "0xA9FEA9FE", "[fd00:ec2::254]", "metadata.google.internal", "100.100.100.200:80"]
)
def test_a_wide_host(host: str) -> None:
    assert len(wide(HOSTS, host)) == 1


@pytest.mark.parametrize("host", ["ok.test", "*.ok.test", "ok.test:443", "127.0.0.1:3000", "8.8.8.8"])
def test_an_ordinary_host(host: str) -> None:
    assert wide(HOSTS, host) == ()


@pytest.mark.parametrize(
    "pattern",
    ["python3.11", "python3:*", "python", "vim", "tar", "tar *", "git", "git:*", "node20", "npm", "/usr/bin/git",
     "gdb", "make", "uv", "psql", "git*", "gi*", "s*",
     "busybox", "env", "xargs:*", "find", "npx", "python3*", "vim.basic", "vim.tiny:*", "sh -c:*", "python3 -c *",
     "git -c *", "tar -x -f *", "git -C:*", "docker", "docker:*", "docker*", "docker run:*", "docker * x", "podman",
     "/usr/bin/podman:*",
     "nerdctl", "kubectl", "kubectl get:*", "docker-compose", "sudo", "sudo apt:*", "su", "su - me *",
     "doas:*", "ssh", "ssh host:*", "xargs", "xargs -n *", "find", "find . *", "make", "make:*",
     "systemctl", "systemctl --user:*", "systemd-run:*", "busctl", "cp", "tee:*", "curl", "install -m *", "crontab",
     "at",
     "unshare", "flatpak", "code", "osascript", "terraform", "ninja", "just", "pre-commit", "R",
     "dd:*", "mount", "virsh", "c*", "sud*"],
)  # fmt: skip
def test_a_program_that_runs_others(pattern: str) -> None:
    assert len(wide(COMMANDS, pattern)) == 1


@pytest.mark.parametrize(
    "pattern",
    ["docker ps:*", "docker compose up", "npm run build", "git push:*", "python3 -V", "gh", "gh pr *", "/opt/x/*",
     "sudo apt update", "make test", "jq", "podman images *", "wc:*", "systemctl --user status x", "ssh host uptime"],
)  # fmt: skip
def test_an_ordinary_program(pattern: str) -> None:
    assert wide(COMMANDS, pattern) == ()


def test_other_ways_to_write_the_same() -> None:
    assert wide("permissions.allow", "Edit(//)") or wide("permissions.allow", "Edit(//**)")
    assert wide_changes(Change(Act.SET, HOSTS, ["ok.test", "*"]), SCOPE)
    assert wide_changes(Change(Act.REMOVE, WRITE, "/"), SCOPE) == ()
    assert wide("sandbox.filesystem.denyWrite", "/") == ()


def test_a_link_to_a_wide_place() -> None:
    change = Change(Act.ADD, WRITE, "/srv/link")
    (text,) = wide_changes(change, SCOPE, {"/srv/link": "/home/me"}.__getitem__)
    assert "/srv/link leads to /home/me" in text
    assert wide_changes(change, SCOPE, {"/srv/link": "/srv/data"}.__getitem__) == ()
