"""LangChain with its own loop, a model of the tests, and the examples."""

from __future__ import annotations

import asyncio

from langchain.agents import create_agent

from examples.frameworks.langchain_middleware import answer as with_middleware
from examples.frameworks.langchain_tools import answer as with_tools
from integrations.checks import COMMANDS, LONG, check, runs, started
from integrations.scripted import Model
from sandboxd_client.integrations import Shell
from sandboxd_client.integrations.langchain import SandboxExecutionPolicy, SandboxShellMiddleware, shell_tools


def scripted(*commands: str, tool: str = "shell") -> Model:
    return Model(calls=[(tool, {"command": command}) for command in commands])


def tools() -> None:
    model = scripted(*COMMANDS)
    assert "kept" in with_tools(model, "go")
    check(model.results)
    with Shell() as shell:
        model = Model(
            calls=[
                ("shell", {"command": "echo begun; sleep 1000", "timeout": 0.5}),
                ("shell_start", {"command": "echo up; sleep 1000"}),
                ("shell_read", {"command_id": "1", "wait": 20}),
                ("shell_stop", {"command_id": "1"}),
                ("shell_read", {"command_id": "1"}),
            ]
        )
        create_agent(model, tools=shell_tools(shell)).invoke({"messages": [("user", "go")]})
        late, name, read, stopped, gone = model.results
        assert "begun" in late and "timed out" in late and (name, read) == ("1", "up\n"), model.results
        assert "143" in stopped and gone.startswith("not run: there is no command"), model.results


def cancelled() -> None:
    async def run() -> None:
        async with Shell() as shell:
            agent = create_agent(scripted(f"setsid {LONG} & wait"), tools=shell_tools(shell))
            task = asyncio.create_task(agent.ainvoke({"messages": [("user", "go")]}))
            await started(LONG)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not runs(LONG)

    asyncio.run(run())


def middleware() -> None:
    model = scripted(*COMMANDS)
    with_middleware(model, "go")
    check(model.results)
    model = scripted("cd /; X=1", "echo $PWD $X", f"setsid {LONG} & wait", "echo on")
    policy = SandboxExecutionPolicy(command_timeout=2.0, termination_timeout=1.0)
    agent = create_agent(model, middleware=[SandboxShellMiddleware(".", execution_policy=policy)])
    agent.invoke({"messages": [("user", "go")]})
    assert "/ 1" in model.results[1] and "timed out" in model.results[2] and "on" in model.results[3], model.results
    assert not runs(LONG), "the time-out has ended the whole tree"
    asyncio.run(cancelled_middleware(policy))


async def cancelled_middleware(policy: SandboxExecutionPolicy) -> None:
    """The middleware waits in a thread, which it cannot cancel: the time-out ends the command."""
    agent = create_agent(
        scripted(f"setsid {LONG} & wait"), middleware=[SandboxShellMiddleware(".", execution_policy=policy)]
    )
    task = asyncio.create_task(agent.ainvoke({"messages": [("user", "go")]}))
    await started(LONG)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    while runs(LONG):  # noqa: ASYNC110 (of another process)
        await asyncio.sleep(0.05)


tools()
cancelled()
middleware()
