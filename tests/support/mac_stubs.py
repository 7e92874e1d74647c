"""Puts the stand-ins for `sandbox-exec` and `log` (tests/macos/stubs) into a directory, as programs to run."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandboxd.backends.macos import supervise
from sandboxd.backends.macos.backend import MacosTools

TESTS = Path(__file__).resolve().parents[1]
TOOL_NAMES = ("cat", "ls", "write", "append", "rm", "mv", "mkdir", "connect", "listen", "fetch", "lookup",
              "wait-for-term")  # fmt: skip


@dataclass(frozen=True)
class MacStubs:
    """`state` is the directory in which the stand-ins keep what they know."""

    state: Path

    @property
    def sandbox_exec(self) -> str:
        return str(self.state / "sandbox-exec")

    @property
    def log(self) -> str:
        return str(self.state / "log-program")

    @property
    def tools(self) -> MacosTools:
        return MacosTools(self.sandbox_exec, sys.executable, supervise.__file__)

    def log_mode(self, mode: str) -> None:
        (self.state / "log-mode").write_text(mode)

    @property
    def log_starts(self) -> list[int]:
        file = self.state / "log-starts"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def log_message(self, text: str) -> None:
        """A message of the system, from elsewhere."""
        with (self.state / "log").open("ab") as log:
            log.write(text.encode() + b"\0")


def install_stubs(state: Path) -> MacStubs:
    tools = state / "tools"
    tools.mkdir(parents=True)
    stubs = TESTS / "macos" / "stubs"
    _program(state / "sandbox-exec", stubs / "sandbox_exec.py", str(state))
    _program(state / "log-program", stubs / "log.py", str(state))
    for name in TOOL_NAMES:
        _program(tools / name, stubs / "tools.py", str(state), name)
    return MacStubs(state)


def _program(path: Path, script: Path, *first: str) -> None:
    """Found without a variable, so that what the stand-in starts has the environment it was given."""
    search = [str(place) for place in (TESTS, TESTS.parent, TESTS.parent / "client")]
    start = (
        f"import runpy, sys; sys.path[:0] = {search!r}; sys.dont_write_bytecode = True; "
        f"sys.argv[:1] = {[str(script), *first]!r}; runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-P", "-c", start])} "$@"\n')
    path.chmod(0o755)


class EnvironMembers:
    """Finds the members of a stand-in sandbox by the variable they inherit."""

    def find(self, name: str) -> Iterable[int]:
        wanted = f"SANDBOX_STUB_MEMBER={name}".encode()
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0") and _lives(entry):
                        found.append(int(entry))
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
        return found


def _lives(pid: str) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
