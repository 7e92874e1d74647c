"""pydantic-ai with its own loop, a function as the model, and the example."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.workspaces import WorkspaceTimeoutError

from examples.frameworks.pydantic_agent import answer
from integrations.checks import COMMANDS, LONG, OUTSIDE, check, runs, started
from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.pydantic_ai import SandboxWorkspace, toolset


def scripted(calls: list[tuple[str, dict[str, Any]]], results: list[str]) -> FunctionModel:
    def reply(messages: Any, info: Any) -> ModelResponse:
        results[:] = [str(p.content) for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        if len(results) < len(calls):
            return ModelResponse(parts=[ToolCallPart(*calls[len(results)])])
        return ModelResponse(parts=[TextPart(results[-1] if results else "nothing")])

    return FunctionModel(reply)


async def tools() -> None:
    results: list[str] = []
    assert "kept" in await answer(scripted([("shell", {"command": one}) for one in COMMANDS], results), "go")
    check(results)
    async with Shell() as shell:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("shell", {"command": f"echo begun; setsid {LONG} & wait", "timeout": 1}),
            ("shell_start", {"command": "echo up; sleep 1000"}),
            ("shell_read", {"command_id": "1", "wait": 20}),
            ("shell_stop", {"command_id": "1"}),
        ]
        await Agent(scripted(calls, results), toolsets=[toolset(shell)]).run("go")
        assert "begun" in results[0] and "timed out" in results[0] and not runs(LONG), results
        assert results[1:3] == ["1", "up\n"] and "143" in results[3], results

        agent = Agent(scripted([("shell", {"command": f"setsid {LONG} & wait"})], results), toolsets=[toolset(shell)])
        task = asyncio.create_task(agent.run("go"))
        await started(LONG)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not runs(LONG)


async def workspace() -> None:
    async with Shell() as shell:
        results: list[str] = []
        agent = Agent(scripted([("note", {"text": "é" * 30_000})], results))

        @agent.tool
        async def note(ctx: RunContext[None], text: str) -> str:
            await ctx.workspace.write_text("notes/one", text)
            return str(len(await ctx.workspace.read_text("notes/one")))

        await agent.run("go", workspace=SandboxWorkspace(shell))
        assert results == ["30000"], results
        box = SandboxWorkspace(shell)
        done = await box.run(["sh", "-c", "echo $NAME; exit 4"], env={"NAME": "value"})
        assert (done.exit_code, done.stdout) == (4, "value\n")
        assert (await box.run(["no-such-program"])).exit_code == 127
        refused = await box.run(["touch", str(OUTSIDE)])
        assert refused.exit_code == 1 and "<sandbox_violations>" in refused.stderr and not OUTSIDE.exists()
        try:
            await box.run(["sh", "-c", f"echo begun; setsid {LONG} & wait"], timeout=1)
        except WorkspaceTimeoutError as late:
            assert late.stdout == "begun\n" and not runs(LONG)
        else:
            raise AssertionError("no time-out")


asyncio.run(tools())
asyncio.run(workspace())
