"""Construction of a Policy from merged settings.

Every path becomes absolute, and every host and command pattern is parsed, or there is no policy. `settings_reader`
reads entries; `build_network` and `build_files` make their parts. Relative paths refer to the project directory,
whichever file they stand in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sandboxd.errors import SettingsError
from sandboxd.policy.build_files import AMBIGUOUS, FileBuilder
from sandboxd.policy.build_network import NetworkBuilder
from sandboxd.policy.commands.command_patterns import parse_command_pattern, parse_exclusion
from sandboxd.policy.commands.exclusion import bare_pattern, head_of, why_never
from sandboxd.policy.commands.shell_programs import INTERPRETERS, LAUNCHERS, unversioned
from sandboxd.policy.commands.wide_programs import runs_others
from sandboxd.policy.ignored_violations import expanded
from sandboxd.policy.model import (
    PLAN_MODE,
    AuditPolicy,
    CommandPolicy,
    CommandRule,
    CredentialRule,
    FilePolicy,
    Limits,
    NetworkPolicy,
    PathRule,
    PlatformPolicy,
    Policy,
    SourceKind,
)
from sandboxd.policy.paths.opening_checks import check_openings, why_writable
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.policy.settings_reader import BadEntry, SettingsReader
from sandboxd.settings.layer import RESTRICTION_UNKNOWN
from sandboxd.settings.merge import Settings
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.problems import Problem, Severity, error, first_fatal
from sandboxd.settings.tools import Feeds, RuleList

_LIMITS = "sandbox.limits."
_NOTIFY = "sandbox.prompts.notify"
RUNS_ANYTHING = "exclusion_runs_anything"
"""Slug of an exclusion that covers a shell or interpreter. It counts: a person wrote it."""


def build_policy(settings: Settings, scope: PathScope, generation: int = 0) -> Policy:
    """Build the policy of these settings in this scope.

    Raises `SettingsError` with the place of the first fatal fault: a file that could not be read or parsed, a value of
    the wrong type, an entry that closes something and cannot be understood. `data["problems"]` has all of them."""
    return usable(*evaluate(settings, scope), generation)


def usable(policy: Policy, problems: Sequence[Problem], generation: int) -> Policy:
    """Return an evaluated policy under its generation number. Raises like `build_policy`."""
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


def check_settings(settings: Settings, scope: PathScope) -> tuple[Problem, ...]:
    """List all problems of these settings, in order of file and line."""
    return in_order(evaluate(settings, scope)[1])


def in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Sort problems by file and line."""
    return tuple(sorted(problems, key=lambda p: (p.origin.file or "", p.origin.line or 0, p.origin.column or 0)))


def evaluate(settings: Settings, scope: PathScope) -> tuple[Policy, tuple[Problem, ...]]:
    """Return the policy and all problems; with a fatal one it must not be used."""
    reader = SettingsReader(settings, scope)
    policy = _Builder(reader).policy()
    return policy, tuple(reader.problems)


def planning(policy: Policy) -> Policy:
    """Return the policy of a session in the mode plan: only its temporary directory can be written."""
    files = replace(
        policy.files,
        allow_write=(),
        deny_write=(*policy.files.deny_write, PathRule("/", PLAN_MODE, text="the permission mode plan")),
        allow_git_config=False,
    )
    network = replace(
        policy.network,
        strict_allowlist=True,
        allow_unix_sockets=(),
        allow_all_unix_sockets=False,
        allow_local_binding=False,
    )
    return replace(policy, files=files, network=network, ignore_unknown_restrictions=False)


class _Builder:
    def __init__(self, reader: SettingsReader) -> None:
        self._reader = reader

    def policy(self) -> Policy:
        value = self._reader.value
        network = NetworkBuilder(self._reader).policy()
        policy = Policy(
            enabled=value("sandbox.enabled"),
            enabled_origin=self._reader.origin("sandbox.enabled"),
            enabled_platforms=value("sandbox.enabledPlatforms"),
            enabled_platforms_origin=self._reader.origin("sandbox.enabledPlatforms"),
            fail_if_unavailable=value("sandbox.failIfUnavailable"),
            fail_if_unavailable_origin=self._reader.origin("sandbox.failIfUnavailable"),
            files=FileBuilder(self._reader).policy(),
            network=network,
            commands=self.commands(),
            platform=self.platform(),
            environment_remove=self.removed_variables(network),
            max_processes=value(processes := self.processes_key()),
            max_processes_origin=self._reader.origin(processes),
            limits=Limits(value(_LIMITS + "memory"), value(_LIMITS + "cpu"), value(_LIMITS + "time")),
            allow_overrides=value("sandbox.allowOverrides"),
            audit=self.audit(),
            report_violations=value("sandbox.reportViolations"),
            ignore_violations=self.ignored_violations(),
            notify=tuple(self._reader.collect(self._reader.entries(_NOTIFY), self.notifier, opens=True)),
            unenforced=tuple(p for p in self._reader.problems if p.slug == RESTRICTION_UNKNOWN),
            ignore_unknown_restrictions=value("sandbox.ignoreUnknownRestrictions"),
        )
        self._reader.problems += check_openings(self._reader.settings, policy.files, self._reader.scope)
        excluded = tuple(rule for rule in policy.commands.excluded if self.stays_excluded(rule, policy.files))
        commands = replace(policy.commands, excluded=excluded)
        credentials = tuple(rule for rule in network.credentials if self.keeps_credential(rule, policy.files))
        network = replace(network, credentials=credentials)
        variables = tuple(sorted(self._reader.variables))
        return replace(policy, network=network, commands=commands, variables=variables, warnings=tuple(self.warnings()))

    def processes_key(self) -> str:
        """Return the key of the limit on processes, of two names the one that is set, or the lower."""
        keys = (_LIMITS + "processes", _LIMITS + "maxProcesses")
        given = [key for key in keys if self._reader.origin(key).source is not Source.DEFAULT]
        return min(given or keys, key=self._reader.value)

    def removed_variables(self, network: NetworkPolicy) -> tuple[str, ...]:
        named = (entry.value.name for entry in self._reader.entries("sandbox.credentials.envVars"))
        shown = {name for rule in network.credentials for name in rule.variables}
        sources = [rule.source for rule in network.credentials if rule.source.kind is SourceKind.ENV]
        withheld = (name for source in sources for name in source.words if name not in shown)
        return (*self._reader.texts("sandbox.environment.remove"), *named, *dict.fromkeys(withheld))

    def keeps_credential(self, rule: CredentialRule, files: FilePolicy) -> bool:
        """Return whether no command can write the program that a credential comes from, or its arguments."""
        words = rule.source.words if rule.source.kind is SourceKind.COMMAND else ()
        paths = (word for word in words if word.startswith("/"))
        why = next((f"{path}: {why}" for path in paths if (why := why_writable(path, files, self._reader.scope))), "")
        if why:
            message = f"a credential comes from a program that commands can change: {why}"
            hint = "name a program that only you can write"
            self._reader.problems.append(error("credential_writable", message, rule.origin, hint=hint, fatal=False))
        return not why

    def warnings(self) -> Iterator[str]:
        """Sentences on the problems of a policy in force."""
        for problem in self._reader.problems:
            if problem.slug != AMBIGUOUS and (problem.severity is Severity.WARNING or not problem.fatal):
                yield str(problem)

    # --- commands ---

    def commands(self) -> CommandPolicy:
        def bash(kind: RuleList) -> tuple[CommandRule, ...]:
            return tuple(
                self._reader.collect(
                    tuple(self._reader.rules(kind, Feeds.COMMAND)), self.command_rule, opens=kind is RuleList.ALLOW
                )
            )

        value, unsandboxed = self._reader.value, "sandbox.allowUnsandboxedCommands"
        forbidden = next(self._reader.rules(RuleList.DENY, Feeds.SANDBOXED_ONLY), None)
        return CommandPolicy(
            auto_allow=value("sandbox.autoAllowBashIfSandboxed"),
            auto_allow_origin=self._reader.origin("sandbox.autoAllowBashIfSandboxed"),
            allow_unsandboxed=value(unsandboxed) and forbidden is None,
            allow_unsandboxed_origin=self._reader.origin(unsandboxed) if forbidden is None else forbidden.origin,
            open_mode=value("permissions.disableBypassPermissionsMode") != "disable",
            deny_instead_of_asking=value("permissions.denyInsteadOfPrompting"),
            excluded=tuple(
                self._reader.collect(self._reader.entries("sandbox.excludedCommands"), self.exclusion, opens=True)
            ),
            allow=bash(RuleList.ALLOW),
            ask=bash(RuleList.ASK),
            deny=bash(RuleList.DENY),
        )

    def command_rule(self, text: str | None, origin: Origin) -> CommandRule:
        pattern = "*" if text is None else text
        parse_command_pattern(pattern)
        return CommandRule(pattern, origin)

    def exclusion(self, text: str, origin: Origin) -> CommandRule:
        pattern = parse_exclusion(text)
        never = why_never(text)
        if never:
            bare = bare_pattern(text)
            hint = "exclude one program call, without operators" if bare == text else f"write {bare!r}"
            message = f"{text!r} matches no command: {never}"
            self._reader.problems.append(error("exclusion_never_matches", message, origin, hint=hint, fatal=False))
        program = unversioned(pattern.program)
        free = runs_others(pattern)
        if free or program in LAUNCHERS or (program in INTERPRETERS and not pattern.is_exact):
            self._reader.problems.append(
                Problem(
                    Severity.ERROR if free else Severity.WARNING,
                    RUNS_ANYTHING,
                    f"{text!r} takes every program out of the sandbox: "
                    f"{pattern.program or text} runs what its arguments say",
                    origin,
                    "exclude the program that is meant, with its first argument",
                )
            )
        return CommandRule(text, origin)

    def stays_excluded(self, rule: CommandRule, files: FilePolicy) -> bool:
        why = why_writable(head_of(rule.pattern), files, self._reader.scope)
        if why:
            message = f"{rule.pattern!r} is not excluded: {why}"
            hint = "exclude a program that only you can write, by its name or its whole path"
            self._reader.problems.append(error("exclusion_writable", message, rule.origin, hint=hint, fatal=False))
        return not why

    def ignored_violations(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        entries, home = self._reader.entries("sandbox.ignoreViolations"), self._reader.scope.home
        for entry in entries:
            command, patterns = entry.value
            if command == "*" and any(not pattern.strip("* ") for pattern in patterns):
                message = "every violation is hidden"
                hint = "name a part of the path or host"
                self._reader.warn("ignore_everything", message, entry.origin, hint=hint)
        return tuple((key, tuple(expanded(text, home) for text in texts)) for key, texts in (e.value for e in entries))

    # --- the rest ---

    def notifier(self, argv: Sequence[str], _: Origin) -> tuple[str, ...]:
        program = argv[0]
        if ("/" in program and not program.startswith("/")) or any("\0" in word for word in argv):
            hint = "write its absolute path, or a name that is in a directory of the system"
            raise BadEntry("path_invalid", f"{program!r} names no program that can be run for questions", hint)
        return tuple(argv)

    def platform(self) -> PlatformPolicy:
        value = self._reader.value
        return PlatformPolicy(
            weaker_nested_sandbox=value("sandbox.enableWeakerNestedSandbox"),
            weaker_network_isolation=value("sandbox.enableWeakerNetworkIsolation"),
            allow_apple_events=value("sandbox.allowAppleEvents"),
            allow_pty=value("sandbox.allowPty"),
            prepare_sandboxes=value("sandbox.prepareSandboxes"),
            keychain=all(entry.value != "credentials" for entry in self._reader.entries("sandbox.presets")),
            bwrap_path=self._reader.program("sandbox.bwrapPath"),
        )

    def audit(self) -> AuditPolicy:
        value = self._reader.value
        return AuditPolicy(
            enabled=value("audit.enabled"),
            path=self._reader.program("audit.path"),
            max_bytes=value("audit.maxBytes"),
            keep=value("audit.keep"),
            on_full=value("audit.onFull"),
        )
