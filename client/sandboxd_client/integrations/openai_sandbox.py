"""OpenAI Agents SDK: the backend of a SandboxAgent. Commands and files of the agent go through the sandbox."""

from __future__ import annotations

import io
import os
import uuid
from pathlib import Path
from typing import Any, Literal

from sandboxd_client.errors import SandboxdError
from sandboxd_client.integrations import Shell, extra

with extra("openai-agents"):
    from agents import RunConfig
    from agents.sandbox import (
        ExecResult,
        ExecTimeoutError,
        ExecTransportError,
        Manifest,
        SandboxRunConfig,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        resolve_snapshot,
    )
    from agents.sandbox.session import (
        BaseSandboxClient,
        BaseSandboxClientOptions,
        BaseSandboxSession,
        SandboxSession,
        SandboxSessionState,
    )

__all__ = ["SandboxdSandboxClient", "Shell", "run_config"]
_MOST = 10 << 20
_NO_LIMIT_S = 1e9
_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'


class SandboxdSessionState(SandboxSessionState):
    type: Literal["sandboxd"] = "sandboxd"


class SandboxdClientOptions(BaseSandboxClientOptions):
    type: Literal["sandboxd"] = "sandboxd"


class SandboxdSession(BaseSandboxSession):
    """The session of one agent; its workspace is the directory of the shell."""

    def __init__(self, state: SandboxdSessionState, shell: Shell) -> None:
        self.state = state
        self._shell = shell

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:  # noqa: ASYNC109
        env = await self.state.manifest.environment.resolve()
        words = [str(word) for word in command]
        ran = await self._shell.arun(words, timeout=timeout or _NO_LIMIT_S, env=env, max_output=_MOST)
        if ran.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        if ran.status is None:
            raise ExecTransportError(command=command, context={"reason": ran.refusal})
        return ExecResult(stdout=ran.stdout.encode(), stderr=ran.stderr.encode(), exit_code=ran.status)

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        target = await self._check_read_with_exec(path, user=user)
        return io.BytesIO(await self._exchanged(target, WorkspaceArchiveReadError, "cat", "--", str(target)))

    async def write(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        target = await self._validate_path_access(path, for_write=True)
        content = data.read()
        input = content.encode() if isinstance(content, str) else bytes(content)
        await self._exchanged(target, WorkspaceArchiveWriteError, "sh", "-c", _WRITE, "sh", str(target), input=input)

    async def running(self) -> bool:
        return True

    async def persist_workspace(self) -> io.IOBase:
        root = self.state.manifest.root
        return io.BytesIO(
            await self._exchanged(Path(root), WorkspaceArchiveReadError, "tar", "-C", root, "-cf", "-", ".")
        )

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self.state.manifest.root
        argv = ("tar", "-C", root, "-xf", "-")
        await self._exchanged(Path(root), WorkspaceArchiveWriteError, *argv, input=data.read())

    async def _exchanged(self, path: Path, failure: Any, *argv: str, input: bytes = b"") -> bytes:
        try:
            done = await self._shell.aexchange(argv, input)
        except SandboxdError as error:
            raise failure(path=path, cause=error) from error
        if done.returncode:
            raise failure(path=path, context={"stderr": done.stderr.decode(errors="replace")})
        return done.stdout


class SandboxdSandboxClient(BaseSandboxClient[SandboxdClientOptions]):
    """The client for `SandboxRunConfig`. The workspace is the directory of `shell`, and is never deleted."""

    backend_id = "sandboxd"
    supports_default_options = True

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._root = os.path.realpath(shell.cwd)

    async def create(self, *, snapshot: Any = None, manifest: Any = None, options: Any = None) -> SandboxSession:
        """Return a session in the directory of the shell, whatever root the manifest has."""
        given = self._validate_manifest_for_create(manifest or Manifest())
        placed = given.model_copy(update={"root": self._root}, deep=True)
        name = uuid.uuid4()
        state = SandboxdSessionState(session_id=name, manifest=placed, snapshot=resolve_snapshot(snapshot, str(name)))
        return await self.resume(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        if not isinstance(state, SandboxdSessionState) or state.manifest.root != self._root:
            raise ValueError("the state is of another workspace")
        return self._wrap_session(SandboxdSession(state, self._shell))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, SandboxdSessionState)


def run_config(shell: Shell) -> RunConfig:
    """Return the configuration of a run whose SandboxAgent works in the directory of the shell."""
    return RunConfig(sandbox=SandboxRunConfig(client=SandboxdSandboxClient(shell)))
