"""The OpenAI Agents SDK with its own loop, its own scripted model, and the example."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agents import Agent, Runner, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses.response_function_shell_tool_call import Action, ResponseFunctionShellToolCall

from examples.frameworks.openai_agent import answer
from integrations.checks import COMMANDS, LONG, check, runs, started
from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.openai_agents import function_tools, shell_tool


def shell_call(number: int, commands: tuple[str, ...], timeout_ms: int | None = None) -> ResponseFunctionShellToolCall:
    action = Action(commands=list(commands), timeout_ms=timeout_ms)
    name = f"call-{number}"
    return ResponseFunctionShellToolCall(id=name, call_id=name, type="shell_call", status="completed", action=action)


def outputs(item: Any) -> list[dict[str, Any]]:
    """Results of a shell call for the model: one record for each command."""
    found: list[dict[str, Any]] = item["output"]
    return found


async def tools() -> None:
    model = ScriptedModel([[shell_call(1, COMMANDS)], [assistant_message("done")]])
    assert await answer(model, "go") == "done"
    [sent] = [one for one in model.calls[-1].input if one.get("type") == "shell_call_output"]
    texts = [f"{one['stdout']}{one['stderr']}{one['outcome']}" for one in outputs(sent)]
    check(texts)
    assert outputs(sent)[2]["outcome"] == {"type": "exit", "exit_code": 3}
    async with Shell() as shell:
        line = f"echo begun; setsid {LONG} & wait"
        model = ScriptedModel([[shell_call(2, (line,), timeout_ms=1000)], [assistant_message("done")]])
        await Runner.run(Agent("coder", tools=[shell_tool(shell)], model=model), "go")
        [late] = [one for one in model.calls[-1].input if one.get("type") == "shell_call_output"]
        assert outputs(late)[0]["outcome"]["type"] == "timeout" and "begun" in outputs(late)[0]["stdout"], late
        assert not runs(LONG)

        model = ScriptedModel([[shell_call(3, (f"setsid {LONG} & wait",))]])
        task = asyncio.create_task(Runner.run(Agent("coder", tools=[shell_tool(shell)], model=model), "go"))
        await started(LONG)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not runs(LONG)


async def functions() -> None:
    async with Shell() as shell:
        steps = [
            ("shell_start", {"command": "echo up; sleep 1000"}),
            ("shell_read", {"command_id": "1", "wait": 20}),
            ("shell_stop", {"command_id": "1"}),
        ]
        calls = [function_call(name, json.dumps(given), call_id=str(n)) for n, (name, given) in enumerate(steps)]
        model = ScriptedModel([*([one] for one in calls), [assistant_message("done")]])
        await Runner.run(Agent("coder", tools=[*function_tools(shell)], model=model), "go")
        texts = [one["output"] for one in model.calls[-1].input if one.get("type") == "function_call_output"]
        assert texts[:2] == ["1", "up\n"] and "143" in texts[2], texts


set_tracing_disabled(True)
asyncio.run(tools())
asyncio.run(functions())
