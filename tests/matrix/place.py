"""A small host for the runs: directories of a person, secrets, and listeners that note who came."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matrix.far import ADDRESSES, entered

HOSTS = {"allowed.test": ADDRESSES[0], "api.allowed.test": ADDRESSES[0], "denied.test": ADDRESSES[1]}
SECRETS = ("home/.ssh/id_ed25519", "home/private/token", "project/secret.env")
KEPT = (".claude", ".local", ".cache", ".codex", ".npm", ".zerobox")
"""Entries of the home that runtimes keep for themselves over all cases."""
_PARTS = ("home", "project", "out")


@dataclass(slots=True)
class Listeners:
    """Servers on the host. `reached` holds the names of those that had a visit since the last `forget`."""

    unix: Path
    reached: set[str] = field(default_factory=set)
    ports: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, tuple[int, int, Any]] = field(default_factory=dict)

    def forget(self) -> None:
        self.reached.clear()

    def check(self) -> None:
        """RuntimeError when a listener does not see a connection: then "not reached" would mean nothing."""
        self.forget()
        for name, (kind, family, address) in self.addresses.items():
            with socket.socket(family, kind) as probe:
                probe.settimeout(5)
                probe.connect(address)
                probe.send(b"GET / HTTP/1.0\r\n\r\n")
            deadline = time.monotonic() + 5
            while name not in self.reached:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the listener {name} at {address!r} does not see a connection")
                time.sleep(0.01)


def _serve(listener: socket.socket, name: str, of: Listeners) -> None:
    while True:
        try:
            if listener.type == socket.SOCK_DGRAM:
                listener.recvfrom(65536)
                of.reached.add(name)
                continue
            connection, _ = listener.accept()
        except OSError:
            return
        of.reached.add(name)
        threading.Thread(target=_answer, args=(connection, name), daemon=True).start()


def _answer(connection: socket.socket, name: str) -> None:
    """Answers one request as an HTTP server that says its name and what it was asked."""
    with connection:
        connection.settimeout(5)
        try:
            asked = connection.recv(65536).split(b"\r\n")[0]
            body = b"hello from " + name.encode() + b"\n" + asked + b"\n"
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
        except OSError:
            return


@contextmanager
def listening(base: Path, far: int) -> Iterator[Listeners]:
    """Listeners for TCP and UDP on loopback, a Unix path and an abstract name, and for HOSTS on port 80 in `far`."""
    of = Listeners(base / "host.sock")
    opened = []
    addresses: list[tuple[str, int, int, Any]] = [
        ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("0.0.0.0", 0)),
        ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
        ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        ("allowed", socket.AF_INET, socket.SOCK_STREAM, (HOSTS["allowed.test"], 80)),
        ("denied", socket.AF_INET, socket.SOCK_STREAM, (HOSTS["denied.test"], 80)),
        ("denied udp", socket.AF_INET, socket.SOCK_DGRAM, (HOSTS["denied.test"], 53)),
        ("metadata", socket.AF_INET, socket.SOCK_STREAM, (ADDRESSES[2], 80)),
        ("unix", socket.AF_UNIX, socket.SOCK_STREAM, str(of.unix)),
        ("unix datagrams", socket.AF_UNIX, socket.SOCK_DGRAM, str(of.unix) + ".dgram"),
        ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, "\0sandboxd-matrix"),
    ]
    for name, family, kind, address in addresses:
        is_far = family == socket.AF_INET and address[0] in ADDRESSES
        with entered(far) if is_far else contextlib.nullcontext():
            listener = socket.socket(family, kind)
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen(64)
        of.addresses[name] = (kind, family, listener.getsockname())
        if family != socket.AF_UNIX:
            of.ports[name] = listener.getsockname()[1]
        elif not str(address).startswith("\0"):
            os.chmod(str(address), 0o777)
        threading.Thread(target=_serve, args=(listener, name, of), daemon=True).start()
        opened.append(listener)
    try:
        yield of
    finally:
        for listener in opened:
            listener.close()


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of one account, made anew for each case."""

    base: Path
    uid: int
    gid: int

    def path(self, name: str) -> Path:
        return self.base / name

    def reset(self) -> dict[str, str]:
        """Empties the directories, writes the usual files and new secrets; returns the secrets."""
        for part in _PARTS:
            folder = self.base / part
            folder.mkdir(exist_ok=True)
            os.chown(folder, self.uid, self.gid)
            for entry in folder.iterdir():
                if part != "home" or entry.name not in KEPT:
                    _remove(entry)
        values = {name: f"secret-{secrets.token_hex(8)}" for name in SECRETS}
        for name, value in values.items():
            self.write(name, value + "\n")
        self.write("home/.bashrc", "# start-up file\n")
        self.write("home/notes.txt", "notes\n")
        self.write("out/file.txt", "outside\n")
        self.write("project/file.txt", "inside\n")
        return values

    def write(self, name: str, text: str) -> None:
        """A file of the account; directories are made, "x " before the name makes it executable."""
        mode = 0o755 if name.startswith("x ") else 0o644
        path = self.base / name.removeprefix("x ")
        for folder in reversed([one for one in path.parents if not one.exists()]):
            folder.mkdir()
            os.chown(folder, self.uid, self.gid)
        path.write_text(text)
        path.chmod(mode)
        os.chown(path, self.uid, self.gid)

    def tree(self) -> dict[str, str]:
        """Each entry with what a later look compares. What runtimes keep in the home is left out."""
        found = {}
        for part in _PARTS:
            for folder, directories, files in os.walk(self.base / part):
                if Path(folder) == self.base / "home":
                    directories[:] = [name for name in directories if name not in KEPT]
                for name in (*directories, *files):
                    path = Path(folder, name)
                    found[str(path.relative_to(self.base))] = _described(path)
        return found

    def contents(self, name: str) -> str | None:
        try:
            return (self.base / name).read_text(errors="replace")
        except OSError:
            return None


def _remove(entry: Path) -> None:
    """Removes an entry, from which a server of the last case may take files at the same time."""
    for _ in range(5):
        with contextlib.suppress(FileNotFoundError):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
            return
    raise RuntimeError(f"{entry} cannot be removed while a process of a case writes there")


def _described(path: Path) -> str:
    about = path.lstat()
    kind = f"{stat.S_IFMT(about.st_mode):o} {stat.S_IMODE(about.st_mode):o}"
    if stat.S_ISLNK(about.st_mode):
        return f"{kind} {os.readlink(path)}"
    if stat.S_ISREG(about.st_mode):
        with path.open("rb") as stream:
            return f"{kind} {hashlib.sha256(stream.read(1 << 20)).hexdigest()}"
    return kind


def living(mark: str) -> list[int]:
    """The processes that have the mark among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in words and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def end_all(mark: str) -> None:
    """Ends the processes that a case left, by the mark that only they have."""
    for pid in living(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
