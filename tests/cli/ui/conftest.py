"""The screen on a fake daemon, whose state is the same in every run."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from textual.pilot import Pilot

from sandboxd.cli.ui.app import Screens
from sandboxd_client.testing import FakeDaemon
from support.waiting import LIMIT_S

NOW = 1_800_000_000.0
EVIL = "\x1b]52;c;eA==\x07[bold red]x[/] \u202eevil"
PLACE = {"source": "user", "key": "sandbox.filesystem.denyRead", "file": "/home/user/.claude/settings.json", "line": 4}
LOCAL = {"source": "local", "key": "k", "file": "/home/user/.claude/settings.local.json", "line": 5}


def question(number: int, **more: Any) -> dict[str, Any]:
    rule = {"scope": "always", "key": "sandbox.network.allowedDomains", "rule": f"ask{number}.test:443"}
    no = {**rule, "behavior": "deny", "key": "sandbox.network.deniedDomains"}
    asked = {"request_id": f"q-{number}", "session_id": "s-1", "kind": "network", "expires_at": NOW + 90}
    about = {"host": f"ask{number}.test", "port": 443, "command": "npm ci", "project": "/home/user/web"}
    rules = {"suggestions": [{**rule, "behavior": "allow"}, no], "scopes": ["once", "command", "session", "always"]}
    text = f"ask{number}.test:443 is not on the list of allowed hosts"
    return {**asked, **about, **rules, "text": text, **more}


def violation(number: int, **more: Any) -> dict[str, Any]:
    one = {"id": number, "time": NOW - 60 + number, "session_id": "s-1", "command_id": "c", "kind": "network"}
    what = {"operation": "CONNECT", "target": f"no{number}.test:443", "outcome": "hostNotListed", "source": "proxy"}
    return {**one, **what, "command": "npm ci", "hint": f"add it with: sandboxd allow domain no{number}.test", **more}


def of_rule(number: int, **more: Any) -> dict[str, Any]:
    rule = {"kind": "read", "operation": "openat", "target": "/home/user/.netrc", "outcome": "pathDenied"}
    return violation(number, **rule, rule="~/.netrc", origin=PLACE, process="curl", source="seccomp", hint="", **more)


STATE: dict[str, Any] = {
    "session.list": {
        "sessions": [
            {"session_id": "s-1", "name": "web", "cwd": "/home/user/web", "detached": True, "permission_mode": "prompt",
             "opened_at": NOW - 4000, "commands": 2, "violations": 3, "policy_generation": 1,
             "published": ["127.0.0.1:8080:80"]},
        ]
    },
    "command.list": {
        "commands": [
            {"wrap_id": "w-1", "command_id": "c", "session_id": "s-1", "session_name": "web", "cwd": "/home/user/web",
             "command": "npm ci", "pid": 7, "since": NOW - 42, "processes": 3, "cpu_s": 12.5, "memory": 210 << 20,
             "connections": 2, "connected": ["registry.test:443"]},
            {"wrap_id": "w-2", "command_id": "d", "session_id": "s-1", "session_name": "web", "cwd": "/home/user/web",
             "command": "python3 -m http.server 80", "pid": 8, "since": NOW - 3900, "processes": 1, "cpu_s": 0.25,
             "memory": 19 << 20, "connections": 0, "ports": [80], "published": ["127.0.0.1:8080:80"]},
        ]
    },
    "permission.subscribe": {"open": [question(1)]},
    "violation.subscribe": {
        "violations": [of_rule(1), violation(2), violation(3, count=4)], "total": 6, "hidden": 0, "cursor": "e-3",
    },
    "settings.subscribe": {"generation": 1, "values": []},
    "settings.get": {
        "generation": 1,
        "values": [
            {"key": "sandbox.filesystem.denyRead", "value": ["~/.netrc"], "origins": [PLACE]},
            {"key": "sandbox.network.allowedDomains", "value": ["registry.test"], "origins": [LOCAL]},
            {"key": "sandbox.enabled", "value": True, "origins": [{"source": "managed", "key": "sandbox.enabled",
             "file": "/etc/sandboxd/managed-settings.json", "line": 2}]},
            {"key": "sandbox.network.strictAllowlist", "value": False,
             "origins": [{"source": "default", "key": "sandbox.network.strictAllowlist"}]},
        ],
    },
    "settings.locked": {"locked": [{"key": "sandbox.enabled", "reason": "managed settings set it"}]},
    "settings.lint": {
        "ok": False, "files": [],
        "problems": [{"severity": "warning", "message": "a rule for a path that does not exist: ~/.cache/x",
                      "file": "/home/user/.claude/settings.json", "line": 7}],
    },
    "check": {
        "ok": True,
        "steps": [
            {"name": "sandbox", "ok": True, "detail": "a minimal sandbox starts"},
            {"name": "landlock", "ok": False, "detail": "this kernel has none", "remedy": "boot with lsm=landlock,…"},
        ],
        "layers": ["filesystem", "namespaces", "seccomp"],
    },
}  # fmt: skip


@dataclass
class Shown:
    """The running screen, its pilot and the daemon behind it."""

    app: Screens
    pilot: Pilot[int]
    fake: FakeDaemon

    @property
    def text(self) -> str:
        """The text that the terminal shows."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what or 'it'} did not happen; the screen:\n{self.text}"
            await self.pilot.pause(0.01)
        await self.pilot.pause()

    async def shows(self, *texts: str) -> None:
        await self.until(lambda: all(text in self.text for text in texts), f"{texts}")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    def sent(self, method: str) -> list[Any]:
        return [call.params for call in self.fake.calls if call.method == method]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    with FakeDaemon() as fake:
        for method, answer in STATE.items():
            fake.answer(method, answer)
        monkeypatch.setenv("SANDBOXD_SOCKET", fake.socket)
        monkeypatch.setenv("TZ", "UTC")
        monkeypatch.setitem(os.environ, "COLUMNS", "80")
        time.tzset()
        yield fake
    monkeypatch.undo()
    time.tzset()


@asynccontextmanager
async def screens(fake: FakeDaemon, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Shown]:
    app = Screens("/home/user/web", autostart=False, clock=lambda: NOW, settle_s=0.0)
    async with app.run_test(size=size) as pilot:
        shown = Shown(app, pilot, fake)
        await shown.until(lambda: not app.feed.trouble, "a connection")
        yield shown


@pytest.fixture
async def shown(daemon: FakeDaemon) -> AsyncIterator[Shown]:
    async with screens(daemon) as one:
        yield one
