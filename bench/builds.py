"""What it costs to look at a command's file calls as they happen: build-like work, with reporting on ÷ off."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.private_daemon import Bench, private_daemon
from bench.rows import Row
from bench.timing import median, percentile
from sandboxd_client import Client

MODES = ("off", "writes", "all")
FILES = 20_000
TESTS = 500
PACKAGES = 40


@dataclass(frozen=True, slots=True)
class Work:
    """A build to time.

    `prepare` makes what is needed in an empty directory, `argv` is timed, `leaves` is removed before the next round."""

    name: str
    argv: tuple[str, ...]
    leaves: tuple[str, ...]
    prepare: Callable[[Path], None]


def _run(*argv: str, cwd: Path) -> None:
    subprocess.run(argv, cwd=cwd, check=True, capture_output=True)


def _repository(base: Path) -> None:
    origin = base / "origin"
    for number in range(2000):
        file = origin / str(number % 20) / str(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{number}\n" * 20)
    person = ("-c", "user.name=n", "-c", "user.email=n@example.test")
    for words in (("init", "-q"), ("add", "."), (*person, "commit", "-qm", "x"), ("gc", "-q")):
        _run("git", *words, cwd=origin)


def _tests(base: Path) -> None:
    for number in range(TESTS // 10):
        lines = ["import pathlib, tempfile, unittest", f"class T{number}(unittest.TestCase):"]
        for test in range(10):
            lines += [
                f"    def test_{test}(self):",
                "        with tempfile.TemporaryDirectory() as made:",
                "            file = pathlib.Path(made, 'x'); file.write_text('x')",
                "            self.assertEqual(file.read_text(), 'x')",
            ]
        (base / f"test_{number}.py").write_text("\n".join(lines) + "\n")


def _packages(base: Path) -> None:
    for number in range(PACKAGES):
        with tarfile.open(base / f"p{number}.tgz", "w:gz") as packed:
            files = {f"lib/{n}.js": f"module.exports = {n}\n" for n in range(30)}
            files["package.json"] = json.dumps({"name": f"p{number}", "version": "1.0.0"})
            for name, text in files.items():
                entry = tarfile.TarInfo(f"package/{name}")
                entry.size = len(text)
                packed.addfile(entry, io.BytesIO(text.encode()))
    app = base / "app"
    app.mkdir()
    (app / "package.json").write_text(json.dumps({"name": "app", "version": "1.0.0"}))
    _run("npm", "install", "-s", "--offline", *(f"../p{n}.tgz" for n in range(PACKAGES)), cwd=app)


def _archive(base: Path, files: int = FILES) -> None:
    with tarfile.open(base / "tree.tar", "w") as packed:
        for number in range(files):
            entry = tarfile.TarInfo(f"tree/{number % 200}/{number}")
            entry.size = 1
            packed.addfile(entry, io.BytesIO(b"x"))


def _wheel(base: Path) -> None:
    with zipfile.ZipFile(base / "many-1.0-py3-none-any.whl", "w") as packed:
        for number in range(600):
            packed.writestr(f"many/m{number}.py", f"x = {number}\n")
        packed.writestr("many-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: many\nVersion: 1.0\n")
        packed.writestr("many-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr("many-1.0.dist-info/RECORD", "")


def _works() -> Iterator[Work]:
    yield Work("git clone of 2,000 files", ("git", "clone", "-q", "--no-hardlinks", "origin", "clone"), ("clone",),
               _repository)  # fmt: skip
    runner = "pytest" if importlib.util.find_spec("pytest") else "unittest"
    words = ("-q", "-p", "no:cacheprovider") if runner == "pytest" else ("-q",)
    yield Work(f"{TESTS} small tests ({runner})", (sys.executable, "-m", runner, *words), ("__pycache__",), _tests)
    if shutil.which("npm"):
        cache = ("--cache", "/tmp/npm")
        yield Work(f"npm ci of {PACKAGES} packages", ("npm", "--prefix", "app", "ci", "-s", "--offline", *cache),
                   ("app/node_modules",), _packages)  # fmt: skip


def _time(bench: Bench, work: Work, rounds: int) -> dict[str, list[float]]:
    """Seconds in each mode, in turns, the first round left out.

    A path is denied, so `all` has to look at reads."""
    base = bench.project / work.name.replace(" ", "-")
    base.mkdir()
    work.prepare(base)
    taken: dict[str, list[float]] = {mode: [] for mode in MODES}
    with Client() as box:
        sessions = {}
        for mode in MODES:
            sandbox = {"reportViolations": mode, "filesystem": {"denyRead": ["/srv"]}}
            sessions[mode] = box.session_open(cwd=str(base), settings={"sandbox": sandbox}).session_id
        for number in range(rounds + 1):
            for mode, session in sessions.items():
                for name in work.leaves:
                    shutil.rmtree(base / name, ignore_errors=True)
                begin = time.perf_counter()
                done = box.run(work.argv, cwd=str(base), session_id=session, capture_output=True, text=True)
                seconds = time.perf_counter() - begin
                assert done.returncode == 0, done.stderr or done.stdout
                if number:
                    taken[mode].append(seconds)
    return taken


def reporting(bench: Bench, quick: bool) -> Iterator[Row]:
    for work in _works():
        taken = _time(bench, work, 3 if quick else 9)
        seconds = {mode: median(taken[mode]) for mode in MODES}
        detail = {"off": seconds["off"], "reads too ÷ off": seconds["all"] / seconds["off"]}
        yield Row(f"{work.name}, writes reported ÷ off", seconds["writes"] / seconds["off"], "", "≤ 1.05", detail)
    taken = _time(bench, Work("extracting", ("tar", "xf", "tree.tar"), ("tree",), _archive), 2 if quick else 7)
    calls = {mode: (median(taken[mode]) - median(taken["off"])) / FILES * 1e6 for mode in ("writes", "all")}
    detail = {"off": median(taken["off"]), "writes": median(taken["writes"]), "reads too": calls["all"]}
    yield Row(f"extracting {FILES:,} files: for each", calls["writes"], "µs", "", detail)


def _file_works(quick: bool) -> Iterator[tuple[Work, str]]:
    """Works that make files in the project, and what the guard may cost of them."""
    for work in _works():
        if "tests" not in work.name:
            yield work, "≤ 1.15" if work.argv[0] == "git" else "≤ 1.05"
    pip = ("-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target", "into")
    yield (Work("pip install of 600 files", (sys.executable, *pip, "many-1.0-py3-none-any.whl"), ("into",), _wheel),
           "≤ 1.05")  # fmt: skip
    files = FILES // (10 if quick else 1)
    yield (Work(f"extracting {files:,} files", ("tar", "xf", "tree.tar"), ("tree",),
                lambda base: _archive(base, files)), "≤ 1.15")  # fmt: skip


_INSIDE = """
import subprocess, sys, time
begin = time.perf_counter()
status = subprocess.call(sys.argv[1:])
print(time.perf_counter() - begin)
sys.exit(status)
"""


def _best(work: Work, places: Sequence[tuple[Client, Path]], rounds: int, *, inside: bool = False) -> list[float]:
    """Seconds in each place, the best of a few rounds in turns: what else a machine does, and its disk, only add.

    `inside`: without the start and the end of the sandbox."""
    argv = (sys.executable, "-I", "-S", "-c", _INSIDE, *work.argv) if inside else work.argv
    taken: list[list[float]] = [[] for _ in places]
    for number in range(rounds):
        for turn, (client, place) in enumerate(places):
            base = place / work.name.replace(" ", "-")
            if not number:
                base.mkdir(parents=True)
                work.prepare(base)
            for name in work.leaves:
                shutil.rmtree(base / name, ignore_errors=True)
            begin = time.perf_counter()
            done = client.run(argv, cwd=str(base), capture_output=True, text=True)
            seconds = time.perf_counter() - begin
            assert done.returncode == 0, done.stderr or done.stdout
            if number:
                taken[turn].append(float(done.stdout.split()[-1]) if inside else seconds)
    return list(map(min, taken))


def absent_names(bench: Bench, quick: bool) -> Iterator[Row]:
    """Build-like work where the helper makes the names, ÷ where placeholders keep names absent."""
    with Client() as box, _placeholders(), private_daemon() as other, Client() as there:
        places = ((box, bench.project / "absent"), (there, other.project / "absent"))
        for work, budget in _file_works(quick):
            guarded, otherwise = _best(work, places, 4 if quick else 6)
            yield Row(f"{work.name}, guarded ÷ with placeholders", guarded / otherwise, "", budget, {"s": guarded})


def watching(bench: Bench, quick: bool) -> Iterator[Row]:
    """Build-like work with guard and reporting as usual, ÷ where the helper is notified of no call."""
    tests = [work for work in _works() if "tests" in work.name]
    with Client() as box, private_daemon(unwatched=True) as other, Client() as there:
        places = ((box, bench.project / "watched"), (there, other.project / "watched"))
        for work in (*(work for work, _ in _file_works(quick)), *tests):
            usual, free = _best(work, places, 4 if quick else 8, inside=True)
            budget = "" if work.argv[0] == "tar" else "≤ 1.05"
            yield Row(f"{work.name}, watched ÷ not", usual / free, "", budget, {"s": usual, "not watched": free})


@contextmanager
def _placeholders() -> Iterator[None]:
    os.environ["SANDBOXD_TEST_PLACEHOLDERS"] = "1"
    try:
        yield
    finally:
        del os.environ["SANDBOXD_TEST_PLACEHOLDERS"]


_REFUSED = """
import os, sys, time
for n in range(int(sys.argv[1])):
    time.sleep(0.01)
    try: os.mkdir(f"/srv/refused-{time.monotonic_ns()}")
    except OSError: pass
"""


def event_latency(bench: Bench, quick: bool) -> Iterator[Row]:
    """From a refused call to its event at a subscriber.

    The clock is the machine's own, the same inside."""
    number = 50 if quick else 300
    late: list[float] = []
    with Client() as watching, Client() as box, box.session(str(bench.project)) as session:
        watching.violation_subscribe(session_id=session.id)

        def listen() -> None:
            for note in watching.notifications(timeout=20):
                target = getattr(getattr(note.params, "violation", None), "target", "")
                if "refused-" in target:
                    late.append(time.monotonic() - int(target.rpartition("-")[2]) / 1e9)
                if len(late) == number:
                    return

        thread = threading.Thread(target=listen, name="listening")
        thread.start()
        session.run([sys.executable, "-I", "-S", "-c", _REFUSED, str(number)], capture_output=True)
        thread.join()
    late.sort()
    yield Row("from a refused write to its event, p50", percentile(late, 50) * 1000, "ms", "≤ 50")
    yield Row("from a refused write to its event, p99", percentile(late, 99) * 1000, "ms", "≤ 50")
