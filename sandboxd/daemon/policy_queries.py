"""Policy queries, answered by the code that enforces the policy."""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from sandboxd.backends.base import Backend
from sandboxd.daemon.policies import Policies
from sandboxd.daemon.program_paths import ProgramPaths
from sandboxd.errors import CallerError, HostError, PolicyError
from sandboxd.policy.commands.command_decisions import (
    CommandDecision,
    CommandRequest,
    decide_command,
    denied_by_rule,
    enabled_gate,
)
from sandboxd.policy.commands.command_patterns import parse_command_pattern
from sandboxd.policy.commands.wide_programs import runs_others
from sandboxd.policy.decision import Decision, PermissionMode, Reason
from sandboxd.policy.explain.explanation import explain_command, explain_host
from sandboxd.policy.hosts.egress import own_proxy_warnings
from sandboxd.policy.model import Policy
from sandboxd.proxy.host_addresses import ClosedPorts, HostAddresses
from sandboxd.runtime.session import SandboxSession
from sandboxd.runtime.sessions import Sessions
from sandboxd.runtime.wrap import NO_OVERRIDES, Overrides, WrapRequest
from sandboxd_client.records import dataclass

JUDGED_SHELLS = frozenset(("ash", "bash", "dash", "ksh", "mksh", "sh"))
"""Shells whose lines are read as rules for commands read them."""


class ExplainPath(Protocol):
    """Decide whether a command in `cwd` may read or write an absolute path.

    `session_id` selects the temporary directory; None for none in particular. Raises PolicyError."""

    async def __call__(
        self, policy: Policy, cwd: str, project: str, session_id: str | None, path: str, write: bool
    ) -> Decision: ...


class ExplainSocket(Protocol):
    """Decide whether a command may connect to a Unix socket; see ExplainPath."""

    async def __call__(self, policy: Policy, cwd: str, project: str, session_id: str | None, path: str) -> Decision: ...


@dataclass(frozen=True, slots=True)
class Explained:
    """Decision with its target; `sandboxed` is for commands only."""

    subject: str
    decision: Decision
    sandboxed: bool | None = None


class PolicyQueries:
    """Policy queries of a daemon."""

    def __init__(
        self,
        policies: Policies,
        sessions: Sessions,
        backend: Backend,
        explain_path: ExplainPath,
        explain_socket: ExplainSocket,
        platform: str,
        log: Callable[..., object],
        closed_ports: ClosedPorts | None = None,
    ) -> None:
        self._policies = policies
        self._sessions = sessions
        self._backend = backend
        self._explain_path = explain_path
        self._explain_socket = explain_socket
        self._platform = platform
        self._log = log
        self._host_addresses = HostAddresses()
        self.closed_ports = closed_ports or ClosedPorts()

    def policy(self, session_id: str | None, directory: str | None, overrides: Overrides = NO_OVERRIDES) -> Policy:
        """Return a session's, project's or the daemon's policy. Raises DaemonError."""
        if session_id is not None:
            return self._sessions.get(session_id).policy_of(overrides)
        if directory is not None:
            return self._policies.of_session(directory)(overrides)
        return self._policies.own.now.policy

    async def command(
        self,
        text: str | None,
        session_id: str | None,
        directory: str | None,
        overrides: Overrides = NO_OVERRIDES,
        *,
        uid: int,
        search: str,
        unsandboxed: bool = False,
        is_sandbox: bool = False,
    ) -> tuple[CommandDecision, str | None]:
        """Decide a command line; return the PATH to run it with when excluded.

        `is_sandbox`: the caller says that it runs in a container that is a sandbox itself ($IS_SANDBOX)."""
        policy = self.policy(session_id, directory, overrides)
        unavailable = await self.unavailable() if policy.enabled else ""
        paths = self._program_paths(policy, session_id, directory, search)
        decision = await paths.decide(
            lambda resolve: decide_command(
                policy,
                text,
                dangerously_disable=unsandboxed,
                permission_mode=self.mode(session_id),
                platform=self._platform,
                root=uid == 0,
                is_sandbox_env=is_sandbox,
                unavailable=unavailable,
                resolve=resolve,
            )
        )
        if decision.reason is Reason.SANDBOX_UNAVAILABLE:
            fate = "refused" if decision.sandboxed else "the user is asked to run it without"
            self._log("no sandbox can be started for a command", fate=fate, session=session_id)
        if decision.reason is not Reason.EXCLUDED:
            return decision, None
        if runs_others(parse_command_pattern(decision.decision.rule or "-")):
            self._log("a command is excluded with a program that runs others", rule=decision.decision.rule)
        return decision, await paths.search_path()

    async def explain_command(
        self,
        text: str,
        session_id: str | None,
        directory: str | None,
        overrides: Overrides = NO_OVERRIDES,
        *,
        uid: int,
        search: str,
        is_sandbox: bool = False,
    ) -> CommandDecision:
        """Explain how a command line runs through the sandbox."""
        policy = self.policy(session_id, directory, overrides)
        unavailable = await self.unavailable()
        paths = self._program_paths(policy, session_id, directory, search)
        return await paths.decide(
            lambda resolve: explain_command(
                policy,
                text,
                permission_mode=self.mode(session_id),
                platform=self._platform,
                root=uid == 0,
                is_sandbox_env=is_sandbox,
                unavailable=unavailable,
                resolve=resolve,
            )
        )

    async def check_may_run(
        self, session: SandboxSession, request: WrapRequest, search: Callable[[], Awaitable[str]]
    ) -> None:
        """Refuse what may not run at all, sandboxed or not.

        `search` finds out the caller's PATH, by which rules know a program.
        Raises PolicyError `mode_none`, and `command_denied` for an explicit rule of permissions.deny."""
        if session.spec.permission_mode is PermissionMode.NONE:
            hint = "open a session in another permission mode"
            raise PolicyError("mode_none", "this session may run nothing: its permission mode is none", hint=hint)
        policy = session.policy_of(request.overrides)
        if not policy.commands.deny:
            return
        shell = posixpath.basename(request.shell or "sh")
        if request.argv is None and shell not in JUDGED_SHELLS:
            raise PolicyError(
                "shell_unjudged",
                f"permissions.deny cannot judge a line of {shell}, which has another syntax",
                hint="use bash: sandboxd run --shell bash -c …",
            )
        paths = self._program_paths(policy, session.id, request.cwd, await search())
        denial = await paths.decide(lambda resolve: denied_by_rule(policy, request.line, resolve))
        if denial is not None:
            where = f" in {denial.origin}" if denial.origin is not None else ""
            raise PolicyError("command_denied", f"{denial.text}{where}", hint=denial.hint)

    def _program_paths(
        self, policy: Policy, session_id: str | None, directory: str | None, search: str
    ) -> ProgramPaths:
        """Return the lookup of programs, with all that commands can write.

        That is the answer of `explain` for the caller's place, the temporary directories, the directories of all
        sessions, the granted paths, and those opened before."""
        project = directory if session_id is None else self._sessions.get(session_id).cwd
        cwd = directory or project
        sessions = self._sessions.all()
        granted = [g.path for session in sessions for g in session.grants.list() if g.path is not None and g.write]
        named = [rule.path for rule in policy.files.allow_write if not rule.glob]
        known = [path for path in (project, directory, *(session.cwd for session in sessions)) if path and path != "/"]

        async def is_writable(path: str) -> bool:
            if cwd is None or project is None:
                return False
            try:
                return (await self._explain_path(policy, cwd, project, session_id, path, True)).allowed
            except PolicyError:
                return True

        places = self._policies.places
        closed = (*known, *granted, *named, *places.own_paths)
        return ProgramPaths(
            cwd, places.home, closed, search=search, is_writable=is_writable, earlier=places.could_be_written
        )

    def mode(self, session_id: str | None) -> str | None:
        """Return the permission mode of a session."""
        return None if session_id is None else self._sessions.get(session_id).spec.permission_mode.value

    def why_off(self, policy: Policy) -> Decision | None:
        """Return the decision by which the settings turn the sandbox off; None where it is on."""
        answer = enabled_gate(policy, CommandRequest(None, platform=self._platform))
        return None if answer is None else answer.decision

    async def unavailable(self) -> str:
        """Return why no sandbox can start; empty when one can."""
        try:
            await self._backend.ready()
        except HostError as error:
            return error.message
        return ""

    def explain_host(self, target: str, session_id: str | None, directory: str | None) -> Explained:
        """Explain the decision on a host with an optional port."""
        policy = self.policy(session_id, directory)
        addresses, closed = self._host_addresses(), self.closed_ports()
        return Explained(target, explain_host(policy, target, host_addresses=addresses, closed_ports=closed))

    def close_ports(self, client: object, ports: Collection[int], page: str = "") -> tuple[str, ...]:
        """Close ports of this machine for every command, also those that run; return where that is not possible.

        They stay closed until the client goes, or closes others. Raises HostError `ports_unclosable`."""
        if ports and self._platform == "macos":  # the profile of a running command opens ports without the gate
            raise HostError(
                "ports_unclosable",
                "macOS cannot close a port for commands that run",
                hint="use sandboxd ui, or sandboxd prompts, in a terminal",
            )
        self.closed_ports.close(client, frozenset(ports), page)
        self._sessions.policy_changed()
        policies = (self._policies.own.now.policy, *(session.policy for session in self._sessions.all()))
        return tuple(dict.fromkeys(way for policy in policies for way in own_proxy_warnings(policy.network)))

    async def explain_path(
        self,
        target: str,
        session_id: str | None,
        directory: str | None,
        overrides: Overrides = NO_OVERRIDES,
        *,
        write: bool,
    ) -> Explained:
        """Explain a path below the working directory. Raises CallerError, PolicyError."""
        cwd, project, path = self._seen_from(target, session_id, directory)
        policy = self.policy(session_id, directory, overrides)
        return Explained(path, await self._explain_path(policy, cwd, project, session_id, path, write))

    async def explain_socket(
        self, target: str, session_id: str | None, directory: str | None, overrides: Overrides = NO_OVERRIDES
    ) -> Explained:
        """Explain a connection to the Unix socket at a path. Raises like `explain_path`."""
        cwd, project, path = self._seen_from(target, session_id, directory)
        policy = self.policy(session_id, directory, overrides)
        return Explained(path, await self._explain_socket(policy, cwd, project, session_id, path))

    def _seen_from(self, target: str, session_id: str | None, directory: str | None) -> tuple[str, str, str]:
        """Return working directory, project and absolute path."""
        project = directory if session_id is None else self._sessions.get(session_id).cwd
        cwd = directory or project
        if cwd is None or project is None:
            raise CallerError(
                "cwd_relative", "cannot explain a path without a working directory", hint="send cwd or session_id"
            )
        if target == "~" or target.startswith("~/"):
            target = self._policies.places.home + target[1:]
        path = posixpath.join(cwd, target)
        if ".." not in path:  # `..` after a symlink depends on the host
            path = posixpath.normpath(path)
        return cwd, project, path
