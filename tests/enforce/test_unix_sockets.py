"""Unix sockets by default settings: those of the session are reached, those of the host are not, and that is told."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemons import DaemonProcess
from support.users import Identity

HELPERS = """
import errno, json, multiprocessing, os, shutil, socket, sys, threading, time
def attempt(path, kind=1, how="connect"):
    with socket.socket(1, kind) as one:
        try:
            if how == "connect": one.connect(path)
            elif how == "sendto": one.sendto(b"x", path)
            else: one.sendmsg([b"x"], [], 0, path)
        except OSError as error: return errno.errorcode[error.errno]
    return "done"
"""

ATTACK = """
stream, datagrams, said = sys.argv[1], sys.argv[2], {}
for path, kind, hows in ((stream, 1, ("connect",)), (datagrams, 2, ("connect", "sendto", "sendmsg"))):
    def all_of(name, at):
        for how in hows: said[f"{name} {kind} {how}"] = attempt(at, kind, how)
    base = os.path.basename(path)
    all_of("path", path); all_of("relative", os.path.relpath(path))
    os.symlink(path, "link"); all_of("symbolic link", "link"); os.unlink("link")
    os.link(path, "hard"); all_of("hard link", "hard"); os.unlink("hard")
    os.rename(path, "moved"); all_of("renamed", os.path.abspath("moved")); os.rename("moved", path)
    for root in ("/proc/self/root", "/proc/1/root", f"/proc/{os.getpid()}/cwd/../.."):
        all_of(root, root + path)
    os.chdir(os.path.dirname(path)); all_of("working directory", base); os.chdir(sys.argv[3])
    with socket.socket(1, kind) as own:  # what was bound here is exchanged with it
        own.bind("own"); os.rename(path, "other"); os.rename("own", path); os.rename("other", "own")
        all_of("exchanged", "own"); os.rename(path, "other"); os.rename("own", path); os.unlink("other")
    one, other = socket.socketpair(1, 2)
    try: one.sendto(b"x", path); said[f"pair {kind}"] = "done"
    except OSError as error: said[f"pair {kind}"] = errno.errorcode[error.errno]
print(json.dumps(said))
"""

OWN = """
import multiprocessing.managers
where = ["/tmp/sdt-" + os.urandom(8).hex(), os.environ["TMPDIR"] + "/s", "/dev/shm/s", "s", "\\0name"]
def serve(path, kind):
    one = socket.socket(1, kind); one.bind(path)
    if kind != 2: one.listen()
    return one
for path in where:
    for kind in (1, 2, 5):
        with serve(path, kind): assert attempt(path, kind) == "done", (path, kind)
        if path[0] != "\\0": os.unlink(path)
with multiprocessing.Manager() as manager: assert manager.list([1])[0] == 1
print("ok")
"""


class Servers:
    """A listener and a receiver on the host, in the workspace."""

    def __init__(self, identity: Identity) -> None:
        directory = identity.workspace / "outside"
        directory.mkdir()
        identity.own(directory)
        self.stream, self.datagrams = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.paths = [str(directory / "stream"), str(directory / "datagrams")]
        for one, path in zip((self.stream, self.datagrams), self.paths, strict=True):
            one.bind(path)
            identity.own(Path(path))
            one.setblocking(False)
        self.stream.listen(1000)

    def close(self) -> None:
        self.stream.close()
        self.datagrams.close()

    def assert_unreached(self) -> None:
        with pytest.raises(BlockingIOError):
            self.stream.accept()
        with pytest.raises(BlockingIOError):
            self.datagrams.recv(9)


@pytest.fixture
def servers(identity: Identity) -> Iterator[Servers]:
    made = Servers(identity)
    yield made
    made.close()


def run(daemon: DaemonProcess, code: str, *words: str, before: tuple[str, ...] = ()) -> str:
    done = daemon.run("run", *before, "--", "python3", "-I", "-S", "-c", HELPERS + code, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_bound_in_the_sandbox_is_reached(daemon: DaemonProcess) -> None:
    assert run(daemon, OWN) == "ok\n"
    assert json.loads(daemon.run("violations", "--json").stdout)["violations"] == []


def test_no_way_leads_to_a_socket_of_the_host(daemon: DaemonProcess, servers: Servers) -> None:
    """Each refusal is a violation, whose hint opens it; learning writes that."""
    said = json.loads(run(daemon, ATTACK, *servers.paths, str(daemon.identity.workspace)))
    assert set(said.values()) <= {"EACCES", "EPROTOTYPE", "EPERM"}, said
    assert {said[name] for name in said if not name.startswith("pair")} == {"EACCES"}, said
    servers.assert_unreached()
    found = json.loads(daemon.run("violations", "--json").stdout)["violations"]
    targets = {one["target"]: one for one in found if one["kind"] == "unix-socket"}
    for path in servers.paths:
        assert targets[path]["outcome"] == "socketNotListed", targets
        assert f"sandboxd allow socket {path}" in targets[path]["hint"]
    learned = daemon.identity.home / "learned.json"
    code = "print(attempt(sys.argv[1]))"
    assert run(daemon, code, servers.paths[0], before=("--learn", str(learned))) == "EACCES\n"
    network = json.loads(learned.read_text())["sandbox"]["network"]
    assert [os.path.basename(path) for path in network["allowUnixSockets"]] == ["stream"]
    assert run(daemon, code, servers.paths[0], before=("--settings", str(learned))) == "done\n"
    servers.stream.accept()[0].close()
    assert daemon.run("allow", "socket", servers.paths[1]).returncode == 0
    assert run(daemon, "print(attempt(sys.argv[1], 2, 'sendto'))", servers.paths[1]) == "done\n"
    assert servers.datagrams.recv(9) == b"x"


RACE = """
path, done, said = sys.argv[1], False, []
own = socket.socket(); own = socket.socket(1); own.bind("own"); own.listen(1000)
def swap(n):
    name = f"swap{n}"
    while not done:
        time.sleep(0.001)  # and let others run
        os.link(path if n == 9 else "own", name); os.rename(name, "target")
        try: os.unlink(name)  # the rename does nothing where both are the same file
        except FileNotFoundError: pass
threads = [threading.Thread(target=swap, args=(n,)) for n in range(10)]
[one.start() for one in threads]
while min(map(said.count, ("done", "EACCES"))) < 3: said.append(attempt("target"))
done = True
[one.join() for one in threads]
print(*sorted(set(said)))
"""


def test_ten_threads_that_swap_the_path_win_no_race(daemon: DaemonProcess, servers: Servers) -> None:
    assert run(daemon, RACE, servers.paths[0]) in ("EACCES done\n", "EACCES ENOENT done\n")
    servers.assert_unreached()
