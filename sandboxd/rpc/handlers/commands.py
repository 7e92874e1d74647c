"""`command.list` and `command.kill`: the commands that run."""

from __future__ import annotations

import asyncio
import contextlib

from sandboxd.policy.display import neutralise
from sandboxd.processes import ProcessTable, Usage
from sandboxd.rpc.call import MethodCall
from sandboxd.runtime.sessions import Sessions
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.commands import (
    CommandKillParams,
    CommandKillResult,
    CommandListParams,
    CommandListResult,
    RunningCommandRecord,
)

GRACE_S = 5.0
LONGEST_GRACE_S = 600.0
"""As long as `backends.base` lets a command have."""
_TEXT = 4096
_TARGETS = 16


@dataclass(frozen=True, slots=True)
class CommandMethods:
    """`command.*`."""

    sessions: Sessions

    async def list_commands(self, call: MethodCall, params: CommandListParams) -> CommandListResult:
        """Return the running commands of a session, or of all that the caller may see."""
        only = params.session_id
        if only is not None:
            self.sessions.get(only)
        running = self.sessions.running(lambda session_id: call.owns(session_id) and only in (None, session_id))
        usage = await asyncio.to_thread(_usage, [command.pid for command, _ in running if command.pid is not None])
        records = []
        for command, session in running:
            used = usage.get(command.pid or 0)
            targets = None if command.proxies is None else command.proxies.targets()
            records.append(
                RunningCommandRecord(
                    wrap_id=command.wrap_id,
                    command_id=command.command_id,
                    session_id=session.id,
                    session_name=session.spec.name,
                    cwd=command.cwd,
                    command=command.text[:_TEXT],
                    pid=command.pid,
                    since=command.claimed_at or 0.0,
                    published=tuple(map(str, command.publications)),
                    ports=None if used is None else used.ports,
                    processes=None if used is None else used.processes,
                    cpu_s=None if used is None else round(used.cpu_s, 2),
                    memory=None if used is None else used.memory,
                    connections=None if targets is None else len(targets),
                    connected=tuple(map(neutralise, list(dict.fromkeys(targets or ()))[:_TARGETS])),
                )
            )
        return CommandListResult(tuple(records))

    async def kill_command(self, call: MethodCall, params: CommandKillParams) -> CommandKillResult:
        """End a command with all its processes. Raises CallerError `command_unknown`."""
        command = self.sessions.running_command(params.command_id, call.owns)
        grace_s = GRACE_S if params.grace_s is None else min(max(params.grace_s, 0.0), LONGEST_GRACE_S)
        with contextlib.suppress(TimeoutError):
            await command.stop(grace_s)
        return CommandKillResult(command.wrap_id, command.outcome.status)


def _usage(pids: list[int]) -> dict[int, Usage]:
    if not pids:
        return {}
    table = ProcessTable()
    found = ((pid, table.usage(pid)) for pid in pids)
    return {pid: used for pid, used in found if used.processes}
