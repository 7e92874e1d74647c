"""Prints how many KB this process holds with 1,000 tunnels open, a kilobyte under way in each. Run by a test."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from pathlib import Path

from support.proxies import running_proxies

TUNNELS = 1000


async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=TUNNELS)
    async with running_proxies("ok.test") as proxies:
        ports = listener.getsockname()[1], proxies.http_port
        child = os.fork()
        if child == 0:
            try:
                talk(listener, *ports)
            finally:
                os._exit(1)
        listener.close()
        pid, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert (pid, status) == (child, 0), status
        lines = Path("/proc/self/status").read_text().splitlines()
        print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")))


def talk(listener: socket.socket, origin_port: int, proxy_port: int) -> None:
    """The clients and the origin, in one blocking process."""
    clients, origins = [], []
    for number in range(TUNNELS):
        client = socket.create_connection(("127.0.0.1", proxy_port))
        client.settimeout(60)
        client.sendall(b"CONNECT ok.test:%d HTTP/1.1\r\n\r\n" % origin_port)
        origin, _ = listener.accept()
        assert client.recv(100).startswith(b"HTTP/1.1 200 "), number
        clients.append(client)
        origins.append(origin)
    for number, (client, origin) in enumerate(zip(clients, origins, strict=True)):
        message = b"%04d" % number * 256
        client.sendall(message)
        assert origin.recv(1024, socket.MSG_WAITALL) == message
        origin.sendall(message)
        assert client.recv(1024, socket.MSG_WAITALL) == message
    os._exit(0)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main())
