"""Permission questions of the session, put to the user of an MCP client by elicitation.

Clients before protocol 2026-07-28 take such a request at any time. For later ones a call ends with it, and the client
repeats the call with the answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Literal

from mcp.server.mcpserver import Context
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from sandboxd_client.aio import AsyncClient
from sandboxd_client.errors import SandboxdError
from sandboxd_client.wire.messages.prompts import PermissionRequest, PermissionResolved

_REPEATS_CALLS = "2026-07-28"
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "allow": {"type": "boolean", "description": "allow it"},
        "scope": {"type": "string", "enum": ["once", "session"], "description": "for this command, or the session"},
    },
    "required": ["allow"],
}


class Questions:
    """Subscription to the questions of one session.

    It has a connection of its own: that of the commands has given its powers up, and may not answer."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._session_id = ""
        self._reader: asyncio.Task[None] | None = None
        self._open: dict[str, PermissionRequest] = {}
        self._left_out: str | None = None
        self.came = asyncio.Event()

    async def watch(self, ctx: Context[Any, Any], session_id: str) -> None:
        """Subscribe, where the client can show a form. Raises SandboxdError."""
        capability = ctx.client_capabilities.elicitation if ctx.client_capabilities is not None else None
        if capability is None or (capability.form is None and capability.url is not None):
            return
        if self._reader is None or self._reader.done():
            self._session_id = session_id
            for question in (await self._client.permission_subscribe()).open:
                self._add(question)
            self._reader = asyncio.create_task(self._read(), name="mcp questions")

    async def others(self) -> bool:
        """Return whether another client can answer: this one may not, where its own process asks."""
        own = self._reader is not None and not self._reader.done()
        found = await self._client.permission_list()
        return found.subscribers > own or found.notified

    @contextlib.contextmanager
    def leaving_out(self, subject: str | None) -> Iterator[None]:
        """Leave a question about this host or path to other clients."""
        self._left_out = subject
        try:
            yield
        finally:
            self._left_out = None

    async def close(self) -> None:
        """End the subscription, which withdraws this client from open questions."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._client.close()

    async def ask(self, ctx: Context[Any, Any]) -> dict[str, ElicitRequest]:
        """Put the open questions to the client; return those that end the call of a later protocol."""
        self.came.clear()
        waiting = {name: _form(question) for name, question in self._open.items()}
        if (ctx.protocol_version or "") >= _REPEATS_CALLS:
            return waiting
        for name, form in waiting.items():
            await self.answer(name, await ctx.session.elicit_form(form.params.message, _SCHEMA, ctx.request_id))
        return {}

    async def answer(self, name: str, said: object) -> None:
        """Send the answer of a user; anything but a clear yes is a no."""
        question = self._open.pop(name, None)
        if question is None:
            return
        behavior: Literal["allow", "deny"] = "deny"
        scope: Literal["once", "session"] = "once"
        content = said.content or {} if isinstance(said, ElicitResult) and said.action == "accept" else {}
        if content.get("allow") is True:
            behavior = "allow"
            scope = "session" if content.get("scope") == "session" and "session" in question.scopes else "once"
        with contextlib.suppress(SandboxdError):  # answered elsewhere, or withdrawn
            await self._client.permission_respond(name, behavior, scope=scope)

    async def _read(self) -> None:
        with contextlib.suppress(SandboxdError):
            async for said in self._client.notifications():
                if isinstance(said.params, PermissionRequest):
                    self._add(said.params)
                elif isinstance(said.params, PermissionResolved):
                    self._open.pop(said.params.request_id, None)

    def _add(self, question: PermissionRequest) -> None:
        subject = question.host if question.path is None else question.path
        if question.session_id == self._session_id and (subject is None or subject != self._left_out):
            self._open[question.request_id] = question
            self.came.set()


def _form(question: PermissionRequest) -> ElicitRequest:
    text = "\n".join(filter(None, (question.text, *question.warnings)))
    return ElicitRequest(params=ElicitRequestFormParams(message=text, requested_schema=_SCHEMA))
