"""LangChain: ShellToolMiddleware, whose persistent shell runs in the sandbox."""

import sys
from typing import Any

from langchain.agents import create_agent

from sandboxd_client.integrations.langchain import SandboxShellMiddleware


def answer(model: Any, task: str) -> str:
    agent = create_agent(model, middleware=[SandboxShellMiddleware(".")])
    return str(agent.invoke({"messages": [("user", task)]})["messages"][-1].content)


if __name__ == "__main__":
    print(answer(sys.argv[1], sys.argv[2]))
