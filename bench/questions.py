"""What the gate costs by itself: decisions under long lists, and the way from a question to the connection it opens."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator

from bench.private_daemon import PINNED_NAME, Bench
from bench.rows import Row
from bench.through import INSIDE, origin
from sandboxd_client import Client, ConnectionLost

RULES = 10_000
QUESTIONS = 25
"""For each session: one that asks faster than people read is stopped."""


def gate_decision(bench: Bench | None, quick: bool) -> Iterator[Row]:
    """As the proxies ask it, with 10,000 rules that allow and 10,000 that deny: listed, below a wildcard, unlisted."""
    from sandboxd.policy.hosts.host_patterns import HostPattern, parse_host
    from sandboxd.policy.model import HostRule, NetworkPolicy
    from sandboxd.proxy.dial import SystemResolver
    from sandboxd.proxy.gate import Gate
    from sandboxd.settings.origins import BUILT_IN

    def rules(word: str) -> tuple[HostRule, ...]:
        texts = (text for n in range(RULES // 2) for text in (f"h{n}.{word}.test", f"*.w{n}.{word}.test"))
        return tuple(HostRule(HostPattern.parse(text), BUILT_IN) for text in texts)

    network = NetworkPolicy(allowed=rules("ok"), denied=rules("no"))
    hosts = [parse_host(text) for text in ("h77.ok.test", "a.b.w99.ok.test", "h5.no.test", "unknown.test", "10.0.0.1")]

    async def decide() -> list[float]:
        gate = Gate(lambda: network, None, SystemResolver())
        await gate.decide(hosts[0], 443)  # the lists are compiled with the first
        taken = []
        for _ in range(200 if quick else 2000):
            for host in hosts:
                begin = time.perf_counter()
                await gate.decide(host, 443)
                taken.append(time.perf_counter() - begin)
        return taken

    taken = asyncio.run(decide())
    detail = {"p99": f"{statistics.quantiles(taken, n=100)[98] * 1e6:.3g} µs"}
    yield Row(f"gate decision under {2 * RULES:,} rules", statistics.median(taken) * 1e6, "µs", "≤ 50", detail)


def question_to_connection(bench: Bench, quick: bool) -> Iterator[Row]:
    """Time from CONNECT to its answer with an immediate yes, and without a question."""
    with origin() as port, Client() as person, Client() as box:
        person.permission_subscribe()
        thread = threading.Thread(target=_answer, args=(person,), name="person", daemon=True)
        thread.start()
        asked: list[float] = []
        listed: list[float] = []
        for _ in range(1 if quick else 4):
            asked += _connects(box, bench, port, {})
            listed += _connects(box, bench, port, {"allow_domains": [f"{PINNED_NAME}:{port}"]})
    thread.join()
    ours, plain = statistics.median(asked), statistics.median(listed)
    detail = {"with the question": f"{ours * 1e3:.3g} ms", "without": f"{plain * 1e3:.3g} ms"}
    yield Row("question to answer to connected, beyond a listed host", (ours - plain) * 1e3, "ms", "≤ 10", detail)


def _connects(box: Client, bench: Bench, port: int, overrides: dict[str, list[str]]) -> list[float]:
    with box.session(str(bench.project)) as session:
        argv = [sys.executable, "-I", INSIDE, PINNED_NAME, str(port), "connects", str(QUESTIONS)]
        done = session.run(argv, overrides=overrides or None, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"exit {done.returncode}: {done.stderr}")
        found: list[float] = json.loads(done.stdout)
        return found


def _answer(person: Client) -> None:
    """Say yes to everything, until the connection is closed."""
    try:
        for said in person.notifications():
            if said.method == "sandbox_permission_request":
                person.permission_respond(said.params.request_id, "allow")
    except ConnectionLost:
        return
