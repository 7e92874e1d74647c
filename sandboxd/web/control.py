"""The other commands of `sandboxd web`: they reach the running page over a Unix socket beside the daemon's.

The directory is closed to other users and hidden from commands. One JSON object a line asks, one answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from sandboxd_client.errors import SandboxdError
from sandboxd_client.wire.location import check_place, make_directory

NAME: Final = "web.sock"
LONGEST: Final = 65536
TIMEOUT_S: Final = 10.0
Answer = Callable[[dict[str, Any]], dict[str, Any]]


def path_beside(daemon_socket: str) -> str:
    return os.path.join(os.path.dirname(daemon_socket), NAME)


def ask(path: str, request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer of the running page, None where there is none. Raises SandboxdError, LocationError."""
    if not check_place(path):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(TIMEOUT_S)
        try:
            asking.connect(path)
            with asking.makefile("rwb") as stream:
                stream.write(json.dumps(request).encode() + b"\n")
                stream.flush()
                found = json.loads(stream.readline(LONGEST))
        except ConnectionRefusedError:
            return None
        except (OSError, ValueError) as error:
            raise SandboxdError("web_failed", f"the page at {path} does not answer: {error}", "end it") from error
    if "error" in found:
        raise SandboxdError("web_refused", found["error"], found.get("hint", ""))
    return dict(found)


@contextlib.asynccontextmanager
async def answering(path: str, answer: Answer) -> AsyncIterator[None]:
    """Answer at this path; the caller knows that no other page does. Raises OSError, LocationError."""
    make_directory(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                request = json.loads(await reader.readline())
                try:
                    reply = answer(request)
                except SandboxdError as error:
                    reply = {"error": error.message, "hint": error.hint}
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, path, limit=LONGEST)
    os.chmod(path, 0o600)
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(OSError):
            os.unlink(path)
