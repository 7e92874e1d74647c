"""A running command on an event loop, like asyncio.subprocess.Process."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import locale
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from sandboxd_client.aio_rpc import AsyncRpcMethods
from sandboxd_client.errors import SandboxdError
from sandboxd_client.running import processes
from sandboxd_client.running.completed import Completed
from sandboxd_client.running.launching import (
    DEFAULT_GRACE_S,
    SUSPICIOUS,
    Command,
    Launch,
    SpawnOptions,
    leads_group,
    setup_error,
    shell_status,
    spawn_arguments,
    spawn_error,
    wrapped_launch,
)
from sandboxd_client.running.override import launch_outside, question, with_answer
from sandboxd_client.running.relay import Relay
from sandboxd_client.transport.aio_connection import AsyncConnector
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.violations import ViolationRecord
from sandboxd_client.wire.messages.wrap import WrapOutcomeResult, WrapResult

_AFTER_KILL_S = 2.0
_CHUNK = 65536
_POLL_S = 0.005


class AsyncProcess:
    """The result of `AsyncClient.spawn`, with asyncio's streams of bytes.

    Signals reach the command itself, not the sandbox around it. `wait` and `communicate` raise SandboxSetupError when
    the sandbox failed and no command ran."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        launch: Launch,
        ask_outcome: Callable[[str], Awaitable[WrapOutcomeResult]],
        *,
        leads_group: bool,
        grace: float,
        text: TextMode,
        relay: Relay | None = None,
    ) -> None:
        self.args: Command = launch.args
        self.launch = launch
        self.grace = grace
        self.text = text
        self._process = process
        self._ask_outcome = ask_outcome
        self._leads_group = leads_group
        self._relay = relay
        self._outcome: WrapOutcomeResult | None = None
        self._asked = False
        self._killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        return self._process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        return self._process.stdout

    @property
    def stderr(self) -> asyncio.StreamReader | None:
        return self._process.stderr

    @property
    def returncode(self) -> int | None:
        return shell_status(self._process.returncode)

    @property
    def wrap(self) -> WrapResult | None:
        return self.launch.wrap

    async def violations(self) -> tuple[ViolationRecord, ...]:
        """Return the violations; complete once the process has ended."""
        outcome = await self.outcome()
        return () if outcome is None else outcome.violations

    async def wait(self) -> int:
        await self._process.wait()
        await self._drain()
        return await self._ended(None)

    async def communicate(self, input: bytes | None = None) -> tuple[bytes | None, bytes | None]:
        output = Output(self._process, input)
        await output.complete()
        await self._drain()
        await self._ended(output.stderr)
        return output.stdout, output.stderr

    def send_signal(self, number: int) -> None:
        """Send a signal to the command, or to the sandbox before it starts."""
        if self._process.returncode is None:
            self._killed = self._killed or number == processes.SIGKILL
            processes.signal_command(self.pid, number, group=self._leads_group)

    def terminate(self) -> None:
        self.send_signal(15)

    def kill(self) -> None:
        """Kill the whole tree at once."""
        self.send_signal(processes.SIGKILL)

    async def stop(self, grace: float | None = None) -> int:
        """Send SIGTERM, and after `grace` seconds SIGKILL to the whole tree."""
        await end(self, self._gone(), self.grace if grace is None else grace)
        self._abandon_relay()
        return self.returncode or 0

    async def outcome(self) -> WrapOutcomeResult | None:
        """Return the outcome; None for a bare command or without a daemon."""
        if self.launch.wrap is None:
            return None
        if not self._asked:
            try:
                self._outcome = await self._ask_outcome(self.launch.wrap.wrap_id)
            except SandboxdError:
                self._outcome = None
            self._asked = self._process.returncode is not None
        return self._outcome

    async def _ended(self, stderr: bytes | None) -> int:
        status = self.returncode
        assert status is not None
        if status in SUSPICIOUS and not self._killed:
            outcome = await self.outcome()
            if outcome is not None and not outcome.started:
                raise setup_error(outcome, stderr)
        return status

    async def _drain(self) -> None:
        """Wait until the relay has copied all output."""
        while self._relay is not None and not self._relay.finish(0):  # noqa: ASYNC110 - a join cannot be cancelled
            await asyncio.sleep(_POLL_S)

    async def _gone(self) -> None:
        """Wait for the process. `wait` of asyncio waits for its pipes too, which stay full where nothing is read."""
        while self._process.returncode is None:  # noqa: ASYNC110 - asyncio sets it and tells of it by `wait` alone
            await asyncio.sleep(_POLL_S)

    def _close(self) -> None:
        """Close the streams, whatever is left in them."""
        self._process._transport.close()  # type: ignore[attr-defined]

    def _abandon_relay(self) -> None:
        if self._relay is not None:
            self._relay.abandon()

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the end; after an exception end the command."""
        if kind is not None:
            await self.stop()
            self._close()
        await self._process.wait()
        await self._drain()

    def __repr__(self) -> str:
        return f"<AsyncProcess {self.pid} returncode={self.returncode} args={self.args!r}>"


class Output:
    """Input and collected output of a process, readable after a cancellation."""

    def __init__(self, process: asyncio.subprocess.Process, input: bytes | None) -> None:
        self._process = process
        self._input = input
        self._parts: dict[str, bytearray] = {}

    @property
    def stdout(self) -> bytes | None:
        return bytes(self._parts["stdout"]) if "stdout" in self._parts else None

    @property
    def stderr(self) -> bytes | None:
        return bytes(self._parts["stderr"]) if "stderr" in self._parts else None

    async def complete(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._process.wait(), name="sandboxd-wait")
            if self._process.stdin is not None:
                group.create_task(self._feed(self._process.stdin), name="sandboxd-stdin")
            for name, stream in (("stdout", self._process.stdout), ("stderr", self._process.stderr)):
                if stream is not None:
                    group.create_task(self._collect(name, stream), name=f"sandboxd-{name}")

    async def _feed(self, stdin: asyncio.StreamWriter) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a command need not read its input
            if self._input:
                data, self._input = self._input, None  # the transport keeps it after a cancellation
                stdin.write(data)
            await stdin.drain()
        stdin.close()

    async def _collect(self, name: str, stream: asyncio.StreamReader) -> None:
        part = self._parts.setdefault(name, bytearray())
        while data := await stream.read(_CHUNK):
            part += data


async def start(
    launch: Launch,
    options: SpawnOptions,
    ask_outcome: Callable[[str], Awaitable[WrapOutcomeResult]],
    *,
    after: AsyncProcess | None = None,  # an attempt that did not start
) -> AsyncProcess:
    """Spawn a launch. Raises SandboxSetupError, or OSError for a bare command."""
    arguments = spawn_arguments(options)
    relay = None
    if options.get("relay_stdio"):
        from sandboxd_client.running.relay import relay_streams

        relay = relay_streams(arguments, None if after is None else after._relay)
    try:
        process = await asyncio.create_subprocess_exec(*launch.argv, cwd=launch.cwd, env=launch.env, **arguments)
    except BaseException as error:
        if relay is not None:
            relay.abandon()
        if launch.wrap is None or not isinstance(error, OSError):
            raise
        raise spawn_error(launch, error) from error
    if relay is not None:
        relay.start()
    return AsyncProcess(
        process,
        launch,
        ask_outcome,
        leads_group=leads_group(arguments),
        grace=options.get("grace", DEFAULT_GRACE_S),
        text=TextMode(options),
        relay=relay,
    )


async def end(process: AsyncProcess, ending: Awaitable[Any], grace: float) -> None:
    """Send TERM, and KILL after the grace or a second cancellation."""
    process.terminate()
    try:
        async with asyncio.timeout(grace):
            await ending
    except TimeoutError:
        process.kill()
        await process._gone()
    except BaseException:
        process.kill()
        raise


async def complete(process: AsyncProcess, input: bytes | str | None, within_s: float | None) -> Completed[Any]:
    """Wait for the end and collect the output.

    Raises TimeoutExpired with the output so far, after the end of the whole tree; SandboxSetupError. A cancellation
    ends the command first."""
    text = process.text
    output = Output(process._process, text.encode(input))
    try:
        try:
            async with asyncio.timeout(within_s):
                await output.complete()
                await process._drain()
        except TimeoutError:
            await _end_and_collect(process, output)
            raise subprocess.TimeoutExpired(
                process.args, within_s or 0, text.decode(output.stdout), text.decode(output.stderr)
            ) from None
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
    except asyncio.CancelledError:
        await end(process, process._gone(), process.grace)
        process._close()
        raise
    except BaseException:
        process.kill()
        raise
    finally:
        process._abandon_relay()  # unless it is complete
    status = await process._ended(output.stderr)
    return Completed(
        process.launch, status, text.decode(output.stdout), text.decode(output.stderr), await process.outcome()
    )


async def ask_to_run_outside(
    client: AsyncRpcMethods,
    command: Command,
    options: SpawnOptions,
    done: Completed[Any],
    input: bytes | str | None,
    within_s: float | None,
) -> Completed[Any]:
    """Return the result of a second run after a user's yes, else the first one."""
    try:
        answer = await client.permission_request("sandbox_override", **question(command, options, done))
    except SandboxdError as error:
        return with_answer(done, error)
    launch = launch_outside(command, options, answer)
    if launch is None:
        return with_answer(done, answer)
    process = await start(launch, options, client.wrap_outcome)
    return with_answer(await complete(process, input, within_s), answer, inside=done)


async def _end_and_collect(process: AsyncProcess, output: Output) -> None:
    await end(process, output.complete(), process.grace)
    if process._leads_group:  # the leader may have ended while others of its group did not
        processes.kill_group(process.pid)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_AFTER_KILL_S):
            await output.complete()


def check_streams(options: SpawnOptions) -> None:
    """Refuse options that streams of bytes cannot have."""
    if TextMode(options).wanted:
        raise ValueError("the streams of an AsyncProcess are of bytes: text, encoding and errors are for run()")


class AsyncPreparing:
    """Stands for what a blocking client prepares: here each sandbox is made when its command is known."""

    def __init__(self, enabled: bool, connector: AsyncConnector, session: str | None) -> None: ...

    async def launch(
        self,
        client: AsyncRpcMethods,
        command: Command,
        options: SpawnOptions,
        arguments: Mapping[str, Any],
        decision: ShouldSandboxResult | None,
    ) -> Launch:
        return wrapped_launch(command, options, await client.wrap(**arguments), decision)

    def next(self, options: SpawnOptions) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


async def approved(decision: ShouldSandboxResult, approve: Callable[[ShouldSandboxResult], Any] | None) -> bool | None:
    """Ask the caller's callback; None without a callback or a question."""
    if decision.behavior != "ask" or approve is None:
        return None
    answer = approve(decision)
    return bool(await answer if inspect.isawaitable(answer) else answer)


class TextMode:
    """The mode of `text`, `encoding`, `errors` and `universal_newlines`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.wanted = any(options.get(name) for name in ("text", "universal_newlines", "encoding", "errors"))
        self._encoding = options.get("encoding") or locale.getencoding()
        self._errors = options.get("errors") or "strict"

    def encode(self, input: bytes | str | None) -> bytes | None:
        if isinstance(input, str):
            return input.encode(self._encoding, self._errors)
        return input

    def decode(self, output: bytes | None) -> Any:
        if output is None or not self.wanted:
            return output
        return io.TextIOWrapper(io.BytesIO(output), self._encoding, self._errors).read()
