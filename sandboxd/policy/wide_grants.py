"""Wide grants: changes that allow very much and need a confirmation.

`WIDE_GRANTS` is the whole list. The command line, `settings.update`, `settings.exclude_command` and an answer `always`
to a prompt go through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from sandboxd.policy.commands.command_patterns import parse_command_pattern
from sandboxd.policy.commands.wide_programs import why_wide_program
from sandboxd.policy.decision import Behavior
from sandboxd.policy.hosts.addresses import refuse_address
from sandboxd.policy.hosts.host_patterns import Host
from sandboxd.policy.hosts.parent_proxies import METADATA_NAMES
from sandboxd.policy.model import PathRule, Policy, PortRange
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.policy.paths.wide_places import why_wide_place
from sandboxd.policy.sockets.control_sockets import control_socket
from sandboxd_client.records import dataclass

METADATA: Final = "serves metadata of cloud machines, which includes credentials"
MOST_PORTS: Final = 16
"""Most ports of one range that are no wide grant."""
CONTROL_PORTS: Final = {
    22: "logs in to this machine",
    2375: "starts containers, which gives control of this host",
    2376: "starts containers, which gives control of this host",
    2379: "holds the state of a cluster",
    5037: "runs commands on attached devices",
    6443: "controls a cluster",
    9222: "controls a browser with its logins",
    9229: "runs code in a program that is being debugged",
    10250: "runs commands in containers",
}
"""Servers of the loopback that run commands of their clients."""


@dataclass(frozen=True, slots=True)
class GrantContext:
    """The scope of a change; `real_path` follows links."""

    scope: PathScope
    real_path: Callable[[str], str] = str

    @property
    def home(self) -> str:
        return self.scope.home


Sentences = Callable[[Policy, GrantContext], Iterator[str]]


@dataclass(frozen=True, slots=True)
class WideGrant:
    """Settings with one reason; `sentences` describe the wide rules of a change."""

    keys: tuple[str, ...]
    what: str
    why: str
    sentences: Sentences


def wide_grants(policy: Policy, keys: frozenset[str], context: GrantContext) -> tuple[str, ...]:
    """Return a sentence for each wide rule of a policy with the changed `keys`."""
    rows = (row for row in WIDE_GRANTS if not keys.isdisjoint(row.keys))
    return tuple(dict.fromkeys(sentence for row in rows for sentence in row.sentences(policy, context)))


def wide_path(path: str, home: str, real_path: Callable[[str], str], *, write: bool) -> str:
    """Return the power that a path gives, also by where it leads; empty if none."""
    return why_wide_place(path, home, write=write) or why_wide_place(real_path(path), home, write=write)


def serves_metadata(host: Host) -> bool:
    """Return whether a host is a metadata service, by name or address."""
    refusal = None if host.address is None else refuse_address(host.address)
    by_address = refusal is not None and ("metadata" in refusal.text or "host agent" in refusal.text)
    return host.name in METADATA_NAMES or by_address


def _paths(policy: Policy, context: GrantContext) -> Iterator[str]:
    for rules, verb in ((policy.files.allow_write, "write"), (policy.files.allow_read, "read")):
        for rule in rules:
            if text := _of_path(rule, verb, context):
                yield text


def _of_path(rule: PathRule, verb: str, context: GrantContext) -> str:
    shown, write = rule.text or rule.path, verb == "write"
    if why := why_wide_place(rule.path, context.home, write=write, glob=rule.glob):
        return f"{shown} lets commands {verb} {why}"
    target = rule.path if rule.glob else context.real_path(rule.path)
    why = "" if target == rule.path else why_wide_place(target, context.home, write=write)
    return f"{shown} leads to {target}, and lets commands {verb} {why}" if why else ""


def _hosts(policy: Policy, context: GrantContext) -> Iterator[str]:
    for rule in policy.network.allowed:
        host = rule.pattern.host
        if host is None:
            yield f"{rule.pattern.text} lets commands reach every host"
        elif serves_metadata(host):
            yield f"{rule.pattern.text} {METADATA}"
    for one in policy.network.requests:
        if one.behavior is Behavior.ALLOW and one.pattern.host is None:
            yield f"{one.text} lets commands send requests to every host"


def _exclusions(policy: Policy, context: GrantContext) -> Iterator[str]:
    for rule in policy.commands.excluded:
        if why := why_wide_program(parse_command_pattern(rule.pattern)):
            yield f"{rule.pattern} excludes a program that {why}, so commands do anything outside the sandbox with it"


def _sockets(policy: Policy, context: GrantContext) -> Iterator[str]:
    for rule in policy.network.allow_unix_sockets:
        for path in dict.fromkeys((rule.path, context.real_path(rule.path))):
            gives = control_socket(path, context.scope.environment)
            wide = why_wide_place(path, context.home, write=False)
            if gives or (wide and not path.startswith(("/dev/", "/run/"))) or path in policy.network.control_sockets:
                yield f"{rule.path} {gives or f'lets commands use every socket of {wide or path}'}"
                break


def _ports(policy: Policy, context: GrantContext) -> Iterator[str]:
    for ports in policy.network.allow_local_ports:
        if text := _of_ports(ports):
            yield text


def _of_ports(ports: PortRange) -> str:
    count = ports.last - ports.first + 1
    if count > MOST_PORTS:
        return f"{ports} lets commands reach {count} ports of this machine, whatever listens there"
    known = next((f"{port} {why}" for port, why in CONTROL_PORTS.items() if ports.first <= port <= ports.last), "")
    return f"port {known}" if known else ""


def _switch(is_wide: Callable[[Policy], bool], sentence: str) -> Sentences:
    def sentences(policy: Policy, context: GrantContext) -> Iterator[str]:
        if is_wide(policy):
            yield sentence

    return sentences


def _proxy(policy: Policy, context: GrantContext) -> Iterator[str]:
    proxy = policy.network.parent_proxy
    if proxy is not None and proxy.host is not None:
        yield f"the proxy {proxy.host.uri} sees every connection of commands, and can change what is not encrypted"


_BARE: Final = "agents run commands without the sandbox"

WIDE_GRANTS: Final = (
    WideGrant(
        (
            "sandbox.filesystem.allowWrite",
            "sandbox.filesystem.allowRead",
            "permissions.allow",
            "permissions.additionalDirectories",
            "sandbox.presets",
        ),
        "the root, a home directory, the system, settings files, places that programs start from, secrets, devices",
        "programs outside the sandbox run or obey what is written there, or secrets are read",
        _paths,
    ),
    WideGrant(
        ("sandbox.network.allowedDomains", "sandbox.network.requests", "permissions.allow"),
        "every host, metadata services of clouds",
        "whatever a command can read may be sent anywhere; metadata include credentials",
        _hosts,
    ),
    WideGrant(
        ("sandbox.excludedCommands",),
        "programs that run others, start containers or services, or write files anywhere, with arguments left open",
        "a command does anything outside the sandbox with them",
        _exclusions,
    ),
    WideGrant(
        ("sandbox.network.allowUnixSockets",),
        "control sockets (containers, systemd, D-Bus, agents for keys, X11, Wayland, editors), and directories of them",
        "the program at the other end acts for the command outside the sandbox",
        _sockets,
    ),
    WideGrant(
        ("sandbox.network.allowAllUnixSockets",),
        "`true`",
        "services of this machine act for commands",
        _switch(
            lambda policy: policy.network.allow_all_unix_sockets,
            "allowAllUnixSockets lets commands use every socket but the known control sockets, so services of this "
            "machine can act for them",
        ),
    ),
    WideGrant(
        ("sandbox.network.allowLocalPorts", "sandbox.network.allowedDomains", "permissions.allow"),
        f"more than {MOST_PORTS} ports at once; ports of servers that run what they are told "
        f"({', '.join(map(str, CONTROL_PORTS))})",
        "servers of the loopback trust the programs of this machine",
        _ports,
    ),
    WideGrant(("sandbox.network.parentProxy",), "any proxy", "it sees every connection", _proxy),
    WideGrant(
        ("sandbox.enabled",),
        "`false`",
        "agents run commands without the sandbox",
        _switch(lambda policy: not policy.enabled, f"with sandbox.enabled false {_BARE}"),
    ),
    WideGrant(
        ("sandbox.enabledPlatforms",),
        "a list without one of the platforms",
        "agents run commands there without the sandbox",
        _switch(
            lambda policy: not {"linux", "macos"} <= set(policy.enabled_platforms or ()),
            f"on a platform that enabledPlatforms leaves out {_BARE}",
        ),
    ),
    WideGrant(
        ("sandbox.failIfUnavailable",),
        "`false`",
        "commands run without the sandbox where it cannot be started",
        _switch(
            lambda policy: not policy.fail_if_unavailable,
            f"with failIfUnavailable false {_BARE} where it cannot be started, when a person says yes",
        ),
    ),
    WideGrant(
        ("sandbox.enableWeakerNestedSandbox",),
        "`true`",
        "the container's /proc is visible, and with it other processes",
        _switch(
            lambda policy: policy.platform.weaker_nested_sandbox,
            "enableWeakerNestedSandbox shows commands the container's processes, and fewer calls are looked at",
        ),
    ),
    WideGrant(
        ("sandbox.enableWeakerNetworkIsolation",),
        "`true`",
        "macOS: the trust service reaches the network for commands",
        _switch(
            lambda policy: policy.platform.weaker_network_isolation,
            "enableWeakerNetworkIsolation lets commands use a service that reaches the network for them",
        ),
    ),
    WideGrant(
        ("sandbox.allowAppleEvents",),
        "`true`",
        "macOS: other programs act for commands",
        _switch(
            lambda policy: policy.platform.allow_apple_events,
            "allowAppleEvents lets commands control other programs",
        ),
    ),
    WideGrant(
        ("sandbox.network.allowMachLookup",),
        "a pattern",
        "macOS: services act for commands",
        _switch(
            lambda policy: any("*" in name for name in policy.network.allow_mach_lookup),
            "a pattern in allowMachLookup lets commands use services that act for them",
        ),
    ),
    WideGrant(
        ("sandbox.filesystem.allowGitConfig",),
        "`true`",
        "git outside the sandbox runs commands that `.git/config` names",
        _switch(
            lambda policy: policy.files.allow_git_config,
            "allowGitConfig lets commands write configuration that git obeys outside the sandbox",
        ),
    ),
)
