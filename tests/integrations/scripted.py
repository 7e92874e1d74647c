"""A chat model of LangChain that follows a script."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field


class Model(BaseChatModel):
    """Calls tools, one after the other, and then repeats the last result."""

    calls: list[tuple[str, dict[str, Any]]]
    results: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **keywords: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **keywords: Any) -> ChatResult:
        self.results = [str(one.content) for one in messages if isinstance(one, ToolMessage)]
        done = len(self.results)
        message = AIMessage(self.results[-1] if self.results else "nothing")
        if done < len(self.calls):
            name, given = self.calls[done]
            message = AIMessage("", tool_calls=[{"name": name, "args": given, "id": f"call-{done}"}])
        return ChatResult(generations=[ChatGeneration(message=message)])
