"""A real `sandboxd serve` in a process of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.forks import ForkedDaemon, is_alike
from support.users import Identity
from support.waiting import wait_until


@dataclass(slots=True)
class DaemonProcess:
    """A daemon that runs as `identity`. Its output is in `log`; `stop()` ends it and returns its exit status."""

    identity: Identity
    process: subprocess.Popen[bytes]
    socket: Path
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def environment(self, **changes: str) -> dict[str, str]:
        """That of a client of this daemon."""
        return self.identity.environment(SANDBOXD_SOCKET=str(self.socket), **changes)

    def run(
        self, *arguments: str, cwd: Path | None = None, input: str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Our command line, as a person at a terminal types it: `daemon.run("run", "--", "true")`."""
        return self.identity.run(
            self.identity.command(*arguments), cwd=cwd, input=input, env=self.environment(**(env or {}))
        )

    def python(self, code: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Python code that uses the client library, run as the identity."""
        return self.identity.run(self.identity.python("-c", code, *arguments), cwd=cwd, env=self.environment())

    def popen(self, *arguments: str, cwd: Path | None = None, **keywords: Any) -> subprocess.Popen[Any]:
        """Our command line, left running."""
        return self.identity.popen(self.identity.command(*arguments), cwd=cwd, env=self.environment(), **keywords)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the daemon did not end on {signal.Signals(number).name}:\n{self.output()}") from None


StartDaemon = Callable[..., DaemonProcess]
"""Of the fixture `start_daemon`: the keywords of `start_daemon_process`."""


def start_daemon_process(
    identity: Identity,
    *,
    resolve: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    through: Sequence[str] = (),
    executed: bool = False,
) -> DaemonProcess:
    """Starts the daemon and waits until it answers on its socket. `settings` become the user's settings file, `resolve`
    pins names to addresses, `through` is a program that runs the daemon. The log is outside the directories that a
    snapshot compares. `executed` is for tests that look at the process itself: else it is forked where it can be."""
    if settings is not None:
        identity.write(identity.home / ".claude" / "settings.json", json.dumps(settings))
    address = identity.runtime / "sandboxd" / "sandboxd.sock"
    pins = [word for name, target in (resolve or {}).items() for word in ("--resolve", f"{name}={target}")]
    log = identity.write(identity.base / "daemon.log", "")
    words = [*through, *identity.command("serve", "--socket", str(address), *pins, *arguments)]
    environment = identity.environment(**(env or {}))
    process: subprocess.Popen[bytes]
    with log.open("ab") as stream:
        if not through and not executed and is_alike(identity, env or {}):
            process = ForkedDaemon(identity, words, environment, identity.home, stream.fileno())
        else:
            process = identity.popen(
                words,
                cwd=identity.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
    daemon = DaemonProcess(identity, process, address, log)
    try:
        wait_until(lambda: process.poll() is not None or accepts(address), "the daemon listens")
        if process.poll() is not None:
            raise AssertionError(f"the daemon ended at once, status {process.returncode}:\n{daemon.output()}")
    except BaseException:
        process.kill()
        process.wait()
        raise
    return daemon


def accepts(address: Path) -> bool:
    """Whether a process listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(address))
        except OSError:
            return False
    return True
