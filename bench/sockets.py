"""Cost of a connect inside: with Unix sockets decided on, as by default, ÷ all of them allowed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from bench.private_daemon import Bench
from bench.rows import Row
from bench.timing import median
from sandboxd_client import Client

_CONNECTS = """
import json, os, socket, sys, time
os.chdir("/tmp")
server, local = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
local.bind("bench.sock"); local.listen()
def connect(kind, listening, blocking):
    with socket.socket(kind, socket.SOCK_STREAM) as client:
        client.setblocking(blocking)
        begin = time.perf_counter()
        client.connect_ex(listening.getsockname())
        seconds = time.perf_counter() - begin
        listening.accept()[0].close()
        return seconds
kinds = {"TCP": (socket.AF_INET, server, True), "TCP, not blocking": (socket.AF_INET, server, False),
         "Unix": (socket.AF_UNIX, local, True)}
print(json.dumps({name: sorted(connect(*kind) for _ in range(400))[200] for name, kind in kinds.items()}))
os.unlink("bench.sock")
"""


def sockets(bench: Bench, quick: bool) -> Iterator[Row]:
    settings = {"decided on": {}, "all allowed": {"sandbox": {"network": {"allowAllUnixSockets": True}}}}
    taken: dict[tuple[str, str], list[float]] = {}
    with Client() as box:
        sessions = {
            name: box.session_open(cwd=str(bench.project), settings=given).session_id
            for name, given in settings.items()
        }
        for _ in range(5 if quick else 15):
            for name, session in sessions.items():
                argv = [sys.executable, "-I", "-S", "-c", _CONNECTS]
                done = box.run(argv, cwd=str(bench.project), session_id=session, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                for kind, seconds in json.loads(done.stdout).items():
                    taken.setdefault((name, kind), []).append(seconds * 1e6)
    for kind in ("TCP", "TCP, not blocking"):
        decided, allowed = median(taken["decided on", kind]), median(taken["all allowed", kind])
        detail = {"µs": decided, "all allowed": allowed}
        yield Row(f"connect inside ({kind}), Unix sockets decided on ÷ not", decided / allowed, "", "≤ 1.05", detail)
    yield Row("connect to a Unix socket of the sandbox", median(taken["decided on", "Unix"]), "µs", "≤ 60")
