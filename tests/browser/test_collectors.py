"""Collectors of docs/fleet.md, as Debian packages them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sandboxd.cli import audit, otlp
from sandboxd.daemon.audit.audit_log import AuditLog as DaemonLog
from sandboxd.web.access import Role
from support.collecting import AuditLog, collector
from support.ports import free_port
from support.waiting import wait_until_async
from support.web_page import Opened

pytestmark = pytest.mark.skipif("SANDBOXD_SCREENS" not in os.environ, reason="./dev screens runs it")


def accepts(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


@contextlib.asynccontextmanager
async def running(*argv: str) -> AsyncIterator[None]:
    """A collector as it is installed."""
    assert shutil.which(argv[0]), f"install {argv[0]}"
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*argv, stdin=null, stdout=null, stderr=null)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def test_prometheus_collects_with_a_token(opened: Opened, tmp_path: Path) -> None:
    """And nothing without it."""
    target = f"{opened.site.address}:{opened.site.port}"
    jobs = {"with": opened.door.program("prometheus", Role.WATCH).secret, "without": "guess"}
    scrapes = [
        {"job_name": name, "static_configs": [{"targets": [target]}], "authorization": {"credentials": token}}
        for name, token in jobs.items()
    ]
    file = tmp_path / "prometheus.yml"
    file.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": scrapes}))
    port = free_port()
    argv = (f"--config.file={file}", f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}")
    async with running("prometheus", *argv), aiohttp.ClientSession() as http, asyncio.timeout(60):
        values: dict[str, str] = {}
        while len(values) < 2:
            await asyncio.sleep(0.1)
            with contextlib.suppress(aiohttp.ClientConnectionError):
                found = await asked(http, port, "up")
                values = {one["metric"]["job"]: one["value"][1] for one in found}
        assert values == {"with": "1", "without": "0"}
        (sessions,) = await asked(http, port, "sandboxd_sessions")
        assert (sessions["metric"]["job"], sessions["value"][1]) == ("with", "0")


async def asked(http: aiohttp.ClientSession, port: int, query: str) -> list[dict[str, Any]]:
    async with http.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}) as answer:
        if answer.status != 200:  # it is just starting
            return []
        found: list[dict[str, Any]] = (await answer.json())["data"]["result"]
        return found


async def test_rsyslog_copies_the_log_byte_by_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the files of docs/fleet.md. The copy is whole, and a changed one is not."""
    port = free_port()
    page = (Path(__file__).parents[2] / "docs/fleet.md").read_text()
    blocks = re.findall(r"^```\n(global.*?)^```", page, re.DOTALL | re.MULTILINE)
    argv = {}
    for name, block in zip(("sender", "receiver"), blocks, strict=True):
        (tmp_path / name).mkdir()
        for old, new in (
            ("global(", f'global(workDirectory="{tmp_path}/{name}" '),
            ('type="imtcp" ', 'type="imtcp" address="127.0.0.1" '),
            ("collector.example", "127.0.0.1"),
            ("6514", str(port)),
            ("/home/", f"{tmp_path}/home/"),
            ("/var/log/sandboxd", f"{tmp_path}/copies"),
        ):
            block = block.replace(old, new)
        (tmp_path / f"{name}.conf").write_text(block)
        argv[name] = ("rsyslogd", "-n", "-f", f"{tmp_path}/{name}.conf", "-i", f"{tmp_path}/{name}/pid")
    file = tmp_path / "home/alice/.local/state/sandboxd/audit/audit.jsonl"
    log = DaemonLog(str(file), max_bytes=64 << 10, keep=3, time=lambda: "2026-01-31T08:00:00Z")
    command = 'echo "%s\\n" é <134>1 \u2028 ' + "x" * 30_000

    def copied() -> bool:
        return b"".join(one.read_bytes() for one in tmp_path.glob("copies/*/*")) == written()

    def written() -> bytes:
        return b"".join(line for _, lines in audit._files(str(file)) for line in lines)

    with contextlib.closing(log):
        log.append({"kind": "run", "command": command})
        async with running(*argv["sender"]), running(*argv["receiver"]):  # which comes later than what it collects
            await wait_until_async(copied, "the log is copied")
            for _ in range(3):
                log.append({"kind": "run", "command": command})
                log.append({"kind": "violation"})
            assert Path(f"{file}.1").exists()
            await wait_until_async(copied, "the log is copied")
    (copy,) = (tmp_path / "copies").glob("*/*alice*")
    assert audit.main(["verify", "--file", str(copy)]) == 0
    copy.write_bytes(written().replace(b'"violation"', b'"run"'))
    assert audit.main(["verify", "--file", str(copy)]) != 0
    assert "whole: 9 lines" in capsys.readouterr().out


async def test_a_collector_of_opentelemetry_takes_all(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And passes it on, read with the messages of the protocol."""
    monkeypatch.setenv("SANDBOXD_SOCKET", str(opened.daemon.around.socket))
    log = AuditLog(tmp_path / "audit.jsonl")
    log.add(otlp.BATCH + 2)
    log.add(1, "violation")
    http, grpc = free_port(), free_port()
    program = os.path.join(sys.prefix, "rotel", "rotel", "rotel-agent")
    with collector() as (sink, got):
        argv = (program, "start", "--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint",
                f"127.0.0.1:{grpc}", "--exporter", "otlp", "--otlp-exporter-endpoint", sink,
                "--otlp-exporter-protocol", "http")  # fmt: skip
        async with running(*argv), asyncio.timeout(60):
            saved: list[int] = []
            url, follower = f"http://127.0.0.1:{http}", log.follower()
            await wait_until_async(lambda: accepts(http), "the collector listens")
            assert await asyncio.to_thread(lambda: otlp.send(url, follower, saved.append, lambda text: None, once=True))

            def lines() -> list[Any]:
                logs = (one for path, request in got if path.endswith("logs") for one in request.resource_logs)
                found = [record for one in logs for scope in one.scope_logs for record in scope.log_records]
                return [json.loads(one.body.string_value) for one in found]

            def metrics() -> set[str]:
                parts = (one for path, request in got if path.endswith("metrics") for one in request.resource_metrics)
                return {metric.name for one in parts for scope in one.scope_metrics for metric in scope.metrics}

            await wait_until_async(lambda: len(lines()) >= otlp.BATCH + 3 and metrics(), "all was passed on")
    assert sorted(one["seq"] for one in lines()) == list(range(1, otlp.BATCH + 4)) and saved[-1] == otlp.BATCH + 3
    assert {one["kind"] for one in lines()} == {"run", "violation"}
    async with opened.daemon.client() as client:
        known = otlp.metrics_of((await client.result("metrics"))["text"], otlp.resource(), 1.0)
    assert metrics() == {one.name for one in known.resource_metrics[0].scope_metrics[0].metrics}
