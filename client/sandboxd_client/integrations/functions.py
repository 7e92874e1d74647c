"""Four functions with the types and docstrings that frameworks make tools of."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from sandboxd_client.errors import SandboxdError
from sandboxd_client.integrations.shell import Shell

DESCRIPTIONS = {
    "shell": """Run a shell command in the sandbox to its end, and return its output.

    Args:
        command: The shell command.
        timeout: Seconds after which it is ended.
    """,
    "shell_start": """Start a shell command in the sandbox, such as a server, and return its id.

    Args:
        command: The shell command.
    """,
    "shell_read": """Return the new output of a started command, and its exit status once it has ended.

    Args:
        command_id: The id that shell_start returned.
        wait: Seconds to wait for output.
    """,
    "shell_stop": """End a started command with all its processes, and return the rest of its output.

    Args:
        command_id: The id that shell_start returned.
    """,
}


def blocking(shell: Shell) -> tuple[Callable[..., str], ...]:
    """Return the functions shell, shell_start, shell_read and shell_stop."""

    def run(command: str, timeout: float = 120.0) -> str:
        return _told(lambda: shell.run(command, timeout=timeout).text)

    def start(command: str) -> str:
        return _told(lambda: shell.start(command))

    def read(command_id: str, wait: float = 1.0) -> str:
        return _told(lambda: shell.read(command_id, wait).text)

    def stop(command_id: str) -> str:
        return _told(lambda: shell.stop(command_id).text)

    return _named(run, start, read, stop)


def awaitable(shell: Shell) -> tuple[Callable[..., Coroutine[Any, Any, str]], ...]:
    """Return the same functions as coroutine functions, whose cancellation ends the command."""

    async def run(command: str, timeout: float = 120.0) -> str:  # noqa: ASYNC109 - of the command
        return await _atold(shell.arun(command, timeout=timeout))

    async def start(command: str) -> str:
        return await _atold(shell.astart(command))

    async def read(command_id: str, wait: float = 1.0) -> str:
        return await _atold(shell.aread(command_id, wait))

    async def stop(command_id: str) -> str:
        return await _atold(shell.astop(command_id))

    return _named(run, start, read, stop)


def _named(*functions: Any) -> tuple[Any, ...]:
    types = {"command": str, "command_id": str, "timeout": float, "wait": float, "return": str}
    for function, (name, text) in zip(functions, DESCRIPTIONS.items(), strict=True):
        function.__name__ = function.__qualname__ = name
        function.__doc__ = text
        function.__annotations__ = {one: types[one] for one in function.__annotations__}
    return functions


def _told(action: Callable[[], str]) -> str:
    """Return the result, or an error of sandboxd as text for the model."""
    try:
        return action()
    except SandboxdError as error:
        return f"not run: {error}"


async def _atold(work: Coroutine[Any, Any, Any]) -> str:
    try:
        done = await work
    except SandboxdError as error:
        return f"not run: {error}"
    return done if isinstance(done, str) else str(done.text)
