"""pydantic-ai: a workspace, and a toolset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sandboxd_client.integrations import Shell, extra, functions

with extra("pydantic-ai"):
    from pydantic_ai.toolsets import FunctionToolset
    from pydantic_ai.workspaces import (
        CommandResult,
        SupportsCommands,
        WorkspaceBackend,
        WorkspaceCommand,
        WorkspaceError,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )

_MOST = 10 << 20
_NO_LIMIT_S = 1e9


def toolset(shell: Shell) -> FunctionToolset[Any]:
    """Return the tools shell, shell_start, shell_read and shell_stop."""
    return FunctionToolset(functions.awaitable(shell))


class SandboxWorkspace(WorkspaceBackend, SupportsCommands):
    """A workspace of `shell`: its commands, and its files through commands, are in the sandbox.

    It is for `workspace=` of an agent's run, where commands are what the tools of the program run."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._directory = os.path.realpath(shell.cwd)

    @property
    def ref(self) -> WorkspaceRef:
        return WorkspaceRef(provider="sandboxd", id=self._directory)

    async def working_dir(self) -> str:
        self._check()
        return self._directory

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - of the protocol
    ) -> CommandResult:
        if isinstance(command, str) is not shell:
            raise TypeError("a string is for shell=True, and a sequence for shell=False")
        if timeout is not None and not 0 < timeout < float("inf"):
            raise ValueError("timeout must be a positive finite number or None")
        self._check()
        ran = await self._shell.arun(command, timeout=timeout or _NO_LIMIT_S, env=env, max_output=_MOST)
        if ran.timed_out:
            raise WorkspaceTimeoutError(f"it was ended after {timeout:g} s", stdout=ran.stdout, stderr=ran.stderr)
        if ran.status is None:
            raise WorkspaceError(f"not run: {ran.refusal}")
        if ran.cut:
            raise WorkspaceOutputLimitError("too much output", limit=_MOST, stdout=ran.stdout, stderr=ran.stderr)
        self._check()
        return CommandResult(exit_code=ran.status, stdout=ran.stdout, stderr=ran.stderr)

    def _check(self) -> None:
        if not os.path.isdir(self._directory):
            raise WorkspaceUnavailableError(f"{self._directory} is gone")
