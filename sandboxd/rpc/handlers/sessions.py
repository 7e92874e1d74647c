"""`session.*`: opening, changing, joining, closing and listing."""

from __future__ import annotations

from collections.abc import Callable

from sandboxd.daemon.policies import Policies
from sandboxd.daemon.settings.local_edits import Change, change_object, change_of, without_effect
from sandboxd.errors import CallerError
from sandboxd.policy.decision import PermissionMode
from sandboxd.policy.display import neutralise
from sandboxd.rpc.agents import agent_of
from sandboxd.rpc.call import MethodCall, checked_settings, existing_directory
from sandboxd.runtime.session import SandboxSession
from sandboxd.runtime.session_records import SessionSpec
from sandboxd.runtime.sessions import Sessions
from sandboxd.settings.merge import changed_keys
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.sessions import (
    SessionCloseParams,
    SessionCloseResult,
    SessionJoinParams,
    SessionJoinResult,
    SessionListParams,
    SessionListResult,
    SessionOpenParams,
    SessionOpenResult,
    SessionRecord,
    SessionUpdateParams,
    SessionUpdateResult,
)


@dataclass(frozen=True, slots=True)
class SessionMethods:
    """`session.*`."""

    sessions: Sessions
    policies: Policies
    changed: Callable[[str], None]
    """Called with a session that has other settings."""

    async def open_session(self, call: MethodCall, params: SessionOpenParams) -> SessionOpenResult:
        """Open a session of the caller's connection.

        Raises CallerError for its directory, SettingsError for its settings."""
        cwd = existing_directory(params.cwd)
        call.check_project(cwd)
        if params.detach and call.caller.restricted:
            raise CallerError(
                "not_permitted",
                "a connection with the role agent may not open a detached session, which would outlive it",
                hint="open it without detach",
            )
        mode = PermissionMode.PROMPT if params.permission_mode is None else PermissionMode(params.permission_mode)
        spec = SessionSpec(
            cwd=cwd,
            name=params.name,
            permission_mode=mode,
            detached=params.detach,
            restricted=call.caller.restricted,
        )
        settings = checked_settings("settings", params.settings)
        policy = self.policies.of_session(cwd, settings, restricted=spec.only_tightens)
        now = policy()  # settings that cannot hold are refused here, not at the first command
        session = self.sessions.open(spec, policy, call.client)
        self.policies.keep(session.id, policy)
        return SessionOpenResult(session.id, now.generation, now.warnings)

    async def update_session(self, call: MethodCall, params: SessionUpdateParams) -> SessionUpdateResult:
        """Give a session other settings, or change some; they hold at once.

        Those of an agent's session stay, and the user's are added. Raises CallerError, SettingsError."""
        if (params.settings is None) == (params.changes is None):
            raise CallerError("invalid_params", "give either settings or changes", hint="send one of them")
        session = self.sessions.get(params.session_id)
        spec, old = session.spec, self.policies.session_policy(session.id, session.cwd)
        before = old.snapshot().settings
        own = old.added if spec.restricted else old.settings
        settings = checked_settings("settings", params.settings)
        wanted: tuple[Change, ...] = ()
        warnings: list[str] = []
        if params.changes is not None:
            if isinstance(own, str):
                message = f"the settings of this session are those of {own}"
                raise CallerError("settings_other_source", message, hint="change that file, or send settings")
            changes = [change_of(one.act, one.key, one.value) for one in params.changes]
            scope, confirmed = old.project.scope, params.confirm
            settings, wanted, warnings = change_object(own or {}, changes, before, scope, confirmed=confirmed)
        assert settings is not None
        opened, added = (old.settings, settings or None) if spec.restricted else (settings or None, None)
        planning = spec.is_planning
        policy = self.policies.of_session(
            session.cwd, opened, restricted=spec.only_tightens, added=added, planning=planning
        )
        now = policy.snapshot()
        session.added = added
        session.follow(policy)
        self.policies.keep(session.id, policy)
        self.changed(session.id)
        warnings += [text for change in wanted for text in without_effect(now.settings, change, None)]
        return SessionUpdateResult(
            now.policy.generation,
            settings,
            (own or {}) != settings,
            changed_keys(before, now.settings),
            tuple(map(neutralise, dict.fromkeys((*warnings, *now.policy.warnings)))),
            f"the session {session.id}",
        )

    async def join_session(self, call: MethodCall, params: SessionJoinParams) -> SessionJoinResult:
        """Return the session of a key, or of the agent behind the caller; open it where there is none.

        Raises CallerError `agent_unknown`. Nothing is awaited, so that two requests open one session."""
        agent = None if params.key else agent_of(call.caller.process)
        key, pid = params.key or "", None if agent is None else agent[0]
        if (session := self.sessions.joined(key, agent)) is not None:
            return SessionJoinResult(session.id, opened=False, agent=pid)
        cwd = existing_directory(params.cwd)
        policy = self.policies.of_session(cwd, None, restricted=False)
        warnings = policy().warnings
        spec = SessionSpec(cwd=cwd, name=key or None, detached=True, key=key, agent=agent)
        session = self.sessions.open(spec, policy, call.client)
        self.policies.keep(session.id, policy)
        return SessionJoinResult(session.id, opened=True, agent=pid, warnings=warnings)

    async def close_session(self, call: MethodCall, params: SessionCloseParams) -> SessionCloseResult:
        running = len(self.sessions.get(params.session_id).commands())
        await self.sessions.close(params.session_id)
        return SessionCloseResult(running)

    async def list_sessions(self, call: MethodCall, params: SessionListParams) -> SessionListResult:
        """Return the sessions that the caller may see."""
        return SessionListResult(tuple(record_of(session) for session in self.sessions.all() if call.owns(session.id)))


def record_of(session: SandboxSession) -> SessionRecord:
    spec = session.spec
    return SessionRecord(
        session_id=session.id,
        name=spec.name,
        cwd=spec.cwd,
        detached=spec.detached,
        permission_mode=spec.permission_mode.value,
        opened_at=session.opened_at,
        commands=len(session.commands()),
        violations=session.violations.total,
        policy_generation=session.policy.generation,
        implicit=spec.implicit,
        violations_lost=session.violations.lost,
        published=tuple(map(str, session.publications)),
        key=spec.key,
        agent=None if spec.agent is None else spec.agent[0],
        sent=session.bounds.total,
        names=session.bounds.names,
    )
