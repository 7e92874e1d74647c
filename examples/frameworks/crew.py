"""CrewAI: an agent whose shell tools run in the sandbox."""

import sys
from typing import Any

from crewai import Agent

from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.crewai import shell_tools


def answer(model: Any, task: str) -> str:
    with Shell() as shell:
        agent = Agent(role="coder", goal="do it", backstory="brief", llm=model, tools=shell_tools(shell))
        return str(agent.kickoff(task).raw)


if __name__ == "__main__":
    print(answer(sys.argv[1], sys.argv[2]))
