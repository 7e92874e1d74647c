"""The daemon's hands in the network namespaces of its sandboxes.

`NamespaceWorker` owns a process `apply-seccomp namespaces`, which lives as long as the worker and is replaced when it
dies. A request is a program (`namespace_program.py`), the namespace, and one end of a socket pair for the answer; the
other side forks for each, so requests neither wait for nor hurt each other. An end without an answer means that the
fork died.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable

from sandboxd.backends.linux.namespace_program import (
    ANSWER_SIZE,
    COMPLETE,
    MAX_SOCKETS,
    STREAM,
    Answer,
    LateMount,
    OpenSocket,
    Program,
    Then,
)
from sandboxd.errors import LaunchError
from sandboxd.policy.hosts import IPAddress

ANSWER_WITHIN_S = 15.0
"""A fork gives itself 10 s."""

_REUSE_ADDRESS = (1, 2, 1)
_ANCILLARY = socket.CMSG_SPACE(MAX_SOCKETS * array.array("i").itemsize)


class NamespaceError(LaunchError):
    """Something could not be done in a sandbox's namespaces: in that of its network, or with `mount` in that of its
    mounts. `number` is the error number, 0 without one."""

    def __init__(self, message: str, number: int = 0, *, mount: bool = False) -> None:
        why = f": {os.strerror(number)}" if number else ""
        slug, what, hint = _MOUNT_FAILED if mount else _NETWORK_FAILED
        super().__init__(slug, f"{what}: {message}{why}", hint=hint)
        self.number = number


_NETWORK_FAILED = (
    "network_not_set_up",
    "the network of the sandbox could not be set up",
    "sandboxd check says what this machine lacks; sandbox.network.transparent: false does without",
)
_MOUNT_FAILED = (
    "mount_failed",
    "the files of the sandbox could not be arranged",
    "try again; if it stays, remove what stands at that path",
)


class NamespaceWorker:
    """`helper` is the path of apply-seccomp. `log(event, **values)` hears when the process had to be replaced."""

    def __init__(self, helper: str, log: Callable[..., None]) -> None:
        self._helper = helper
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._waiting: deque[_Request] = deque()
        self._ended = asyncio.Event()
        self._closed = False

    def open(self) -> None:
        """Start the process, which takes a millisecond. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setblocking(False)
            self._process = subprocess.Popen(
                [self._helper, "namespaces"],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", env={},
            )  # fmt: skip
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._requests = ours
        pidfd = os.pidfd_open(self._process.pid)
        self._ended.clear()
        self._loop.add_reader(pidfd, self._process_ended, self._process, pidfd)

    async def aclose(self) -> None:
        """End the process. Whoever waits for an answer gets NamespaceError."""
        self._closed = True
        self._hang_up()
        if self._process is not None:
            await self._ended.wait()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self, namespace: int, program: Program, mounts: int | None = None) -> asyncio.Future[list[socket.socket]]:
        """Send a program off; the sockets that it opened, owned by whoever awaits them. The future raises
        NamespaceError. Cancelling it is safe at any time. `namespace` is only borrowed for the duration of the call,
        and so is `mounts`, the mount namespace that goes with it, for programs that have mounts."""
        request = _Request(program, self._loop)
        self._begin(request, namespace, mounts)
        return request.future

    def _begin(self, request: _Request, namespace: int, mounts: int | None) -> None:
        if self._closed:
            request.fail("the daemon is ending")
            return
        try:
            request.attach(namespace, mounts)
            if self._requests is None:
                self.open()
        except OSError as error:
            request.fail("the helper cannot be started", error.errno or 0)
            return
        self._waiting.append(request)
        if len(self._waiting) == 1:
            self._send_waiting()

    def stay(self, namespace: int, program: Program) -> Stay:
        """The same with a program that ends in `More`: whoever did it stays there for the rest. To be closed."""
        request = _Request(program, self._loop)
        self._begin(request, namespace, None)
        return Stay(request)

    async def perform(self, namespace: int, program: Program, mounts: int | None = None) -> list[socket.socket]:
        """The same, waited for."""
        return await self.start(namespace, program, mounts)

    def _send_waiting(self) -> None:
        while self._waiting:
            if self._requests is None:
                try:
                    self.open()
                except OSError as error:
                    self._fail_waiting("the helper cannot be started", error.errno or 0)
                    return
            assert self._requests is not None
            try:
                self._waiting[0].send(self._requests)
            except BlockingIOError:
                self._loop.add_writer(self._requests.fileno(), self._send_waiting)
                return
            except OSError:  # it has died: the next one takes over what was not sent
                self._log("namespace_worker_died")
                self._hang_up()
                continue
            self._waiting.popleft()
        if self._requests is not None:
            self._loop.remove_writer(self._requests.fileno())

    def _process_ended(self, process: subprocess.Popen[bytes], pidfd: int) -> None:
        """May be told of one that has been replaced already."""
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        process.wait()
        if self._process is process:
            self._process = None
            self._ended.set()

    def _hang_up(self) -> None:
        if self._requests is not None:
            self._loop.remove_writer(self._requests.fileno())
            self._requests.close()
            self._requests = None
        if self._closed:
            self._fail_waiting("the daemon is ending")

    def _fail_waiting(self, reason: str, number: int = 0) -> None:
        while self._waiting:
            self._waiting.popleft().fail(reason, number)


class Stay:
    """Somebody in the namespaces of a sandbox who has been given a program, and waits there for the rest of it: nothing
    has to be entered any more."""

    def __init__(self, request: _Request) -> None:
        self._request = request
        self._opened = request.future
        self._are_taken = False

    async def opened(self) -> list[socket.socket]:
        """The sockets of the first part. Raises NamespaceError."""
        sockets = await self._opened
        self._are_taken = True
        return sockets

    @property
    def is_done(self) -> bool:
        """Whether it is known what became of the first part."""
        return self._opened.done()

    @property
    def has_failed(self) -> bool:
        """Whether it is known that nothing comes of it."""
        return self.is_done and (self._opened.cancelled() or self._opened.exception() is not None)

    def finish(self, program: Program, mounts: int) -> asyncio.Future[list[socket.socket]]:
        """Send the rest off, at any time. As `NamespaceWorker.start`; cancelled when the first part fails."""
        return self._request.finish(program, mounts)

    def close(self) -> None:
        """Give up what is not done yet; whoever waits for it is cancelled. Sockets that nobody has taken are closed."""
        if self.is_done and not self.has_failed and not self._are_taken:
            for one in self._opened.result():
                one.close()
        self._request.give_up()


class _Request:
    """Owns the descriptors that go out with it until they have gone, and the end that the answer comes to."""

    def __init__(self, program: Program, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[list[socket.socket]] = loop.create_future()
        self._program = program
        self._rest: asyncio.Future[list[socket.socket]] | None = None
        self._rest_program = program
        self._loop = loop
        self._namespace = self._mounts = -1
        self._theirs: socket.socket | None = None
        self._answers: socket.socket | None = None
        self._timeout: asyncio.TimerHandle | None = None

    def attach(self, namespace: int, mounts: int | None) -> None:
        """Raises OSError."""
        self._answers, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answers.setblocking(False)
        self._await(self.future)
        self._namespace = os.dup(namespace)
        self._mounts = -1 if mounts is None else os.dup(mounts)

    def _await(self, future: asyncio.Future[list[socket.socket]]) -> None:
        """Answers are for this one from now on."""
        assert self._answers is not None
        self._loop.add_reader(self._answers.fileno(), self._answered)
        self._timeout = self._loop.call_later(ANSWER_WITHIN_S, self.fail, "no answer in time")
        future.add_done_callback(self._done)

    def finish(self, program: Program, mounts: int) -> asyncio.Future[list[socket.socket]]:
        rest: asyncio.Future[list[socket.socket]] = self._loop.create_future()
        if self._answers is None or not self._program.stays:
            rest.set_exception(NamespaceError("the process that was to do it has gone"))
            return rest
        try:
            rights = array.array("i", [mounts])
            self._answers.sendmsg([program.encoded], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            rest.set_exception(NamespaceError("the process that was to do it has gone", error.errno or 0))
            return rest
        self._rest_program, self._rest = program, rest
        if self.future.done():
            self._go_on()
        return rest

    def _go_on(self) -> None:
        """The first part is done, the rest has been sent."""
        assert self._rest is not None
        if self._timeout is not None:
            self._timeout.cancel()
        self._program, self.future = self._rest_program, self._rest
        self._await(self.future)

    def give_up(self) -> None:
        self.future.cancel()
        self._close()

    def send(self, requests: socket.socket) -> None:
        """Raises OSError; then it can be tried again."""
        if self._theirs is None:  # given up meanwhile
            return
        rights = array.array("i", [self._namespace, self._theirs.fileno()])
        if self._mounts >= 0:
            rights.append(self._mounts)
        requests.sendmsg([self._program.encoded], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        self._release_sent()

    def fail(self, reason: str, number: int = 0, *, mount: bool = False) -> None:
        if not self.future.done():
            self.future.set_exception(NamespaceError(reason, number, mount=mount))

    def _answered(self) -> None:
        assert self._answers is not None
        if self.future.done():
            return
        sockets: list[socket.socket] = []
        try:
            data, ancillary, _, _ = self._answers.recvmsg(ANSWER_SIZE + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
            for _, _, payload in ancillary:
                sockets += [socket.socket(fileno=number) for number in array.array("i", payload)]
            if not data:
                self.fail("the process that did it has died")
                return
            answer = Answer.decode(data)
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            self.fail(str(error))
            return
        if answer.stage == COMPLETE and len(sockets) == self._program.sockets:
            self.future.set_result(sockets)
            return
        for one in sockets:
            one.close()
        mount = isinstance(self._program.step(answer.stage), LateMount)
        what = self._program.describe(answer.stage) if answer.stage else "sockets are missing"
        self.fail(what, answer.errno, mount=mount)

    def _done(self, future: asyncio.Future[list[socket.socket]]) -> None:
        if future is not self.future:  # the rest is under way already
            return
        if self._timeout is not None:
            self._timeout.cancel()
        if self._answers is not None:
            self._loop.remove_reader(self._answers.fileno())
        if not self._program.stays or future.cancelled() or future.exception() is not None:
            self._close()
        elif self._rest is not None:
            self._go_on()

    def _close(self) -> None:
        if self._answers is not None:
            self._loop.remove_reader(self._answers.fileno())
            self._answers.close()
            self._answers = None
        self._release_sent()
        if self._rest is not None:
            self._rest.cancel()

    def _release_sent(self) -> None:
        for descriptor in filter(lambda number: number >= 0, (self._namespace, self._mounts)):
            os.close(descriptor)
        self._namespace = self._mounts = -1
        if self._theirs is not None:
            self._theirs.close()
            self._theirs = None


class NamespaceHold:
    """A sandbox's network namespace, kept open to open further sockets in it. Owns the descriptor `namespace`."""

    def __init__(self, worker: NamespaceWorker, namespace: int) -> None:
        self._worker = worker
        self._namespace = namespace

    def fileno(self) -> int:
        return self._namespace

    async def connect_inside(self, address: IPAddress, port: int) -> socket.socket:
        """A connected, non-blocking TCP socket, as if a program inside had made it. Raises OSError; NamespaceError when
        it never came to that."""
        step = OpenSocket(STREAM, address, port, Then.CONNECT)
        try:
            (sock,) = await self._worker.start(self._usable(), Program.of((step,)))
        except NamespaceError as error:
            if error.number:
                raise OSError(error.number, os.strerror(error.number)) from error
            raise
        try:
            await _connected(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    async def is_listening(self, address: IPAddress, port: int) -> bool:
        """Found out by binding a socket there, which a listener forbids and a mere connection does not."""
        step = OpenSocket(STREAM, address, port, Then.BIND, options=(_REUSE_ADDRESS,))
        try:
            (sock,) = await self._worker.start(self._usable(), Program.of((step,)))
        except NamespaceError as error:
            if error.number == errno.EADDRINUSE:
                return True
            raise
        sock.close()
        return False

    def _usable(self) -> int:
        if self._namespace < 0:
            raise NamespaceError("the sandbox has ended")
        return self._namespace

    def close(self) -> None:
        if self._namespace >= 0:
            with contextlib.suppress(OSError):
                os.close(self._namespace)
            self._namespace = -1


async def _connected(sock: socket.socket) -> None:
    """Wait until a connect() that was begun has ended. Raises OSError."""
    loop = asyncio.get_running_loop()
    writable: asyncio.Future[None] = loop.create_future()
    number = sock.fileno()

    def is_writable() -> None:
        if not writable.done():
            writable.set_result(None)

    loop.add_writer(number, is_writable)
    try:
        await writable
    finally:
        loop.remove_writer(number)
    if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(code, os.strerror(code))
