"""`wrap`: the argv that runs a command inside a sandbox.

`wrap.outcome`: what became of it.

There is no path through here that returns a command unsandboxed: `SandboxSession.wrap` returns a launch or raises."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from sandboxd.daemon.policies import Policies
from sandboxd.daemon.policy_queries import PolicyQueries
from sandboxd.daemon.settings.reload import Reloading
from sandboxd.daemon.settings.settings_notices import SettingsNotices
from sandboxd.daemon.settings.trusting import Trusting
from sandboxd.daemon.suggestions import Lesson, learn_from
from sandboxd.errors import CallerError, DaemonError
from sandboxd.policy.hosts.publication import Publication
from sandboxd.rpc.call import MethodCall, checked_settings, existing_directory
from sandboxd.rpc.caller_variables import caller_search_path, caller_variables
from sandboxd.rpc.records import violation_record
from sandboxd.runtime.events import Events, RunRefused
from sandboxd.runtime.prompts.open_prompts import Prompts
from sandboxd.runtime.session import SandboxSession
from sandboxd.runtime.sessions import LaunchSpec, Sessions
from sandboxd.runtime.wrap import NO_OVERRIDES, Overrides, WrapRequest
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.wrap import (
    EnvironmentRecord,
    LearnedRecord,
    LeftOutRecord,
    OverridesRecord,
    WrapOutcomeParams,
    WrapOutcomeResult,
    WrapParams,
    WrapResult,
)
from sandboxd_client.wire.params import ParamsError

MOST_ENTRIES = 1000
"""Entries of a list of overrides."""
_MOST_KEPT = 1000
_kept_line = lru_cache(maxsize=64)(shlex.join)


def _line_of(argv: tuple[str, ...], ticket: str) -> str:
    """Return an argv as a line for a shell; the words around the ticket are quoted once for all commands of a place."""
    if ticket not in argv[:-1] or len(argv) > _MOST_KEPT:
        return shlex.join(argv)
    at = argv.index(ticket)
    return f"{_kept_line(argv[:at])} {ticket} {_kept_line(argv[at + 1 :])}"


@dataclass(frozen=True, slots=True)
class WrapMethods:
    """`wrap` and `wrap.outcome`."""

    sessions: Sessions
    policies: Policies
    questions: PolicyQueries
    events: Events
    reloading: Reloading
    trusting: Trusting
    prompts: Prompts
    scan_warnings: Callable[[], tuple[str, ...]]
    notices: SettingsNotices

    async def wrap(self, call: MethodCall, params: WrapParams) -> WrapResult:
        """Wrap a command. Raises CallerError, SettingsError, PolicyError, HostError."""
        session = None if params.session_id is None else self.sessions.get(params.session_id)
        cwd = _directory(params, session)
        request = WrapRequest(
            cwd=cwd,
            command=params.command,
            argv=params.argv,
            shell=params.shell,
            login=bool(params.login),
            environment=params.env or {},
            command_id=params.command_id,
            command_text=params.command_text,
            overrides=_overrides(params.overrides, cwd, restricted=call.caller.restricted),
            publish=tuple(map(Publication.parse, (params.overrides and params.overrides.publish) or ())),
            prepared=params.prepared,
            given=params.given,
            owner=call.client,
        )
        if session is None:
            call.check_project(cwd)
            session = self.sessions.implicit(call.client, cwd, self.policies.of_session(cwd))
        session.prepared.look(request)
        if call.caller.restricted:
            _check_published_paths(request, session)
        settings = self.policies.session_policy(session.id, session.cwd)
        variables = await caller_variables(call, settings.variables(request.overrides), params.env)
        if variables:
            request = replace(request, overrides=replace(request.overrides, variables=variables))
        if params.prepare:
            wrap_id, launch = await session.prepare(request)
            return self._result(wrap_id, launch, launch.warnings)
        try:
            await self.questions.check_may_run(session, request, lambda: caller_search_path(call, params.env))
        except DaemonError as error:
            self.events.tell(RunRefused(session.id, cwd, request.text, error.slug, error.message))
            raise
        command, launch = await self.sessions.wrap(session, request)
        news = self.notices.about(settings, request.overrides)
        news += self.notices.about_files(self.scan_warnings())
        if settings.project.trust_has_changed:
            self.trusting.notice(settings.project, session, self.prompts)
        published = tuple(map(str, command.publications))
        return self._result(
            command.wrap_id,
            launch,
            (*news, *launch.warnings),
            policy_generation=command.generation,
            published=published,
        )

    def _result(
        self,
        wrap_id: str,
        launch: LaunchSpec,
        warnings: tuple[str, ...],
        policy_generation: int = 0,
        published: tuple[str, ...] = (),
    ) -> WrapResult:
        return WrapResult(
            wrap_id=wrap_id,
            argv=() if launch.prepared else launch.argv,
            command="" if launch.prepared else _line_of(launch.argv, wrap_id),
            env=EnvironmentRecord(dict(launch.env_set), launch.env_unset),
            cwd=launch.cwd,
            layers=launch.layers,
            warnings=(*warnings, self.reloading.failure) if self.reloading.failure else warnings,
            expires_in_s=launch.expires_in_s,
            policy_generation=policy_generation,
            published=published,
            tmp=launch.tmp,
            env_tag=launch.env_tag,
            prepared=launch.prepared,
        )

    async def outcome(self, call: MethodCall, params: WrapOutcomeParams) -> WrapOutcomeResult:
        """Return the outcome of a wrap. Raises CallerError `wrap_unknown`."""
        call.check_wrap(params.wrap_id)
        result, violations = await self.sessions.outcome(params.wrap_id)
        learned = (
            await learn_from(self.sessions, params.wrap_id, violations, self.policies.places.home)
            if params.learn
            else None
        )
        return WrapOutcomeResult(
            started=result.started,
            exited=result.exited,
            status=result.status,
            signal=None if result.code is None else max(-result.code, 0),
            reason=result.reason,
            violations=tuple(violation_record(violation) for violation in violations),
            violations_lost=result.violations_lost,
            hint="run the command again" if result.outdated else "",
            settings_changed=result.settings_changed,
            outdated=result.outdated,
            learned=None if learned is None else _learned_record(learned),
        )


def _check_published_paths(request: WrapRequest, session: SandboxSession) -> None:
    """Check published sockets. Raises CallerError `not_permitted`.

    Only for a restricted connection: a server inside could stand in for one that programs expect elsewhere."""
    for one in request.publish:
        root = os.path.realpath(session.cwd)
        if one.path and os.path.commonpath([root, os.path.realpath(os.path.dirname(one.path))]) != root:
            raise CallerError(
                "not_permitted",
                "a connection with the role agent publishes sockets in the directory of its session only",
                hint=f"name a path in {session.cwd}",
            )


def _directory(params: WrapParams, session: SandboxSession | None) -> str:
    if params.cwd is not None:
        return existing_directory(params.cwd)
    if session is not None:
        return session.cwd
    raise CallerError("cwd_relative", "there is no working directory", hint="send cwd, or the session_id of a session")


def _overrides(record: OverridesRecord | None, cwd: str, *, restricted: bool) -> Overrides:
    if record is None:
        return NO_OVERRIDES
    settings = checked_settings("overrides.settings", record.settings)
    for name in ("allow_domains", "allow_write", "allow_read"):
        if (count := len(getattr(record, name))) > MOST_ENTRIES:
            raise ParamsError(f"overrides.{name}", f"at most {MOST_ENTRIES} entries", str(count))
    for key, value in (record.limits or {}).items():
        if key not in ("memory", "cpu", "time") or isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ParamsError("overrides.limits", "memory, cpu and time with a text or a number", key)
        if key == "cpu" and not isinstance(value, (int, float)):
            raise ParamsError("overrides.limits", "a number of processors", str(value))
    return Overrides(
        allow_domains=record.allow_domains,
        allow_write=tuple(_below(path, cwd) for path in record.allow_write),
        allow_read=tuple(_below(path, cwd) for path in record.allow_read),
        settings=json.dumps(settings, sort_keys=True) if isinstance(settings, dict) else settings,
        limits=tuple(sorted((key, str(value)) for key, value in (record.limits or {}).items())),
        restricted=restricted,
        ignore_unknown_restrictions=bool(record.ignore_unknown_restrictions),
    )


def _below(path: str, cwd: str) -> str:
    """Resolve a relative path of one command against its working directory.

    Relative paths of a settings rule are the project's."""
    return path if path.startswith(("/", "~", "$")) else f"{cwd}/{path}"


def _learned_record(lesson: Lesson) -> LearnedRecord:
    left_out = tuple(LeftOutRecord(one.target, one.why) for one in lesson.left_out)
    return LearnedRecord(dict(lesson.settings), left_out, lesson.notes)
