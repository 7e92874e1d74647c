"""What programs cost that know nothing of proxies: connections that are captured, and commands whose network is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

from bench.private_daemon import PINNED_NAME, ROOT, Bench, private_daemon
from bench.rows import Row
from bench.through import INSIDE, medians, origin, run_outside
from bench.timing import in_turns, median, ms
from sandboxd_client import Client

TRUE = "/bin/true"
WITHOUT_PROXIES = ("env", "-u", "HTTP_PROXY", "-u", "HTTPS_PROXY")


def captured_connections(bench: Bench, quick: bool) -> Iterator[Row]:
    """A connection from inside without a proxy beside a direct one outside; the name is looked up once."""
    with origin() as port, Client() as box:
        argv = [*WITHOUT_PROXIES, sys.executable, "-I", INSIDE, PINNED_NAME, str(port), "01"[quick]]
        overrides = {"allow_domains": [f"{PINNED_NAME}:{port}"]}
        inside, outside = [], []
        for _ in range(1 if quick else 3):
            done = box.run(argv, cwd=str(bench.project), overrides=overrides, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"exit {done.returncode}: {done.stderr}")
            inside.append(json.loads(str(done.stdout)))
            outside.append(run_outside(port, quick))
    ours, direct = medians(inside), medians(outside)
    speed = {"captured": f"{ours['down'] / 1e9:.2f} GB/s", "direct": f"{direct['down'] / 1e9:.2f} GB/s"}
    yield Row("captured throughput ÷ direct", ours["down"] / direct["down"], "", "≥ 0.8", speed)
    connects = {"captured": ms(ours["connect"]), "direct": ms(direct["connect"])}
    yield Row("captured connect to first byte ÷ direct", ours["connect"] / direct["connect"], "", "≤ 5", connects)
    yield Row(f"{ours['transfers']:.0f} captured transfers of 1 MB: incomplete", ours["short"], "", "= 0")


def captured_command(bench: Bench, quick: bool) -> Iterator[Row]:
    """`Client.run` of `true` through two daemons, one of which leaves the network of its sandboxes alone."""
    off = {"sandbox": {"network": {"transparent": False}}}
    with private_daemon(off) as other, Client(bench.socket) as capturing, Client(other.socket) as plain:

        def run(box: Client, where: Bench, layer: bool) -> Callable[[], None]:
            session = box.session_open(cwd=str(where.project)).session_id
            layers = box.wrap(argv=[TRUE], cwd=str(where.project), session_id=session).layers
            assert ("network-capture" in layers) is layer, layers

            def action() -> None:
                done = box.run([TRUE], cwd=str(where.project), session_id=session, capture_output=True)
                assert done.returncode == 0, done

            return action

        actions = {"on": run(capturing, bench, True), "off": run(plain, other, False)}
        taken = in_turns(actions, 40 if quick else 200)
    on_s, off_s = median(taken["on"]), median(taken["off"])
    yield Row("warm command, capture on ÷ off", on_s / off_s, "", "≤ 1.3", {"on": ms(on_s), "off": ms(off_s)})


REQUESTS = 100


def between_commands(bench: Bench, quick: bool) -> Iterator[Row]:
    """A server in one command and its client in the next one of the session, beside both without a sandbox."""
    with origin() as port, Client() as box, box.session(bench.project) as session:
        serve = [sys.executable, "-P", "-m", "bench.network", "origin"]
        paths = os.pathsep.join((str(ROOT), str(ROOT / "client")))
        server = session.spawn(
            serve, env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        inner = server.stdout.readline().strip()
        inside, outside, hundred = [], [], []
        for _ in range(1 if quick else 3):
            argv = [*WITHOUT_PROXIES, sys.executable, "-I", INSIDE, "127.0.0.1", inner]
            done = session.run([*argv, "01"[quick]], capture_output=True, text=True)
            requests = session.run([*argv, "connects", str(REQUESTS)], capture_output=True, text=True)
            if done.returncode or requests.returncode:
                raise RuntimeError(f"{done.stderr} {requests.stderr}")
            inside.append(json.loads(str(done.stdout)))
            hundred.append(sum(json.loads(str(requests.stdout))))
            outside.append(run_outside(port, quick))
        server.kill()
    ours, direct = medians(inside), medians(outside)
    speed = {"between": f"{ours['down'] / 1e9:.2f} GB/s", "direct": f"{direct['down'] / 1e9:.2f} GB/s"}
    yield Row("throughput between two commands ÷ loopback", ours["down"] / direct["down"], "", "≥ 0.4", speed)
    yield Row(f"{REQUESTS} requests between two commands", median(hundred) * 1e3, "ms", "≤ 500")
    yield Row(f"{ours['transfers']:.0f} transfers of 1 MB between commands: incomplete", ours["short"], "", "= 0")
