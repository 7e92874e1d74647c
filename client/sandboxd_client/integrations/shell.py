"""`Shell`: the commands of one agent, for tools of any framework. They share a session."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypedDict, TypeVar, Unpack

from sandboxd_client.aio import AsyncClient, AsyncSession
from sandboxd_client.aio_rpc import Settings
from sandboxd_client.errors import SandboxdError, WrapOutdated
from sandboxd_client.integrations.questions import Ask, ShellQuestions, asked
from sandboxd_client.integrations.running import Background, Running, Tell, start
from sandboxd_client.running.commands import Path
from sandboxd_client.running.completed import Completed
from sandboxd_client.running.launching import WRAPS_TRIED, Command, environment_of
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.violations import ViolationRecord

T = TypeVar("T")
_END_S = 10.0  # for the end of a tree after a cancellation


@dataclass(frozen=True, slots=True)
class Ran:
    """The end of a command, or the output of a background command since the last look.

    `status` is None for a command that was refused, has timed out, or still runs. `stderr` ends with a block of the
    violations. An output beyond the limit has lost its middle, which the text says."""

    status: int | None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    cut: bool = False
    refusal: str = ""  # why nothing was run
    violations: tuple[ViolationRecord, ...] = ()

    @property
    def output(self) -> str:
        """Both outputs."""
        between = "" if not self.stdout or self.stdout.endswith("\n") else "\n"
        return f"{self.stdout}{between if self.stderr else ''}{self.stderr}"

    @property
    def text(self) -> str:
        """The text for a model: the output, and below it an end other than success."""
        end = ""
        if self.refusal:
            end = f"not run: {self.refusal}"
        elif self.timed_out:
            end = "[timed out: all its processes were ended]"
        elif self.status:
            end = f"[exit status {self.status}]"
        output = self.output
        return f"{output}{'' if output.endswith(chr(10)) or not output else chr(10)}{end}" if end else output


class CallOptions(TypedDict, total=False):
    """The keywords of `run`."""

    timeout: float | None
    cwd: Path | None  # below that of the shell
    env: Mapping[str, str] | None  # further variables
    tell: Tell | None  # gets the name of a stream, and each piece of its text
    max_output: int | None  # bytes of each stream


class Shell:
    """Commands of one agent, from any thread and any event loop.

    It connects at the first command. A cancelled or interrupted call ends all processes of its command before it
    returns. `ask` gets the questions of the sandbox as text; without it, other clients (`sandboxd prompts`) answer.
    With `decide=False` every command runs inside, and rules on whole commands are not asked. Commands get no variables
    of this process that may hold secrets, except those of `allow_env`."""

    def __init__(
        self,
        cwd: Path | None = None,
        *,
        timeout: float = 120.0,
        max_output: int = 30_000,
        settings: Settings | None = None,
        ask: Ask | None = None,
        decide: bool = True,
        allow_env: Sequence[str] = (),
        name: str = "agent",
        socket: Path | None = None,
        autostart: bool = True,
    ) -> None:
        self.cwd = os.path.abspath(cwd or ".")
        self._limits = {"timeout": timeout, "max_output": max_output}
        self._opening: dict[str, Any] = {"name": name, "settings": settings}
        self._client: dict[str, Any] = {"socket": socket, "autostart": autostart}
        self._ask = ask
        self._spawning: dict[str, Any] = {"decide": decide, "environment": "clean", "allow_env": tuple(allow_env)}
        self._lock = threading.Lock()
        self._live: _Live | None = None

    # one command to its end

    def run(self, command: Command, **options: Unpack[CallOptions]) -> Ran:
        """Run a command to its end."""
        return self._wait(self._now.run(command, options))

    async def arun(self, command: Command, **options: Unpack[CallOptions]) -> Ran:
        """Run a command to its end, as `run`."""
        return await self._await(self._now.run(command, options))

    def exchange(self, command: Command, input: bytes = b"") -> Completed[bytes]:
        """Run a command inside, and return its whole output. Raises SandboxdError."""
        return self._wait(self._now.exchange(command, input))

    async def aexchange(self, command: Command, input: bytes = b"") -> Completed[bytes]:
        """Run a command inside, as `exchange`."""
        return await self._await(self._now.exchange(command, input))

    # commands in the background

    def start(self, command: Command) -> str:
        """Start a command and return its id for `read` and `stop`. Raises SandboxdError."""
        return self._wait(self._now.start(command))

    async def astart(self, command: Command) -> str:
        """Start a command, as `start`."""
        return await self._await(self._now.start(command))

    def read(self, command_id: str, wait: float = 1.0) -> Ran:
        """Return the new output; wait up to `wait` seconds for some. Raises SandboxdError."""
        return self._wait(self._now.read(command_id, wait))

    async def aread(self, command_id: str, wait: float = 1.0) -> Ran:
        """Return the new output, as `read`."""
        return await self._await(self._now.read(command_id, wait))

    def stop(self, command_id: str) -> Ran:
        """End all processes of a command and return the rest of its output. Raises SandboxdError."""
        return self._wait(self._now.stop(command_id))

    async def astop(self, command_id: str) -> Ran:
        """End a command, as `stop`."""
        return await self._await(self._now.stop(command_id))

    # the session

    def describe(self) -> str:
        """Return the rules of the sandbox in words, for the instructions of a model. Raises SandboxdError."""
        return self._wait(self._now.describe())

    async def session_id(self) -> str:
        """Return the id of the session. Raises SandboxdError."""
        return await self._await(self._now.session_id())

    async def decide(self, command: str, **options: Any) -> ShouldSandboxResult:
        """Return the decision on a shell line, with the keywords of `should_sandbox`. Raises SandboxdError."""
        return await self._await(self._now.decide(command, options))

    async def blocked(self, command_id: str) -> str:
        """Return the block of violations of a command, or "". Raises SandboxdError."""
        return await self._await(self._now.blocked(command_id))

    @property
    def asks(self) -> bool:
        """True where there is a function for questions."""
        return self._ask is not None

    async def ask(self, question: str) -> bool:
        """Put a question to that function; only True is a yes."""
        return self._ask is not None and await asked(self._ask, question)

    def close(self) -> None:
        """End all commands and the session; a later call opens another."""
        with self._lock:
            live, self._live = self._live, None
        if live is not None and live.pid == os.getpid():
            live.submit(live.close())[0].result()
            live.end()

    async def aclose(self) -> None:
        """End all commands and the session."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Shell:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def _now(self) -> _Live:
        """The live state; a child after a fork has its own."""
        with self._lock:
            if self._live is None or self._live.pid != os.getpid():
                client = AsyncClient(role="agent", **self._client)
                self._live = _Live(client, client.session(self.cwd, **self._opening), self._limits, self._spawning)
                if self._ask is not None:
                    self._live.questions = ShellQuestions(AsyncClient(**self._client), self._ask)
            return self._live

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future, over = self._now.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            over.wait(_END_S)
            raise

    async def _await(self, work: Coroutine[Any, Any, T]) -> T:
        future, over = self._now.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            await asyncio.to_thread(over.wait, _END_S)
            raise


class _Live:
    """An event loop in a thread of its own, with a client, its session and its commands.

    The thread is one that stays: frameworks call from threads and event loops that do not."""

    def __init__(
        self, client: AsyncClient, session: AsyncSession, limits: Mapping[str, Any], spawning: Mapping[str, Any]
    ) -> None:
        self.pid = os.getpid()
        self.questions: ShellQuestions | None = None
        self._client = client
        self._session = session
        self._limits = limits
        self._spawning = spawning
        self._background = Background()
        self._opening = asyncio.Lock()
        self._working: set[asyncio.Task[Any] | None] = set()
        self._ending: set[asyncio.Task[Any] | None] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandboxd shell", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> tuple[concurrent.futures.Future[T], threading.Event]:
        """Begin some work; the event says that it has ended, also after a cancellation."""
        over = threading.Event()

        async def watched() -> T:
            task = asyncio.current_task()
            self._working.add(task)
            try:
                return await work
            except asyncio.CancelledError:
                if task in self._ending:
                    raise SandboxdError("session_closed", "the shell was closed while this ran") from None
                raise
            finally:
                self._working.discard(task)
                over.set()

        return asyncio.run_coroutine_threadsafe(watched(), self._loop), over

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def session(self) -> AsyncSession:
        async with self._opening:
            if self._session._opened is None:
                await self._session.open()
            if self.questions is not None:
                await self.questions.watch(self._session)
        return self._session

    async def session_id(self) -> str:
        return (await self.session()).id

    async def decide(self, command: str, options: Mapping[str, Any]) -> ShouldSandboxResult:
        return await (await self.session()).should_sandbox(command, **options)

    async def blocked(self, command_id: str) -> str:
        found = await self._client.violation_annotate(command_id, "", session_id=await self.session_id())
        return found.stderr.strip() if found.violations else ""

    async def describe(self) -> str:
        return (await (await self.session()).policy_describe()).text

    async def run(self, command: Command, options: CallOptions) -> Ran:
        try:
            for left in reversed(range(WRAPS_TRIED)):
                running = await self._started(command, options)
                running.end_after(options.get("timeout") or self._limits["timeout"])
                try:
                    await asyncio.wait((running.ended,))
                except asyncio.CancelledError:
                    await running.stop()
                    raise
                try:
                    return await self._ran(running, ended=True)
                except WrapOutdated:
                    if not left:
                        raise
        except SandboxdError as error:
            return Ran(None, refusal=str(error))
        raise AssertionError("the last try has a result")

    async def exchange(self, command: Command, input: bytes) -> Completed[bytes]:
        options = {name: value for name, value in self._spawning.items() if name != "decide"}
        done: Completed[bytes] = await (await self.session()).run(command, input=input, capture_output=True, **options)
        return done

    async def start(self, command: Command) -> str:
        running = await self._started(command, {})
        try:
            return self._background.add(running)
        except SandboxdError:
            await running.stop()
            raise

    async def read(self, command_id: str, wait_s: float) -> Ran:
        running = self._background.get(command_id)
        await running.wait_for_news(wait_s)
        return await self._ran(running, ended=running.ended.done())

    async def stop(self, command_id: str) -> Ran:
        running = self._background.get(command_id)
        await running.stop()
        self._background.remove(command_id)
        return await self._ran(running, ended=True)

    async def close(self) -> None:
        """End all commands and what waits for them: callers in other threads get an error."""
        self._ending = self._working - {asyncio.current_task()}
        for task in self._ending:
            if task is not None:
                task.cancel()
        await asyncio.gather(*filter(None, self._ending), return_exceptions=True)
        await self._background.close()
        if self.questions is not None:
            await self.questions.close()
        await self._client.close()

    async def _started(self, command: Command, given: CallOptions) -> Running:
        session = await self.session()
        options: dict[str, Any] = {**self._spawning, "cwd": given.get("cwd")}
        if further := given.get("env"):
            options["env"] = {**(environment_of(options) or {}), **further}
            del options["environment"]
        if self.questions is not None:
            options["approve"] = self.questions.about(command)
        limit = given.get("max_output") or self._limits["max_output"]
        return await start(session, command, limit, tell=given.get("tell"), **options)

    async def _ran(self, running: Running, *, ended: bool) -> Ran:
        status = await running.ended if ended else None
        cut = running.stdout.cut or running.stderr.cut
        stdout, stderr = running.stdout.take(), running.stderr.take()
        violations: tuple[ViolationRecord, ...] = ()
        wrap = running.process.wrap
        if ended and wrap is not None:
            with contextlib.suppress(SandboxdError):
                violations = await running.process.violations()
                found = await self._client.violation_annotate(wrap.wrap_id, stderr, session_id=self._session.id)
                stderr = found.stderr
        return Ran(None if running.timed_out else status, stdout, stderr, running.timed_out, cut, "", violations)
