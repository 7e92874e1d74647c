"""`./dev soak`: a daemon under a mixed load for as long as you like, and whether anything of it stays behind.

    ./dev soak [--minutes N] [--quick]     commands, tunnels, reloads, questions, kills; prints what drifts
    ./dev soak --idle [SECONDS]            how often an idle daemon wakes up (60 s)

The daemon is one of its own. After each round everything is at rest, and its memory, descriptors, threads, processes
and files are those of the round before, or something leaks. Exit status 1 when it does, when an answer was wrong, and
for --idle when the daemon woke up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.kernel_counters import Footprint, directories_held, files_below, wake_ups
from bench.private_daemon import PINNED_NAME, Bench, private_daemon
from bench.through import origin
from sandboxd_client import AsyncClient
from sandboxd_client.wire.messages.prompts import PermissionRequest

MEMORY_RATIO, MEMORY_RATIO_QUICK = 1.1, 1.25
"""How much more the daemon may hold at the end than at half-time; quick: when it is not yet warm, quite."""
WARM_UP_ROUNDS = 3
REST_S = 10.0
"""What is not at rest by then is stuck, and counted as left."""

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


@dataclass(slots=True)
class Load:
    """One round's work.

    `done` counts what was done, `wrong` says what was not as it should be."""

    bench: Bench
    port: int
    quick: bool
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def round(self) -> None:
        await asyncio.gather(*(self._part(part) for part in (
            self.commands, self.tunnels, self.reloads, self.questions, self.kills, self.connections,
        )))  # fmt: skip

    async def _part(self, part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
        except Exception as error:
            self.wrong.append(f"{part.__name__}: {type(error).__name__}: {error}"[:300])

    def expect(self, what: str, right: bool, detail: object) -> None:
        self.done[what] += 1
        if not right:
            self.wrong.append(f"{what}: {detail}"[:300])

    async def warm_up(self, number: int) -> None:
        """What is kept of ended commands is bounded: up to that the memory grows, and that is no leak."""
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
                        done = await session.run(f"echo {number} | tee note; exit {number % 3}", capture_output=True)
                        self.expect("commands", (done.stdout, done.returncode) == (b"%d\n" % number, number % 3), done)
                    done = await session.run("echo x >/etc/left; touch ~/left", capture_output=True)
                    self.expect("refusals", done.returncode != 0, done)

    async def tunnels(self) -> None:
        async with AsyncClient() as box:
            number, size = (40, 100_000) if self.quick else (400, 1_000_000)
            argv = [sys.executable, "-I", "-c", CONNECTIONS, str(Path(__file__).parent), PINNED_NAME]
            done = await box.run(
                [*argv, str(self.port), str(number), str(size)],
                cwd=str(self.bench.project), capture_output=True,
                overrides={"allow_domains": [f"{PINNED_NAME}:{self.port}"]},
            )  # fmt: skip
            self.done["tunnels"] += number
            self.expect("transfers", done.returncode == 0, done)

    async def reloads(self) -> None:
        settings = self.bench.base / "home" / ".claude" / "settings.json"
        settings.parent.mkdir(exist_ok=True)
        async with AsyncClient() as box:
            await box.settings_subscribe()
            for number in range(5 if self.quick else 20):
                new = settings.with_suffix(".new")
                rules = [f"h{number}-{n}.test" for n in range(20)]
                new.write_text(json.dumps({"sandbox": {"network": {"deniedDomains": rules}}}))
                new.replace(settings)
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
                    self.done["questions"] += 1
                    behavior: Literal["allow", "deny"] = "deny" if self.done["questions"] % 2 else "allow"
                    await person.permission_respond(notification.params.request_id, behavior, scope="command")

            answering = asyncio.create_task(answer(), name="answers")
            try:
                for _ in range(4 if self.quick else 10):
                    # A session of its own each time: to a "no" the session holds on, and asks no more.
                    async with asker.session(cwd=str(self.bench.project), permission_mode="prompt") as session:
                        argv = [sys.executable, "-I", "-c", CONNECTIONS, str(Path(__file__).parent), PINNED_NAME]
                        before = self.done["questions"]
                        asking = asyncio.create_task(
                            session.run([*argv, str(self.port), "1", "0"], capture_output=True), name="asks"
                        )
                        await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
                        if answering.done():
                            asking.cancel()
                            await answering  # raises why it ended
                        await asking
                        self.expect("asked", self.done["questions"] > before, "nobody was asked")
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
            self.expect("kills", heard == b"up\n", heard)
            if number % 2:
                client.send_signal(signal.SIGKILL)
            else:
                client.terminate()
            await client.wait()
            left = await client.stdout.read()  # ends when the last process that holds it has ended
            self.expect("ends", left == b"", left)

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


def places(bench: Bench) -> tuple[Path, ...]:
    """Where a daemon has something while it works: its home and project, and the temporary directory it has locked."""
    return bench.base, *directories_held(bench.pid, f"/var/tmp/sandboxd-{os.getuid()}/")


@dataclass(frozen=True, slots=True)
class Sample:
    footprint: Footprint
    files: frozenset[str]
    sessions: int


def sample(bench: Bench, rest_s: float = REST_S) -> Sample:
    """The daemon at rest: waits until there are no sessions, and two looks in a row are alike."""
    deadline = time.monotonic() + rest_s
    before: Sample | None = None
    while True:
        status = json.loads(
            subprocess.run([sys.executable, "-P", "-m", "sandboxd", "status", "--json"], capture_output=True).stdout
        )
        now = Sample(Footprint.of(bench.pid), frozenset(files_below(*places(bench))), len(status["sessions"]))
        settled = before is not None and (now.files, now.footprint.open) == (before.files, before.footprint.open)
        if (settled and now.sessions == 0) or time.monotonic() > deadline:
            return now
        before = now
        time.sleep(0.2)


def drift(samples: list[Sample], memory_ratio: float = MEMORY_RATIO) -> tuple[list[str], list[str]]:
    """Lines of a table, and what leaks.

    Compared are the first sample after the warm-up and the end; for the memory half-time and the end, since what is
    kept of commands, rules and questions fills up to its bounds in many rounds."""
    first, last = samples[min(WARM_UP_ROUNDS, len(samples)) - 1], samples[-1]
    half = samples[max(min(WARM_UP_ROUNDS, len(samples)), len(samples) // 2) - 1].footprint.memory_kb
    leaks: list[str] = []

    def row(name: str, begin: float, end: float, leak: bool) -> str:
        if leak:
            leaks.append(f"{name}: {begin:g} → {end:g}")
        return f"{name:<20} {begin:>10g} {end:>10g}  {'LEAK' if leak else 'ok'}"

    memory = statistics.median(one.footprint.memory_kb for one in samples[-3:])
    lines = [f"{'':<20} {'warm':>10} {'end':>10}"]
    lines.append(row("memory, KB", half, memory, memory > memory_ratio * half))
    lines.append(
        row("descriptors", first.footprint.open, last.footprint.open, last.footprint.open > first.footprint.open)
    )
    threads = max(one.footprint.threads for one in samples)
    most = 1 + min(32, (os.cpu_count() or 1) + 4) + 4  # the pool of asyncio.to_thread, and a few of libraries
    lines.append(row("threads", first.footprint.threads, threads, threads > most))
    for name in ("processes",):
        begin, end = first.footprint.processes, last.footprint.processes
        lines.append(row(name, begin, end, end > begin))
    lines.append(row("files", len(first.files), len(last.files), not last.files <= first.files))
    lines.append(row("sessions", first.sessions, last.sessions, last.sessions > 0))
    for path in sorted(last.files - first.files)[:10]:
        leaks.append(f"file: {path}")
    for kind, count in last.footprint.descriptors.items():
        if count > first.footprint.descriptors.get(kind, 0):
            leaks.append(f"descriptor: {count - first.footprint.descriptors.get(kind, 0)} more of {kind}")
    # A descriptor may be another one than before: only the sum tells of a leak.
    return lines, [leak for leak in leaks if not leak.startswith("descriptor: ")
                   or last.footprint.open > first.footprint.open]  # fmt: skip


def soak(minutes: float, quick: bool) -> int:
    with private_daemon() as bench, origin() as port:
        (bench.base / "project" / "note").touch()
        load = Load(bench, port, quick)
        asyncio.run(load.warm_up(200 if quick else 1200))
        samples: list[Sample] = []
        end = time.monotonic() + minutes * 60
        while len(samples) <= WARM_UP_ROUNDS or time.monotonic() < end:
            begin = time.monotonic()
            asyncio.run(load.round())
            samples.append(sample(bench))
            now = samples[-1].footprint
            print(
                f"round {len(samples):>3}  {time.monotonic() - begin:5.1f} s  {now.memory_kb:>7} KB  "
                f"{now.open:>4} descriptors  {now.threads:>3} threads  {len(samples[-1].files):>5} files",
                flush=True,
            )
        lines, leaks = drift(samples, MEMORY_RATIO_QUICK if quick else MEMORY_RATIO)
        print(*lines, sep="\n")
        print(", ".join(f"{count} {what}" for what, count in sorted(load.done.items())))
        for problem in (*load.wrong[:20], *leaks):
            print(f"! {problem}")
        return 1 if load.wrong or leaks else 0


def idle(seconds: float) -> int:
    with private_daemon() as bench, origin() as port:
        load = Load(bench, port, quick=True)
        asyncio.run(load.round())  # idle is a daemon that has worked, not only one that was started
        sample(bench)
        time.sleep(3)  # what ends with a delay may do so
        memory = Footprint.of(bench.pid).memory_kb
        before, begin = wake_ups(bench.pid), time.monotonic()
        time.sleep(seconds)
        after = wake_ups(bench.pid)
        woken = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name)}
        print(
            f"{sum(woken.values())} wake-ups in {time.monotonic() - begin:.0f} s of {len(after)} threads; "
            f"memory {memory} → {Footprint.of(bench.pid).memory_kb} KB"
        )
        for name, count in woken.items():
            print(f"! {name}: {count}")
        return 1 if woken or load.wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10, metavar="N", help="how long (10)")
    parser.add_argument("--quick", action="store_true", help="smaller rounds")
    parser.add_argument(
        "--idle", type=float, nargs="?", const=60, metavar="SECONDS", help="measure an idle daemon instead"
    )
    options = parser.parse_args()
    tempfile.tempdir = "/var/tmp"
    return idle(options.idle) if options.idle is not None else soak(options.minutes, options.quick)


if __name__ == "__main__":
    sys.exit(main())
