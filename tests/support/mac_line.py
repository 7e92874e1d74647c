"""A real daemon with the macOS back end, in this process, and clients of it in processes of their own. What starts and
refuses is either that of macOS or its stand-ins."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxd.app.macos import MacosDependencies, macos_platform
from sandboxd.backends.macos.monitor import stream_command
from support.daemon import RunningDaemon, Surroundings, running_daemon
from support.mac_stubs import EnvironMembers, MacStubs

SETTINGS = {"sandbox": {"network": {"allowedDomains": ["ok.test"]}}}


@dataclass
class Line:
    """A daemon with the macOS back end, and how to use it."""

    running: RunningDaemon
    environment: dict[str, str] = field(repr=False)

    @property
    def project(self) -> Path:
        return self.running.around.project

    async def start(self, code: str, **keywords: Any) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, cwd=self.project, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe,
            **keywords,
        )  # fmt: skip

    async def client(self, code: str) -> str:
        """Runs code in which `box` is a client of the daemon; what it prints."""
        process = await self.start(f"import json\nfrom sandboxd_client import Client\nwith Client() as box:\n {code}\n")
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, err.decode()
        return out.decode()

    async def cli(self, *arguments: str, text: str = "") -> tuple[int, str, str]:
        """`sandboxd ARGUMENTS`: status, output, complaints."""
        code = f"import sys; from sandboxd.cli.main import main; sys.argv[1:] = {list(arguments)!r}; sys.exit(main())"
        process = await self.start(code)
        out, err = await asyncio.wait_for(process.communicate(text.encode()), 60)
        return process.returncode or 0, out.decode(), err.decode()

    async def run(self, *command: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        return await self.cli("run", *options, "--", *command)


def stub_parts(stubs: MacStubs, **parts: Any) -> MacosDependencies:
    return MacosDependencies(
        **{
            "sandbox_exec": stubs.sandbox_exec,
            "log_command": lambda suffix: stream_command(suffix, stubs.log),
            "members": EnvironMembers,
            "log_pauses_s": (0.02,),
            **parts,
        }
    )


@asynccontextmanager
async def whole_line(
    parts: MacosDependencies,
    settings: Mapping[str, Any] = SETTINGS,
    *,
    around: Surroundings | None = None,
    tools: str = "",
) -> AsyncIterator[Line]:
    """`tools` comes first on the PATH of the clients."""
    pins = {"ok.test": "127.0.0.1", "no.test": "127.0.0.1"}
    async with running_daemon(
        settings=settings, resolve=pins, assemble=lambda context: macos_platform(context, parts), platform="macos",
        around=around,
    ) as running:  # fmt: skip
        environment = {
            "HOME": str(running.around.home),
            "PATH": os.pathsep.join([*([tools] if tools else []), "/usr/local/bin:/usr/bin:/bin"]),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SANDBOXD_SOCKET": str(running.around.socket),
        }
        yield Line(running, environment)
