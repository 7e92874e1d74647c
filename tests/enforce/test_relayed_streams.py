"""A network socket as standard stream leads out of the network namespace: it is refused, or relayed where asked for."""

from __future__ import annotations

import socket
import subprocess
from typing import Any

from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin

AWAY = """
import ctypes, os, socket, struct, sys
print("here", flush=True)
libc = ctypes.CDLL(None, use_errno=True)
libc.connect(0, struct.pack("=H", 0) + bytes(14), 16)
address = struct.pack("=H", 2) + struct.pack("!H", int(sys.argv[1])) + bytes([127, 0, 0, 1]) + bytes(8)
if not libc.connect(0, address, 16):
    os.write(0, b"GET / HTTP/1.0\\r\\n\\r\\n")
"""


def serve(daemon: DaemonProcess, *arguments: str) -> tuple[int, bytes, str]:
    """Status, what the client of the socket read, and standard error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        given, _ = listener.accept()
        with client:
            streams: dict[str, Any] = {"stdin": given.fileno(), "stdout": given.fileno(), "stderr": subprocess.PIPE}
            process = daemon.popen("run", *arguments, **streams)
            given.close()
            client.settimeout(120)
            with client.makefile("rb") as stream:
                read = stream.read()
            _, errors = process.communicate()
            return process.returncode, read, errors.decode() if isinstance(errors, bytes) else errors


def test_a_network_socket_is_refused_or_relayed(start_daemon: StartDaemon, origin: Origin) -> None:
    daemon = start_daemon()
    python = ["--", "python3", "-I", "-S", "-c", AWAY, str(origin.port)]
    status, read, errors = serve(daemon, *python)
    assert (status, read) == (125, b"")
    assert "a TCP socket cannot be standard input" in errors
    assert "--relay-stdio" in errors.splitlines()[1]
    status, read, errors = serve(daemon, "--relay-stdio", *python)
    assert (status, read) == (0, b"here\n"), errors
    assert not origin.connections
    status, read, errors = serve(daemon, "--relay-stdio", "-c", "head -c 3000000 /dev/zero; exit 6")
    assert (status, len(read), errors) == (6, 3_000_000, "")
