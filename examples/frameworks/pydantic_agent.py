"""pydantic-ai: an agent whose tools run in the sandbox."""

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent

from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.pydantic_ai import toolset


async def answer(model: Any, task: str) -> str:
    async with Shell() as shell:
        return str((await Agent(model, toolsets=[toolset(shell)]).run(task)).output)


if __name__ == "__main__":
    print(asyncio.run(answer(sys.argv[1], sys.argv[2])))
