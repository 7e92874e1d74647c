"""A daemon of our own for the measurements: private home, runtime directory and project, removed afterwards."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxd_client.programs import without_code

ROOT = Path(__file__).resolve().parents[1]
PINNED_NAME, SECURE_NAME = "bench.test", "ok.test"
"""They resolve to this machine in every measured daemon; the second is in the certificate of `bench.tls`."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the measured daemon is.

    This process is already pointed at it: a plain `Client()` finds it."""

    base: Path
    project: Path
    socket: Path
    pid: int

    def memory_mb(self, field: str = "VmHWM") -> float:
        """Resident memory of the daemon from /proc/PID/status: VmRSS now, VmHWM at its highest."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"/proc/{self.pid}/status has no {field}")


_UNWATCHED = """
import sandboxd.app.linux
from sandboxd.cli.main import main
sandboxd.app.linux.why_unwatched = lambda helper: "it is measured without"
main()
"""
"""A daemon whose helper is notified of no system call: for comparison, since no setting can do it."""


@contextmanager
def private_daemon(settings: Mapping[str, Any] | None = None, *, unwatched: bool = False) -> Iterator[Bench]:
    """Starts `sandboxd serve`, waits until it accepts, ends it with the block.

    `settings` are the user's. `unwatched`: without guard and reporting. Below /var/tmp, not /tmp, which is replaced
    inside a sandbox and would make every path there special."""
    base = Path(tempfile.mkdtemp(prefix="sandboxd-bench-", dir="/var/tmp"))
    for name in ("home", "run", "project"):
        (base / name).mkdir(mode=0o700, parents=True)
    if settings is not None:
        (base / "home" / ".claude").mkdir()
        (base / "home" / ".claude" / "settings.json").write_text(json.dumps(settings))
    address = base / "run" / "sandboxd" / "sandboxd.sock"
    changes = {"HOME": str(base / "home"), "XDG_RUNTIME_DIR": str(base / "run"), "SANDBOXD_SOCKET": str(address)}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    log = base / "daemon.log"
    with log.open("wb") as stream:
        daemon = subprocess.Popen(
            [
                *(sys.executable, "-I", *(("-c", _UNWATCHED) if unwatched else ("-m", "sandboxd"))),
                *("serve", "--socket", str(address)),
                *(f"--resolve={name}=127.0.0.1" for name in (PINNED_NAME, SECURE_NAME)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=without_code(os.environ),  # otherwise it would be executed anew
            cwd="/",
        )
    try:
        _wait_for(address, daemon, log)
        yield Bench(base, base / "project", address, daemon.pid)
    finally:
        daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(base)


def _wait_for(address: Path, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and daemon.poll() is None:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(address))
            except OSError:
                time.sleep(0.01)
            else:
                return
    raise RuntimeError(f"the daemon did not start:\n{log.read_text(errors='replace')}")
