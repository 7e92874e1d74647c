"""`./dev demo`: a real daemon, real sandboxes, and what they do, in plain words.

Everything happens in a temporary directory with a daemon of its own; nothing is left running or lying about. Each step
says what should happen and then checks on the host whether it did; the exit status is 0 only when all of it did.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Beside this interpreter, as in any virtual environment; or as the first argument says.
SANDBOXD = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(sys.executable).with_name("sandboxd")

FETCH = """\
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=20)
except urllib.error.HTTPError as refusal:
    answer = refusal
print(answer.status, answer.reason)
print(answer.read().decode().strip())
"""


@dataclass
class Demo:
    """The stage: `project` is where commands run, `environment` what a terminal would have."""

    base: Path
    environment: dict[str, str]
    wrong: list[str] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.base / "project"

    def step(self, what: str, *arguments: str, expect: str, check: Callable[[int, str], bool]) -> None:
        """Runs `sandboxd ARGUMENTS` and shows it; `check(status, output)` looks whether `expect` is what happened."""
        print(f"\n{what}")
        print(f"  $ {shlex.join(['sandboxd', *arguments])}", flush=True)
        done = subprocess.run(
            [SANDBOXD, *arguments],
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        for line in done.stdout.splitlines():
            print(f"  {line}")
        if done.returncode:
            print(f"  (exit status {done.returncode})")
        try:
            fine = check(done.returncode, done.stdout)
        except OSError:  # a file that should be there is not
            fine = False
        self.verdict(fine, expect)

    def verdict(self, fine: bool, expect: str) -> None:
        print(f"  {'as expected' if fine else 'NOT AS EXPECTED'}: {expect}", flush=True)
        if not fine:
            self.wrong.append(expect)


@contextlib.contextmanager
def server() -> Iterator[tuple[int, list[str]]]:
    """A small web server on this machine. Yields its port and the list of Host headers it has seen."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Host", ""))
            body = b"Hello from the server on your machine.\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, args=(0.05,), daemon=True).start()
        yield web.server_address[1], seen
        web.shutdown()


@contextlib.contextmanager
def daemon(demo: Demo) -> Iterator[subprocess.Popen[bytes]]:
    """`sandboxd serve` with its own runtime directory and its own, empty, settings; ended whatever happens."""
    log = demo.base / "daemon.log"
    names = ("allowed.test=127.0.0.1", "other.test=127.0.0.1")
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [SANDBOXD, "serve", *(word for name in names for word in ("--resolve", name))],
            cwd=demo.base,
            env=demo.environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    try:
        deadline = time.monotonic() + 30
        while not _answers(demo.environment["SANDBOXD_SOCKET"]):
            if process.poll() is not None or time.monotonic() > deadline:
                print(log.read_text(errors="replace"), file=sys.stderr)
                raise SystemExit("the daemon did not start; it said what stands above")
            time.sleep(0.02)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address) == 0


def can_start(demo: Demo) -> None:
    """Nothing to show on a machine where no sandbox can be started, but what to do about it."""
    check = subprocess.run(
        [SANDBOXD, "check"],
        env=demo.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if check.returncode != 0:
        print(check.stdout, file=sys.stderr)
        raise SystemExit("no sandbox can be started on this machine; what is missing stands above")


def play(demo: Demo, process: subprocess.Popen[bytes], port: int, seen: list[str]) -> None:
    allowed = f"allowed.test:{port}"
    outside = Path(demo.environment["HOME"], f"sandboxd-demo-{os.getpid()}")
    kept = outside.resolve().is_relative_to("/tmp")  # the command writes there, and its session keeps the file

    demo.step(
        "1. A command writes a file in the project.",
        "run", "-c", 'echo "written in the sandbox" > notes.txt && cat notes.txt',
        expect="the file is there, on your disk",
        check=lambda status, _: status == 0 and (demo.project / "notes.txt").read_text() == "written in the sandbox\n",
    )  # fmt: skip
    demo.step(
        "2. A command writes a file in your home directory, which no rule allows.",
        "run", "-c", f'echo "should not be here" > "$HOME/{outside.name}"',
        expect=("" if kept else "the command fails, and ") + "your home directory is as it was",
        check=lambda status, _: (status == 0 if kept else status not in (0, 125)) and not outside.exists(),
    )  # fmt: skip
    demo.step(
        f"3. A command asks a web server for a page: {allowed} is allowed, through the proxy.",
        "run", "--allow-domain", allowed, "--", "python3", "fetch.py", f"http://{allowed}/",
        expect="the page arrives",
        check=lambda status, text: status == 0 and "200 OK" in text and "Hello from the server" in text,
    )  # fmt: skip
    demo.step(
        "4. The same for a name that is not on the list. It is the same server, so only the name differs.",
        "run", "--allow-domain", allowed, "--", "python3", "fetch.py", f"http://other.test:{port}/",
        expect="403, with the reason; the server was never asked",
        check=lambda status, text: status == 0 and "403" in text and "other.test" in text and len(seen) == 1,
    )  # fmt: skip
    demo.step(
        "5. A command fails. Its exit status is passed on.",
        "run", "--", "sh", "-c", "exit 7",
        expect="exit status 7",
        check=lambda status, _: status == 7,
    )  # fmt: skip
    demo.step(
        "6. What the daemon says about itself.",
        "status",
        expect="it runs, and says on which socket",
        check=lambda status, text: status == 0 and demo.environment["SANDBOXD_SOCKET"] in text,
    )
    demo.step(
        "7. The daemon is stopped.",
        "stop",
        expect="its process has ended",
        check=lambda status, _: status == 0 and _ended(process),
    )


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        return process.wait(5) == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> int:
    # Not below /tmp, which every sandbox has for itself.
    base = Path(tempfile.mkdtemp(prefix="sandboxd-demo-", dir="/var/tmp"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for name in ("project", "run", "settings"):
            (base / name).mkdir(mode=0o700)
        (base / "project" / "fetch.py").write_text(FETCH)
        (base / "settings" / "settings.json").write_text(json.dumps({"sandbox": {"enabled": True}}))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOXD_")}
        environment.setdefault("HOME", os.path.expanduser("~"))
        environment |= {
            "XDG_RUNTIME_DIR": str(base / "run"),
            "SANDBOXD_SOCKET": str(base / "run" / "sandboxd" / "sandboxd.sock"),
            "SANDBOXD_CONFIG_HOME": str(base / "settings"),
        }
        demo = Demo(base, environment)
        print(f"A daemon is started in {base}, with a project beside it. Every command below runs in a sandbox.")
        with server() as (port, seen), daemon(demo) as process:
            can_start(demo)
            play(demo, process, port, seen)
        left = sorted(str(path.relative_to(base)) for path in (base / "run").rglob("*") if not path.is_dir())
        print("\n8. Cleaning up.")
        demo.verdict(not left, f"the daemon left nothing behind{': ' + ', '.join(left) if left else ''}")
    finally:
        shutil.rmtree(base)
    print(f"\n{len(demo.wrong)} steps did not do what they say." if demo.wrong else "\nAll steps did what they say.")
    return 1 if demo.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
