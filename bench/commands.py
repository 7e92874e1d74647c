"""What a sandboxed command costs: the whole command, the command line, and `wrap` alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.private_daemon import Bench, private_daemon
from bench.rows import Row
from bench.timing import in_turns, median, ms, percentile
from sandboxd_client import AsyncClient, Client

# The namespaces and mounts that every sandbox has, with nothing of ours in them.
BARE_BWRAP = (
    "bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
    "--unshare-cgroup-try", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
    "--as-pid-1", "--die-with-parent", "--",
)  # fmt: skip
TRUE = "/bin/true"
FILES_OF_THE_BIG_TREE = 90_000


def _bare() -> None:
    subprocess.run([*BARE_BWRAP, TRUE], capture_output=True, check=True)


def warm_command(bench: Bench, quick: bool) -> Iterator[Row]:
    """`Client.run` of `true` beside the same through bubblewrap alone, spawned the same way.

    With a sandbox that is ready, as after a pause, and with one that is made for it."""
    with Client(prepare=True) as box, Client(prepare=False) as plain:
        sessions = {one: one.session_open(cwd=str(bench.project)).session_id for one in (box, plain)}

        def run(client: Client) -> bool:
            done = client.run([TRUE], cwd=str(bench.project), session_id=sessions[client], capture_output=True)
            assert done.returncode == 0 and done.wrap is not None, done
            return done.wrap.prepared

        def ready() -> None:
            until = time.monotonic() + 10
            while not box.status().prepared:
                assert time.monotonic() < until, "no sandbox is prepared"

        run(box)
        actions = {"ready": ready, "prepared": lambda: run(box), "made": lambda: run(plain), "bare": _bare}
        taken = in_turns(actions, 40 if quick else 200)
        ready()
        assert run(box), "the prepared sandbox was not used"
    bare_s = median(taken["bare"])
    for name, budget in (("prepared", "≤ 0.6"), ("made", "≤ 1.6")):
        ours_s = median(taken[name])
        title = "prepared command" if name == "prepared" else "warm command"
        yield Row(f"{title} ÷ bare bubblewrap", ours_s / bare_s, "", budget, {"ours": ms(ours_s), "bare": ms(bare_s)})
    slow_s = percentile(taken["prepared"], 99)
    yield Row("prepared command, p99 ÷ bare", slow_s / bare_s, "", "≤ 1.5", {"p99": ms(slow_s)})


def audited_command(bench: Bench, quick: bool) -> Iterator[Row]:
    """The same through two daemons, one of which keeps an audit log."""
    audit = {"audit": {"enabled": True}}
    with (
        private_daemon(audit) as other,
        Client(bench.socket, prepare=False) as plain,
        Client(other.socket, prepare=False) as audited,
    ):

        def run(box: Client, where: Bench) -> Callable[[], None]:
            session = box.session_open(cwd=str(where.project)).session_id

            def action() -> None:
                done = box.run([TRUE], cwd=str(where.project), session_id=session, capture_output=True)
                assert done.returncode == 0, done

            return action

        taken = in_turns({"on": run(audited, other), "off": run(plain, bench)}, 40 if quick else 200)
        written = audited.status().audit
        assert written is not None and written.lines > 100 and not written.lost, written
    on_s, off_s = median(taken["on"]), median(taken["off"])
    yield Row("warm command, audit log on ÷ off", on_s / off_s, "", "≤ 1.05", {"on": ms(on_s), "off": ms(off_s)})


def command_line(bench: Bench, quick: bool) -> Iterator[Row]:
    """`sandboxd run -- true` beside bare bubblewrap: in a session, and in one of its own, which is made and ended."""
    program = str(Path(sys.executable).parent / "sandboxd")

    def run(*options: str) -> Callable[[], object]:
        words = [program, "run", *options, "--", TRUE]
        return lambda: subprocess.run(words, cwd=bench.project, capture_output=True, check=True)

    with Client() as box:
        session = box.session_open(cwd=str(bench.project)).session_id
        actions = {"in a session": run("--session", session), "alone": run(), "through Python": run("--grace", "5")}
        taken = in_turns({**actions, "bare": _bare}, 15 if quick else 60)
    bare_s = median(taken["bare"])
    for name in actions:
        ours_s = median(taken[name])
        budget = "" if name == "through Python" else "≤ 2.2"
        yield Row(f"sandboxd run {name} ÷ bare", ours_s / bare_s, "", budget, {"ours": ms(ours_s), "bare": ms(bare_s)})


def hook(bench: Bench, quick: bool) -> Iterator[Row]:
    """The hook before a command of Claude Code beside `sandboxd run`, which it puts in the place of the command."""
    program = str(Path(sys.executable).parent / "sandboxd")
    call = {"tool_name": "Bash", "tool_input": {"command": TRUE}, "tool_use_id": "call", "session_id": "agent"}
    event = json.dumps({"hook_event_name": "PreToolUse", "cwd": str(bench.project), **call})

    def hook() -> None:
        done = subprocess.run(
            [program, "hook", "run", "claude"], cwd=bench.project, input=event.encode(), capture_output=True
        )
        assert b"updatedInput" in done.stdout, done

    def run() -> None:
        subprocess.run([program, "run", "--", TRUE], cwd=bench.project, capture_output=True, check=True)

    taken = in_turns({"hook": hook, "run": run}, 15 if quick else 60)
    hook_s, run_s = median(taken["hook"]), median(taken["run"])
    yield Row(
        "hook before a command ÷ sandboxd run", hook_s / run_s, "", "≤ 1.3", {"hook": ms(hook_s), "run": ms(run_s)}
    )


def wrap_round_trip(bench: Bench, quick: bool) -> Iterator[Row]:
    with Client() as box:
        session = box.session_open(cwd=str(bench.project)).session_id
        taken = in_turns(
            {"wrap": lambda: box.wrap(argv=[TRUE], cwd=str(bench.project), session_id=session)}, 300 if quick else 1000
        )["wrap"]
    p50, p99 = percentile(taken, 50), percentile(taken, 99)
    yield Row("wrap round trip, p50", p50 * 1000, "ms", "≤ 0.5")
    yield Row("wrap round trip, p99", p99 * 1000, "ms")


def wrap_in_a_big_tree(bench: Bench, quick: bool) -> Iterator[Row]:
    """The cost of a wrap must not grow with the project."""
    empty, big = bench.base / "empty", bench.base / "big"
    make_tree(empty, 0)
    files = make_tree(big, FILES_OF_THE_BIG_TREE // (10 if quick else 1))
    with Client() as box:
        sessions = {tree: box.session_open(cwd=str(tree)).session_id for tree in (empty, big)}
        first: dict[Path, float] = {}
        for tree in (empty, big):
            begin = time.perf_counter()
            box.wrap(argv=[TRUE], cwd=str(tree), session_id=sessions[tree])
            first[tree] = time.perf_counter() - begin
        taken = in_turns(
            {
                "empty": lambda: box.wrap(argv=[TRUE], cwd=str(empty), session_id=sessions[empty]),
                "big": lambda: box.wrap(argv=[TRUE], cwd=str(big), session_id=sessions[big]),
            },
            100 if quick else 500,
        )
    big_s, empty_s = median(taken["big"]), median(taken["empty"])
    detail = {"big": ms(big_s), "empty": ms(empty_s), "first in big": ms(first[big]), "in empty": ms(first[empty])}
    yield Row(f"wrap in {files:,} files ÷ in none", big_s / empty_s, "", "≤ 1.2", detail)


def make_tree(root: Path, files: int) -> int:
    """A project of `files` empty files, 100 in a directory, 30 directories in another. Returns their number."""
    root.mkdir()
    for number in range(files // 100):
        folder = root / f"{number // 30}" / f"{number % 30}"
        folder.mkdir(parents=True)
        for name in range(100):
            (folder / f"{name}.py").touch()
    return files


def crowd(bench: Bench, quick: bool) -> Iterator[Row]:
    """Many sandboxes at once: every one right, and the daemon still small."""
    number = 40 if quick else 200

    async def all_at_once() -> list[str]:
        async with AsyncClient() as box:
            session = (await box.session_open(cwd=str(bench.project))).session_id

            async def one(serial: int) -> str:
                done = await box.run(
                    f"echo {serial}; exit {serial % 100}",
                    cwd=str(bench.project),
                    session_id=session,
                    capture_output=True,
                    text=True,
                )
                expected = (f"{serial}\n", serial % 100)
                return "" if (done.stdout, done.returncode) == expected else f"{serial}: {done}"

            return [wrong for wrong in await asyncio.gather(*map(one, range(number))) if wrong]

    begin = time.perf_counter()
    wrong = asyncio.run(all_at_once())
    seconds = time.perf_counter() - begin
    yield Row(
        f"{number} sandboxes at once: wrong",
        float(len(wrong)),
        "",
        "= 0",
        {"seconds": seconds},
        error="; ".join(wrong[:3]),
    )
    yield Row("daemon memory, highest", bench.memory_mb(), "MB", "≤ 100")
