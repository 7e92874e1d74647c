"""claude-agent-sdk: the tool Bash in the sandbox, and its questions.

Hooks decide on every call of Bash, also on those for which Claude Code would not ask, and replace its command. So the
tool stays Claude Code's own, with its background commands and time-outs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shlex
from collections.abc import Sequence
from typing import Any

from sandboxd_client.errors import DaemonNotRunning, SandboxdError
from sandboxd_client.integrations import Shell, extra
from sandboxd_client.transport.starting import daemon_command
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult

with extra("claude-agent-sdk"):
    from claude_agent_sdk import (
        ClaudeAgentOptions,
        HookMatcher,
        PermissionResult,
        PermissionResultAllow,
        PermissionResultDeny,
        ToolPermissionContext,
    )

_AFTER = ("PostToolUse", "PostToolUseFailure")
_LIMIT_S, _START_LIMIT_S = 2.0, 12.0
_SHELLS = ("/bin/bash", "/bin/sh")


def sandboxed(
    shell: Shell, options: ClaudeAgentOptions | None = None, *, program: Sequence[str] | None = None
) -> ClaudeAgentOptions:
    """Return the options with Bash in the sandbox of `shell`; other hooks and callbacks stay.

    A question about a command goes to `can_use_tool`: that of the options, else the `ask` of the shell. `program` is
    the argv of `sandboxd`, by default that in PATH. Raises DaemonNotRunning without one."""
    given = options or ClaudeAgentOptions()
    bash = _Bash(shell, tuple(program or _program()))
    hooks: Any = {name: list(matchers) for name, matchers in (given.hooks or {}).items()}
    hooks.setdefault("PreToolUse", []).append(HookMatcher("Bash", [bash.before], on_failure="block"))
    for name in _AFTER:
        hooks.setdefault(name, []).append(HookMatcher("Bash", [bash.after]))
    ask = given.can_use_tool or (bash.permitted if shell.asks else None)
    return dataclasses.replace(given, hooks=hooks, can_use_tool=ask, cwd=given.cwd or shell.cwd)


def _program() -> list[str]:
    try:
        return daemon_command("")
    except DaemonNotRunning as error:
        _, separator, why = error.message.partition("; ")
        message = f"the program sandboxd, which runs the commands, is not installed here{separator}{why}"
        raise DaemonNotRunning("", message, "install it, or name it with: program=") from None


class _Bash:
    """The hooks around one call of Bash."""

    def __init__(self, shell: Shell, program: tuple[str, ...]) -> None:
        self._shell = shell
        self._program = program

    async def before(self, event: Any, tool_use_id: str | None, context: Any) -> Any:
        """Decide on a call. What cannot be decided is denied."""
        given = event["tool_input"]
        try:
            session_id, decision = await self._decided(given, event.get("cwd"))
        except Exception as error:  # without an answer the command would run without a sandbox
            why = "the daemon gave no decision in time" if isinstance(error, TimeoutError) else str(error)
            return _answer("deny", f"sandboxd: {why}")
        behavior, reason = decision.behavior, f"sandboxd: {decision.reason.text}"
        if decision.hint:
            reason += f"; hint: {decision.hint}"
        if behavior == "deny":
            return _answer("deny", reason)
        if behavior == "ask" and event.get("permission_mode") in ("bypassPermissions", "dontAsk"):
            return _answer("deny", f"{reason}; the agent asks no user in this mode")
        if not decision.sandboxed and behavior == "ask":
            return _answer("ask", reason)
        options = ["--decide"] if not decision.sandboxed else ["--shell", next(filter(os.path.exists, _SHELLS))]
        words = [*self._program, "run", "--session", session_id, *options]
        words += ["--command-id", tool_use_id or "", "-c", given["command"]]
        return _answer(behavior, reason, {**given, "command": shlex.join(words)})

    async def after(self, event: Any, tool_use_id: str | None, context: Any) -> Any:
        """Tell the model what was blocked in a call."""
        with contextlib.suppress(SandboxdError):
            text = await self._shell.blocked(tool_use_id or "")
            if text:
                output = {"hookEventName": event["hook_event_name"], "additionalContext": text}
                return {"hookSpecificOutput": output}
        return {}

    async def permitted(self, name: str, given: dict[str, Any], context: ToolPermissionContext) -> PermissionResult:
        """Put a question of Claude Code to the function of the shell."""
        reason = context.decision_reason or context.description or ""
        if await self._shell.ask(f"{name}: {given.get('command', given)} ({reason})"):
            return PermissionResultAllow(updated_input=given)
        return PermissionResultDeny(message="the user has not allowed it")

    async def _decided(self, given: dict[str, Any], cwd: str | None) -> tuple[str, ShouldSandboxResult]:
        outside = given.get("dangerouslyDisableSandbox") is True
        async with asyncio.timeout(_START_LIMIT_S):
            session_id = await self._shell.session_id()
        async with asyncio.timeout(_LIMIT_S):
            decision = await self._shell.decide(given["command"], cwd=cwd, dangerously_disable_sandbox=outside)
        return session_id, decision


def _answer(behavior: str, reason: str, changed: dict[str, Any] | None = None) -> dict[str, Any]:
    output: dict[str, Any] = {"hookEventName": "PreToolUse", "permissionDecisionReason": reason}
    output["permissionDecision"] = behavior
    if changed is not None:
        output["updatedInput"] = changed
    return {"hookSpecificOutput": output}
