"""deepagents: an agent whose commands and file tools run in the sandbox."""

import sys
from typing import Any

from deepagents import create_deep_agent

from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.deepagents import SandboxBackend


def answer(model: Any, task: str) -> str:
    with Shell() as shell:
        agent = create_deep_agent(model=model, backend=SandboxBackend(shell))
        return str(agent.invoke({"messages": [("user", task)]})["messages"][-1].content)


if __name__ == "__main__":
    print(answer(sys.argv[1], sys.argv[2]))
