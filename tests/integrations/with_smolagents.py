"""smolagents with its own loops, a model of the tests, and the example."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import Any

from smolagents import ChatMessage, CodeAgent, Model, ToolCallingAgent
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole

from examples.frameworks.smol_agent import answer
from integrations.checks import COMMANDS, LONG, OUTSIDE, check, runs, started
from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.smolagents import SandboxPythonExecutor, shell_tools


class Scripted(Model):
    """Calls tools or writes code, one step after the other."""

    def __init__(self, *steps: Any) -> None:
        super().__init__(model_id="scripted")
        self.steps = list(steps)
        self.seen: list[str] = []

    def generate(self, messages: Any, **keywords: Any) -> ChatMessage:
        self.seen.append(str(messages[-1].content))
        step = self.steps.pop(0)
        if isinstance(step, str):
            return ChatMessage(MessageRole.ASSISTANT, f"Thought: go\n<code>\n{step}\n</code>")
        name, given = step
        function = ChatMessageToolCallFunction(name=name, arguments=given)
        call = ChatMessageToolCall(function=function, id=str(len(self.steps)), type="function")
        return ChatMessage(MessageRole.ASSISTANT, "", tool_calls=[call])


def tools() -> None:
    with Shell() as shell:
        late = ("shell", {"command": f"echo begun; setsid {LONG} & wait", "timeout": 1})
        steps = [("shell", {"command": one}) for one in COMMANDS]
        background = [
            ("shell_start", {"command": "echo up; sleep 1000"}),
            ("shell_read", {"command_id": "1", "wait": 20}),
            ("shell_stop", {"command_id": "1"}),
        ]
        model = Scripted(*steps, late, *background, ("final_answer", {"answer": "done"}))
        agent = ToolCallingAgent(shell_tools(shell), model, verbosity_level=0)
        assert agent.run("go", max_steps=20) == "done"
        check(model.seen[1:5])
        assert "begun" in model.seen[5] and "timed out" in model.seen[5] and not runs(LONG), model.seen[5]
        assert "up" in model.seen[7] and "143" in model.seen[8], model.seen[6:]


def code() -> None:
    model = Scripted(
        "import os, subprocess\nopen('mark2', 'w')\nvalue = [1, 2]\nprint('printed', os.environ['SANDBOX_RUNTIME'])",
        f"open({str(OUTSIDE)!r}, 'w')",
        "subprocess.run('echo loud', shell=True)\nvalue.append(3)\nfinal_answer({'sum': sum(value)})",
    )
    assert answer(model, "go") == "{'sum': 6}"
    assert "printed 1" in model.seen[1] and os.path.exists("mark2"), model.seen[1]
    assert "Read-only file system" in model.seen[2] and not OUTSIDE.exists(), model.seen[2]
    assert "<sandbox_violations>" in model.seen[2], model.seen[2]


def limits() -> None:
    executor = SandboxPythonExecutor(timeout=2, max_output=1000)
    model = Scripted(
        f"import subprocess\nsubprocess.run('setsid {LONG}', shell=True)",
        "try:\n    subprocess\nexcept NameError:\n    print('x' * 5000)",
        "import os\nos._exit(3)",
        "final_answer('on')",
    )
    with CodeAgent([], model, executor=executor, verbosity_level=0) as agent:
        assert agent.run("go") == "on"
    assert "was ended after 2 s" in model.seen[1] and not runs(LONG), model.seen[1]
    assert "characters are left out" in model.seen[2] and len(model.seen[2]) < 3000, model.seen[2]
    assert "its process ended" in model.seen[3], model.seen[3]


def cleaned_up() -> None:
    """No interface of the agent ends its code; `cleanup` of the executor does."""
    executor = SandboxPythonExecutor()
    model = Scripted(f"import subprocess\nsubprocess.run('setsid {LONG}', shell=True)", "final_answer('on')")
    agent = CodeAgent([], model, executor=executor, verbosity_level=0)

    def run() -> None:
        with contextlib.suppress(Exception):  # the executor has ended
            agent.run("go")

    thread = threading.Thread(target=run)
    thread.start()
    asyncio.run(started(LONG))
    executor.cleanup()
    assert not runs(LONG)
    thread.join(60)
    assert not thread.is_alive() and "its process ended" in model.seen[1], model.seen


tools()
code()
limits()
cleaned_up()
