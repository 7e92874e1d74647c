"""`settings.*`: effective values with origins, local changes, and lint."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sandboxd.daemon.policies import Policies
from sandboxd.daemon.settings.linting import lint_files
from sandboxd.daemon.settings.linting import schema as json_schema
from sandboxd.daemon.settings.local_edits import Change, Changed, change_of, change_project, change_settings, excluding
from sandboxd.daemon.settings.subscriptions import SettingsState, SettingsSubscriptions
from sandboxd.daemon.settings.trusting import Shown, TrustedDirectory, Trusting
from sandboxd.errors import CallerError
from sandboxd.policy.commands.exclusion import bare_pattern
from sandboxd.policy.display import neutralise
from sandboxd.policy.hosts.parent_proxies import without_password
from sandboxd.rpc.call import ConnectedClient, MethodCall, existing_directory
from sandboxd.rpc.records import origin_record
from sandboxd.runtime.sessions import Sessions
from sandboxd.settings.merge import Settings
from sandboxd.settings.origins import Origin
from sandboxd.settings.problems import Problem, Severity
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.settings import (
    ExcludeCommandParams,
    IgnoredSetting,
    LockedKey,
    SettingsChangedNotification,
    SettingsFileRecord,
    SettingsGetParams,
    SettingsGetResult,
    SettingsLintParams,
    SettingsLintResult,
    SettingsLockedParams,
    SettingsLockedResult,
    SettingsProblem,
    SettingsReloadParams,
    SettingsReloadResult,
    SettingsSchemaParams,
    SettingsSchemaResult,
    SettingsSubscribeParams,
    SettingsSubscribeResult,
    SettingsTrustParams,
    SettingsTrustResult,
    SettingsUpdateParams,
    SettingsUpdateResult,
    SettingValue,
    TrustedRecord,
    TrustFile,
    WideningRecord,
)
from sandboxd_client.wire.params import encode


@dataclass(frozen=True, slots=True)
class SettingsMethods:
    """`settings.*`."""

    policies: Policies
    sessions: Sessions
    trusting: Trusting
    subscriptions: SettingsSubscriptions

    async def get(self, call: MethodCall, params: SettingsGetParams) -> SettingsGetResult:
        """Return the settings of the session or directory, else the daemon's own."""
        project, now = self.policies.snapshot(params.session_id, self._directory(params.session_id, params.cwd))
        ignored = (
            IgnoredSetting(
                entry.key, _shown(entry.key, entry.value), neutralise(entry.reason), origin_record(entry.origin)
            )
            for entry in now.settings.ignored
            if _concerns(params.key, entry.key)
        )
        without = frozenset(p.origin for p in project.problems if p.severity is Severity.ERROR)
        return SettingsGetResult(
            now.policy.generation,
            _values(now.settings, (key for key in now.settings.effective() if _concerns(params.key, key)), without),
            file_records(project.latest),
            problem_records(p for p in project.problems if not p.origin.key or _concerns(params.key, p.origin.key)),
            tuple(ignored),
        )

    async def reload(self, call: MethodCall, params: SettingsReloadParams) -> SettingsReloadResult:
        outcome = self.policies.reload()
        return SettingsReloadResult(self.policies.generation, outcome.switched, problem_records(outcome.problems))

    async def update(self, call: MethodCall, params: SettingsUpdateParams) -> SettingsUpdateResult:
        """Change local settings.

        Raises CallerError with the reason where policy locks a key or a change makes no sense."""
        if not params.changes:
            raise CallerError("invalid_params", "there is nothing to change", hint="send changes: [{act, key, value}]")
        changes = [change_of(change.act, change.key, change.value) for change in params.changes]
        directory = self._directory(params.session_id, params.cwd)
        return await self._change(changes, params, directory)

    async def exclude_command(self, call: MethodCall, params: ExcludeCommandParams) -> SettingsUpdateResult:
        """Let a command run outside the sandbox from now on, or no longer."""
        patterns = [pattern for update in params.permission_updates or () for pattern in map(_pattern_of, update.rules)]
        if not patterns and params.pattern is not None:
            patterns = [params.pattern]
        if not patterns:
            raise CallerError("invalid_params", "no pattern is given", hint="send pattern, or permission_updates")
        changes = [excluding(pattern, remove=params.remove) for pattern in patterns]
        return await self._change(changes, params, self._directory(params.session_id, params.cwd))

    def _directory(self, session_id: str | None, cwd: str | None) -> str | None:
        """Return the directory of the project.

        Raises CallerError `session_unknown`, `cwd_relative`, `cwd_missing`."""
        directory = None if cwd is None else existing_directory(cwd)
        return directory if session_id is None else self.sessions.get(session_id).cwd

    async def _change(
        self,
        changes: Sequence[Change],
        params: SettingsUpdateParams | ExcludeCommandParams,
        directory: str | None,
    ) -> SettingsUpdateResult:
        policies = self.policies
        how = {"confirmed": params.confirm, "preview": bool(params.preview)}
        if not params.project:
            return _updated(await change_settings(policies, changes, params.session_id, directory, **how))
        if directory is None:
            raise CallerError("cwd_relative", "a project's settings are those of a directory", hint="send cwd")
        changed = await change_project(policies, self.trusting, changes, directory, **how)
        return _updated(changed)

    async def trust(self, call: MethodCall, params: SettingsTrustParams) -> SettingsTrustResult:
        """Show, record or remove trust in the settings files of projects.

        Raises CallerError, SettingsError."""
        trusting = self.trusting
        if params.action == "list":
            return SettingsTrustResult(trusting.is_permitted, trusted=tuple(map(_trusted_record, trusting.all())))
        if params.path is None or not params.path.startswith("/"):
            raise CallerError("path_relative", "trust is about an absolute path", hint="send the path of a directory")
        if params.action == "remove":
            return SettingsTrustResult(trusting.is_permitted, params.path, done=await trusting.remove(params.path))
        if params.action == "trust":
            return _trust_result(await trusting.trust(params.path, params.digests), done=True)
        return _trust_result(await asyncio.to_thread(trusting.show, params.path))

    async def locked(self, call: MethodCall, params: SettingsLockedParams) -> SettingsLockedResult:
        """Return the keys that managed settings lock."""
        directory = self._directory(params.session_id, params.cwd)
        _, now = self.policies.snapshot(params.session_id, directory)
        return SettingsLockedResult(
            tuple(
                LockedKey(lock.key, lock.reason, None if lock.origin is None else origin_record(lock.origin))
                for lock in now.settings.all_locked()
            )
        )

    async def subscribe(self, call: MethodCall, params: SettingsSubscribeParams) -> SettingsSubscribeResult:
        """Return the state, and send `settings_changed` after each reload with a change."""
        directory = self._directory(params.session_id, params.cwd)
        state = self.subscriptions.add(call.client, params.session_id, directory, tell)
        return SettingsSubscribeResult(
            state.generation,
            _values(state.settings, state.settings.effective()),
            problem_records(state.problems),
            neutralise(state.broken),
        )

    async def lint(self, call: MethodCall, params: SettingsLintParams) -> SettingsLintResult:
        """Check files without applying them."""
        for file in params.files or ():
            if not file.startswith("/"):
                raise CallerError(
                    "path_relative",
                    f"the path of a file is not absolute: {neutralise(file)}",
                    hint="send absolute paths",
                )
        directory = self._directory(None, params.cwd)
        found = await asyncio.to_thread(lint_files, self.policies.places, directory, params.files, params.source)
        return SettingsLintResult(not found.problems, found.files, problem_records(found.problems))

    async def schema(self, call: MethodCall, params: SettingsSchemaParams) -> SettingsSchemaResult:
        return SettingsSchemaResult(json_schema())


def _concerns(wanted: str | None, key: str) -> bool:
    """Return whether `key` is `wanted` or below it; `sandbox.` is optional."""
    return wanted is None or f"{key}.".startswith((f"{wanted}.", f"sandbox.{wanted}."))


def _values(
    settings: Settings, keys: Iterable[str], without: Collection[Origin] = frozenset()
) -> tuple[SettingValue, ...]:
    """Return effective values; entries of lists with an error are `without` effect."""
    plain = settings.effective()
    return tuple(_value(settings, key, plain[key], without) for key in keys)


def _value(settings: Settings, key: str, plain: Any, without: Collection[Origin]) -> SettingValue:
    placed = settings.values.get(key)
    entries = placed if isinstance(placed, tuple) else (settings.scalar(key),)
    if isinstance(plain, list) and len(plain) == len(entries) and isinstance(placed, tuple):
        kept = [(value, entry) for value, entry in zip(plain, entries, strict=True) if entry.origin not in without]
        plain, entries = [value for value, _ in kept], tuple(entry for _, entry in kept)
        if key == "sandbox.network.deniedDomainReasons":
            plain = dict(plain)
    return SettingValue(key, _shown(key, plain), tuple(origin_record(entry.origin) for entry in entries))


def _shown(key: str, value: Any) -> Any:
    """Return a value without secrets, as every client may see it."""
    return without_password(value) if key == "sandbox.network.parentProxy" and isinstance(value, str) else value


def _pattern_of(rule: object) -> str:
    """Return the pattern of a rule for commands. Raises CallerError."""
    if isinstance(rule, dict):
        rule = f"{rule.get('toolName')}({rule.get('ruleContent')})"
    if not isinstance(rule, str) or bare_pattern(rule) == rule:
        hint = 'send "Bash(PATTERN)", or {"toolName": "Bash", "ruleContent": "PATTERN"}'
        raise CallerError("invalid_params", "a rule of permission_updates is no rule for commands", hint=hint)
    return rule


def _updated(changed: Changed) -> SettingsUpdateResult:
    warnings = tuple(map(neutralise, changed.warnings))
    file, difference = changed.file, tuple(map(neutralise, changed.difference))
    return SettingsUpdateResult(changed.generation, file, changed.written, changed.keys, warnings, difference)


def _trust_result(shown: Shown, *, done: bool = False) -> SettingsTrustResult:
    return SettingsTrustResult(
        not shown.forbidden,
        shown.directory,
        tuple(TrustFile(file.path, file.sha256, file.state, file.changed) for file in shown.files),
        tuple(WideningRecord(one.key, _shown(one.key, one.value), origin_record(one.origin)) for one in shown.widens),
        done=done,
    )


def _trusted_record(record: TrustedDirectory) -> TrustedRecord:
    return TrustedRecord(record.directory, tuple(record.files), record.trusted_at)


def tell(client: ConnectedClient, state: SettingsState) -> None:
    session_id, cwd = state.scope
    record = SettingsChangedNotification(
        state.generation,
        _values(state.settings, state.changed),
        problem_records(state.problems),
        neutralise(state.broken),
        session_id,
        cwd,
    )
    client.notify("settings_changed", encode(record))


def file_records(settings: Settings) -> tuple[SettingsFileRecord, ...]:
    return tuple(
        SettingsFileRecord(layer.source.value, layer.file, "broken" if layer.broken else _presence(layer.file))
        for layer in settings.layers
        if layer.file is not None
    )


def _presence(path: str) -> str:
    return "loaded" if os.path.lexists(path) else "absent"


def problem_records(problems: Iterable[Problem]) -> tuple[SettingsProblem, ...]:
    return tuple(
        SettingsProblem(
            severity=problem.severity.value,
            message=neutralise(problem.message),
            file=problem.origin.file,
            key=problem.origin.key or None,
            line=problem.origin.line,
            column=problem.origin.column,
            hint=neutralise(problem.hint),
        )
        for problem in problems
    )
