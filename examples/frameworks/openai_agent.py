"""OpenAI Agents SDK: an agent whose ShellTool runs in the sandbox."""

import asyncio
import sys
from typing import Any

from agents import Agent, Runner

from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.openai_agents import shell_tool


async def answer(model: Any, task: str) -> str:
    async with Shell() as shell:
        return str((await Runner.run(Agent("coder", tools=[shell_tool(shell)], model=model), task)).final_output)


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1], sys.argv[2])))
