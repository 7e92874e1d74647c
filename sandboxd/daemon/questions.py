"""Questions to the policy, put to the same code that enforces it, with what the daemon knows added: whose policy is
meant, whether a sandbox can be started here, who asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sandboxd.errors import HostError
from sandboxd.policy.command_decisions import CommandDecision, decide_command
from sandboxd.policy.decision import Decision
from sandboxd.policy.explanation import explain_command, explain_host
from sandboxd.proxy.interfaces import OwnAddresses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxd.backends.base import Backend
    from sandboxd.daemon.policies import Policies
    from sandboxd.policy.policy import Policy
    from sandboxd.runtime.sessions import Sessions

Kind = Literal["path", "host", "command"]


@dataclass(frozen=True, slots=True)
class Explained:
    """`subject` is the target as the policy reads it; `sandboxed` is for commands only."""

    subject: str
    decision: Decision
    sandboxed: bool | None = None


class Questions:
    """`environment` is the daemon's own: whether we are inside a container that is a sandbox itself ($IS_SANDBOX)."""

    def __init__(
        self, policies: Policies, sessions: Sessions, backend: Backend, environment: Mapping[str, str], platform: str
    ) -> None:
        self._policies = policies
        self._sessions = sessions
        self._backend = backend
        self._inside_sandbox = bool(environment.get("IS_SANDBOX"))
        self._platform = platform
        self._own_addresses = OwnAddresses()

    def policy(self, session_id: str | None, directory: str | None) -> Policy:
        """That of the session, else of the directory's project, else the daemon's own. Raises CallerError
        `session_unknown`, SettingsError."""
        if session_id is not None:
            return self._sessions.get(session_id).policy
        if directory is not None:
            return self._policies.of_session(directory)()
        return self._policies.own.now.policy

    async def command(
        self, text: str | None, session_id: str | None, directory: str | None, *, uid: int, unsandboxed: bool = False
    ) -> CommandDecision:
        """What happens to a command line (design 6.3)."""
        policy = self.policy(session_id, directory)
        return decide_command(
            policy,
            text,
            dangerously_disable=unsandboxed,
            permission_mode=self._mode(session_id),
            platform=self._platform,
            root=uid == 0,
            is_sandbox_env=self._inside_sandbox,
            unavailable=await self.unavailable() if policy.enabled else "",
        )

    async def explain_command(
        self, text: str, session_id: str | None, directory: str | None, *, uid: int
    ) -> CommandDecision:
        """How the command line runs when it is run through the sandbox."""
        return explain_command(
            self.policy(session_id, directory),
            text,
            permission_mode=self._mode(session_id),
            platform=self._platform,
            root=uid == 0,
            is_sandbox_env=self._inside_sandbox,
            unavailable=await self.unavailable(),
        )

    def _mode(self, session_id: str | None) -> str | None:
        return None if session_id is None else self._sessions.get(session_id).spec.permission_mode.value

    async def unavailable(self) -> str:
        """Why no sandbox can be started here; empty when one can."""
        try:
            await self._backend.ready()
        except HostError as error:
            return error.message
        return ""

    def explain_host(self, target: str, session_id: str | None, directory: str | None) -> Explained:
        """`target` is a host with an optional port."""
        policy = self.policy(session_id, directory)
        return Explained(target, explain_host(policy, target, own=self._own_addresses()))
