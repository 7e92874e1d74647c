"""The smoke set: attacks and ordinary work with an installed `sandboxd`, judged on the host. Standard library only.

    python3 smoke.py BASE [COMMAND...]

COMMAND begins the command line of sandboxd; without it everything runs bare, which shows that the attacks work. BASE is
a directory to be made. Prints one line of JSON. Where the machine
cannot start a sandbox, the right answer is a refusal with a reason and a hint. Where a layer is missing that would
refuse an attack, the attack may succeed, but only if `sandboxd check` has told."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PATIENCE_S = 600
"""Also for an emulated processor on a busy machine."""
_FETCH = """import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1]).read().decode())"""
_CONNECT = """import socket, sys
one = socket.create_connection((sys.argv[1], int(sys.argv[2])))
one.sendall(b"GET / HTTP/1.0\\r\\nHost: " + sys.argv[1].encode() + b"\\r\\n\\r\\n")
print(one.makefile().read())"""
_UNIX = """import socket, sys
own = socket.socket(socket.AF_UNIX); own.bind("own.sock"); own.listen()
socket.socket(socket.AF_UNIX).connect("own.sock"); print("own")
socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print("foreign")"""
_DATAGRAM = """import socket, sys
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.sendto(b"x", ("127.0.0.1", int(sys.argv[1]))); print("sent")"""


class Machine:
    """The directories, servers and command line of one smoke set."""

    def __init__(self, base: Path, command: list[str]) -> None:
        self.base, self.command = base, command
        self.home, self.work = base / "home", base / "work"
        for made in (self.home / ".claude", self.work, base / "run", base / "outside"):
            made.mkdir(parents=True)
        (base / "run").chmod(0o700)
        for name in ("open", "secret", "given", "kept"):
            (base / name).write_text(name)
        rules = {
            "filesystem": {"denyRead": [f"/{base}/secret"]},
            "network": {"allowedDomains": ["open.test"]},
        }
        (self.home / ".claude" / "settings.json").write_text(json.dumps({"sandbox": rules}))
        self.hosts: list[str] = []
        self.environment = {
            "HOME": str(self.home), "XDG_RUNTIME_DIR": str(base / "run"), "LANG": "C.UTF-8", "SHELL": "/bin/sh",
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "USER": "smoke", "LOGNAME": "smoke",
            "SANDBOXD_RESOLVE": "open.test=127.0.0.1,closed.test=127.0.0.1",
        }  # fmt: skip

    def sandboxd(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run((*self.command, *words))

    def start(self) -> None:
        """Start a daemon and wait for it without a limit that an emulated processor would miss."""
        with (self.base / "log").open("w") as log:
            daemon = subprocess.Popen([*self.command, "serve"], env=self.environment, stdout=log, stderr=log, cwd="/")

        def settled() -> bool:
            listens = os.path.exists(self.environment["XDG_RUNTIME_DIR"] + "/sandboxd/sandboxd.sock")
            return daemon.poll() is not None or (listens and self.sandboxd("status").returncode == 0)

        _wait(settled, "the daemon does not answer")
        expect(daemon.poll() is None, (self.base / "log").read_text())

    def _run(self, words: Sequence[str], **keywords: Any) -> subprocess.CompletedProcess[str]:
        keywords.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            words, cwd=self.work, env=self.environment, text=True, capture_output=True,
            timeout=PATIENCE_S, check=False, **keywords,
        )  # fmt: skip

    def inside(self, *words: str, **keywords: Any) -> str:
        """Return what a command in the sandbox prints, errors included."""
        if self.command:
            words = (*self.command, "run", "--", *words)
        done = self._run(words, **keywords)
        return done.stdout + done.stderr

    def python(self, text: str, *words: object) -> str:
        return self.inside(sys.executable, "-I", "-S", "-c", text, *map(str, words))

    def connect(self, host: str, port: int) -> str:
        """Ask a host without a proxy, with `$SMOKE_CONNECT HOST PORT` where that names a program."""
        if program := os.environ.get("SMOKE_CONNECT"):
            return self.inside(program, host, str(port))
        return self.python(_CONNECT, host, port)

    @contextlib.contextmanager
    def serving(self) -> Iterator[int]:
        """Serve HTTP on the loopback of the host, and count the names that clients ask for."""
        seen = self.hosts
        seen.clear()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(self.headers["Host"].partition(":")[0])
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"served")

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def expect(held: bool, said: str) -> None:
    if not held:
        raise AssertionError(said[-400:])


def refuses(box: Machine) -> None:
    """Without a sandbox nothing runs, with a reason and a hint."""
    done = box.sandboxd("run", "-c", "touch ran")
    expect(done.returncode == 125 and not (box.work / "ran").exists(), f"status {done.returncode}: {done.stderr}")
    expect("hint: " in done.stderr, done.stderr)


def writes(box: Machine) -> None:
    said = box.inside("sh", "-c", f"echo 1 > made; echo 1 > {box.base}/outside/made; rm -f {box.base}/kept")
    expect((box.work / "made").exists(), said)
    expect(not (box.base / "outside" / "made").exists() and (box.base / "kept").exists(), "written outside")


def reads(box: Machine) -> None:
    said = box.inside("sh", "-c", f"cat {box.base}/open; cat {box.base}/secret")
    expect(said.startswith("open"), said)
    expect("secret\n" not in said and not said.endswith("secret"), "the secret was read")


def protected(box: Machine) -> None:
    said = box.inside("sh", "-c", "mkdir plain; echo 1 > plain/tasks.json; mkdir .vscode; echo 1 > .vscode/tasks.json")
    expect((box.work / "plain" / "tasks.json").exists(), said)
    expect(not (box.work / ".vscode" / "tasks.json").exists(), "a protected name was written")


def proxied(box: Machine) -> None:
    with box.serving() as port:
        said = box.python(_FETCH, f"http://open.test:{port}/")
        refused = box.python(_FETCH, f"http://closed.test:{port}/")
    expect("served" in said and "open.test" in box.hosts, said)
    expect("closed.test" not in box.hosts, refused)


def captured(box: Machine) -> None:
    with box.serving() as port:
        refused = box.connect("closed.test", port)
        refused += box.connect("127.0.0.1", port)
        expect(not box.hosts, refused)
        said = box.connect("open.test", port)
    expect("served" in said, said)


def unix_sockets(box: Machine) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(box.base / "host.sock"))
        server.listen()
        server.setblocking(False)
        said = box.python(_UNIX, box.base / "host.sock")
        reached = False
        with contextlib.suppress(BlockingIOError):
            server.accept()[0].close()
            reached = True
    expect(not reached, "a socket of the host was reached")
    expect("own" in said, said)


def datagrams(box: Machine) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        said = box.python(_DATAGRAM, server.getsockname()[1])
        reached = False
        with contextlib.suppress(BlockingIOError):
            reached = bool(server.recv(1))
    expect(not reached, f"a datagram reached the host: {said}")


def processes(box: Machine) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as foreign:
        said = box.inside("sh", "-c", f"kill -9 {foreign.pid}; sleep 1000 & kill -9 $! && echo own")
        assert foreign.stdin is not None and foreign.stdout is not None
        alive = False
        with contextlib.suppress(BrokenPipeError):
            foreign.stdin.write(b"echo\n")
            alive = foreign.stdout.readline() == b"echo\n"
        foreign.kill()
    expect(alive, "a process of the host was ended")
    expect("own" in said, said)


def given_file(box: Machine) -> None:
    with (box.base / "given").open("rb") as given:
        said = box.inside("sh", "-c", "cat; echo 1 >> /proc/self/fd/0", stdin=given)
    expect(said.startswith("given"), said)
    expect((box.base / "given").read_text() == "given", "a file given for reading was written")


def emptied_file(box: Machine) -> None:
    with (box.base / "given").open("rb") as given:
        box.inside(sys.executable, "-I", "-S", "-c", "import os; os.truncate('/proc/self/fd/0', 0)", stdin=given)
    expect((box.base / "given").stat().st_size > 0, "a file given for reading was emptied")


def ends(box: Machine) -> None:
    """A client that is killed takes its command along."""
    marker = f"smoke-{os.getpid()}"
    child = "import sys,time; print('up', flush=True); time.sleep(1000)"
    words = [*box.command, "run", "--", sys.executable, "-I", "-S", "-c", child, marker]
    with subprocess.Popen(words, cwd=box.work, env=box.environment, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        expect(bool(_running(marker)), "the command did not start")
        client.kill()
    _wait(lambda: not _running(marker), "the command outlived its client")


def nothing_left(box: Machine) -> None:
    box.sandboxd("stop")
    _wait(lambda: not _running(str(box.base)), "a process was left behind")
    left = sorted(os.listdir(box.work))
    expect(set(left) <= {"made", "plain", "own.sock"}, f"left in the workspace: {left}")


def _running(text: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            is_other = name.isdecimal() and int(name) != os.getpid()
            if is_other and text.encode() in Path("/proc", name, "cmdline").read_bytes():
                found.append(int(name))
    return found


def _wait(condition: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        expect(time.monotonic() < end, otherwise)
        time.sleep(0.05)


ATTACKS: tuple[tuple[Callable[[Machine], None], str], ...] = (
    (writes, ""), (reads, ""), (protected, ""), (proxied, ""), (captured, "capture_limited"), (unix_sockets, ""),
    (datagrams, ""), (processes, ""), (given_file, "landlock_limited"), (emptied_file, "landlock_limited"),
)  # fmt: skip
"""Each attack with ordinary work beside it, and the code in the answer of `check` that tells that it may fail."""


def try_cases(
    box: Machine, cases: Sequence[tuple[Callable[[Machine], None], str]], told: Sequence[str]
) -> dict[str, str]:
    """Return "pass", "told" or the failure of each case."""
    results = {}
    for case, code in cases:
        try:
            case(box)
            results[case.__name__] = "pass"
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            results[case.__name__] = "told" if code and code in told else f"fail: {error}"
    return results


def main(base: Path, command: list[str]) -> dict[str, Any]:
    """Return the results and what the machine says of itself."""
    box = Machine(base, command)
    if not command:
        return {"results": try_cases(box, ATTACKS, ())}
    box.start()
    checked = box.sandboxd("check", "--json")
    if not checked.stdout:
        return {"results": {"check": f"fail: {checked.stderr}"}}
    check = json.loads(checked.stdout)
    failed = {step["name"]: step for step in check["steps"] if not step["ok"]}
    told = [step["code"] for step in failed.values()]
    results = try_cases(box, ATTACKS if check["ok"] else ((refuses, ""),), told)
    status = json.loads(box.sandboxd("status", "--json").stdout)
    results |= try_cases(box, ((ends, ""), (nothing_left, ""))[0 if check["ok"] else 1 :], told)
    found = {step["name"]: step["detail"] for step in check["steps"]}
    return {
        "ok": check["ok"], "uid": os.geteuid(), "kernel": platform.release(), "python": platform.python_version(),
        "bubblewrap": found.get("bubblewrap", ""), "layers": status["layers"], "warnings": status["warnings"],
        "failed": {name: (step["code"], step["detail"]) for name, step in failed.items()}, "results": results,
    }  # fmt: skip


if __name__ == "__main__":
    os.umask(0o022)
    print("SMOKE " + json.dumps(main(Path(sys.argv[1]), sys.argv[2:])), flush=True)
