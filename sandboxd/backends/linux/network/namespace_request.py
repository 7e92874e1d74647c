"""One program on its way to somebody who does it in the namespaces of a sandbox, and its answer on the way back."""

from __future__ import annotations

import array
import asyncio
import os
import socket

from sandboxd.backends.linux.network.namespace_program import (
    ANSWER_SIZE,
    COMPLETE,
    MAX_SOCKETS,
    LateMount,
    NamespaceProgram,
    ProgramResult,
)
from sandboxd.errors import LaunchError

ANSWER_WITHIN_S = 15.0
"""A fork gives itself 10 s."""

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


class NamespaceRequest:
    """Owns the descriptors that go out with it until they have gone, and the end that the answer comes to."""

    def __init__(self, program: NamespaceProgram, loop: asyncio.AbstractEventLoop) -> None:
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

    def finish(self, program: NamespaceProgram, mounts: int) -> asyncio.Future[list[socket.socket]]:
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
