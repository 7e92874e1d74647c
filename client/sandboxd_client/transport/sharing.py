"""One connection for many threads at once, with pipelined requests.

There is no reader thread. Of the waiting threads one reads for all of them; when it has its answer, another takes over.
So a program that seldom runs a command needs no thread, and nothing is left after a fork."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from sandboxd_client.errors import ConnectionLost, DaemonTimeout, SandboxdError, error_of_reply
from sandboxd_client.running.completed import Completed
from sandboxd_client.transport.answers import Notification, notification_record, result_record
from sandboxd_client.transport.connection import Connection, Message, request, result_of, usable_path
from sandboxd_client.transport.starting import connect_in_role
from sandboxd_client.wire.messages.hello import Role
from sandboxd_client.wire.messages.methods import Method
from sandboxd_client.wire.params import encode_params

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")
NOTIFICATIONS_KEPT: Final = 1024
"""Most notifications that wait for the caller; older ones are dropped."""


class SharedConnection:
    """Owner of a connection. Once it is broken, every call raises the reason."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._last_id = 0
        self._waiting: dict[int, Message | None] = {}
        self._notifications: deque[tuple[str, Any]] = deque(maxlen=NOTIFICATIONS_KEPT)
        self._has_reader = False
        self._closed = False
        self._broken: SandboxdError | None = None

    def close(self) -> None:
        """Close the connection; waiting threads get ConnectionLost."""
        self._break(ConnectionLost("the client was closed"))
        with self._changed:
            self._closed = True
            if not self._has_reader:
                self._connection.close()

    def abandon(self) -> None:
        """Close this process's copy of the descriptor after a fork."""
        self._connection.close()

    def call(
        self,
        method: str,
        params: Mapping[str, Any],
        timeout: float | None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """Return the result of a request, and do something else while it is made. Raises SandboxdError."""
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
            meanwhile()
            # Also after a failed send: a daemon that refuses a caller sends the reason before it hangs up.
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
        """Return method and parameters. Raises ConnectionLost, TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return self._wait(lambda: self._notifications.popleft() if self._notifications else None, deadline)

    def _wait(self, find: Callable[[], T | None], deadline: float | None) -> T:
        """Return the first result of `find`, called under the lock per message."""
        while True:
            with self._changed:
                while True:
                    found = find()
                    if found is not None:
                        return found
                    if self._broken is not None:
                        raise self._broken
                    if not self._has_reader:
                        self._has_reader = True
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
                    self._has_reader = False
                    self._changed.notify_all()
                    if self._closed:
                        self._connection.close()
            self._take(message)

    def _take(self, message: Message) -> None:
        if "method" in message:
            if "id" in message:
                with self._sending, contextlib.suppress(ConnectionLost):
                    self._connection.handle(message)
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


class SharedConnector:
    """The connection of a client for all threads: connects, repeats requests."""

    def __init__(
        self, socket: str | os.PathLike[str] | None, *, autostart: bool, timeout: float | None, role: Role
    ) -> None:
        self.path = os.fspath(socket) if socket is not None else None
        self._autostart = autostart
        self._timeout = timeout
        self._role = role
        self._lock = threading.Lock()
        self._shared: SharedConnection | None = None
        self._owner = os.getpid()
        self._unasked: weakref.WeakSet[Completed[Any]] = weakref.WeakSet()
        self.connections = 0

    @property
    def socket(self) -> str:
        """The path of the socket. Raises PermissionDenied."""
        if self.path is None:
            self.path = usable_path()
        return self.path

    def connect(self) -> None:
        """Connect now instead of at the first call."""
        self._connected()

    def remember(self, done: Completed[Any]) -> None:
        """Fetch the outcome of a command before the connection closes."""
        self._unasked.add(done)

    def close(self) -> None:
        """Close the connection; a later call connects anew."""
        self._autostart, autostart = False, self._autostart
        try:
            for done in tuple(self._unasked):  # the caller may look at the violations later
                _ = done.violations
        finally:
            self._autostart = autostart
            self._unasked.clear()
        with self._lock:
            shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def _connected(self) -> tuple[SharedConnection, bool]:
        """Return the connection, and whether this call made it."""
        if self._owner != os.getpid():  # a child must not use its parent's connection
            self._lock = threading.Lock()
            inherited, self._shared, self._owner = self._shared, None, os.getpid()
            if inherited is not None:
                inherited.abandon()
        with self._lock:
            if self._shared is not None:
                return self._shared, False
            self._shared = SharedConnection(connect_in_role(self.socket, self._role, autostart=self._autostart))
            self.connections += 1
            return self._shared, True

    def _drop(self, shared: SharedConnection) -> None:
        with self._lock:
            if self._shared is shared:
                self._shared = None
        shared.close()

    def call(self, method: Method[P, R], params: P) -> R:
        """Send a request and return the record of its result."""
        return self._call(method, params)

    def _call(self, method: Method[P, R], params: P, meanwhile: Callable[[], object] = lambda: None) -> R:
        """Do as `call`; `meanwhile` is called once, when the request is sent."""
        encoded = encode_params(params)
        while True:
            shared, fresh = self._connected()
            try:
                first, meanwhile = meanwhile, lambda: None
                result = shared.call(method.name, encoded, None if method.patient else self._timeout, first)
            except ConnectionLost as error:
                self._drop(shared)
                if fresh or (error.sent and not method.repeatable):
                    raise
                continue
            return result_record(method, result)

    def _ask_again(self, method: str, params: Mapping[str, Any]) -> Any:
        """Send a request over the connection that there is. Raises ConnectionLost where there is none."""
        with self._lock:
            shared = self._shared
        if shared is None or self._owner != os.getpid():
            raise ConnectionLost("there is no connection", sent=False)
        return shared.call(method, params, self._timeout)

    def notifications(self, timeout: float | None) -> Iterator[Notification]:
        """Yield notifications until `timeout` passes. Raises ConnectionLost."""
        with self._lock:
            shared = self._shared
        if shared is None:
            raise ConnectionLost("there is no subscription", sent=False)
        while True:
            try:
                method, params = shared.next_notification(timeout)
            except TimeoutError:
                return
            except ConnectionLost:
                self._drop(shared)
                raise
            found = notification_record(method, params)
            if found is not None:
                yield found
