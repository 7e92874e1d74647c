"""One connection used by many threads at once: requests are pipelined, answers are handed to whoever waits for them.

There is no reader thread. Of the threads that wait for an answer one reads for all of them; when it has its own,
another takes over. So a program that only now and then runs a command pays for no thread, and nothing is left after a
fork.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sandboxd_client.connection import Connection, request, result_of
from sandboxd_client.errors import ConnectionLost, DaemonTimeout, SandboxdError, error_of_reply

if TYPE_CHECKING:
    from sandboxd_client.connection import Message

T = TypeVar("T")
NOTIFICATIONS_KEPT: Final = 1024
"""Of those that nobody has taken yet; the oldest ones go. Only who subscribed is sent any."""


class SharedConnection:
    """Owns `connection`. Once broken it stays so; every call then raises the reason."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._last_id = 0
        self._waiting: dict[int, Message | None] = {}
        self._notifications: deque[tuple[str, Any]] = deque(maxlen=NOTIFICATIONS_KEPT)
        self._someone_reads = False
        self._closed = False
        self._broken: SandboxdError | None = None

    def close(self) -> None:
        """Threads that wait are woken with ConnectionLost."""
        self._break(ConnectionLost("the client was closed"))
        with self._changed:
            self._closed = True
            if not self._someone_reads:
                self._connection.close()

    def abandon(self) -> None:
        """After a fork: give up this process's copy of the descriptor, and leave the parent's conversation alone."""
        self._connection.close()

    def call(self, method: str, params: Mapping[str, Any], timeout: float | None) -> Any:
        """Raises the error the answer carries, ConnectionLost, DaemonTimeout, InvalidCommand."""
        with self._changed:
            if self._broken is not None:
                raise ConnectionLost(self._broken.message, sent=False)
            self._last_id += 1
            number = self._last_id
        frame = request(number, method, params)
        with self._changed:
            self._waiting[number] = None
        deadline = None if timeout is None else time.monotonic() + timeout
        sent = self._send(frame)
        try:
            # Also when it could not be sent: a daemon that refuses a caller says why before it hangs up.
            return result_of(self._wait(lambda: self._waiting.get(number), deadline))
        except TimeoutError:
            raise DaemonTimeout(method, timeout or 0) from None
        except ConnectionLost as error:
            raise ConnectionLost(error.message, sent=sent) from error
        finally:
            with self._changed:
                self._waiting.pop(number, None)

    def _send(self, frame: bytes) -> bool:
        with self._sending:
            try:
                self._connection.send(frame)
            except ConnectionLost:
                return False
        return True

    def next_notification(self, timeout: float | None) -> tuple[str, Any]:
        """The method and the parameters of the next notification. Raises ConnectionLost, TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return self._wait(lambda: self._notifications.popleft() if self._notifications else None, deadline)

    def _wait(self, find: Callable[[], T | None], deadline: float | None) -> T:
        """What `find` finds once it finds something. It is called with the lock held, after each message."""
        while True:
            with self._changed:
                while True:
                    found = find()
                    if found is not None:
                        return found
                    if self._broken is not None:
                        raise self._broken
                    if not self._someone_reads:
                        self._someone_reads = True
                        break
                    if not self._changed.wait(_left(deadline)):
                        raise TimeoutError
            try:
                message = self._connection.receive(_left(deadline))
            except ConnectionLost as error:
                self._break(error)
                raise
            finally:
                with self._changed:
                    self._someone_reads = False
                    self._changed.notify_all()
                    if self._closed:
                        self._connection.close()
            self._take(message)

    def _take(self, message: Message) -> None:
        if "method" in message:
            if "id" in message:
                with self._sending, contextlib.suppress(ConnectionLost):
                    self._connection.heard(message)
                return
            with self._changed:
                self._notifications.append((str(message["method"]), message.get("params")))
                self._changed.notify_all()
            return
        if message.get("id") is None and "error" in message:  # about the connection as a whole
            self._break(error_of_reply(message["error"]))
            return
        with self._changed:
            if message.get("id") in self._waiting:  # otherwise its caller has stopped waiting
                self._waiting[message["id"]] = message
                self._changed.notify_all()

    def _break(self, reason: SandboxdError) -> None:
        with self._changed:
            first = self._broken is None
            if first:
                self._broken = reason
            self._changed.notify_all()
        if first:
            self._connection.shutdown()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.001)
