"""A loopback server that counts: the oracle of every "no connection was made"."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(slots=True)
class Origin:
    """`connections` are the peers that connected, `requests` the (method, path, Host header) of what they asked."""

    port: int
    connections: list[tuple[str, int]] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    body: bytes = b"hello from the origin\n"

    def url(self, host: str = "127.0.0.1", path: str = "/") -> str:
        return f"http://{host}:{self.port}{path}"


@contextmanager
def serve_origin(context: ssl.SSLContext | None = None) -> Iterator[Origin]:
    """An HTTP server on 127.0.0.1 that answers every request with `origin.body`, echoing what was posted after it.

    With a `context` it speaks TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def setup(self) -> None:
            origin.connections.append(self.client_address)
            super().setup()

        def answer(self) -> None:
            received = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            origin.requests.append((self.command, self.path, self.headers.get("Host", "")))
            origin.heads.append(dict(self.headers.items()))
            body = origin.body + received
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

        def log_message(self, *_: Any) -> None:
            return None

    class Server(ThreadingHTTPServer):
        def get_request(self) -> tuple[Any, Any]:
            sock, peer = super().get_request()
            if context is not None:  # the handshake is the handler's, so that it keeps nothing else waiting
                sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            return sock, peer

        def handle_error(self, request: Any, client_address: Any) -> None:
            if context is None:
                super().handle_error(request, client_address)

    with Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        origin = Origin(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="origin", daemon=True)
        thread.start()
        try:
            yield origin
        finally:
            server.shutdown()
            thread.join()
