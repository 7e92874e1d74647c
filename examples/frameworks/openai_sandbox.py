"""OpenAI Agents SDK: a SandboxAgent whose workspace is this directory."""

import asyncio
import sys
from typing import Any

from agents import Runner
from agents.sandbox import SandboxAgent

from sandboxd_client.integrations.openai_sandbox import Shell, run_config


async def answer(model: Any, task: str) -> Any:
    async with Shell() as shell:
        return (await Runner.run(SandboxAgent("coder", model=model), task, run_config=run_config(shell))).final_output


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1], sys.argv[2])))
