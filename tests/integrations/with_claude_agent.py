"""claude-agent-sdk with the Claude Code that it carries, and the example; its model is a server of the tests."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, query

from examples.frameworks.claude_agent import answer
from integrations.checks import runs, started
from sandboxd_client.integrations import Shell, claude_agent

PROGRAM = shutil.which("sandboxd") or ""
claude_agent._program = lambda: [PROGRAM]  # that of the tests lies where commands could have written it
asked: list[str] = []


def ask(text: str) -> bool:
    asked.append(text)
    return False


async def task() -> AsyncIterator[dict[str, Any]]:
    yield {"type": "user", "message": {"role": "user", "content": "go"}}


async def main() -> None:
    options = ClaudeAgentOptions(setting_sources=[])
    async with Shell(ask=ask) as shell:
        messages = [one async for one in query(prompt=task(), options=claude_agent.sandboxed(shell, options))]
    assert messages
    assert await answer(options, "go") == "done", "the example, for which the model has no call left"
    print("\n".join(asked))


async def interrupted(line: str) -> None:
    async with Shell() as shell:
        async with ClaudeSDKClient(claude_agent.sandboxed(shell, ClaudeAgentOptions(setting_sources=[]))) as client:
            await client.query("go")
            await started(line)
            await client.interrupt()
            assert [one async for one in client.receive_response()]
            while runs(line):  # noqa: ASYNC110 (of another process, and a moment after the answer)
                await asyncio.sleep(0.05)


asyncio.run(interrupted(os.environ["INTERRUPTED"]) if "INTERRUPTED" in os.environ else main())
