"""deepagents: a backend whose commands and file tools run in the sandbox."""

from __future__ import annotations

import shlex
from typing import Any

from sandboxd_client.errors import SandboxdError
from sandboxd_client.integrations import Ran, Shell, extra

with extra("deepagents"):
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
    from deepagents.backends.sandbox import BaseSandbox

_MOST = 1 << 20  # file tools read through commands
_ERRORS = (
    ("No such file", "file_not_found"),
    ("Is a directory", "is_directory"),
    ("Permission denied", "permission_denied"),
    ("Read-only file system", "permission_denied"),
    ("Operation not permitted", "permission_denied"),
)


class SandboxBackend(BaseSandbox):
    """A SandboxBackendProtocol of `shell`. Paths are those of this machine."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    @property
    def id(self) -> str:
        return f"sandboxd:{self._shell.cwd}"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return _response(self._shell.run(command, timeout=timeout, max_output=_MOST))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109
        return _response(await self._shell.arun(command, timeout=timeout, max_output=_MOST))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        found = []
        for path, content in files:
            name = shlex.quote(path)
            error, _ = self._exchanged(f'mkdir -p -- "$(dirname -- {name})" && cat >{name}', content)
            found.append(FileUploadResponse(path=path, error=error))
        return found

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        found = []
        for path in paths:
            error, content = self._exchanged(f"cat -- {shlex.quote(path)}", b"")
            found.append(FileDownloadResponse(path=path, content=None if error else content, error=error))
        return found

    def _exchanged(self, line: str, input: bytes) -> tuple[Any, bytes]:
        """Return the error of a shell line, or None, and its output."""
        try:
            done = self._shell.exchange(line, input)
        except SandboxdError as error:
            return str(error), b""
        said = done.stderr.decode(errors="replace").strip()
        known = next((error for text, error in _ERRORS if text in said), said or f"exit status {done.returncode}")
        return known if done.returncode else None, done.stdout


def _response(ran: Ran) -> ExecuteResponse:
    status = 124 if ran.timed_out else 126 if ran.refusal else ran.status
    return ExecuteResponse(
        output=ran.output if status in (0, ran.status) else ran.text, exit_code=status, truncated=ran.cut
    )
