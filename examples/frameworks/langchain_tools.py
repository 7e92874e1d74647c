"""LangChain: an agent whose shell tools run in the sandbox."""

import sys
from typing import Any

from langchain.agents import create_agent

from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.langchain import shell_tools


def answer(model: Any, task: str) -> str:
    with Shell() as shell:
        agent = create_agent(model, tools=shell_tools(shell), system_prompt=shell.describe())
        return str(agent.invoke({"messages": [("user", task)]})["messages"][-1].content)


if __name__ == "__main__":
    print(answer(sys.argv[1], sys.argv[2]))
