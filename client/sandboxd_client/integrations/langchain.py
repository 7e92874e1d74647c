"""LangChain and LangGraph: shell tools, and an execution policy for ShellToolMiddleware."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sandboxd_client import subprocess
from sandboxd_client.client import Client, Session
from sandboxd_client.integrations import Shell, extra, functions
from sandboxd_client.running.launching import environment_of

with extra("langchain"):
    from langchain.agents.middleware import ShellToolMiddleware
    from langchain.agents.middleware.shell_tool import BaseExecutionPolicy
    from langchain_core.tools import StructuredTool


def shell_tools(shell: Shell) -> list[StructuredTool]:
    """Return the tools shell, shell_start, shell_read and shell_stop."""
    pairs = zip(functions.blocking(shell), functions.awaitable(shell), strict=True)
    return [StructuredTool.from_function(func=call, coroutine=await_) for call, await_ in pairs]


@dataclasses.dataclass
class SandboxExecutionPolicy(BaseExecutionPolicy):
    """An execution policy that runs the persistent shell in the sandbox.

    An empty environment becomes this process's, without variables that may hold secrets."""

    settings: Mapping[str, Any] | None = None
    box: Client = dataclasses.field(default_factory=lambda: Client(role="agent"))
    sessions: dict[Path, Session] = dataclasses.field(default_factory=dict)

    def spawn(self, *, workspace: Path, env: Mapping[str, str], command: Sequence[str]) -> subprocess.Popen:
        """Start the shell. Raises SandboxdError."""
        if workspace not in self.sessions:
            self.sessions[workspace] = self.box.session(workspace, name="langchain", settings=self.settings).open()
        return subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=workspace,
            env=env or environment_of({"environment": "clean"}),
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            session=self.sessions[workspace],
        )

    def violations(self, seen: dict[str, str]) -> str:
        """Return what was blocked since the last call with the same `seen`, as text for a model."""
        lines = []
        for session in tuple(self.sessions.values()):
            found = self.box.violation_list(session_id=session.id, since=seen.get(session.id))
            seen[session.id] = found.cursor
            lines += [f"{one.operation} {one.target}: {one.hint}" for one in found.violations]
        return "\n".join(["", "<sandbox_violations>", *lines, "</sandbox_violations>"]) if lines else ""


class SandboxShellMiddleware(ShellToolMiddleware[Any, Any]):
    """ShellToolMiddleware in the sandbox, with the violations below the output of each call."""

    def __init__(self, workspace_root: str | Path | None = None, **options: Any) -> None:
        self._policy = options.setdefault("execution_policy", SandboxExecutionPolicy())
        self._seen: dict[str, str] = {}
        super().__init__(workspace_root, **options)

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return self._annotated(request, handler(request))

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return self._annotated(request, await handler(request))

    def _annotated(self, request: Any, message: Any) -> Any:
        if request.tool_call["name"] == self._tool_name and isinstance(getattr(message, "content", None), str):
            message.content += self._policy.violations(self._seen)
        return message
