"""A server with a model that follows a script, in the protocols of four vendors.

The model calls the shell tool with each of its commands, then ends the turn. What an agent asks beside that (a title, a
summary) has no shell tool, and gets a text."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web

Call = dict[str, Any] | None
"""Arguments of a call of the shell tool; None: the model says that it is done."""


def _events(events: list[dict[str, Any]], *, named: bool = True) -> str:
    heads = [f"event: {event['type']}\n" if named else "" for event in events]
    return "".join(f"{head}data: {json.dumps(event)}\n\n" for head, event in zip(heads, events, strict=True))


def _messages(name: str, number: str, call: Call, body: dict[str, Any]) -> str:
    """Anthropic: /v1/messages."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    block: dict[str, Any] = {"type": "text", "text": ""}
    delta: dict[str, Any] = {"type": "text_delta", "text": "done"}
    if call is not None:
        block = {"type": "tool_use", "id": number, "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call)}
    head = {"id": "m", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    message = {**head, "stop_reason": None, "stop_sequence": None, "usage": usage}
    end = {"stop_reason": "end_turn" if call is None else "tool_use", "stop_sequence": None}
    return _events(
        [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": end, "usage": usage},
            {"type": "message_stop"},
        ]
    )


def _responses(name: str, number: str, call: Call, body: dict[str, Any]) -> str:
    """OpenAI: /v1/responses."""
    item: dict[str, Any] = {"type": "function_call", "id": f"fc_{number}", "call_id": number, "name": name}
    item["arguments"] = json.dumps(call)
    if call is None:
        item = {"type": "message", "id": "msg", "role": "assistant"}
        item["content"] = [{"type": "output_text", "text": "done", "annotations": []}]
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return _events(
        [
            {"type": "response.created", "response": {"id": "r"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "r", "output": [item], "usage": usage}},
        ]
    )


def _completions(name: str, number: str, call: Call, body: dict[str, Any]) -> str:
    """OpenAI and others: /v1/chat/completions."""
    delta: dict[str, Any] = {"role": "assistant", "content": "done"}
    if call is not None:
        function = {"name": name, "arguments": json.dumps(call)}
        delta = {
            "role": "assistant",
            "tool_calls": [{"index": 0, "id": number, "type": "function", "function": function}],
        }
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    ends = {"delta": {}, "index": 0, "finish_reason": "stop" if call is None else "tool_calls"}
    parts: list[dict[str, Any]] = [{"delta": delta, "index": 0, "finish_reason": None}, ends]
    return _events([{**head, "choices": [part]} for part in parts], named=False) + "data: [DONE]\n\n"


def _contents(name: str, number: str, call: Call, body: dict[str, Any]) -> str:
    """Google: /v1beta/models/MODEL:streamGenerateContent."""
    part: dict[str, Any] = {"text": "done"} if call is None else {"functionCall": {"name": name, "args": call}}
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return _events(
        [{"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}],
        named=False,
    )


_PROTOCOLS: dict[str, tuple[str, Callable[[str, str, Call, dict[str, Any]], str], tuple[str, ...], str]] = {
    "/v1/messages": ("messages", _messages, ("assistant",), '"tool_result"'),
    "/v1/responses": ("input", _responses, ("assistant", "function_call"), '"function_call_output"'),
    "/v1/chat/completions": ("messages", _completions, ("assistant",), '"tool"'),
    "streamGenerateContent": ("contents", _contents, ("model",), '"functionResponse"'),
}
"""The end of a path: the key of the turns so far, the reply, the roles of the model, and the mark of a result."""


class Model:
    """A model that calls `tool` with each of `commands`, then ends the turn."""

    def __init__(self, commands: list[dict[str, Any]], tool: str = "Bash") -> None:
        self._waiting = list(commands)
        self._tool = tool
        self.results: list[str] = []
        """The result that the agent sent for each call, with the text of its hooks."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        end = next((end for end in _PROTOCOLS if request.path.endswith(end)), None)
        if request.method != "POST" or end is None:
            return web.json_response({})
        body = await request.json()
        key, reply, own, result = _PROTOCOLS[end]
        turns = body.get(key, [])
        replies = [number for number, one in enumerate(turns) if one.get("role", one.get("type")) in own]
        news = json.dumps(turns[replies[-1] + 1 :]) if replies else ""
        if result in news:
            self.results.append(news)
        may_call = self._waiting and f'"name": "{self._tool}"' in json.dumps(body.get("tools", ()))
        call, number = (self._waiting.pop(0), f"call_{len(self._waiting)}") if may_call else (None, "")
        return web.Response(text=reply(self._tool, number, call, body), content_type="text/event-stream")


@contextlib.contextmanager
def served(model: Model) -> Iterator[str]:
    """Serves on a free port of the loopback, in a thread."""
    started, loop = threading.Event(), asyncio.new_event_loop()
    ended = asyncio.Event()
    address: list[str] = []

    async def run() -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{rest:.*}", model.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        started.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(30)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
