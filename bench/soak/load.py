"""The mixed load: what many clients of one daemon do in a round."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Literal

from bench.private_daemon import PINNED_NAME, SECURE_NAME, Bench
from sandboxd_client import AsyncClient, Client
from sandboxd_client.wire.messages.prompts import PermissionRequest

SECURE = {
    "tls": {"terminate": [SECURE_NAME]},
    "requests": [{"host": SECURE_NAME, "methods": ["read"], "paths": ["/*"], "action": "allow"}],
}
"""The settings for a host whose TLS ends in the proxy, of which commands may only read."""

PLACE = str(Path(__file__).parents[1])
"""The directory of `inside`, for commands."""

# Makes connections through the sandbox's proxy: how many, how many stay open together, how much each carries.
CONNECTIONS = """\
import sys
sys.path.insert(0, sys.argv[1])
from inside import connect, download
host, port, number, size = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
for first in range(0, number, 20):
    socks = [connect(host, port) for _ in range(20)]
    for sock in socks: sock.sendall(b"H\\n")
    assert all(sock.recv(1) == b"!" for sock in socks)
    for sock in socks[::2]: sock.close()
    if size: assert download(host, port, size, b"C")[1] == size
"""


# Reads by https, and then posts, which is refused by an answer.
REQUESTS = """\
import sys, urllib.error, urllib.request
url, number = sys.argv[1], int(sys.argv[2])
for _ in range(number):
    assert len(urllib.request.urlopen(url + "/1000").read()) == 1000
try: urllib.request.urlopen(url + "/1000", data=b"x").read()
except urllib.error.HTTPError as error: print(error.code)
"""


@dataclass(slots=True)
class Load:
    """One round's work, with one daemon, and with another that is restarted.

    `done` counts what was done, `wrong` says what was not as it should be, `seconds` has the time of an end and what it
    took, by kind."""

    bench: Bench
    restarted: Bench
    port: int
    secure_port: int
    quick: bool
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: defaultdict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    async def round(self) -> None:
        await asyncio.gather(*(self._part(part) for part in (
            self.commands, self.tunnels, self.reloads, self.questions, self.kills, self.connections, self.tls,
            self.restarts, lambda: asyncio.to_thread(self.prepared),
        )))  # fmt: skip

    async def _part(self, part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
        except Exception as error:
            self.wrong.append(f"{getattr(part, '__name__', part)}: {type(error).__name__}: {error}"[:300])

    @contextlib.contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        end = time.monotonic()
        self.seconds[kind].append((end, end - begin))

    def expect(self, what: str, right: bool, detail: object) -> None:
        self.done[what] += 1
        if not right:
            self.wrong.append(f"{what}: {detail}"[:300])

    async def warm_up(self, number: int) -> None:
        """Memory grows until the bounded records of ended commands are full, which is no leak."""
        async with AsyncClient() as box, box.session(cwd=str(self.bench.project)) as session:
            turns = asyncio.Semaphore(8)

            async def one() -> None:
                async with turns:
                    await session.run(["true"], capture_output=True)

            await asyncio.gather(*(one() for _ in range(number)))

    async def commands(self) -> None:
        """Sessions that come and go, commands that succeed, fail, write, are refused."""
        async with AsyncClient() as box:
            for _ in range(1 if self.quick else 3):
                async with box.session(cwd=str(self.bench.project)) as session:
                    for number in range(10 if self.quick else 40):
                        with self.timed("command"):
                            done = await session.run(
                                f"echo {number} | tee note; exit {number % 3}", capture_output=True
                            )
                        self.expect("commands", (done.stdout, done.returncode) == (b"%d\n" % number, number % 3), done)
                    done = await session.run("echo x >/etc/left; touch ~/left", capture_output=True)
                    seen = {violation.target for violation in done.violations}
                    self.expect("violations", done.returncode != 0 and "/etc/left" in seen, (done, seen))

    def prepared(self) -> None:
        """Commands of a client that keeps a sandbox ready, and pauses between them."""
        with Client(prepare=True) as box, box.session(cwd=str(self.bench.project)) as session:
            for number in range(10 if self.quick else 40):
                begin = time.monotonic()
                done = session.run(f"echo {number}", capture_output=True)
                end = time.monotonic()
                self.expect("prepared commands", (done.stdout, done.returncode) == (b"%d\n" % number, 0), done)
                if done.wrap is not None and done.wrap.prepared:
                    self.done["prepared commands whose sandbox was ready"] += 1
                    self.seconds["prepared command"].append((end, end - begin))
                time.sleep(0.03)

    async def tls(self) -> None:
        """Requests inside TLS that ends in the proxy."""
        async with AsyncClient() as box:
            number = 5 if self.quick else 50
            argv = [sys.executable, "-I", "-c", REQUESTS, f"https://{SECURE_NAME}:{self.secure_port}", str(number)]
            done = await box.run(argv, cwd=str(self.bench.project), capture_output=True)
            self.done["requests inside TLS"] += number
            self.expect("refused requests", done.stdout == b"403\n", done)

    async def restarts(self) -> None:
        """A command goes on over restarts of its daemon."""
        async with AsyncClient(self.restarted.socket) as box:
            async with box.session(cwd=str(self.restarted.project)) as session:
                for _ in range(1 if self.quick else 3):
                    command = await session.spawn("echo up; read line; exit 7", stdin=PIPE, stdout=PIPE)
                    assert command.stdout is not None
                    self.expect("commands over restarts", await command.stdout.readline() == b"up\n", command)
                    with self.timed("restart"):
                        await box.restart()
                        status = await box.status()
                    self.expect("restarts", status.restarted is not None and not status.restarted.lost, status)
                    await command.communicate(b"on\n")
                    self.expect("ends after restarts", command.returncode == 7, command.returncode)

    async def tunnels(self) -> None:
        async with AsyncClient() as box:
            number, size = (40, 100_000) if self.quick else (400, 1_000_000)
            argv = [sys.executable, "-I", "-c", CONNECTIONS, PLACE, PINNED_NAME]
            done = await box.run(
                [*argv, str(self.port), str(number), str(size)],
                cwd=str(self.bench.project), capture_output=True,
                overrides={"allow_domains": [f"{PINNED_NAME}:{self.port}"]},
            )  # fmt: skip
            self.done["tunnels"] += number
            self.expect("commands with tunnels", done.returncode == 0, done)

    async def reloads(self) -> None:
        settings = self.bench.base / "home" / ".claude" / "settings.json"
        settings.parent.mkdir(exist_ok=True)
        async with AsyncClient() as box:
            await box.settings_subscribe()
            for number in range(5 if self.quick else 20):
                new = settings.with_suffix(".new")
                rules = [f"h{number}-{n}.test" for n in range(20)]
                new.write_text(json.dumps({"sandbox": {"network": {**SECURE, "deniedDomains": rules}}}))
                new.replace(settings)
                with self.timed("reload"):
                    await box.settings_reload()
                explained = await box.policy_explain("host", rules[-1], cwd=str(self.bench.project))
                self.expect("reloads", explained.behavior == "deny", explained)

    async def questions(self) -> None:
        """Half of them are answered yes, half no."""
        async with AsyncClient() as asker, AsyncClient() as person:
            await person.permission_subscribe()

            async def answer() -> None:
                async for notification in person.notifications():
                    if not isinstance(notification.params, PermissionRequest):
                        continue
                    self.done["answers"] += 1
                    behavior: Literal["allow", "deny"] = "deny" if self.done["answers"] % 2 else "allow"
                    await person.permission_respond(notification.params.request_id, behavior, scope="command")

            answering = asyncio.create_task(answer(), name="answers")
            try:
                for _ in range(4 if self.quick else 10):
                    # A session of its own each time: to a "no" the session holds on, and asks no more.
                    async with asker.session(cwd=str(self.bench.project), permission_mode="prompt") as session:
                        argv = [sys.executable, "-I", "-c", CONNECTIONS, PLACE, PINNED_NAME]
                        before = self.done["answers"]
                        asking = asyncio.create_task(
                            session.run([*argv, str(self.port), "1", "0"], capture_output=True), name="asks"
                        )
                        await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
                        if answering.done():
                            asking.cancel()
                            await answering  # raises why it ended
                        await asking
                        self.expect("questions", self.done["answers"] > before, "no question was asked")
            finally:
                answering.cancel()
                await asyncio.wait([answering])

    async def kills(self) -> None:
        """Clients and commands that die at once, in the middle of something."""
        for number in range(3 if self.quick else 10):
            program = (
                "from sandboxd_client import Client\n"
                "with Client() as box: box.run('echo up; sleep 1000 & sleep 1000')\n"
            )
            client = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", program, cwd=self.bench.project,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            assert client.stdout is not None
            heard = await client.stdout.readline()
            self.expect("killed clients", heard == b"up\n", heard)
            if number % 2:
                client.send_signal(signal.SIGKILL)
            else:
                client.terminate()
            await client.wait()
            left = await client.stdout.read()  # ends when the last process that holds it has ended
            self.expect("ends of killed clients", left == b"", left)

    async def connections(self) -> None:
        """Callers that hang up in the middle of a line, and before their answer."""
        for number in range(20 if self.quick else 100):
            _, writer = await asyncio.open_unix_connection(str(self.bench.socket))
            if number % 2:
                call = {"jsonrpc": "2.0", "id": 1, "method": "wrap", "params": {"command": "true", "cwd": "/"}}
                writer.write(json.dumps(call).encode()[: None if number % 4 == 1 else 40] + b"\n" * (number % 4 == 1))
                with contextlib.suppress(OSError):
                    await writer.drain()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self.done["hang-ups"] += 1
