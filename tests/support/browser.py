"""Debian's Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from support.waiting import wait_until_async

ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
    "--font-render-hinting=none", "--no-default-browser-check",
)  # fmt: skip
PRESENT = shutil.which("chromium") is not None


@dataclass
class Chromium:
    """A browser; every `Tab` is one page of it."""

    socket: aiohttp.ClientWebSocketResponse
    answers: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    told: list[dict[str, Any]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def read(self) -> None:
        async for message in self.socket:
            found = json.loads(message.data)
            if (answer := self.answers.pop(found.get("id"), None)) is None:
                self.told.append(found)
            elif "error" in found:
                answer.set_exception(RuntimeError(found["error"]["message"]))
            else:
                answer.set_result(found["result"])

    async def send(self, method: str, session: str = "", **params: Any) -> Any:
        number = next(self.numbers)
        self.answers[number] = answer = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        await self.socket.send_json({**message, "sessionId": session} if session else message)
        async with asyncio.timeout(60):
            return await answer

    async def tab(
        self, url: str, *, width: int = 1000, height: int = 640, dark: bool = False, own: bool = False
    ) -> Tab:
        """Open a page, with cookies and storage of its own on demand."""
        context = (
            {"browserContextId": (await self.send("Target.createBrowserContext"))["browserContextId"]} if own else {}
        )
        target = (await self.send("Target.createTarget", url="about:blank", **context))["targetId"]
        session = (await self.send("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            await tab.send(f"{domain}.enable")
        phone = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        await tab.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await tab.send("Emulation.setEmulatedMedia", features=[scheme])
        await tab.send("Page.navigate", url=url)
        return tab


@dataclass
class Tab:
    browser: Chromium
    session: str

    async def send(self, method: str, **params: Any) -> Any:
        return await self.browser.send(method, self.session, **params)

    async def value(self, expression: str) -> Any:
        """The value of an expression or promise in the page."""
        done = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    async def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(RuntimeError, AssertionError):  # the page is just being loaded
                    if await self.value(f"!!({expression})"):
                        return
                await asyncio.sleep(0.02)

    async def text(self) -> str:
        return str(await self.value("document.body.innerText"))

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, **text)

    async def picture(self, path: Path, *, quality: int = 60) -> None:
        shot = await self.send("Page.captureScreenshot", format="webp", quality=quality)
        path.write_bytes(base64.b64decode(shot["data"]))

    @property
    def complaints(self) -> list[str]:
        """What the browser has logged for this page: errors, and what its security policy stopped."""
        return [
            json.dumps(one["params"])
            for one in self.browser.told
            if one.get("sessionId") == self.session and one["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")
        ]


@contextlib.asynccontextmanager
async def chromium(directory: Path) -> AsyncIterator[Chromium]:
    null = asyncio.subprocess.DEVNULL
    environment = {**os.environ, "HOME": str(directory)}
    process = await asyncio.create_subprocess_exec(
        "chromium", *ARGUMENTS, f"--user-data-dir={directory}", "about:blank",
        stdin=null, stdout=null, stderr=null, env=environment, start_new_session=True,
    )  # fmt: skip
    port = directory / "DevToolsActivePort"
    try:
        await wait_until_async(lambda: port.exists() and len(port.read_text().split()) == 2, "the browser is ready")
        number, path = port.read_text().split()
        async with aiohttp.ClientSession() as http:
            async with http.ws_connect(f"ws://127.0.0.1:{number}{path}", max_msg_size=0) as socket:
                browser = Chromium(socket)
                reading = asyncio.create_task(browser.read())
                yield browser
                reading.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
