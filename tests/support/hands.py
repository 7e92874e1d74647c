"""A server outside that hands descriptors in over a Unix socket (SCM_RIGHTS)."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from support.users import Identity

_SOCKETS = {
    "tcp": (socket.AF_INET, socket.SOCK_STREAM),
    "udp": (socket.AF_INET, socket.SOCK_DGRAM),
    "unix": (socket.AF_UNIX, socket.SOCK_DGRAM),
    "stream": (socket.AF_UNIX, socket.SOCK_STREAM),
}


class Hands:
    """A server with what is asked for by its kind.

    That is a new socket, "connected" for one with a peer, or a directory by its path.
    """

    def __init__(self, identity: Identity, port: int = 0) -> None:
        self.path = str(identity.base / "hands")
        self._port = port
        self.kept: list[socket.socket] = []
        """The server's own side of each socket that it has handed out."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        identity.own(Path(self.path))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            with self._listener.accept()[0] as one:
                kind = one.recv(1000).decode().strip()
                if kind == "end":
                    return
                with self._made(kind) as handed:
                    socket.send_fds(one, [b"here"], [handed])

    @contextlib.contextmanager
    def _made(self, kind: str) -> Iterator[int]:
        if kind.startswith("/"):
            handed = os.open(kind, os.O_RDONLY | os.O_DIRECTORY)
        elif kind == "connected":
            handed = socket.create_connection(("127.0.0.1", self._port)).detach()
        else:
            self.kept.append(socket.socket(*_SOCKETS[kind]))
            handed = os.dup(self.kept[-1].fileno())
        try:
            yield handed
        finally:
            os.close(handed)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(self.path)
            one.sendall(b"end")
            self._thread.join()
        for one in (self._listener, *self.kept):
            one.close()
