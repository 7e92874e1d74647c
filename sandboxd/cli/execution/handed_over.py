"""Continuation of a `run` that the front has begun (vendor/seccomp/front.c).

The front is the program that stands in for the interpreter while there is nothing to say. It hands over what it has
not understood, a signal, or a command's end about which there is something to tell."""

from __future__ import annotations

import _socket
import os

from sandboxd.cli.execution.foreground import DEFAULT_GRACE_S, wait_on
from sandboxd_client.transport.connection import Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class HandedOver(Connection):
    """The front's connection.

    Its first requests have been sent, and some of their answers have been received."""

    def __init__(self, words: list[str]) -> None:
        connection, answers, requests, pid, signal, status = map(int, words[:6])
        sock = _socket.socket(fileno=connection)
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, bytes(16))  # that of the front, for one answer
        super().__init__(sock)
        os.set_inheritable(connection, False)
        with open(answers, "rb") as file:
            self._decoder.feed(file.read())
        self._requests = requests
        self._pid = pid
        self._signal = signal
        self._status = status
        self.begun = float(words[6] or 0)

    def call(self, method: str, params: Any, timeout: float | None = None) -> Any:
        """Return the result of a request, which the front may have sent."""
        if self._last_id >= self._requests:
            return super().call(method, params, timeout)
        self._last_id += 1
        return self.result(self._last_id, method, timeout)

    @property
    def was_spawned(self) -> bool:
        """Return whether the command was spawned."""
        return self._pid > 0 or self._status >= 0

    def status(self, grace_s: float = DEFAULT_GRACE_S) -> int:
        """Return the command's exit status, after its end."""
        return wait_on(self._pid, grace_s, self._signal) if self._pid else self._status
