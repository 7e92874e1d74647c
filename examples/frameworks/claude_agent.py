"""claude-agent-sdk: Claude Code, whose tool Bash runs in the sandbox."""

import asyncio
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.claude_agent import sandboxed


async def answer(options: ClaudeAgentOptions, task: str) -> str:
    async with Shell() as shell:
        messages = [message async for message in query(prompt=task, options=sandboxed(shell, options))]
        return next(str(message.result) for message in messages if isinstance(message, ResultMessage))


if __name__ == "__main__":
    print(asyncio.run(answer(ClaudeAgentOptions(), sys.argv[1])))
