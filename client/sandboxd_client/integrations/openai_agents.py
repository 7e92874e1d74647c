"""OpenAI Agents SDK: ShellTool, and function tools for commands in the background."""

from __future__ import annotations

from typing import Any

from sandboxd_client.integrations import Ran, Shell, extra, functions

with extra("openai-agents"):
    from agents import (
        FunctionTool,
        ShellCallOutcome,
        ShellCommandOutput,
        ShellCommandRequest,
        ShellExecutor,
        ShellResult,
        ShellTool,
        function_tool,
    )


def shell_tool(shell: Shell, **options: Any) -> ShellTool:
    """Return a ShellTool whose commands run in the sandbox."""
    return ShellTool(executor=shell_executor(shell), **options)


def shell_executor(shell: Shell) -> ShellExecutor:
    """Return the executor of such a tool."""

    async def execute(request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        limit = None if action.timeout_ms is None else action.timeout_ms / 1000
        outputs = [_output(command, await shell.arun(command, timeout=limit)) for command in action.commands]
        return ShellResult(outputs, max_output_length=action.max_output_length)

    return execute


def _output(command: str, ran: Ran) -> ShellCommandOutput:
    outcome = (
        ShellCallOutcome("timeout") if ran.timed_out else ShellCallOutcome("exit", 126 if ran.refusal else ran.status)
    )
    stderr = f"not run: {ran.refusal}" if ran.refusal else ran.stderr
    return ShellCommandOutput(ran.stdout, stderr, outcome, command)


def function_tools(shell: Shell) -> list[FunctionTool]:
    """Return the function tools shell, shell_start, shell_read and shell_stop, for any model."""
    return [function_tool(function) for function in functions.awaitable(shell)]
