"""An audit log that is collected, and the end of a way of OpenTelemetry, which reads the protocol's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from sandboxd.cli import otlp
from sandboxd.cli.audit import _files
from sandboxd.daemon.audit.audit_chain import BEGINNING, Position, encode_line, records


class AuditLog:
    """An audit log that grows, and is renamed as the daemon does it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: Position = BEGINNING

    def add(self, count: int, kind: str = "run", command: str = "ls") -> None:
        with self.path.open("ab") as file:
            for _ in range(count):
                line, self.last = encode_line(
                    self.last, {"time": "2026-01-31T08:00:00Z", "kind": kind, "command": command}
                )
                file.write(line)

    def rotate(self) -> None:
        self.path.rename(f"{self.path}.1")

    def follower(self, sent: int = 0) -> otlp.Follower:
        return otlp.Follower(str(self.path), lambda: records(_files(str(self.path))), sent)


@contextmanager
def collector(refusals: int = 0) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    got: list[tuple[str, Any]] = []
    left = [refusals]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            left[0] -= 1
            if left[0] < 0:
                kind = ExportLogsServiceRequest if self.path.endswith("logs") else ExportMetricsServiceRequest
                got.append((self.path, kind.FromString(body)))
            self.send_response(400 if left[0] >= 0 else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", got
        server.shutdown()
        thread.join()
