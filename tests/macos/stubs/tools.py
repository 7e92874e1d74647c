"""The programs of the stand-in sandbox: each asks the profile before it does something, as the kernel would, and a
refusal goes into the log. What they do they really do.

    cat FILE… · ls DIR · write FILE TEXT · append FILE TEXT · rm FILE · mv FROM TO · mkdir DIR · connect HOST PORT ·
    listen PORT · fetch URL (through the proxy of the environment) · lookup SERVICE · wait-for-term
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sandboxd.backends.macos.seatbelt.path_spellings import real_spelling
from support.sbpl import Endpoint, Profile, Request, compile_profile, connect, file, mach

_KINDS = (
    (stat.S_ISDIR, "DIRECTORY"), (stat.S_ISLNK, "SYMLINK"), (stat.S_ISCHR, "CHARACTER-DEVICE"),
    (stat.S_ISSOCK, "SOCKET"), (stat.S_ISFIFO, "FIFO"),
)  # fmt: skip


class Kernel:
    """Asks the profile of this process."""

    def __init__(self, state: Path, name: str) -> None:
        kept = json.loads(Path(os.environ["SANDBOX_STUB_PROFILE"]).read_text())
        self._profile: Profile = compile_profile(kept["text"], kept["parameters"])
        self._state = state
        self._name = name

    def ask(self, request: Request) -> None:
        """Raises PermissionError, and logs."""
        verdict = self._profile.decide(request)
        if verdict.allowed:
            return
        subject = request.subject
        message = f"Sandbox: {self._name}({os.getpid()}) deny(1) {request.operation} {subject}\n{verdict.message}"
        with (self._state / "log").open("ab") as log:
            log.write(message.encode("utf-8", "surrogateescape") + b"\0")
        raise PermissionError(errno.EPERM, "Operation not permitted", subject)

    def ask_path(self, operation: str, path: str) -> str:
        """Where the kernel finds the path, once it may be used in this way."""
        parent, last = os.path.split(os.path.abspath(path))
        real = os.path.join(os.path.realpath(parent), last)
        if operation not in ("file-write-unlink",):
            real = os.path.realpath(real)
        try:
            mode = os.lstat(real).st_mode
        except FileNotFoundError:
            mode = 0
        kind = next((kind for test, kind in _KINDS if test(mode)), "REGULAR-FILE")
        self.ask(file(operation, real_spelling(real), kind))
        return real

    def ask_write(self, path: str) -> str:
        return self.ask_path("file-write-data" if os.path.exists(path) else "file-write-create", path)


def cat(kernel: Kernel, *paths: str) -> None:
    for path in paths:
        sys.stdout.write(Path(kernel.ask_path("file-read-data", path)).read_text())


def ls(kernel: Kernel, path: str = ".") -> None:
    print("\n".join(sorted(os.listdir(kernel.ask_path("file-read-data", path)))))


def write(kernel: Kernel, path: str, text: str) -> None:
    Path(kernel.ask_write(path)).write_text(text)


def append(kernel: Kernel, path: str, text: str) -> None:
    with open(kernel.ask_write(path), "a") as stream:
        stream.write(text)


def rm(kernel: Kernel, path: str) -> None:
    os.unlink(kernel.ask_path("file-write-unlink", path))


def mv(kernel: Kernel, source: str, target: str) -> None:
    moved = kernel.ask_path("file-write-unlink", source)
    kernel.ask_path("file-write-create", target)
    os.rename(moved, target)


def mkdir(kernel: Kernel, path: str) -> None:
    kernel.ask_path("file-write-create", path)
    os.mkdir(path)


def connect_(kernel: Kernel, host: str, port: str) -> None:
    kernel.ask(connect(host, int(port)))
    with socket.create_connection((host, int(port)), 10):
        print("connected")


def listen(kernel: Kernel, port: str) -> None:
    kernel.ask(Request("network-bind", local=Endpoint("127.0.0.1", int(port))))
    with socket.create_server(("127.0.0.1", int(port))):
        print("listening")


def fetch(kernel: Kernel, url: str) -> None:
    import urllib.error  # only here: it takes longer than the others
    import urllib.request

    proxy = urllib.request.getproxies()["http"]
    kernel.ask(connect("127.0.0.1", int(proxy.rpartition(":")[2].rstrip("/"))))
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            sys.stdout.write(answer.read().decode())
    except urllib.error.HTTPError as refusal:
        print(refusal.status, refusal.headers.get("X-Sandboxd-Decision"))
        sys.exit(22)


def lookup(kernel: Kernel, name: str) -> None:
    kernel.ask(mach(name))
    print("found")


def wait_for_term(kernel: Kernel, ready: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    write(kernel, ready, str(os.getpid()))
    time.sleep(300)


TOOLS: dict[str, Callable[..., None]] = {
    "cat": cat, "ls": ls, "write": write, "append": append, "rm": rm, "mv": mv, "mkdir": mkdir,
    "connect": connect_, "listen": listen, "fetch": fetch, "lookup": lookup, "wait-for-term": wait_for_term,
}  # fmt: skip


def main(state: Path, name: str, arguments: list[str]) -> int:
    try:
        TOOLS[name](Kernel(state, name), *arguments)
    except OSError as error:
        sys.stderr.write(f"{name}: {error.filename or ''}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
