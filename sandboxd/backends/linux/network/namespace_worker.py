"""The process that runs namespace programs for the daemon.

`NamespaceWorker` owns a process of the helper's program `namespaces`, and replaces it when it dies. A request is a
program (`namespace_program.py`), the namespace, and one end of a socket pair for the answer. The process forks for
each request, so requests neither wait for nor affect each other. End of file without an answer means that the fork
died."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sandboxd.backends.linux.network.namespace_program import NamespaceProgram
from sandboxd.backends.linux.network.namespace_request import HeldDescriptor, NamespaceRequest


class NamespaceWorker:
    """Owner of the process; `log(event, **values)` receives each replacement."""

    def __init__(self, executable: str, log: Callable[..., None]) -> None:
        self._executable = executable
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._waiting: deque[NamespaceRequest] = deque()
        self._ended = asyncio.Event()
        self._closed = False

    def open(self) -> None:
        """Start the process, which takes a millisecond. Raises OSError."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            near.setblocking(False)
            self._process = subprocess.Popen(
                [self._executable],
                stdin=far.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", env={},
            )  # fmt: skip
        except OSError:
            near.close()
            raise
        finally:
            far.close()
        self._requests = near
        pidfd = os.pidfd_open(self._process.pid)
        self._ended.clear()
        self._loop.add_reader(pidfd, self._process_ended, self._process, pidfd)

    async def aclose(self) -> None:
        """End the process. Pending requests fail with NamespaceError."""
        self._closed = True
        self._hang_up()
        if self._process is not None:
            await self._ended.wait()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(
        self, namespace: int, program: NamespaceProgram, mounts: int | None = None, trees: Sequence[int] = ()
    ) -> asyncio.Future[list[socket.socket]]:
        """Start a program; the future returns the opened sockets.

        The caller owns them. The future raises NamespaceError, and can be cancelled at any time. `namespace` is
        borrowed during the call only, and so are `mounts`, the mount namespace for programs with mounts, and the
        `trees` that these put."""
        request = NamespaceRequest(program, self._loop)
        self._begin(request, namespace, mounts, trees)
        return request.future

    def _begin(self, request: NamespaceRequest, namespace: int, mounts: int | None, trees: Sequence[int] = ()) -> None:
        if self._closed:
            request.fail("the daemon is ending")
            return
        try:
            request.attach(namespace, mounts, trees)
            if self._requests is None:
                self.open()
        except OSError as error:
            request.fail("cannot start the helper", error.errno or 0)
            return
        self._waiting.append(request)
        if len(self._waiting) == 1:
            self._send_waiting()

    def stay(self, namespace: int, program: NamespaceProgram) -> WaitingProgram:
        """Start a program that ends in `Continuation`. The result must be closed."""
        request = NamespaceRequest(program, self._loop)
        self._begin(request, namespace, None)
        return WaitingProgram(request)

    async def perform(
        self, namespace: int, program: NamespaceProgram, mounts: int | None = None
    ) -> list[socket.socket]:
        """Run a program, and return its sockets."""
        return await self.start(namespace, program, mounts)

    async def take(self, namespace: int, program: NamespaceProgram) -> list[HeldDescriptor]:
        """Run a program, and return the descriptors that it gives."""
        found: list[Any] = await self.start(namespace, program)
        return found

    def _send_waiting(self) -> None:
        while self._waiting:
            if self._requests is None:
                try:
                    self.open()
                except OSError as error:
                    self._fail_waiting("cannot start the helper", error.errno or 0)
                    return
            assert self._requests is not None
            try:
                self._waiting[0].send(self._requests)
            except BlockingIOError:
                self._loop.add_writer(self._requests.fileno(), self._send_waiting)
                return
            except OSError:  # the process died: its successor gets the unsent requests
                self._log("namespace_worker_died")
                self._hang_up()
                continue
            self._waiting.popleft()
        if self._requests is not None:
            self._loop.remove_writer(self._requests.fileno())

    def _process_ended(self, process: subprocess.Popen[bytes], pidfd: int) -> None:
        """Reap the process, which may have been replaced already."""
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


class WaitingProgram:
    """A program whose process waits in the sandbox's namespaces for the rest."""

    def __init__(self, request: NamespaceRequest) -> None:
        self._request = request
        self._opened = request.future
        self._are_taken = False

    async def opened(self) -> list[socket.socket]:
        """Return the sockets of the first part. Raises NamespaceError."""
        sockets = await self._opened
        self._are_taken = True
        return sockets

    async def settled(self) -> None:
        """Wait for the outcome of the first part, whatever it is."""
        await asyncio.wait([self._opened])

    @property
    def is_done(self) -> bool:
        """Return whether the outcome of the first part is known."""
        return self._opened.done()

    @property
    def has_failed(self) -> bool:
        """Return whether the first part has failed."""
        return self.is_done and (self._opened.cancelled() or self._opened.exception() is not None)

    def finish(
        self, program: NamespaceProgram, mounts: int, trees: Sequence[int] = ()
    ) -> asyncio.Future[list[socket.socket]]:
        """Send the rest at any time; cancelled when the first part fails."""
        return self._request.finish(program, mounts, trees)

    def close(self) -> None:
        """Cancel unfinished parts, and close the sockets that were not taken."""
        if self.is_done and not self.has_failed and not self._are_taken:
            for one in self._opened.result():
                one.close()
        self._request.give_up()
