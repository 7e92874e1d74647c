"""One namespace program on its way to the helper, and its answer."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Sequence
from typing import Any

from sandboxd.backends.linux.network.namespace_program import (
    ANSWER_SIZE,
    COMPLETE,
    MAX_SOCKETS,
    LateMount,
    NamespaceProgram,
    ProgramResult,
    gives,
)
from sandboxd.errors import LaunchError

ANSWER_WITHIN_S = 15.0
"""The fork's own limit is 10 s."""

_ANCILLARY = socket.CMSG_SPACE(MAX_SOCKETS * array.array("i").itemsize)


class NamespaceError(LaunchError):
    """A failure in a sandbox's network namespace, or in its mounts with `mount`.

    `number` is the error number, 0 without one."""

    def __init__(self, message: str, number: int = 0, *, mount: bool = False) -> None:
        why = f": {os.strerror(number)}" if number else ""
        slug, what, hint = _MOUNT_FAILED if mount else _NETWORK_FAILED
        super().__init__(slug, f"{what}: {message}{why}", hint=hint)
        self.number = number


_NETWORK_FAILED = (
    "network_not_set_up",
    "cannot set up the network of the sandbox",
    "see what is missing: sandboxd check; or: sandboxd settings set sandbox.network.transparent false",
)
_MOUNT_FAILED = (
    "mount_failed",
    "cannot mount the files of the sandbox",
    "try again; if the error stays, remove the file at that path",
)


class HeldDescriptor:
    """The owner of a descriptor that is no socket; like a socket, it is closed when it is dropped.

    An answer is dropped where the task that waits for it is cancelled when it has come."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def detach(self) -> int:
        """Give the descriptor away."""
        number, self._number = self._number, -1
        return number

    def close(self) -> None:
        if self._number >= 0:
            os.close(self.detach())

    def __del__(self) -> None:
        self.close()


class NamespaceRequest:
    """Owner of a request's descriptors until they are sent, and of its answer."""

    def __init__(self, program: NamespaceProgram, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[list[socket.socket]] = loop.create_future()
        self._program = program
        self._rest: asyncio.Future[list[socket.socket]] | None = None
        self._rest_program = program
        self._loop = loop
        self._namespace = self._mounts = -1
        self._trees: tuple[int, ...] = ()
        self._far: socket.socket | None = None
        self._answers: socket.socket | None = None
        self._timeout: asyncio.TimerHandle | None = None

    def attach(self, namespace: int, mounts: int | None, trees: Sequence[int] = ()) -> None:
        """Duplicate the descriptors, and open the answer's socket. Raises OSError."""
        self._answers, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answers.setblocking(False)
        self._await(self.future)
        self._namespace = os.dup(namespace)
        self._mounts = -1 if mounts is None else os.dup(mounts)
        self._trees = tuple(map(os.dup, trees))

    def _await(self, future: asyncio.Future[list[socket.socket]]) -> None:
        """Take the next answer for this future."""
        assert self._answers is not None
        self._loop.add_reader(self._answers.fileno(), self._answered)
        self._timeout = self._loop.call_later(ANSWER_WITHIN_S, self.fail, "no answer in time")
        future.add_done_callback(self._done)

    def finish(
        self, program: NamespaceProgram, mounts: int, trees: Sequence[int]
    ) -> asyncio.Future[list[socket.socket]]:
        rest: asyncio.Future[list[socket.socket]] = self._loop.create_future()
        if self._answers is None or not self._program.stays:
            rest.set_exception(NamespaceError("the waiting helper process has ended"))
            return rest
        try:
            rights = array.array("i", [mounts, *trees])
            self._answers.sendmsg([program.encoded], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            rest.set_exception(NamespaceError("the waiting helper process has ended", error.errno or 0))
            return rest
        self._rest_program, self._rest = program, rest
        if self.future.done():
            self._go_on()
        return rest

    def _go_on(self) -> None:
        """Switch to the rest, after the first part is done and the rest sent."""
        assert self._rest is not None
        if self._timeout is not None:
            self._timeout.cancel()
        self._program, self.future = self._rest_program, self._rest
        self._await(self.future)

    def give_up(self) -> None:
        self.future.cancel()
        self._close()

    def send(self, requests: socket.socket) -> None:
        """Send the request. After an OSError it can be sent again."""
        if self._far is None:  # given up meanwhile
            return
        rights = array.array("i", [self._namespace, self._far.fileno()])
        if self._mounts >= 0:
            rights.extend((self._mounts, *self._trees))
        requests.sendmsg([self._program.encoded], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        self._release_sent()

    def fail(self, reason: str, number: int = 0, *, mount: bool = False) -> None:
        if not self.future.done():
            self.future.set_exception(NamespaceError(reason, number, mount=mount))

    def _answered(self) -> None:
        assert self._answers is not None
        if self.future.done():
            return
        sockets: list[Any] = []
        try:
            data, ancillary, _, _ = self._answers.recvmsg(ANSWER_SIZE + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
            for _, _, payload in ancillary:
                sockets += [self._own(number) for number in array.array("i", payload)]
            if not data:
                self.fail("the helper process died")
                return
            answer = ProgramResult.decode(data)
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
        what = self._program.describe(answer.stage) if answer.stage else "the answer lacks sockets"
        self.fail(what, answer.errno, mount=mount)

    def _own(self, number: int) -> Any:
        """Return the owner of a received descriptor."""
        return HeldDescriptor(number) if any(map(gives, self._program.steps)) else socket.socket(fileno=number)

    def _done(self, future: asyncio.Future[list[socket.socket]]) -> None:
        if future is not self.future:  # the rest is already under way
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
        for descriptor in filter(lambda number: number >= 0, (self._namespace, self._mounts, *self._trees)):
            os.close(descriptor)
        self._namespace = self._mounts = -1
        self._trees = ()
        if self._far is not None:
            self._far.close()
            self._far = None
