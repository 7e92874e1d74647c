"""A sandbox that is kept ready for the next command of a blocking client (docs/prepared.md).

It is a child of this process, complete but for the command. A claim gives it environment, umask and standard streams,
and the daemon gives it the command. Whatever does not fit is started in the usual way."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any, Final, TypeVar, cast

from sandboxd_client.errors import ConnectionLost, RpcError, SandboxdError
from sandboxd_client.records import dataclass
from sandboxd_client.rpc import RpcMethods
from sandboxd_client.running.commands import absolute
from sandboxd_client.running.launching import (
    Command,
    Launch,
    SpawnOptions,
    popen_arguments,
    spawn_arguments,
    spawn_error,
    wrapped_launch,
)
from sandboxd_client.transport.answers import result_record
from sandboxd_client.transport.sharing import SharedConnector
from sandboxd_client.wire.messages.decisions import ShouldSandboxResult
from sandboxd_client.wire.messages.methods import WRAP, Method
from sandboxd_client.wire.messages.wrap import WrapParams, WrapResult
from sandboxd_client.wire.params import encode_params

P = TypeVar("P")
R = TypeVar("R")
WAIT_S: Final = 0.01
"""How long nothing is prepared after the start of a command: a short one has ended then, or the program itself."""
REST_S: Final = 10.0
"""How long nothing is prepared after a failure."""
ENDS_WITHIN_S: Final = 10.0
"""How long a sandbox that is given up has until it is killed."""
PLACES: Final = 16
"""Places of which the last changes to the environment are kept, for lines and for lists."""
LONGEST: Final = 100_000
"""Characters of a command or a variable; a longer one may be more than a program can receive."""
LARGEST: Final = 500_000
"""Characters of all variables."""
_STREAMS: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_HEAD: Final = struct.Struct("<III")
_INHERITED: Final = (
    b"Uid", b"Gid", b"Groups", b"SigIgn", b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb", b"NoNewPrivs",
    b"Seccomp", b"Seccomp_filters", b"Cpus_allowed", b"Mems_allowed",
)  # fmt: skip
_FILES: Final = ("limits", "cgroup", "oom_score_adj", "personality")
_PLACES: Final = ("/", *(f"/proc/thread-self/ns/{name}" for name in ("mnt", "uts", "net", "ipc", "cgroup")))


def _can_claim() -> bool:
    """Return whether Popen of this Python lets another process stand for its child."""
    code = getattr(getattr(subprocess.Popen, "_execute_child", None), "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount]
    return (
        sys.platform == "linux"
        and names[11:17] == _STREAMS
        and hasattr(subprocess.Popen, "_close_pipe_fds")
        and hasattr(socket, "SCM_RIGHTS")
    )


@dataclass(frozen=True, slots=True)
class _Key:
    """Where a command is to run."""

    cwd: str
    session_id: str | None


@dataclass(frozen=True, slots=True)
class InheritedState:
    """The state that a child of this thread has of its parent, and the umask, which a claim can change."""

    state: tuple[bytes, ...]
    nice: int
    umask: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InheritedState) and (self.state, self.nice) == (other.state, other.nice)

    __hash__ = None  # type: ignore[assignment]


def inherited() -> InheritedState | None:
    """Return what a child would inherit now; None where that cannot be read."""
    try:
        fields = dict(line.split(b":\t", 1) for line in _read("status").splitlines() if b":\t" in line)
        places = (os.stat(path) for path in _PLACES)
        state = (
            *(fields.get(name, b"") for name in _INHERITED),
            *map(_read, _FILES),
            *(b"%d:%d" % (place.st_dev, place.st_ino) for place in places),
            b"%d" % os.sched_getscheduler(0),
        )
        return InheritedState(state, os.getpriority(os.PRIO_PROCESS, 0), int(fields[b"Umask"], 8))
    except (OSError, KeyError, ValueError):
        return None


def _read(name: str) -> bytes:
    number = os.open(f"/proc/thread-self/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(number, 65536)
    finally:
        os.close(number)


class ProcessChannels:
    """The channels of this process to its waiting sandboxes.

    A fork closes its copies at once: the end of the parent has to be the end of a channel. Python never forgets a hook
    of forks, so the one object belongs to the process, not to a client."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._close)

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Return a channel and the end for its sandbox."""
        channel, given = socket.socketpair()
        self._open.add(channel)
        return channel, given

    def _close(self) -> None:
        for channel in tuple(self._open):
            channel.close()


_CHANNELS: Final = ProcessChannels()


class _Changed(Exception):
    """A child of this process would inherit something else than when the sandbox was made."""


class Prepared:
    """One waiting sandbox."""

    def __init__(self, wrap: WrapResult, key: _Key, connections: int, state: InheritedState) -> None:
        """Spawn it. Raises OSError."""
        self.wrap, self.key, self.connections, self.inherited = wrap, key, connections, state
        self.owner = os.getpid()
        self._popen: ClaimedPopen | None = None
        self._channel, given = _CHANNELS.pair()
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                wrap.argv, stdin=given.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                cwd=wrap.cwd, env={}, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._channel.close()
            raise
        finally:
            given.close()

    @property
    def is_there(self) -> bool:
        """Return whether it runs: one that was stopped could not tell of the end of its command."""
        try:
            options = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, options) is None
        except ChildProcessError:
            return False

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float) -> None:
        """Wait for the end of one that was dropped, and kill it after so long."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def start(self, launch: Launch, options: SpawnOptions) -> None:
        """Give it what the command needs. Raises SandboxSetupError, ValueError, _Changed."""
        if (now := inherited()) is None or now != self.inherited:
            raise _Changed
        self.inherited = now
        try:
            self._popen = ClaimedPopen(self, launch.argv, **popen_arguments(launch, options))
        except OSError as error:
            raise spawn_error(launch, error) from error

    def started(self) -> ClaimedPopen:
        """Return the process of the command, which the daemon has let start."""
        assert self._popen is not None
        self._channel.close()
        return self._popen

    def take_back(self) -> None:
        """Be this object's process again, after a refusal."""
        self._process.returncode = None
        if (popen := self._popen) is not None:
            self._popen, popen.returncode = None, 0
            for stream in (popen.stdin, popen.stdout, popen.stderr):
                if stream is not None:
                    stream.close()

    def give(self, env: Mapping[str, str], umask: int, streams: Sequence[int]) -> int:
        """Give it all that a child would have of this process; return its pid. Raises ValueError."""
        words = []
        for name, value in env.items():
            one, content = os.fsencode(name), os.fsencode(value)
            if b"=" in one or b"\0" in one + content:
                raise ValueError("illegal environment variable name" if b"=" in one else "embedded null byte")
            words.append(one + b"=" + content)
        text = b"\0".join((*words, b"")) if words else b""
        data = _HEAD.pack(umask, len(words), len(text)) + text
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end tells of that
            sent = self._channel.sendmsg([data], rights, socket.MSG_NOSIGNAL)
            while sent < len(data):
                sent += self._channel.send(data[sent:], socket.MSG_NOSIGNAL)
        self._process.returncode = 0  # the process is another object's now
        return int(self._process.pid)

    def kill(self) -> None:
        """Kill it, whatever it has become."""
        self.take_back()
        self._process.kill()

    def drop(self) -> None:
        """End it, if it is still this process's: its process 1 sees that the socket ends.

        A bubblewrap that is killed while it makes the namespaces leaves a child that waits for ever."""
        if self.owner == os.getpid():
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold a copy
            self._process.send_signal(signal.SIGCONT)
        else:
            self._process.returncode = 0
        self._channel.close()


class ClaimedPopen(subprocess.Popen[Any]):
    """A Popen whose child is a prepared sandbox."""

    def __init__(self, prepared: Prepared, args: Sequence[str], *, umask: int = -1, **options: Any) -> None:
        self._prepared, self._umask = prepared, prepared.inherited.umask if umask < 0 else umask
        super().__init__(args, umask=umask, **options)

    def _execute_child(self, args: Any, executable: Any, *given: Any) -> None:
        # After args, executable: preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, streams.
        cwd, env = given[3:5]
        pipes = given[8:14]
        sys.audit("subprocess.Popen", args[0], args, cwd, env)
        ends = [own if end < 0 else end for own, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = self._prepared.give(env, self._umask, ends)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class _Claiming(RpcMethods):
    """Sends a `wrap`, and does something else until the answer comes."""

    def __init__(self, connector: SharedConnector, session: str | None, meanwhile: Callable[[], object]) -> None:
        self._connector, self._session, self._meanwhile = connector, session, meanwhile

    def call(self, method: Method[P, R], params: P) -> R:
        if self._session is not None and getattr(params, "session_id", "") is None:
            params = replace(cast(Any, params), session_id=self._session)
        return self._connector._call(method, params, self._meanwhile)


class Preparing:
    """Keeps one sandbox ready for the next command of a client."""

    def __init__(self, enabled: bool, connector: SharedConnector, session: str | None) -> None:
        self._enabled = enabled and _can_claim()
        self._connector, self._session = connector, session
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._ready: Prepared | None = None
        self._given_up: list[Prepared] = []
        self._stop = threading.Event()
        self._busy: threading.Thread | None = None
        self._not_before = 0.0
        self._last: dict[tuple[_Key, bool], WrapResult] = {}

    def launch(
        self,
        client: RpcMethods,
        command: Command,
        options: SpawnOptions,
        arguments: Mapping[str, Any],
        decision: ShouldSandboxResult | None,
    ) -> Launch:
        """Wrap a command, for the waiting sandbox where it fits."""
        self._after_a_fork()
        key = self._key_of(options)
        waiting = None if key is None else self._take(key, command, options)
        if key is None or waiting is None:
            wrap = client.wrap(**arguments)
        else:
            wrap = self._claim(waiting, key, client, command, options, arguments)
        if key is not None:
            if len(self._last) > PLACES:
                self._last.clear()
            self._last[key, isinstance(command, str)] = wrap
        launch = wrapped_launch(command, options, wrap, decision)
        return replace(launch, prepared=waiting) if wrap.prepared else launch

    def _claim(
        self,
        waiting: Prepared,
        key: _Key,
        client: RpcMethods,
        command: Command,
        options: SpawnOptions,
        arguments: Mapping[str, Any],
    ) -> WrapResult:
        """Wrap a command for this sandbox; give it the rest at the same time, if the changes to it can be foreseen."""
        last, given, sender = self._last.get((key, isinstance(command, str))), None, client
        if last is not None and last.env_tag:
            given = last.env_tag
            like = replace(last, argv=waiting.wrap.argv, cwd=waiting.wrap.cwd)
            ahead = wrapped_launch(command, options, like, None)
            sender = _Claiming(self._connector, self._session, lambda: waiting.start(ahead, options))
        is_taken = is_untouched = False
        try:
            wrap = sender.wrap(**arguments, prepared=waiting.wrap.wrap_id, given=given)
            if wrap.prepared:
                wrap = replace(wrap, argv=waiting.wrap.argv, command=waiting.wrap.command)
                if not given:
                    waiting.start(wrapped_launch(command, options, wrap, None), options)
            is_taken, is_untouched = wrap.prepared, not given
            return wrap
        except _Changed:
            pass
        except RpcError:
            is_untouched = not given
            raise
        except BaseException:
            waiting.kill()  # nothing tells whether it has begun
            raise
        finally:
            if not is_taken:
                waiting.take_back()
                self._keep(waiting) if is_untouched else self._give_up(waiting)
        return client.wrap(**arguments)

    def next(self, options: SpawnOptions) -> None:
        """Prepare the next one, soon, unless one is there."""
        self._after_a_fork()
        key = self._key_of(options)
        if key is None or time.monotonic() < self._not_before:
            return
        with self._lock:
            if self._ready is not None and self._ready.owner == os.getpid() and self._ready.is_there:
                return
            if self._busy is not None and self._busy.is_alive():
                return
            self._busy = threading.Thread(
                target=self._prepare, args=(key, self._stop), name="sandboxd-prepare", daemon=True
            )
            with contextlib.suppress(RuntimeError):  # the interpreter ends
                self._busy.start()

    def stop(self) -> None:
        """Give up what is prepared, or being prepared."""
        self._after_a_fork()
        self._stop.set()
        self._stop = threading.Event()
        self._keep(None)

    def close(self) -> None:
        """Wait until nothing is left of it. Follows `stop`, and the end of the connection."""
        until = time.monotonic() + ENDS_WITHIN_S
        if self._busy is not None and self._busy is not threading.current_thread():
            self._busy.join(ENDS_WITHIN_S)
        with self._lock:
            ending, self._given_up = self._given_up, []
        for one in ending:
            one.wait(until - time.monotonic())

    def _after_a_fork(self) -> None:
        """Leave to the parent what is its own, also a lock that one of its threads held."""
        if self._owner != os.getpid():
            self._owner, self._lock, self._busy = os.getpid(), threading.Lock(), None
            for one in (self._ready, *self._given_up):
                if one is not None:
                    one.drop()
            self._ready, self._given_up = None, []

    def __del__(self) -> None:
        if self._enabled and (self._ready is not None or self._given_up):
            self.stop()
            self.close()

    def _key_of(self, options: SpawnOptions) -> _Key | None:
        """Return where a command runs; None where it cannot be prepared for."""
        session = options.get("session_id") or self._session
        arguments = spawn_arguments(options) if self._enabled else {}
        if (
            not self._enabled
            or not arguments["start_new_session"]
            or arguments.get("process_group") is not None
            or any(options.get(name) for name in ("overrides", "publish", "relay_stdio"))
            or (session or "").startswith("auto:")
        ):
            return None
        try:
            return _Key(absolute(options.get("cwd")), session)
        except SandboxdError:
            return None

    def _take(self, key: _Key, command: Command, options: SpawnOptions) -> Prepared | None:
        with self._lock:
            one, self._ready = self._ready, None
        return None if one is None else self._fitting(one, key, command, options)

    def _fitting(self, one: Prepared, key: _Key, command: Command, options: SpawnOptions) -> Prepared | None:
        if one.key != key or not _is_short(command, options) or not _are_plain(options):
            self._keep(one)
            return None
        if one.owner == os.getpid() and one.connections == self._connector.connections and one.is_there:
            return one
        self._give_up(one)
        return None

    def _give_up(self, one: Prepared) -> None:
        one.drop()
        with self._lock:
            self._given_up = [*(before for before in self._given_up if not before.is_over), one]

    def _keep(self, one: Prepared | None) -> None:
        """Make this the waiting one, or none."""
        with self._lock:
            before, self._ready = self._ready, one
        if before is not None:
            self._give_up(before)

    def _prepare(self, key: _Key, stop: threading.Event) -> None:
        if stop.wait(WAIT_S):
            return
        try:
            connections, state = self._connector.connections, inherited()
            params = WrapParams(argv=("prepared",), cwd=key.cwd, session_id=key.session_id, prepare=True)
            wrap = result_record(WRAP, self._connector._ask_again(WRAP.name, encode_params(params)))
            one = None if state is None or stop.is_set() else Prepared(wrap, key, connections, state)
        except ConnectionLost:
            return
        except (SandboxdError, OSError):
            self._not_before = time.monotonic() + REST_S
            return
        with self._lock:
            if one is not None and not stop.is_set():
                one, self._ready = self._ready, one
        if one is not None:
            self._give_up(one)


def _is_short(command: Command, options: SpawnOptions) -> bool:
    env = options.get("env")
    sizes = [len(name) + len(value) + 2 for name, value in (os.environ if env is None else env).items()]
    words = (command,) if isinstance(command, str) else tuple(os.fspath(word) for word in command)
    return max(sizes, default=0) < LONGEST and sum(sizes) < LARGEST and sum(map(len, words)) < LONGEST


def _are_plain(options: SpawnOptions) -> bool:
    """Return whether the streams are of the kinds that every sandbox takes."""
    streams = (options.get("stdin", subprocess.DEVNULL), options.get("stdout"), options.get("stderr"))
    return all(_is_plain(own, one) for own, one in enumerate(streams))


def _is_plain(own: int, stream: int | IO[Any] | None) -> bool:
    if isinstance(stream, int) and stream < 0:
        return True  # PIPE, DEVNULL or STDOUT
    try:
        number = own if stream is None else stream if isinstance(stream, int) else stream.fileno()
        found = os.fstat(number)
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_PATH:
            return False
    except (OSError, ValueError, AttributeError):
        return False
    if stat.S_ISCHR(found.st_mode):
        return found.st_rdev == os.makedev(1, 3)
    return stat.S_ISFIFO(found.st_mode) or (stat.S_ISREG(found.st_mode) and os.major(found.st_dev) != 0)
