"""A running command, like subprocess.Popen; its end, like CompletedProcess."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any

from sandboxd_client.errors import SandboxdError
from sandboxd_client.rpc import RpcMethods
from sandboxd_client.running import processes
from sandboxd_client.running.completed import Completed
from sandboxd_client.running.launching import (
    DEFAULT_GRACE_S,
    SUSPICIOUS,
    Command,
    Launch,
    SpawnOptions,
    leads_group,
    popen_arguments,
    setup_error,
    shell_status,
    spawn_arguments,
    spawn_error,
)
from sandboxd_client.running.override import launch_outside, question, with_answer
from sandboxd_client.running.prepared import ENDS_WITHIN_S
from sandboxd_client.running.prepared import Preparing as Preparing
from sandboxd_client.running.relay import Relay
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.violations import ViolationRecord
from sandboxd_client.wire.messages.wrap import WrapOutcomeResult, WrapResult

_AFTER_KILL_S = 2.0


class Process:
    """The result of `Client.spawn`.

    Signals reach the command itself, not the sandbox around it. `wait` and `communicate` raise SandboxSetupError when
    the sandbox failed and no command ran."""

    def __init__(
        self,
        popen: subprocess.Popen[Any],
        launch: Launch,
        ask_outcome: Callable[[str], WrapOutcomeResult],
        *,
        leads_group: bool,
        grace: float,
        relay: Relay | None = None,
    ) -> None:
        self.args: Command = launch.args
        self.launch = launch
        self.grace = grace
        self._popen = popen
        self._ask_outcome = ask_outcome
        self._leads_group = leads_group
        self._relay = relay
        self._outcome: WrapOutcomeResult | None = None
        self._asked = False
        self._killed = False

    @property
    def pid(self) -> int:
        """The spawned process: the sandbox around the command."""
        return self._popen.pid

    @property
    def stdin(self) -> IO[Any] | None:
        return self._popen.stdin

    @property
    def stdout(self) -> IO[Any] | None:
        return self._popen.stdout

    @property
    def stderr(self) -> IO[Any] | None:
        return self._popen.stderr

    @property
    def returncode(self) -> int | None:
        return shell_status(self._popen.returncode)

    @property
    def wrap(self) -> WrapResult | None:
        return self.launch.wrap

    @property
    def violations(self) -> tuple[ViolationRecord, ...]:
        """The violations; complete once the process has ended."""
        outcome = self.outcome()
        return () if outcome is None else outcome.violations

    def poll(self) -> int | None:
        code = self._popen.poll()
        if code is not None and self._relay is not None:
            self._relay.finish(0)
        return shell_status(code)

    def wait(self, timeout: float | None = None) -> int:
        deadline = _deadline(timeout)
        self._popen.wait(timeout)
        self._drain(deadline)
        return self._ended(None)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        deadline = _deadline(timeout)
        stdout, stderr = self._popen.communicate(input, timeout)
        self._drain(deadline)
        self._ended(stderr)
        return stdout, stderr

    def send_signal(self, number: int) -> None:
        """Send a signal to the command, or to the sandbox before it starts."""
        if self._popen.poll() is None:
            self._killed = self._killed or number == processes.SIGKILL
            processes.signal_command(self.pid, number, group=self._leads_group)

    def terminate(self) -> None:
        self.send_signal(15)

    def kill(self) -> None:
        """Kill the whole tree at once."""
        self.send_signal(processes.SIGKILL)

    def stop(self, grace: float | None = None) -> int:
        """Send SIGTERM, and after `grace` seconds SIGKILL to the whole tree."""
        self.terminate()
        try:
            self._popen.wait(self.grace if grace is None else grace)
        except subprocess.TimeoutExpired:
            self.kill()
            self._popen.wait()
        self._abandon_relay()
        return self.returncode or 0

    def outcome(self) -> WrapOutcomeResult | None:
        """Return the outcome; None for a bare command or without a daemon."""
        if self.launch.wrap is None:
            return None
        if not self._asked:
            try:
                self._outcome = self._ask_outcome(self.launch.wrap.wrap_id)
            except SandboxdError:
                self._outcome = None
            self._asked = self._popen.returncode is not None
        return self._outcome

    def _ended(self, stderr: bytes | str | None) -> int:
        status = self.returncode
        assert status is not None
        # A waiting sandbox that was killed before it had the command ends as if the command had been.
        suspicious = status in SUSPICIOUS or (self.launch.prepared is not None and status == 128 + processes.SIGKILL)
        if suspicious and not self._killed:
            outcome = self.outcome()
            if outcome is not None and not outcome.started:
                raise setup_error(outcome, stderr)
        return status

    def _drain(self, deadline: float | None) -> None:
        """Wait until the relay has copied all output. Raises TimeoutExpired."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if self._relay is not None and not self._relay.finish(left):
            raise subprocess.TimeoutExpired(self.args, left or 0.0)

    def _abandon_relay(self) -> None:
        if self._relay is not None:
            self._relay.abandon()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the streams and wait, like subprocess.Popen."""
        self._popen.__exit__(kind, error, trace)
        self._drain(None)

    def __repr__(self) -> str:
        return f"<Process {self.pid} returncode={self.returncode} args={self.args!r}>"


def complete(process: Process, input: Any, timeout: float | None) -> Completed[Any]:
    """Wait for the end and collect the output, like subprocess.run.

    Raises TimeoutExpired with the output so far, after the end of the whole tree; SandboxSetupError."""
    popen = process._popen
    deadline = _deadline(timeout)
    with popen:
        try:
            stdout, stderr = popen.communicate(input, timeout)
        except subprocess.TimeoutExpired as expired:
            stdout, stderr = _end_and_collect(process)
            process._abandon_relay()
            raise subprocess.TimeoutExpired(
                process.args, expired.timeout, _as_text(popen, stdout), _as_text(popen, stderr)
            ) from None
        except KeyboardInterrupt:
            process.stop()
            raise
        except BaseException:
            process.kill()
            process._abandon_relay()
            raise
    try:
        process._drain(deadline)
    except BaseException as error:
        process._abandon_relay()
        if isinstance(error, subprocess.TimeoutExpired):
            error.timeout, error.output, error.stderr = timeout or 0.0, stdout, stderr
        raise
    status = process._ended(stderr)
    return Completed(process.launch, status, stdout, stderr, process.outcome)


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _end_and_collect(process: Process) -> tuple[Any, Any]:
    """Send TERM, KILL after the grace, and return the output until then.

    Without a pid namespace a process that escaped from its group can keep the output open. It is not waited for."""
    process.terminate()
    try:
        return process._popen.communicate(timeout=process.grace)
    except subprocess.TimeoutExpired:
        process.kill()
        if process._leads_group:  # the leader may have ended while others of its group did not
            processes.kill_group(process.pid)
    try:
        return process._popen.communicate(timeout=_AFTER_KILL_S)
    except subprocess.TimeoutExpired as expired:
        return expired.output, expired.stderr


def _as_text(popen: subprocess.Popen[Any], output: Any) -> Any:
    stream = popen.stdout or popen.stderr
    encoding = getattr(stream, "encoding", None)
    if isinstance(output, bytes) and isinstance(encoding, str):
        return output.decode(encoding, "replace")
    return output


def start(
    launch: Launch,
    options: SpawnOptions,
    ask_outcome: Callable[[str], WrapOutcomeResult],
    *,
    after: Process | None = None,  # an attempt that did not start
) -> Process:
    """Spawn a launch. Raises SandboxSetupError, or OSError for a bare command."""
    arguments = spawn_arguments(options)
    relay = None
    if options.get("relay_stdio"):
        from sandboxd_client.running.relay import relay_streams

        relay = relay_streams(arguments, None if after is None else after._relay)
    try:
        popen: subprocess.Popen[Any]
        if launch.prepared is None:
            popen = subprocess.Popen(launch.argv, **{**popen_arguments(launch, options), **arguments})
        else:
            popen = launch.prepared.started()
    except BaseException as error:
        if launch.prepared is not None:
            launch.prepared.drop()
            launch.prepared.wait(ENDS_WITHIN_S)
        if relay is not None:
            relay.abandon()
        if launch.wrap is None or not isinstance(error, OSError):
            raise
        raise spawn_error(launch, error) from error
    if relay is not None:
        relay.start()
    return Process(
        popen,
        launch,
        ask_outcome,
        leads_group=leads_group(arguments),
        grace=options.get("grace", DEFAULT_GRACE_S),
        relay=relay,
    )


def check_streams(options: SpawnOptions) -> None:
    """Accept every option of the streams: subprocess decodes them."""


def approved(decision: ShouldSandboxResult, approve: Callable[[ShouldSandboxResult], Any] | None) -> bool | None:
    """Ask the caller's callback; None without a callback or a question."""
    return bool(approve(decision)) if decision.behavior == "ask" and approve is not None else None


def ask_to_run_outside(
    client: RpcMethods, command: Command, options: SpawnOptions, done: Completed[Any], input: Any, timeout: float | None
) -> Completed[Any]:
    """Return the result of a second run after a user's yes, else the first one."""
    try:
        answer = client.permission_request("sandbox_override", **question(command, options, done))
    except SandboxdError as error:
        return with_answer(done, error)
    launch = launch_outside(command, options, answer)
    if launch is None:
        return with_answer(done, answer)
    return with_answer(complete(start(launch, options, client.wrap_outcome), input, timeout), answer, inside=done)
