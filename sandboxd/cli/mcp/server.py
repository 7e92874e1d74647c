"""The tools and resources of `sandboxd mcp`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ElicitRequest, InputRequiredResult
from pydantic import BaseModel, Field

from sandboxd import __version__
from sandboxd.cli.mcp.questions import Questions
from sandboxd_client.aio import AsyncClient, AsyncSession
from sandboxd_client.errors import SandboxdError
from sandboxd_client.integrations.running import Background, Running, start
from sandboxd_client.wire.messages.violations import ViolationRecord

_LONGEST_WAIT_S = 600.0
_PROGRESS_S = 1.0
_INSTRUCTIONS = (
    "Commands run in an operating-system sandbox: they write to the project only, and reach listed hosts only. "
    "Read sandboxd://restrictions before you guess. A refusal is a decision, and the same command meets it again; "
    "`explain` shows the rule, and `request_permission` asks the user."
)
Call = Context[Any, Any]
Seconds = Annotated[float, Field(gt=0, le=_LONGEST_WAIT_S)]


class Refusal(BaseModel):
    """Something that the sandbox refused."""

    kind: str
    operation: str
    target: str
    count: int
    rule: str
    hint: str


class RanResult(BaseModel):
    """Output of a command, of a background command since the last call.

    `status` is None after a time-out, and while a background command runs."""

    status: int | None
    stdout: str
    stderr: str
    timed_out: bool = False
    violations: list[Refusal] = []


class Tools:
    """The state behind the tools: one session, which is opened by the first call."""

    def __init__(self, cwd: str, limit: int, *, autostart: bool) -> None:
        self._client = AsyncClient(autostart=autostart, role="agent")
        self._session = self._client.session(cwd, name="mcp")
        self._questions = Questions(AsyncClient(autostart=False))
        self._opening = asyncio.Lock()
        self._opened = False
        self._limit = limit
        self.background = Background()

    async def session(self) -> AsyncSession:
        """Return the open session. Raises SandboxdError."""
        async with self._opening:
            if not self._opened:
                await self._session.open()
                self._opened = True
        return self._session

    async def close(self) -> None:
        """End all commands and the session."""
        await self.background.close()
        await self._questions.close()
        await self._client.close()

    async def run(self, ctx: Call, command: str, cwd: str | None, timeout_s: float) -> RanResult | InputRequiredResult:
        """Run a command to its end, its time-out or the cancellation of the call, which ends all its processes.

        A call that ends with a question leaves the command running; the repeated call has its name as state."""
        session = await self.session()
        await self._questions.watch(ctx, session.id)
        name = ctx.request_state
        if name is None:
            running = await start(session, command, self._limit, cwd=cwd)
            running.end_after(timeout_s)
            name = self.background.add(running)
        else:
            running = self.background.get(name)
            for question, said in (ctx.input_responses or {}).items():
                await self._questions.answer(question, said)
        try:
            waiting = await self._until_the_end(ctx, running)
        except BaseException:
            self.background.remove(name)
            await asyncio.shield(running.stop())
            raise
        if waiting:
            return InputRequiredResult(input_requests=dict(waiting), request_state=name)
        self.background.remove(name)
        return await self._read(running, ended=True)

    async def _until_the_end(self, ctx: Call, running: Running) -> dict[str, ElicitRequest]:
        """Wait for the end and tell the progress; return questions where they end the call."""
        begun = time.monotonic()
        while not running.ended.done():
            came = asyncio.ensure_future(self._questions.came.wait())
            await asyncio.wait((running.ended, came), timeout=_PROGRESS_S, return_when=asyncio.FIRST_COMPLETED)
            came.cancel()
            if self._questions.came.is_set() and not running.ended.done():
                if waiting := await self._questions.ask(ctx):
                    return waiting
            elif not running.ended.done():
                await ctx.report_progress(time.monotonic() - begun, None, "running")
        return {}

    async def start(self, command: str, cwd: str | None) -> str:
        """Start a command in the background and return its id."""
        running = await start(await self.session(), command, self._limit, cwd=cwd)
        try:
            return self.background.add(running)
        except SandboxdError:
            await running.stop()
            raise

    async def read(self, command_id: str, wait_s: float) -> RanResult:
        """Return new output; wait up to `wait_s` seconds for some."""
        running = self.background.get(command_id)
        await running.wait_for_news(wait_s)
        return await self._read(running, ended=running.ended.done())

    async def stop(self, command_id: str) -> RanResult:
        """End a background command with all its processes."""
        running = self.background.get(command_id)
        await running.stop()
        return await self._read(running, ended=True)

    async def ask(self, reason: str, host: str | None, port: int, path: str | None, *, write: bool) -> str:
        """Put a permission question to the subscribers of the daemon; return the answer in words."""
        session = await self.session()
        if not await self._questions.others():
            raise SandboxdError(
                "no_subscriber",
                "there is no client that answers prompts",
                "in a terminal, the user runs: sandboxd prompts",
            )
        with self._questions.leaving_out(host or path):
            if host is not None:
                answer = await self._client.permission_request(
                    "network", session_id=session.id, reason=reason, host=host, port=port
                )
            else:
                answer = await self._client.permission_request(
                    "path", session_id=session.id, reason=reason, path=path, write=write
                )
        return f"{answer.behavior}: {answer.text}" + (f"\nhint: {answer.hint}" if answer.hint else "")

    async def violations(self) -> list[Refusal]:
        """Return what was refused in this session."""
        session = await self.session()
        return [_refusal(one) for one in (await self._client.violation_list(session_id=session.id)).violations]

    async def _read(self, running: Running, *, ended: bool) -> RanResult:
        status = await running.ended if ended else None
        violations: list[Refusal] = []
        if ended:
            with contextlib.suppress(SandboxdError):
                violations = [_refusal(one) for one in await running.process.violations()]
        return RanResult(
            status=None if running.timed_out else status,
            stdout=running.stdout.take(),
            stderr=running.stderr.take(),
            timed_out=running.timed_out,
            violations=violations,
        )


def _refusal(one: ViolationRecord) -> Refusal:
    return Refusal(
        kind=one.kind, operation=one.operation, target=one.target, count=one.count, rule=one.rule or "", hint=one.hint
    )


@contextlib.contextmanager
def _told() -> Any:
    """Turn an error of sandboxd into the text of a failed call."""
    try:
        yield
    except SandboxdError as error:
        raise ToolError(f"{error.message}\nhint: {error.hint}" if error.hint else error.message) from None


def build(tools: Tools) -> MCPServer[Any]:
    """Return the server with its tools and resources."""

    @contextlib.asynccontextmanager
    async def life(_: MCPServer[None]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await tools.close()

    server = MCPServer[Any](
        "sandboxd", instructions=_INSTRUCTIONS, version=__version__, lifespan=life, log_level="ERROR"
    )

    @server.tool()
    async def run(
        ctx: Call, command: str, cwd: str | None = None, timeout_s: Seconds = 120.0
    ) -> RanResult | InputRequiredResult:
        """Run a shell command in the sandbox and return its output. `cwd` is relative to the project."""
        with _told():
            return await tools.run(ctx, command, cwd, timeout_s)

    @server.tool(name="start")
    async def start_command(command: str, cwd: str | None = None) -> str:
        """Start a shell command in the sandbox, such as a server, and return its id for read and stop."""
        with _told():
            return await tools.start(command, cwd)

    @server.tool()
    async def read(command_id: str, wait_s: Annotated[float, Field(ge=0, le=60)] = 1.0) -> RanResult:
        """Return new output of a started command, and its status once it has ended."""
        with _told():
            return await tools.read(command_id, wait_s)

    @server.tool()
    async def stop(command_id: str) -> RanResult:
        """End a started command with all its processes."""
        with _told():
            return await tools.stop(command_id)

    @server.tool()
    async def explain(kind: Literal["path", "host", "command", "socket"], target: str, write: bool = False) -> str:
        """Return the decision of the sandbox on a path, host (HOST:PORT), command or socket, with its rule."""
        with _told():
            found = await (await tools.session()).policy_explain(kind, target, write=write)
        origin = f"\nfrom: {found.reason.origin}" if found.reason.origin is not None else ""
        hint = f"\nhint: {found.hint}" if found.hint else ""
        return f"{found.behavior}: {found.reason.text} ({found.reason.type}){origin}{hint}"

    @server.tool()
    async def request_permission(
        reason: str,
        host: str | None = None,
        port: int = 443,
        path: str | None = None,
        write: bool = False,
    ) -> str:
        """Ask the user to let the commands of this session reach a host, or read or write a path."""
        if (host is None) == (path is None):
            raise ToolError("name a host or a path")
        with _told():
            return await tools.ask(reason, host, port, path, write=write)

    @server.resource("sandboxd://restrictions", mime_type="text/plain")
    async def restrictions() -> str:
        """The rules for commands of this session, in words."""
        with _told():
            return (await (await tools.session()).policy_describe()).text

    @server.resource("sandboxd://violations", mime_type="application/json")
    async def violations() -> list[Refusal]:
        """Refusals in this session."""
        with _told():
            return await tools.violations()

    return server


def serve(cwd: str, limit: int, *, autostart: bool) -> None:
    """Serve on standard input and output until the client closes it."""
    with contextlib.suppress(BrokenPipeError):
        try:
            build(Tools(cwd, limit, autostart=autostart)).run("stdio")
        except BaseExceptionGroup as group:  # the client has gone without closing the input
            _, others = group.split(BrokenPipeError)
            if others is not None:
                raise others from None
