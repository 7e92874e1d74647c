"""CrewAI: shell tools."""

from __future__ import annotations

from typing import Any

from sandboxd_client.integrations import Shell, extra, functions

with extra("crewai"):
    from crewai.tools import BaseTool


def shell_tools(shell: Shell) -> list[BaseTool]:
    """Return the tools shell, shell_start, shell_read and shell_stop. Their results are never cached."""
    pairs = zip(functions.blocking(shell), functions.awaitable(shell), strict=True)
    return [_tool(call, await_) for call, await_ in pairs]


def _tool(call: Any, await_: Any) -> BaseTool:
    # CrewAI reads the arguments of a tool from the signatures in its class.
    members = {
        "__module__": __name__,
        "__annotations__": {"name": str, "description": str},
        "name": call.__name__,
        "description": call.__doc__,
        "_run": staticmethod(call),
        "_arun": staticmethod(await_),
    }
    tool: BaseTool = type(f"Sandbox_{call.__name__}", (BaseTool,), members)(cache_function=_never)
    return tool


def _never(arguments: Any = None, result: Any = None) -> bool:
    return False
