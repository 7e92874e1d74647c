"""One blocking connection to the daemon, for one thread at a time.

As part of every `sandboxd run` it uses `_socket`, the C module beneath `socket`: `import socket` costs 4 to 6 ms, more
than the rest of the run path together. Notifications go to `on_notification`; requests of the daemon are refused, since
a client serves no methods."""

from __future__ import annotations

import _socket
import errno
import os
import select
import sys
import time

from sandboxd_client.errors import (
    ConnectionLost,
    DaemonNotRunning,
    DaemonTimeout,
    InvalidCommand,
    PermissionDenied,
    error_of_reply,
)
from sandboxd_client.wire import location
from sandboxd_client.wire.framing import FrameError, JsonTextError, LineDecoder, LineTooLong, NotUtf8, encode_line
from sandboxd_client.wire.jsontext import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Message = dict[str, Any]
else:
    Message = dict

_CHUNK = 65536
_SO_PEERCRED = 17
_SO_PEERPIDFD = 77
DEFAULT_TIMEOUT_S = 60.0
"""Default limit of an answer."""


def open_connection(path: str) -> Connection:
    """Connect to the daemon. Raises DaemonNotRunning, PermissionDenied."""
    try:
        if not location.check_place(path):
            raise DaemonNotRunning(path)
    except location.LocationError as error:
        raise PermissionDenied(error.slug, error.message, error.hint) from error
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
            raise DaemonNotRunning(path) from None
        raise PermissionDenied("socket_unusable", f"cannot connect to {path}: {error.strerror}") from error
    if not _is_outside(sock):
        sock.close()
        raise PermissionDenied(
            "daemon_sandboxed",
            f"a process in a sandbox, or one that has ended, listens at {path}: its answers are not trusted",
            "set XDG_RUNTIME_DIR or SANDBOXD_SOCKET to a place that commands cannot write",
        )
    return Connection(sock)


def _is_outside(sock: _socket.socket) -> bool:
    """Return whether the process that listens has no pid namespace of its own, as each sandbox has.

    Its answers are executed, and commands may be allowed to listen where a caller's environment leads. The kernel pins
    the process since 6.5; before, a pid that is in use again is taken for it. A process outside this namespace (pid 0)
    refuses this one itself. See unix(7), pid_namespaces(7), proc_pid_status(5)."""
    if sys.platform != "linux":
        return True
    pid = int.from_bytes(sock.getsockopt(_socket.SOL_SOCKET, _SO_PEERCRED, 12)[:4], sys.byteorder)
    if pid == 0:
        return True
    pidfd = -1
    try:
        try:
            pidfd = sock.getsockopt(_socket.SOL_SOCKET, _SO_PEERPIDFD)
            described = f"/proc/self/fdinfo/{pidfd}"
        except OSError as error:
            if error.errno not in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
                return False
            described = f"/proc/{pid}/status"
        with open(described, "rb") as file:
            numbers = file.read().partition(b"NSpid:")[2].partition(b"\n")[0].split()
    except OSError:
        return False
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    return len(numbers) == 1 and numbers[0] != b"-1"


def encode(message: object) -> bytes:
    """Return the frame of a request. Raises InvalidCommand for a caller's text."""
    try:
        return encode_line(message)
    except NotUtf8 as error:
        raise InvalidCommand(
            "not_utf8",
            "the command or its directory contains bytes that are not UTF-8",
            "rename the file, or name it in a script and run that",
        ) from error
    except LineTooLong as error:
        raise InvalidCommand(
            "line_too_long", f"the request is too long: {error.message}", "put the command into a file and run that"
        ) from error
    except JsonTextError as error:
        raise InvalidCommand(error.slug, f"the request {error.message}") from error


def request(number: int, method: str, params: Mapping[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def refusal(message: Message) -> bytes:
    """Return the refusal of a request from the daemon."""
    error = {"code": -32601, "message": "this client serves no methods", "data": {"slug": "method_not_found"}}
    return encode({"jsonrpc": "2.0", "id": message.get("id"), "error": error})


def result_of(message: Message) -> Any:
    """Return the result of an answer, or raise its error."""
    if "error" in message:
        raise error_of_reply(message["error"])
    return message.get("result")


class Connection:
    """A connected socket; `on_notification(method, params)` gets the others."""

    def __init__(self, sock: _socket.socket) -> None:
        self._sock = sock
        self._decoder = LineDecoder()
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._last_id = 0
        self.on_notification: Callable[[str, Any], None] | None = None

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def shutdown(self) -> None:
        """Wake a thread in `receive`, which then raises ConnectionLost."""
        try:  # noqa: SIM105 (contextlib costs 2 ms to import)
            self._sock.shutdown(_socket.SHUT_RDWR)
        except OSError:
            pass

    def send(self, frame: bytes) -> None:
        """Send a frame. Raises ConnectionLost; earlier answers stay readable."""
        try:
            self._sock.sendall(frame)
        except OSError as error:
            raise ConnectionLost(sent=False) from error

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message. Raises ConnectionLost, TimeoutError."""
        while True:
            try:
                line = self._decoder.next_line()
                if line is not None:
                    message = loads(line)
                    if isinstance(message, dict):
                        return message
                    raise ConnectionLost("sandboxd sent a message that is not an object")
                # No time-out of the socket: it would also apply to a thread that sends.
                if timeout is not None and not self._poll.poll(timeout * 1000):
                    raise TimeoutError
                data = self._sock.recv(_CHUNK)
            except (FrameError, JsonTextError) as error:
                raise ConnectionLost(f"sandboxd sent an invalid message: {error.message}") from error
            except TimeoutError:
                raise
            except OSError as error:
                raise ConnectionLost() from error
            if not data:
                raise ConnectionLost()
            self._decoder.feed(data)

    def call(self, method: str, params: Mapping[str, Any], timeout: float | None = None) -> Any:
        """Return the result of a request. Raises SandboxdError."""
        self._last_id += 1
        number = self._last_id
        frame = request(number, method, params)
        try:
            self.send(frame)
        except ConnectionLost:
            self.raise_refusal()
            raise
        return self.result(number, method, timeout)

    def result(self, number: int, method: str, timeout: float | None) -> Any:
        """Return the result of a request that was sent. Raises SandboxdError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                message = self.receive(None if deadline is None else max(deadline - time.monotonic(), 0.001))
            except TimeoutError:
                raise DaemonTimeout(method, timeout or 0) from None
            if "method" in message:
                self.handle(message)
            elif message.get("id") == number or (message.get("id") is None and "error" in message):
                return result_of(message)

    def handle(self, message: Message) -> None:
        """Handle a message that is no answer."""
        if "id" in message:
            self.send(refusal(message))
        elif self.on_notification is not None:
            self.on_notification(str(message["method"]), message.get("params"))

    def raise_refusal(self) -> None:
        """Raise the error of a daemon that refused this caller and hung up."""
        try:
            message = self.receive(0.001)
        except (ConnectionLost, TimeoutError):
            return
        if message.get("id") is None and "error" in message:
            raise error_of_reply(message["error"])


def usable_path(path: str | None = None) -> str:
    """Return the socket's path, or `path`. Raises PermissionDenied."""
    try:
        return location.socket_path() if path is None else location.check_path(path)
    except location.LocationError as error:
        raise PermissionDenied(error.slug, error.message, error.hint) from error
