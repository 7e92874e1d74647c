"""The names of `subprocess`, for commands in the sandbox: `from sandboxd_client import subprocess`.

`Popen` is CPython's with another argv, and the functions are CPython's with that `Popen`, so everything else is the
same: streams, text, time-outs, errors. All commands of a process share one session, which ends with it; `open_session`
names another one. `create_subprocess_exec` and `create_subprocess_shell` are those of asyncio.

It differs where a sandbox does: `pid` is that of the sandbox, and a command that has no terminal leads a session of its
own, so that it cannot signal its caller. Where the daemon cannot tell it, a status of 128+N counts as signal N."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import functools
import os
import shutil
import subprocess
import types
from collections.abc import Mapping, Sequence
from subprocess import (
    DEVNULL,
    PIPE,
    STDOUT,
    CalledProcessError,
    CompletedProcess,
    SubprocessError,
    TimeoutExpired,
    list2cmdline,
)
from typing import IO, Any

from sandboxd_client.client import Client, Session
from sandboxd_client.errors import SandboxdError
from sandboxd_client.running import processes
from sandboxd_client.running.commands import Path
from sandboxd_client.running.launching import SUSPICIOUS, changed_environment, has_terminal, setup_error, spawn_error
from sandboxd_client.running.launching import Launch as _Launch
from sandboxd_client.wire.messages.wrap import WrapOutcomeResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import call, check_call, check_output, getoutput, getstatusoutput, run

__all__ = [
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "CalledProcessError",
    "CompletedProcess",
    "Popen",
    "SubprocessError",
    "TimeoutExpired",
    "call",
    "check_call",
    "check_output",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "getoutput",
    "getstatusoutput",
    "list2cmdline",
    "open_session",
    "run",
]

_CANNOT_CROSS = {
    "pass_fds": (), "preexec_fn": None, "user": None, "group": None, "extra_groups": None, "startupinfo": None,
    "creationflags": 0, "close_fds": True, "restore_signals": True,
}  # fmt: skip
"""Arguments that cannot cross into a sandbox, with the values that change nothing."""
_SIGNALS = range(129, 128 + 65)


@functools.cache
def _own_session(pid: int) -> Session:
    """Return the session of this process; a child after a fork has its own."""
    box = Client(role="agent")
    atexit.register(box.close)
    return box.session(name="subprocess").open()


def open_session(session: Session | None = None) -> Session:
    """Return the session of this process, where commands run without `session=`."""
    return session or _own_session(os.getpid())


def _launched(args: Any, keywords: dict[str, Any]) -> tuple[_Launch, Session]:
    """Wrap a command, and take out of the keywords what the launch has instead.

    Raises what subprocess raises for a missing program or directory, ValueError for what cannot cross."""
    for name, harmless in _CANNOT_CROSS.items():
        if keywords.pop(name, harmless) not in (harmless, None, []):
            raise ValueError(f"{name} cannot cross into a sandbox: leave it out")
    session = open_session(keywords.pop("session", None))
    shell, executable = keywords.pop("shell", False), keywords.pop("executable", None)
    env, cwd = keywords.pop("env", None), keywords.pop("cwd", None)
    env = None if env is None else {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
    words = [os.fsdecode(word) for word in ([args] if isinstance(args, (str, bytes, os.PathLike)) else args)]
    if not words:
        raise IndexError("list index out of range")
    directory = os.getcwd() if cwd is None else os.path.abspath(os.fsdecode(cwd))
    if not os.path.isdir(directory):
        number = errno.ENOTDIR if os.path.exists(directory) else errno.ENOENT
        raise OSError(number, os.strerror(number), directory if cwd is None else cwd)
    if shell:
        words = [os.fsdecode(executable or "/bin/sh"), "-c", *words]
    elif executable is not None and os.fsdecode(executable) != words[0]:
        raise ValueError("executable= without shell=True cannot cross into a sandbox: name it in args[0]")
    _check_program(words[0], directory, os.environ if env is None else env)
    wrap = session.wrap(argv=words, cwd=directory, env=env)
    if keywords.get("start_new_session") is None and keywords.get("process_group") is None:
        keywords["start_new_session"] = not has_terminal(keywords.get("stdin"))
    keywords.update(env=changed_environment(env, wrap), cwd=wrap.cwd)
    return _Launch(args, wrap.argv, wrap.cwd, keywords["env"], wrap, None), session


def _check_program(program: str, cwd: str, env: Mapping[str, str]) -> None:
    """Raise FileNotFoundError or PermissionError as the start of a program does."""
    near = os.path.join(cwd, program) if "/" in program else None
    if shutil.which(near or program, path=env.get("PATH", os.defpath)):
        return
    found = near or shutil.which(program, os.F_OK, env.get("PATH", os.defpath))
    number = errno.EACCES if found and os.path.exists(found) else errno.ENOENT
    raise OSError(number, os.strerror(number), program)


class _Outcome:
    """The end of a command, as the daemon knows it."""

    def __init__(self, launch: _Launch, session: Session) -> None:
        self.launch = launch
        self._session = session
        self._checked = False
        self._ending: int | None = None
        self.killed = False
        self.asks = True

    def ask(self) -> WrapOutcomeResult:
        assert self.launch.wrap is not None
        return self._session._client.wrap_outcome(self.launch.wrap.wrap_id)

    def is_known(self, code: int | None) -> bool:
        """Return whether `returncode` has to ask no daemon for this status."""
        return code is None or code not in _SIGNALS or self._ending is not None

    def returncode(self, code: int | None) -> int | None:
        """Return the status of a sandbox as subprocess has it: -N for signal N. A shell ends with 128+N, too."""
        if code is None or code not in _SIGNALS:
            return code
        if self._ending is None:
            number = None
            with contextlib.suppress(SandboxdError, OSError):
                number = self.ask().signal if self.asks else None
            self._ending = code if number == 0 else 128 - code
        return self._ending

    def check(self, code: int | None) -> None:
        """Raise SandboxSetupError where no command ran."""
        if self._checked or code is None:
            return
        self._checked = True
        if code in SUSPICIOUS and not self.killed and self.launch.wrap is not None:
            outcome = self.ask()
            if not outcome.started:
                raise setup_error(outcome)


class Popen(subprocess.Popen[Any]):
    """CPython's Popen, for a command in the sandbox. Signals reach the command itself."""

    def __init__(
        self,
        args: Any,
        bufsize: int = -1,
        executable: Path | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        preexec_fn: Any = None,
        close_fds: bool = True,
        shell: bool = False,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        universal_newlines: bool | None = None,
        *rest: Any,
        session: Session | None = None,
        **keywords: Any,
    ) -> None:
        names = ("startupinfo", "creationflags", "restore_signals", "start_new_session", "pass_fds")
        keywords.update(zip(names, rest, strict=False))
        keywords.update(executable=executable, stdin=stdin, preexec_fn=preexec_fn, close_fds=close_fds, shell=shell)
        keywords.update(cwd=cwd, env=env, session=session)
        self._child_created = False  # for __del__, where the wrap fails
        launch, within = _launched(args, keywords)
        self._outcome = _Outcome(launch, within)
        self._leads = bool(keywords.get("start_new_session")) or keywords.get("process_group") == 0
        keywords.update(bufsize=bufsize, stdout=stdout, stderr=stderr, universal_newlines=universal_newlines)
        try:
            super().__init__(launch.argv, **keywords)
        except OSError as error:
            raise spawn_error(launch, error) from error
        self.args = args

    @property
    def violations(self) -> tuple[Any, ...]:
        """The violations; complete once the process has ended."""
        return self._outcome.ask().violations

    # the status of a sandbox, each time CPython's code finds it

    @property
    def returncode(self) -> Any:
        return self._outcome.returncode(self._code)

    @returncode.setter
    def returncode(self, code: int | None) -> None:
        self._code = code

    def __del__(self, *given: Any) -> None:
        if self._child_created:
            self._outcome.asks = False  # it may run within a call of this thread to the daemon
        super().__del__(*given)

    def wait(self, timeout: float | None = None) -> int:
        """Wait like CPython's. Raises SandboxSetupError when no command ran."""
        code = super().wait(timeout)
        self._outcome.check(code)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            self._outcome.killed = self._outcome.killed or sig == processes.SIGKILL
            processes.signal_command(self.pid, sig, group=self._leads)


def _with_this_popen() -> dict[str, Any]:
    """Return the functions of subprocess, with the `Popen` of this module in place of CPython's."""
    names = {**vars(subprocess), "Popen": Popen}
    for name in ("run", "call", "check_call", "check_output", "getstatusoutput", "getoutput"):
        theirs = getattr(subprocess, name)
        own = types.FunctionType(theirs.__code__, names, name, theirs.__defaults__, theirs.__closure__)
        own.__kwdefaults__, own.__doc__, own.__module__ = theirs.__kwdefaults__, theirs.__doc__, __name__
        names[name] = own
    return names


if not TYPE_CHECKING:
    _names = _with_this_popen()
    run, call, check_call, check_output = (_names[n] for n in ("run", "call", "check_call", "check_output"))
    getstatusoutput, getoutput = _names["getstatusoutput"], _names["getoutput"]


# asyncio


class ProcessInside(asyncio.subprocess.Process):
    """asyncio's process, for a command in the sandbox. Signals reach the command itself."""

    def __init__(self, transport: Any, protocol: Any, loop: Any, outcome: _Outcome, *, leads: bool) -> None:
        super().__init__(transport, protocol, loop)
        self._outcome = outcome
        self._leads = leads
        self._live = transport
        self._asking: asyncio.Future[int | None] | None = None

    @property
    def returncode(self) -> int | None:
        code = self._live.get_returncode()
        if self._outcome.is_known(code):
            return self._outcome.returncode(code)
        if self._asking is None:
            self._asking = asyncio.get_running_loop().run_in_executor(None, self._outcome.returncode, code)
        return None

    async def wait(self) -> int:
        """Wait like asyncio's. Raises SandboxSetupError when no command ran."""
        code = await asyncio.to_thread(self._outcome.returncode, await super().wait())
        await asyncio.to_thread(self._outcome.check, code)
        return code or 0

    def send_signal(self, signal: int) -> None:
        if self._live.get_returncode() is None:
            self._outcome.killed = self._outcome.killed or signal == processes.SIGKILL
            processes.signal_command(self.pid, signal, group=self._leads)

    def terminate(self) -> None:
        self.send_signal(15)

    def kill(self) -> None:
        self.send_signal(processes.SIGKILL)


async def create_subprocess_exec(
    program: Path | bytes,
    *args: Path | bytes,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    limit: int = 1 << 16,
    **keywords: Any,
) -> ProcessInside:
    """Start a program in the sandbox, like asyncio.create_subprocess_exec."""
    return await _created([program, *args], stdin, stdout, stderr, limit, keywords)


async def create_subprocess_shell(
    cmd: str | bytes,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    limit: int = 1 << 16,
    **keywords: Any,
) -> ProcessInside:
    """Start a shell line in the sandbox, like asyncio.create_subprocess_shell."""
    return await _created([cmd], stdin, stdout, stderr, limit, {**keywords, "shell": True})


async def _created(
    args: Sequence[Any], stdin: Any, stdout: Any, stderr: Any, limit: int, keywords: dict[str, Any]
) -> ProcessInside:
    keywords["stdin"] = stdin
    launch, session = await asyncio.to_thread(_launched, args, keywords)
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.subprocess_exec(
            lambda: asyncio.subprocess.SubprocessStreamProtocol(limit=limit, loop=loop),
            *launch.argv,
            stdout=stdout,
            stderr=stderr,
            **keywords,
        )
    except OSError as error:
        raise spawn_error(launch, error) from error
    leads = bool(keywords.get("start_new_session")) or keywords.get("process_group") == 0
    return ProcessInside(transport, protocol, loop, _Outcome(launch, session), leads=leads)
