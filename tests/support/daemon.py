"""A whole daemon inside the test process: real socket, real settings files, real sessions, in a temporary home. Started
in milliseconds. With `machine` a back end that starts nothing takes the place of the operating system's."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxd.app.compose import run_daemon
from sandboxd.app.configuration import DaemonConfig
from sandboxd.app.handover import RunningDaemon as Daemon
from sandboxd.app.handover import hand_over
from sandboxd.app.platform import Assemble
from sandboxd.daemon.lifecycle import StopRequest
from sandboxd.handover.document import Incoming, read_document
from support.rpc import Log, RawClient


@dataclass(slots=True)
class Surroundings:
    """An empty home, a project in it, and the places of a daemon that is not running yet."""

    base: Path
    log: Log = field(default_factory=Log)

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def project(self) -> Path:
        return self.home / "project"

    @property
    def directory(self) -> Path:
        return self.base / "run"

    @property
    def socket(self) -> Path:
        return self.directory / "sandboxd.sock"

    @property
    def user_settings(self) -> Path:
        return self.home / ".claude" / "settings.json"

    @property
    def project_settings(self) -> Path:
        return self.project / ".claude" / "settings.json"

    @property
    def managed_settings(self) -> Path:
        return self.base / "managed" / "etc" / "sandboxd" / "managed-settings.json"

    def write(self, path: Path, settings: Mapping[str, Any] | str) -> Path:
        """A settings file, replaced in one step as editors do."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(settings if isinstance(settings, str) else json.dumps(settings))
        return new.replace(path)

    def config(self, **changes: Any) -> DaemonConfig:
        return DaemonConfig(
            **{
                "socket": str(self.socket),
                "home": str(self.home),
                "environment": {"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin"},
                "temporary": str(self.base / "tmp"),
                "managed_root": str(self.base / "managed"),
                **changes,
            }
        )

    def left(self) -> list[str]:
        """What is in the directories that a daemon must leave empty."""
        places = (self.directory, self.base / "tmp")
        return sorted(str(p.relative_to(self.base)) for place in places for p in place.rglob("*"))


@asynccontextmanager
async def surroundings() -> AsyncIterator[Surroundings]:
    base = Path(tempfile.mkdtemp(prefix="sd-", dir="/var/tmp"))
    made = Surroundings(base)
    for folder in (made.project, base / "tmp", base / "managed"):
        folder.mkdir(parents=True)
    try:
        yield made
    finally:
        shutil.rmtree(base)


@dataclass(slots=True)
class RunningDaemon:
    daemon: Daemon
    around: Surroundings
    stop: StopRequest

    def client(self) -> AbstractAsyncContextManager[RawClient]:
        return RawClient.connected(self.around.socket)

    def client_in_a_child(self) -> AbstractAsyncContextManager[RawClient]:
        return RawClient.connected_from_a_child(self.around.socket)


@asynccontextmanager
async def running_daemon(
    *,
    settings: Mapping[str, Any] | str | None = None,
    resolve: Mapping[str, str | Sequence[str]] | None = None,
    assemble: Assemble | None = None,
    around: Surroundings | None = None,
    **config: Any,
) -> AsyncIterator[RunningDaemon]:
    """`settings` become the user's settings file, `resolve` pins names. `around` keeps the surroundings of an earlier
    daemon. Without `assemble` it has the real back end of this machine."""
    if around is None:
        async with surroundings() as made:
            async with running_daemon(
                settings=settings, resolve=resolve, assemble=assemble, around=made, **config
            ) as running:
                yield running
        return
    if settings is not None:
        around.write(around.user_settings, settings)
    pins = {name: [to] if isinstance(to, str) else list(to) for name, to in (resolve or {}).items()}
    stop = StopRequest()
    async with run_daemon(
        around.config(pins=pins, **config), around.log.logger, stop=stop, assemble=assemble
    ) as daemon:
        yield RunningDaemon(daemon, around, stop)


@dataclass(slots=True)
class Successive:
    """Daemons one after another in the same process, each going on where the one before was. `document` is what was
    handed over last."""

    around: Surroundings
    start: Any
    daemon: Daemon | None = None
    document: bytes = b""
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def restart(self, change: Callable[[bytes], bytes] = lambda document: document) -> Daemon:
        """Hand over and take over; `change` may do something to the document in between."""
        assert self.daemon is not None
        outgoing = await hand_over(self.daemon)
        await self._stack.aclose()
        self.document = change(outgoing.text())
        return await self.begin(read_document(self.document))

    async def begin(self, before: Incoming | None = None) -> Daemon:
        daemon: Daemon = await self._stack.enter_async_context(self.start(before))
        self.daemon = daemon
        return daemon

    async def end(self) -> None:
        await self._stack.aclose()

    def client(self) -> AbstractAsyncContextManager[RawClient]:
        return RawClient.connected(self.around.socket)


@asynccontextmanager
async def successive_daemons(
    *,
    settings: Mapping[str, Any] | None = None,
    resolve: Mapping[str, str] | None = None,
    assemble: Assemble | None = None,
) -> AsyncIterator[Successive]:
    async with surroundings() as around:
        if settings is not None:
            around.write(around.user_settings, settings)
        config = around.config(pins={name: [to] for name, to in (resolve or {}).items()})
        daemons = Successive(
            around, lambda before: run_daemon(config, around.log.logger, assemble=assemble, before=before)
        )
        await daemons.begin()
        try:
            yield daemons
        finally:
            await daemons.end()
