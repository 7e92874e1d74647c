"""A server of the Messages API with a model that follows a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

from aiohttp import web

USAGE = {"input_tokens": 1, "output_tokens": 1}


class Model:
    """A server of the Messages API: it calls the tool Bash with each of `commands`, then ends the turn."""

    def __init__(self, commands: list[dict[str, Any]]) -> None:
        self._waiting = list(commands)
        self.results: list[str] = []
        """The result that the agent sent for each call, with the text of its hooks."""

    async def messages(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        replies = [number for number, one in enumerate(body["messages"]) if one["role"] == "assistant"]
        news = json.dumps(body["messages"][replies[-1] + 1 :]) if replies else ""
        if '"tool_result"' in news:
            self.results.append(news)
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta: dict[str, Any] = {"type": "text_delta", "text": "done"}
        reason = "end_turn"
        if self._waiting and any(tool["name"] == "Bash" for tool in body.get("tools", ())):
            block = {"type": "tool_use", "id": f"toolu_{len(self._waiting)}", "name": "Bash", "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(self._waiting.pop(0))}
            reason = "tool_use"
        head = {"id": "m", "type": "message", "role": "assistant", "model": body["model"], "content": []}
        message = {**head, "stop_reason": None, "stop_sequence": None, "usage": USAGE}
        end = {"stop_reason": reason, "stop_sequence": None}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": end, "usage": USAGE},
            {"type": "message_stop"},
        ]
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return web.Response(text=text, content_type="text/event-stream")


async def _empty(request: web.Request) -> web.Response:
    return web.json_response({})


@contextlib.contextmanager
def served(model: Model) -> Iterator[str]:
    """Serves on a free port of the loopback, in a thread."""
    started, loop = threading.Event(), asyncio.new_event_loop()
    ended = asyncio.Event()
    address: list[str] = []

    async def run() -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/messages", model.messages)
        app.router.add_route("*", "/{rest:.*}", _empty)
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
