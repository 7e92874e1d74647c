"""Collectors of docs/fleet.md, as Debian packages them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sandboxd.web.access import Role
from support.ports import free_port
from support.web_page import Opened


async def test_prometheus_collects_with_a_token(opened: Opened, tmp_path: Path) -> None:
    """And nothing without it."""
    if "SANDBOXD_SCREENS" not in os.environ:
        pytest.skip("./dev screens runs it")
    assert shutil.which("prometheus"), "install prometheus"
    target = f"{opened.site.address}:{opened.site.port}"
    jobs = {"with": opened.door.program("prometheus", Role.WATCH).secret, "without": "guess"}
    scrapes = [
        {"job_name": name, "static_configs": [{"targets": [target]}], "authorization": {"credentials": token}}
        for name, token in jobs.items()
    ]
    file = tmp_path / "prometheus.yml"
    file.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": scrapes}))
    port, null = free_port(), asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        "prometheus", f"--config.file={file}", f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}", stdout=null, stderr=null,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(60):
            values: dict[str, str] = {}
            while len(values) < 2:
                await asyncio.sleep(0.1)
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    found = await asked(http, port, "up")
                    values = {one["metric"]["job"]: one["value"][1] for one in found}
            assert values == {"with": "1", "without": "0"}
            (sessions,) = await asked(http, port, "sandboxd_sessions")
            assert (sessions["metric"]["job"], sessions["value"][1]) == ("with", "0")
    finally:
        process.kill()
        await process.wait()


async def asked(http: aiohttp.ClientSession, port: int, query: str) -> list[dict[str, Any]]:
    async with http.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}) as answer:
        if answer.status != 200:  # it is just starting
            return []
        found: list[dict[str, Any]] = (await answer.json())["data"]["result"]
        return found
