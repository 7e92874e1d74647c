"""From merged settings to a Policy: every path absolute, every host and command pattern parsed, or no policy at all.

How entries are read, and what becomes of those that cannot be understood, is `settings_reader`; the network is
`build_network`. Relative paths refer to the project directory, whichever file they stand in. Pure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from sandboxd.errors import SettingsError
from sandboxd.policy.build_network import NetworkBuilder
from sandboxd.policy.command_patterns import parse_command_pattern, parse_exclusion
from sandboxd.policy.opening_checks import check_openings
from sandboxd.policy.policy import (
    AuditPolicy,
    CommandPolicy,
    CommandRule,
    FilePolicy,
    Missing,
    PathRule,
    PlatformPolicy,
    Policy,
)
from sandboxd.policy.rule_paths import (
    Scope,
    doubt,
    expand_permission_path,
    expand_rule_path,
    is_project_path,
    unanchored_pattern,
)
from sandboxd.policy.settings_reader import BadEntry, SettingsReader
from sandboxd.policy.shell_programs import INTERPRETERS, LAUNCHERS
from sandboxd.policy.upstream import without_password
from sandboxd.settings.layer import RESTRICTION_UNKNOWN, Placed
from sandboxd.settings.merge import Settings
from sandboxd.settings.origins import Origin, Source
from sandboxd.settings.presets import PRESETS
from sandboxd.settings.problems import Problem, Severity, error, first_fatal
from sandboxd.settings.rules import Feeds, Kind

_N = "sandbox.network."
_F = "sandbox.filesystem."
_C = "sandbox.credentials."
_AMBIGUOUS = "path_ambiguous"
"""Of a rule that means what it should to whoever knows the format: told by lint, and not with commands."""


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
    reader = SettingsReader(settings, scope)
    policy = _Builder(reader).policy()
    return policy, tuple(reader.problems)


class _Builder:
    def __init__(self, reader: SettingsReader) -> None:
        self._reader = reader

    def policy(self) -> Policy:
        value = self._reader.value
        policy = Policy(
            enabled=value("sandbox.enabled"),
            enabled_origin=self._reader.origin("sandbox.enabled"),
            enabled_platforms=value("sandbox.enabledPlatforms"),
            enabled_platforms_origin=self._reader.origin("sandbox.enabledPlatforms"),
            fail_if_unavailable=value("sandbox.failIfUnavailable"),
            fail_if_unavailable_origin=self._reader.origin("sandbox.failIfUnavailable"),
            files=self.files(),
            network=NetworkBuilder(self._reader).policy(),
            commands=self.commands(),
            platform=self.platform(),
            environment_remove=self.removed_variables(),
            max_processes=self._reader.value("sandbox.limits.maxProcesses"),
            max_processes_origin=self._reader.origin("sandbox.limits.maxProcesses"),
            allow_overrides=value("sandbox.allowOverrides"),
            audit=self.audit(),
            report_violations=value("sandbox.reportViolations"),
            ignore_violations=self.ignored_violations(),
            unenforced=tuple(p.origin for p in self._reader.problems if p.slug == RESTRICTION_UNKNOWN),
            ignore_unknown_restrictions=value("sandbox.ignoreUnknownRestrictions"),
        )
        self._reader.problems += check_openings(self._reader.settings, policy.files, self._reader.scope)
        return replace(policy, warnings=tuple(self.warnings()))

    def warnings(self) -> Iterator[str]:
        """What a person should know about a policy that is in force."""
        for problem in self._reader.problems:
            if problem.slug != _AMBIGUOUS and (problem.severity is Severity.WARNING or not problem.fatal):
                yield str(problem)

    # --- files ---

    def files(self) -> FilePolicy:
        return FilePolicy(
            allow_write=(
                *self.paths(_F + "allowWrite", Kind.ALLOW, Feeds.ALLOW_WRITE, opens=True),
                *self._reader.collect(
                    self._reader.entries("permissions.additionalDirectories"), self.directory, opens=True
                ),
            ),
            deny_write=(
                *self.paths(_F + "denyWrite", Kind.DENY, Feeds.DENY_WRITE, opens=False),
                *self._reader.collect(self._reader.entries(_F + "denyEdit"), self.denied_path, opens=False),
            ),
            deny_read=(
                *self.paths(_F + "denyRead", Kind.DENY, Feeds.DENY_READ, opens=False),
                *self._reader.collect(
                    self._reader.entries(_C + "files"), lambda file, at: self.denied_path(file.path, at), opens=False
                ),
                *self.files_with_passwords(),
            ),
            allow_read=self.paths(_F + "allowRead", None, None, opens=True),
            allow_git_config=self._reader.value(_F + "allowGitConfig"),
            managed_reads_only=self._reader.value(_F + "allowManagedReadPathsOnly"),
            protected_search_depth=self._reader.value("sandbox.mandatoryDenySearchDepth"),
            settings_files=self._reader.settings.files,
        )

    def paths(self, key: str, kind: Kind | None, feeds: Feeds | None, *, opens: bool) -> tuple[PathRule, ...]:
        make = self.path_rule if opens else self.denied_path
        rules = () if kind is None or feeds is None else tuple(self._reader.rules(kind, feeds))
        read = self.allowed_paths if opens else self.denied_paths
        return (
            *self._reader.collect(self._reader.entries(key), make, opens=opens),
            *chain.from_iterable(self._reader.collect(rules, read, opens=opens)),
            *self._reader.collect(tuple(self.preset_paths(feeds)), self.preset_rule, opens=opens),
        )

    def files_with_passwords(self) -> Iterator[PathRule]:
        """Settings files in which the password of a parent proxy stands: no command may read one."""
        for layer in self._reader.settings.layers:
            placed = layer.values.get(_N + "parentProxy")
            if layer.file is None or not isinstance(placed, Placed) or not layer.may_widen:
                continue
            if without_password(str(placed.value)) != placed.value:
                message = f"{layer.file} holds a password of parentProxy, so no command may read this file"
                hint = "keep the password in HTTPS_PROXY of the daemon's environment"
                self._reader.warn("proxy_password_in_file", message, placed.origin, hint=hint)
                yield PathRule(layer.file, placed.origin, text=layer.file)

    def preset_paths(self, feeds: Feeds | None) -> Iterator[Placed]:
        for entry in self._reader.entries("sandbox.presets"):
            preset = PRESETS.get(entry.value)
            if preset is None:
                if feeds is Feeds.ALLOW_WRITE:  # once is enough
                    known = ", ".join(sorted(PRESETS))
                    message = f"unknown preset {entry.value!r}"
                    self._reader.problems.append(
                        error("preset_unknown", message, entry.origin, hint=f"known presets: {known}")
                    )
                continue
            paths = {Feeds.ALLOW_WRITE: preset.allow_write, Feeds.DENY_READ: preset.deny_read}.get(
                feeds or Feeds.NOTHING, ()
            )
            yield from (Placed(path, entry.origin) for path in paths)

    def path_rule(self, text: str, origin: Origin) -> PathRule:
        expanded = expand_rule_path(text, self._reader.scope)
        self.warn_of_doubt(text, origin)
        return PathRule(expanded.path, origin, expanded.glob, text)

    def directory(self, text: str, origin: Origin) -> PathRule:
        rule = self.path_rule(text, origin)
        if rule.glob:
            raise BadEntry("path_glob_invalid", f"{text!r} is a pattern where a directory is meant")
        return rule

    def removed_variables(self) -> tuple[str, ...]:
        named = (entry.value.name for entry in self._reader.entries(_C + "envVars"))
        return (*self._reader.texts("sandbox.environment.remove"), *named)

    def denied_path(self, text: str, origin: Origin) -> PathRule:
        """A pattern that begins in no directory holds below all that are opened, unless a project says it: that has no
        say in other places."""
        rule = self.path_rule(text, origin)
        deep = unanchored_pattern(text, self._reader.scope) if rule.glob else ""
        if not deep:
            return rule
        expanded = expand_rule_path(deep, self._reader.scope)
        return replace(rule, path=expanded.path, unanchored="" if origin.source is Source.PROJECT else deep)

    def allowed_paths(self, text: str, origin: Origin) -> tuple[PathRule, ...]:
        return self.permission_paths(text, origin, denies=False)

    def denied_paths(self, text: str, origin: Origin) -> tuple[PathRule, ...]:
        return self.permission_paths(text, origin, denies=True)

    def permission_paths(self, text: str, origin: Origin, *, denies: bool) -> tuple[PathRule, ...]:
        scope = self._reader.scope
        own = posixpath.dirname(origin.file or "") if origin.source in (Source.USER, Source.LOCAL) else ""
        if own == posixpath.join(scope.project, ".claude"):
            own = ""
        readings = expand_permission_path(text, scope, denies=denies, settings_directory=own)
        self.warn_of_doubt(text, origin)
        if is_project_path(text):
            message = f"the path {text!r} of a permission rule is {readings[0].rule.path}, not an absolute path"
            hint = f"write /{text} for the absolute path, or .{text} to say that the project is meant"
            self._reader.warn(_AMBIGUOUS, message, origin, hint=hint)
        return tuple(
            PathRule(
                reading.rule.path,
                origin,
                reading.rule.glob,
                text,
                Missing.UNMEANT if reading.second else Missing.TELL,
                "" if origin.source is Source.PROJECT else reading.unanchored,
            )
            for reading in readings
        )

    def warn_of_doubt(self, text: str, origin: Origin) -> None:
        found = doubt(text)
        if found is not None:
            self._reader.warn("path_doubtful", found[0], origin, hint=found[1])

    def preset_rule(self, text: str, origin: Origin) -> PathRule:
        missing = Missing.MAKE if text.endswith("/") else Missing.IGNORE
        return replace(self.path_rule(text, origin), missing=missing)

    # --- commands ---

    def commands(self) -> CommandPolicy:
        def bash(kind: Kind) -> tuple[CommandRule, ...]:
            return tuple(
                self._reader.collect(
                    tuple(self._reader.rules(kind, Feeds.COMMAND)), self.command_rule, opens=kind is Kind.ALLOW
                )
            )

        return CommandPolicy(
            auto_allow=self._reader.value("sandbox.autoAllowBashIfSandboxed"),
            auto_allow_origin=self._reader.origin("sandbox.autoAllowBashIfSandboxed"),
            allow_unsandboxed=self._reader.value("sandbox.allowUnsandboxedCommands"),
            allow_unsandboxed_origin=self._reader.origin("sandbox.allowUnsandboxedCommands"),
            excluded=tuple(
                self._reader.collect(self._reader.entries("sandbox.excludedCommands"), self.exclusion, opens=True)
            ),
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
            self._reader.warn(
                "exclusion_runs_anything",
                f"{text!r} takes every program out of the sandbox: {program} runs whatever it is told to",
                origin,
                hint="exclude the program that is meant",
            )
        return CommandRule(text, origin)

    def ignored_violations(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        entries = self._reader.entries("sandbox.ignoreViolations")
        for entry in entries:
            command, patterns = entry.value
            if command == "*" and any(not pattern.strip("* ") for pattern in patterns):
                message = "every violation is hidden"
                hint = "name a part of the path or host"
                self._reader.warn("ignore_everything", message, entry.origin, hint=hint)
        return tuple(entry.value for entry in entries)

    # --- the rest ---

    def platform(self) -> PlatformPolicy:
        value = self._reader.value
        return PlatformPolicy(
            weaker_nested_sandbox=value("sandbox.enableWeakerNestedSandbox"),
            weaker_network_isolation=value("sandbox.enableWeakerNetworkIsolation"),
            allow_apple_events=value("sandbox.allowAppleEvents"),
            allow_pty=value("sandbox.allowPty"),
            ripgrep_command=value("sandbox.ripgrep.command"),
            ripgrep_args=value("sandbox.ripgrep.args"),
            bwrap_path=self._reader.program("sandbox.bwrapPath"),
            socat_path=self._reader.program("sandbox.socatPath"),
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
