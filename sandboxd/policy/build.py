"""From merged settings to a Policy: every path absolute, every host and command pattern parsed, or no policy at all.

Two kinds of fault in a list entry, and the difference is the point: an entry that only *opens* something is left out
with a warning, which is stricter than what was meant; an entry that *closes* something cannot be left out, so the whole
policy is refused. Relative paths refer to the project directory, whichever file they stand in. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_network
from typing import Any, TypeVar

from sandboxd.errors import SettingsError
from sandboxd.policy.command_patterns import CommandPatternError, parse_command_pattern, parse_exclusion
from sandboxd.policy.control_sockets import canonical_socket_path, control_socket
from sandboxd.policy.display import neutralise
from sandboxd.policy.host_decisions import is_local_name
from sandboxd.policy.hosts import HostPattern, HostPatternError
from sandboxd.policy.policy import (
    AuditPolicy,
    CommandPolicy,
    CommandRule,
    FilePolicy,
    HostRule,
    Missing,
    NetworkPolicy,
    PathRule,
    PlatformPolicy,
    Policy,
    PortRange,
    SocketRule,
)
from sandboxd.policy.rule_paths import RulePathError, Scope, doubt, expand_rule_path
from sandboxd.policy.shell_programs import INTERPRETERS, LAUNCHERS
from sandboxd.policy.socket_variables import ABSTRACT, named_sockets
from sandboxd.policy.unreachable import unreachable_rules
from sandboxd.policy.upstream import ParentProxy, UpstreamError, parse_parent, without_password
from sandboxd.settings.layer import Placed
from sandboxd.settings.merge import Settings
from sandboxd.settings.origins import Origin
from sandboxd.settings.presets import PRESETS
from sandboxd.settings.problems import Problem, Severity, error, first_fatal, warning
from sandboxd.settings.rules import Feeds, Kind, parse_rule

T = TypeVar("T")
_N = "sandbox.network."
_F = "sandbox.filesystem."
MAX_REASON = 500


def build_policy(settings: Settings, scope: Scope, generation: int = 0) -> Policy:
    """The policy these settings mean in this scope.

    Raises `SettingsError` with the place of the first fault that makes them unusable: a file that could not be read or
    parsed, a value of the wrong type, an entry that closes something and cannot be understood. `data["problems"]` has
    all of them as text.
    """
    policy, problems = evaluate(settings, scope)
    fatal = first_fatal(problems)
    if fatal is not None:
        fault = fatal.as_error()
        raise SettingsError(
            fault.slug,
            fault.message,
            hint=fault.hint,
            data={**fault.data, "problems": [str(problem) for problem in problems if problem.fatal]},
        )
    return replace(policy, generation=generation)


def check_settings(settings: Settings, scope: Scope) -> tuple[Problem, ...]:
    """Everything that is wrong or doubtful in these settings, files and rules alike, in order of file and line."""
    _, problems = evaluate(settings, scope)
    return tuple(sorted(problems, key=lambda p: (p.origin.file or "", p.origin.line or 0, p.origin.column or 0)))


def evaluate(settings: Settings, scope: Scope) -> tuple[Policy, tuple[Problem, ...]]:
    """The policy and all problems. The policy must not be used when one of the problems is fatal."""
    builder = _Builder(settings, scope)
    policy = builder.policy()
    return policy, tuple(builder.problems)


class _Builder:
    def __init__(self, settings: Settings, scope: Scope) -> None:
        self.settings = settings
        self.scope = scope
        self.problems: list[Problem] = list(settings.problems)
        for ignored in settings.ignored:
            message = f"{ignored.key} is ignored: {ignored.reason}"
            self.problems.append(warning("settings_ignored", message, ignored.origin))

    def policy(self) -> Policy:
        value = self.value
        policy = Policy(
            enabled=value("sandbox.enabled"),
            enabled_origin=self.settings.scalar("sandbox.enabled").origin,
            enabled_platforms=value("sandbox.enabledPlatforms"),
            enabled_platforms_origin=self.settings.scalar("sandbox.enabledPlatforms").origin,
            fail_if_unavailable=value("sandbox.failIfUnavailable"),
            fail_if_unavailable_origin=self.settings.scalar("sandbox.failIfUnavailable").origin,
            files=self.files(),
            network=self.network(),
            commands=self.commands(),
            platform=self.platform(),
            environment_remove=self.texts("sandbox.environment.remove"),
            max_processes=self.value("sandbox.limits.maxProcesses"),
            max_processes_origin=self.origin("sandbox.limits.maxProcesses"),
            allow_overrides=value("sandbox.allowOverrides"),
            audit=self.audit(),
            report_violations=value("sandbox.reportViolations"),
            ignore_violations=self.ignored_violations(),
        )
        return replace(policy, warnings=tuple(self.warnings()))

    def value(self, key: str) -> Any:
        return self.settings.scalar(key).value

    def origin(self, key: str) -> Origin:
        return self.settings.scalar(key).origin

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(entry.value for entry in self.settings.entries(key))

    def warnings(self) -> Iterator[str]:
        """What a person should know about a policy that is in force."""
        for problem in self.problems:
            if problem.severity is Severity.WARNING or not problem.fatal:
                yield str(problem)

    def rules(self, kind: Kind, feeds: Feeds) -> Iterator[Placed]:
        """The contents of the permission rules that become what `feeds` says."""
        for entry in self.settings.entries(f"permissions.{kind.value}"):
            rule = parse_rule(entry.value)
            if rule.feeds(kind) is feeds:
                yield Placed(rule.content, entry.origin)

    def collect(
        self, entries: Iterator[Placed] | tuple[Placed, ...], make: Callable[[Any, Origin], T], *, opens: bool
    ) -> Iterator[T]:
        """Convert entries; report those that cannot be converted, fatally where they would have closed something."""
        for entry in entries:
            try:
                yield make(entry.value, entry.origin)
            except (RulePathError, CommandPatternError, HostPatternError, _BadEntry) as fault:
                report = error(fault.slug, fault.message, entry.origin, hint=fault.hint, fatal=not opens)
                if opens and fault.slug == "path_variable_unset":
                    report = warning(
                        fault.slug, fault.message + "; the entry has no effect", entry.origin, hint=fault.hint
                    )
                self.problems.append(report)

    # --- files ---

    def files(self) -> FilePolicy:
        return FilePolicy(
            allow_write=self.paths(_F + "allowWrite", Kind.ALLOW, Feeds.ALLOW_WRITE, opens=True),
            deny_write=self.paths(_F + "denyWrite", Kind.DENY, Feeds.DENY_WRITE, opens=False),
            deny_read=(
                *self.paths(_F + "denyRead", Kind.DENY, Feeds.DENY_READ, opens=False),
                *self.files_with_passwords(),
            ),
            allow_read=self.paths(_F + "allowRead", None, None, opens=True),
            allow_git_config=self.value(_F + "allowGitConfig"),
            protected_search_depth=self.value("sandbox.mandatoryDenySearchDepth"),
            settings_files=self.settings.files,
        )

    def paths(self, key: str, kind: Kind | None, feeds: Feeds | None, *, opens: bool) -> tuple[PathRule, ...]:
        entries = list(self.settings.entries(key))
        if kind is not None and feeds is not None:
            entries += self.rules(kind, feeds)
        presets = tuple(self.preset_paths(feeds))
        return (
            *self.collect(tuple(entries), self.path_rule, opens=opens),
            *self.collect(presets, self.preset_rule, opens=opens),
        )

    def files_with_passwords(self) -> Iterator[PathRule]:
        """Settings files in which the password of a parent proxy stands: no command may read one."""
        for layer in self.settings.layers:
            placed = layer.values.get(_N + "parentProxy")
            if layer.file is None or not isinstance(placed, Placed) or not layer.may_widen:
                continue
            if without_password(str(placed.value)) != placed.value:
                message = f"{layer.file} holds a password of parentProxy, so no command may read this file"
                hint = "keep the password in HTTPS_PROXY of the daemon's environment"
                self.problems.append(warning("proxy_password_in_file", message, placed.origin, hint=hint))
                yield PathRule(layer.file, placed.origin, text=layer.file)

    def preset_paths(self, feeds: Feeds | None) -> Iterator[Placed]:
        for entry in self.settings.entries("sandbox.presets"):
            preset = PRESETS.get(entry.value)
            if preset is None:
                if feeds is Feeds.ALLOW_WRITE:  # once is enough
                    known = ", ".join(sorted(PRESETS))
                    message = f"unknown preset {entry.value!r}"
                    self.problems.append(error("preset_unknown", message, entry.origin, hint=f"known presets: {known}"))
                continue
            paths = {Feeds.ALLOW_WRITE: preset.allow_write, Feeds.DENY_READ: preset.deny_read}.get(
                feeds or Feeds.NOTHING, ()
            )
            yield from (Placed(path, entry.origin) for path in paths)

    def path_rule(self, text: str, origin: Origin) -> PathRule:
        expanded = expand_rule_path(text, self.scope)
        found = doubt(text)
        if found is not None:
            self.problems.append(warning("path_doubtful", found[0], origin, hint=found[1]))
        return PathRule(expanded.path, origin, expanded.glob, text)

    def preset_rule(self, text: str, origin: Origin) -> PathRule:
        missing = Missing.MAKE if text.endswith("/") else Missing.IGNORE
        return replace(self.path_rule(text, origin), missing=missing)

    # --- network ---

    def network(self) -> NetworkPolicy:
        value = self.value
        allowed = [*self.settings.entries(_N + "allowedDomains")]
        if value(_N + "useWebFetchRules"):
            allowed += self.rules(Kind.ALLOW, Feeds.ALLOWED_HOST)
        denied = (*self.settings.entries(_N + "deniedDomains"), *self.rules(Kind.DENY, Feeds.DENIED_HOST))
        allowed_rules = tuple(self.collect(tuple(allowed), self.allowed_host, opens=True))
        denied_rules = tuple(self.collect(denied, self.denied_host, opens=False))
        self.problems += unreachable_rules(allowed_rules, denied_rules)
        sockets = tuple(self.collect(self.settings.entries(_N + "allowUnixSockets"), self.socket, opens=True))
        if value(_N + "allowAllUnixSockets"):
            self.problems.append(
                warning(
                    "sockets_all_allowed",
                    "every Unix socket may be used, so services of this machine can act for the sandbox",
                    self.settings.scalar(_N + "allowAllUnixSockets").origin,
                    hint="list the sockets that are needed in sandbox.network.allowUnixSockets",
                )
            )
        proxy = self.settings.scalar(_N + "parentProxy")
        return NetworkPolicy(
            allowed=allowed_rules,
            denied=denied_rules,
            denied_reasons=tuple(
                self.collect(self.settings.entries(_N + "deniedDomainReasons"), self.denied_reason, opens=True)
            ),
            strict_allowlist=value(_N + "strictAllowlist")
            or value(_N + "onUnlisted") == "deny"
            or value(_N + "allowManagedDomainsOnly"),  # nobody can be asked for what only managed settings may allow
            denied_addresses=tuple(
                self.collect(self.settings.entries(_N + "deniedResolvedAddresses"), _network, opens=False)
            ),
            allow_unix_sockets=sockets,
            allow_all_unix_sockets=value(_N + "allowAllUnixSockets"),
            control_sockets=tuple(
                canonical_socket_path(path) for _, path in named_sockets(self.scope.environment) if path != ABSTRACT
            ),
            allow_local_binding=value(_N + "allowLocalBinding"),
            allow_local_ports=tuple(self.collect(self.settings.entries(_N + "allowLocalPorts"), _ports, opens=True)),
            allow_mach_lookup=self.texts(_N + "allowMachLookup"),
            allow_mach_register=self.texts(_N + "allowMachRegister"),
            http_proxy_port=value(_N + "httpProxyPort"),
            socks_proxy_port=value(_N + "socksProxyPort"),
            parent_proxy=next(self.collect((proxy,), _proxy, opens=False), None) if proxy.value else None,
            transparent=value(_N + "transparent"),
            check_server_name=value(_N + "checkServerName"),
        )

    def allowed_host(self, text: str, origin: Origin) -> HostRule:
        pattern = HostPattern.parse(text)
        if pattern.is_broad:
            message = f"{text!r} allows hosts of unrelated owners" if pattern.host else f"{text!r} allows every host"
            self.problems.append(warning("host_pattern_broad", message, origin, hint="list the hosts that are needed"))
        if pattern.host is not None and is_local_name(pattern.host):
            message = f"{text!r} opens no port of this machine: inside, it is the sandbox's own loopback"
            hint = f"list the ports that are needed in {_N}allowLocalPorts"
            self.problems.append(warning("host_pattern_local", message, origin, hint=hint))
        return HostRule(pattern, origin)

    def denied_host(self, text: str, origin: Origin) -> HostRule:
        return HostRule(HostPattern.parse(text, public_suffix=True), origin)

    def denied_reason(self, pair: tuple[str, str], origin: Origin) -> tuple[HostPattern, str]:
        return HostPattern.parse(pair[0], public_suffix=True), neutralise(pair[1], MAX_REASON)

    def socket(self, text: str, origin: Origin) -> SocketRule:
        expanded = expand_rule_path(text, self.scope)
        if expanded.glob:
            raise _BadEntry(
                "socket_glob", f"{text!r} is a pattern, and sockets are listed one by one", "or name their directory"
            )
        path = canonical_socket_path(expanded.path)
        for own in self.scope.own_paths:
            if path == own or path.startswith(own + "/"):
                raise _BadEntry("socket_own", f"{text!r} belongs to sandboxd itself and cannot be allowed")
        gives = control_socket(path, self.scope.environment)
        if gives is not None:
            message = f"{text!r} {gives}: a command that uses it is not confined any more"
            self.problems.append(warning("socket_dangerous", message, origin))
        return SocketRule(path, origin)

    # --- commands ---

    def commands(self) -> CommandPolicy:
        def bash(kind: Kind) -> tuple[CommandRule, ...]:
            return tuple(
                self.collect(tuple(self.rules(kind, Feeds.COMMAND)), self.command_rule, opens=kind is Kind.ALLOW)
            )

        return CommandPolicy(
            auto_allow=self.value("sandbox.autoAllowBashIfSandboxed"),
            auto_allow_origin=self.settings.scalar("sandbox.autoAllowBashIfSandboxed").origin,
            allow_unsandboxed=self.value("sandbox.allowUnsandboxedCommands"),
            allow_unsandboxed_origin=self.settings.scalar("sandbox.allowUnsandboxedCommands").origin,
            excluded=tuple(self.collect(self.settings.entries("sandbox.excludedCommands"), self.exclusion, opens=True)),
            allow=bash(Kind.ALLOW),
            ask=bash(Kind.ASK),
            deny=bash(Kind.DENY),
        )

    def command_rule(self, text: str | None, origin: Origin) -> CommandRule:
        pattern = "*" if text is None else text
        parse_command_pattern(pattern)
        return CommandRule(pattern, origin)

    def exclusion(self, text: str, origin: Origin) -> CommandRule:
        pattern = parse_exclusion(text)
        program = pattern.program
        if program in LAUNCHERS or (program in INTERPRETERS and not pattern.is_exact):
            self.problems.append(
                warning(
                    "exclusion_runs_anything",
                    f"{text!r} takes every program out of the sandbox: {program} runs whatever it is told to",
                    origin,
                    hint="exclude the program that is meant",
                )
            )
        return CommandRule(text, origin)

    def ignored_violations(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        entries = self.settings.entries("sandbox.ignoreViolations")
        for entry in entries:
            command, patterns = entry.value
            if command == "*" and any(not pattern.strip("* ") for pattern in patterns):
                message = "every violation is hidden"
                hint = "name a part of the path or host"
                self.problems.append(warning("ignore_everything", message, entry.origin, hint=hint))
        return tuple(entry.value for entry in entries)

    # --- the rest ---

    def platform(self) -> PlatformPolicy:
        value = self.value
        return PlatformPolicy(
            weaker_nested_sandbox=value("sandbox.enableWeakerNestedSandbox"),
            weaker_network_isolation=value("sandbox.enableWeakerNetworkIsolation"),
            allow_apple_events=value("sandbox.allowAppleEvents"),
            allow_pty=value("sandbox.allowPty"),
            ripgrep_command=value("sandbox.ripgrep.command"),
            ripgrep_args=value("sandbox.ripgrep.args"),
            bwrap_path=self.program("sandbox.bwrapPath"),
            socat_path=self.program("sandbox.socatPath"),
        )

    def program(self, key: str) -> str | None:
        entry = self.settings.scalar(key)
        if entry.value is None:
            return None
        return next(self.collect((entry,), self.literal_path, opens=False), None)

    def literal_path(self, text: str, _: Origin) -> str:
        expanded = expand_rule_path(text, self.scope)
        if expanded.glob:
            raise _BadEntry("path_glob_invalid", f"{text!r} is a pattern where one file is meant")
        return expanded.path

    def audit(self) -> AuditPolicy:
        value = self.value
        return AuditPolicy(
            enabled=value("audit.enabled"),
            path=self.program("audit.path"),
            max_bytes=value("audit.maxBytes"),
            keep=value("audit.keep"),
            on_full=value("audit.onFull"),
        )


class _BadEntry(ValueError):
    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint


def _network(text: str, _: Origin) -> str:
    try:
        return str(ip_network(text.strip(), strict=False))
    except ValueError:
        raise _BadEntry("network_invalid", f"{text!r} is not a network", "write 10.0.0.0/8 or fd00::/8") from None


def _ports(value: int | str, origin: Origin) -> PortRange:
    first, _, last = str(value).partition("-")
    ports = PortRange(int(first), int(last or first), origin)
    if not 1 <= ports.first <= ports.last <= 65535:
        raise _BadEntry("port_range_invalid", f"{value!r} is not a range of ports", "write 8000-8010")
    return ports


def _proxy(text: str, origin: Origin) -> ParentProxy:
    try:
        return parse_parent(text, origin.key)
    except UpstreamError as error:
        raise _BadEntry("proxy_invalid", error.message, error.hint) from None
