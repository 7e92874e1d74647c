"""Answers questions over the WebSocket of `sandboxd web`: `python examples/bot.py URL PATTERN…`.

$SANDBOXD_TOKEN is from `sandboxd web token NAME --role answer`, which also says the URL. Hosts that match a pattern are
allowed for their session. A person, or another program, answers all other questions."""

import asyncio
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import count

import aiohttp


async def main(url: str, patterns: Sequence[str]) -> None:
    headers = {"Authorization": f"Bearer {os.environ['SANDBOXD_TOKEN']}"}
    numbers = count(1)
    async with aiohttp.ClientSession(headers=headers) as http, http.ws_connect(url, heartbeat=20) as socket:

        async def call(method: str, **params: str) -> None:
            await socket.send_json({"jsonrpc": "2.0", "id": next(numbers), "method": method, "params": params})

        await call("permission.subscribe")
        async for message in socket:
            said = message.json()
            asked = said["result"].get("open", []) if "result" in said else []
            if said.get("method") == "sandbox_permission_request":
                asked = [said["params"]]
            for question in asked:
                if question["kind"] == "network" and any(fnmatchcase(question["host"], one) for one in patterns):
                    print(f"{question['host']}: allowed for the session", flush=True)
                    chosen = {"request_id": question["request_id"], "behavior": "allow", "scope": "session"}
                    await call("sandbox_permission_response", **chosen)


asyncio.run(main(sys.argv[1], sys.argv[2:]))
