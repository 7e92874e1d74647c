"""smolagents: a CodeAgent whose Python code runs in the sandbox."""

import sys
from typing import Any

from smolagents import CodeAgent, InferenceClientModel

from sandboxd_client.integrations.smolagents import SandboxPythonExecutor


def answer(model: Any, task: str) -> str:
    with CodeAgent([], model, executor=SandboxPythonExecutor(), verbosity_level=0) as agent:
        return str(agent.run(task))


if __name__ == "__main__":
    print(answer(InferenceClientModel(sys.argv[1]), sys.argv[2]))
