"""CrewAI with its own loop, a model of the tests, and the example."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", OTEL_SDK_DISABLED="true", CREWAI_TRACING_ENABLED="false")

from crewai import Agent
from crewai.llms.base_llm import BaseLLM
from pydantic import Field

from examples.frameworks.crew import answer
from integrations.checks import COMMANDS, LONG, check, runs, started
from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.crewai import shell_tools


class Scripted(BaseLLM):
    """Calls tools in CrewAI's text form, one after the other."""

    steps: list[Any]
    seen: list[str] = Field(default_factory=list)

    def call(self, messages: Any, tools: Any = None, **keywords: Any) -> str:
        observed = [one["content"].partition("Observation:")[2] for one in messages if one["role"] != "system"]
        self.seen += [text for text in observed if text][-1:]
        if not self.steps:
            return "Thought: I now know the final answer\nFinal Answer: done"
        name, given = self.steps.pop(0)
        return f"Thought: go\nAction: {name}\nAction Input: {json.dumps(given)}\n"

    async def acall(self, messages: Any, tools: Any = None, **keywords: Any) -> str:
        return self.call(messages, tools)

    def supports_function_calling(self) -> bool:
        return False

    def get_context_window_size(self) -> int:
        return 1_000_000


steps: list[Any] = [("shell", {"command": one}) for one in COMMANDS]
steps += [
    ("shell", {"command": f"echo begun; setsid {LONG} & wait", "timeout": 1}),
    ("shell_start", {"command": "echo up; sleep 1000"}),
    ("shell_read", {"command_id": "1", "wait": 20}),
    ("shell_stop", {"command_id": "1"}),
]
model = Scripted(model="scripted", steps=steps)
assert answer(model, "go") == "done"
check(model.seen[:4])
assert "begun" in model.seen[4] and "timed out" in model.seen[4] and not runs(LONG), model.seen[4]
assert "up" in model.seen[6] and "143" in model.seen[7], model.seen[5:]


async def closed() -> None:
    """CrewAI runs tools in threads, beyond its cancellation: to end the commands, the shell is closed."""
    with Shell() as shell:
        model = Scripted(model="scripted", steps=[("shell", {"command": f"setsid {LONG} & wait"})])
        agent = Agent(role="coder", goal="do it", backstory="brief", llm=model, tools=shell_tools(shell))
        task = asyncio.create_task(agent.akickoff("go"))
        await started(LONG)
        shell.close()
        assert not runs(LONG)
        await task
        assert "the shell was closed while this ran" in model.seen[0], model.seen


asyncio.run(closed())
