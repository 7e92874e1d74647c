"""Unix sockets of the host that a command moves to where sockets are allowed: it reaches none of them. What was there
when the command started, and what listens in the sandbox, it reaches as before, also after a restart of the daemon."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity

INSIDE = r"""
import ctypes, errno, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(path):
    with socket.socket(socket.AF_UNIX) as one:
        try: one.connect(path)
        except OSError as error: return errno.errorcode[error.errno]
    return "connected"
def exchange(one, other):
    if libc.renameat2(-100, one.encode(), -100, other.encode(), 2): raise OSError(ctypes.get_errno(), one)
def listen(path):
    one = socket.socket(socket.AF_UNIX)
    one.bind(path)
    one.listen()
    kept.append(one)
    return path
kept = []
def ask(question):
    print(json.dumps(question), flush=True)
    return json.loads(sys.stdin.readline())
"""

BRINGING = (
    INSIDE
    + r"""
said = {}
def link(name, to):
    os.link("out/" + name, to)
    said[name] = attempt(to)
def move(name, to):
    os.rename("out/" + name, to)
    said[name] = attempt(to)
link("link", "socks/link")
link("link below", "socks/below/x")
link("link over", "socks/over.tmp")
os.rename("socks/over.tmp", "socks/over")
said["over"] = attempt("socks/over")
os.link("/proc/self/root" + os.getcwd() + "/out/root", "/proc/self/root" + os.getcwd() + "/socks/root")
said["root"] = attempt("socks/root")
said["root by root"] = attempt("/proc/self/root" + os.getcwd() + "/socks/root")
said["root by cwd"] = attempt("/proc/self/cwd/socks/root")
move("move", "socks/move")
move("move below", "socks/below/y")
os.rename("out/directory", "socks/directory")
said["directory"] = attempt("socks/directory/s")
exchange("out/exchange", "socks/exchange")
said["exchange"] = attempt("socks/exchange")
os.symlink("../out/symlink", "socks/symlink")
said["symlink"] = attempt("socks/symlink")
os.mkdir("socks/made")
link("made", "socks/made/z")
os.unlink("linked"); link("one link", "linked")
move("one move", "moved")
exchange("out/one exchange", "exchanged"); said["one exchange"] = attempt("exchanged")
os.rename("swapped", "swapped.before"); os.rename("out/swapped", "swapped")
said["swapped"] = attempt("swapped/s")
os.rename("linked-away", "before"); os.symlink("out/away", "linked-away")
said["away"] = attempt("linked-away/s")
os.chdir("socks"); os.link("../out/relative", "relative"); said["relative"] = attempt("relative"); os.chdir("..")
said["outside"] = attempt("out/outside")
print(json.dumps(said))
"""
)
OUTSIDE = [
    "link", "link below", "link over", "root", "move", "move below", "directory/s", "exchange", "symlink", "made",
    "one link", "one move", "one exchange", "swapped/s", "away/s", "relative", "outside",
]  # fmt: skip
LISTED = ["./socks", "./linked", "./moved", "./exchanged", "./swapped", "./linked-away"]
THERE = ["socks/over", "socks/exchange", "socks/there", "linked", "moved", "exchanged", "swapped/x", "linked-away/x"]


class Servers:
    """Listeners on the host, in the workspace. A connection that waits to be accepted tells that one was reached."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._listening: dict[str, socket.socket] = {}

    def listen(self, name: str, at: Path | None = None, by_name: str | None = None) -> Path:
        path = (self._identity.workspace if at is None else at) / name
        for directory in reversed([one for one in path.parents if not one.exists()]):
            directory.mkdir()
            self._identity.own(directory)
        one = self._listening[name] = socket.socket(socket.AF_UNIX)
        one.bind(str(path) if by_name is None else by_name)
        one.listen()
        one.setblocking(False)
        self._identity.own(path)
        return path

    def end(self, name: str) -> None:
        self._listening.pop(name).close()

    def reached(self) -> list[str]:
        found = []
        for name, one in self._listening.items():
            try:
                one.accept()[0].close()
                found.append(name)
            except BlockingIOError:
                pass
        return found

    def close(self) -> None:
        for one in self._listening.values():
            one.close()


@pytest.fixture
def servers(identity: Identity) -> Iterator[Servers]:
    made = Servers(identity)
    yield made
    made.close()


def allowing(*listed: str) -> dict[str, Any]:
    return {"sandbox": {"network": {"allowUnixSockets": list(listed)}}}


class Conversation:
    """A command that asks the test, line by line, to do something on the host."""

    def __init__(self, daemon: DaemonProcess, code: str, *arguments: str) -> None:
        words = ["run", "--", "python3", "-I", "-S", "-c", INSIDE + code, *arguments]
        pipe = subprocess.PIPE
        self._process = daemon.popen(*words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()
        return json.loads(line)

    def answer(self, value: Any = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        _, err = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, err

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()


def test_a_socket_that_a_command_moves_is_not_reached(
    start_daemon: StartDaemon, identity: Identity, servers: Servers
) -> None:
    for name in OUTSIDE:
        servers.listen(f"out/{name}")
    for name in THERE:
        servers.listen(name)
    identity.write(identity.workspace / "socks" / "below" / "file", "")
    daemon = start_daemon(settings=allowing(*LISTED))
    done = daemon.run("run", "--", "python3", "-I", "-S", "-c", BRINGING)
    assert done.returncode == 0, done.stderr
    assert servers.reached() == []
    said = json.loads(done.stdout)
    assert set(said.values()) == {"EACCES"}, said
    found = json.loads(daemon.run("violations", "--json").stdout)["violations"]
    outcomes = {one["target"].removeprefix(f"{identity.workspace}/"): one["outcome"] for one in found}
    assert outcomes["socks/link"] == outcomes["linked"] == "socketBrought"
    assert outcomes["out/outside"] == "socketNotListed"


def test_what_was_there_and_what_is_bound_inside_is_reached(
    start_daemon: StartDaemon, identity: Identity, servers: Servers
) -> None:
    """Also under another name, and after a restart of the daemon."""
    for name in ("socks/there", "socks/deep/there", "alone", "socks/renamed"):
        servers.listen(name)
    code = """
os.rename("socks/renamed", "socks/deep/again")
there = ["socks/there", "socks/deep/there", "alone", "socks/deep/again"]
in_tmp = "/tmp/sdt-" + os.urandom(8).hex()
own = [listen(name) for name in ("socks/own", "socks/deep/own", "missing", in_tmp, "/dev/shm/own", "@bound")]
os.rename("@bound", "socks/moved"); own[-1] = "socks/moved"
os.mkdir("socks/made"); own.append(listen("socks/made/own"))
for _ in range(2): ask([attempt(path) for path in there + own])
os.link("out/late", "socks/late")
own.append(listen("socks/later"))
ask([attempt("socks/late"), attempt("socks/later")])
"""
    servers.listen("out/late")
    daemon = start_daemon(settings=allowing("./socks", "./alone", "./missing"))
    with Conversation(daemon, code) as command:
        assert command.hear() == ["connected"] * 11
        assert servers.reached() == ["socks/there", "socks/deep/there", "alone", "socks/renamed"]
        assert daemon.run("restart").returncode == 0, daemon.output()
        command.answer()
        assert command.hear() == ["connected"] * 11
        assert servers.reached() == ["socks/there", "socks/deep/there", "alone", "socks/renamed"]
        command.answer()
        assert command.hear() == ["EACCES", "connected"]
        assert servers.reached() == []
        command.answer()
        command.end()


def test_another_socket_with_the_same_inode_is_not_reached(
    start_daemon: StartDaemon, identity: Identity, servers: Servers
) -> None:
    """A file system gives the number of a removed socket to the next file."""
    code = """
ask(os.stat("socks/there").st_ino)
os.unlink("socks/there")
name = ask(None)
if name: os.rename("out/" + name, "socks/there")
ask(attempt("socks/there") if name else "EACCES")
own = listen("socks/own")
ask([attempt(own), os.stat(own).st_ino])
kept.pop().close(); os.unlink(own)
name = ask(None)
if name: os.rename("out/" + name, own)
ask(attempt(own) if name else "EACCES")
"""
    servers.listen("socks/there")
    (identity.workspace / "out").mkdir()
    identity.own(identity.workspace / "out")
    daemon = start_daemon(settings=allowing("./socks"))

    def the_same(inode: int, kind: str) -> str | None:
        for number in range(200):
            if servers.listen(f"out/{kind}{number}").stat().st_ino == inode:
                return f"{kind}{number}"
        return None

    with Conversation(daemon, code) as command:
        inode = command.hear()
        command.answer()
        command.hear()
        servers.end("socks/there")
        command.answer(the_same(inode, "a"))
        assert command.hear() == "EACCES"
        command.answer()
        said, inode = command.hear()
        assert said == "connected"
        command.answer()
        command.hear()
        command.answer(the_same(inode, "b"))
        assert command.hear() == "EACCES"
        command.answer()
        command.end()
    assert servers.reached() == []


def test_a_server_outside_that_comes_later_is_not_believed(
    start_daemon: StartDaemon, identity: Identity, servers: Servers
) -> None:
    """In a directory that commands write, the session's own `/tmp` among them. The next command reaches it."""
    late = f"sdt-{secrets.token_hex(8)}"
    code = f"""
ask(os.environ["TMPDIR"])
ask([attempt("socks/late"), attempt("/tmp/{late}"), attempt(os.environ["TMPDIR"] + "/{late}"), attempt("closed/late")])
"""
    identity.write(identity.workspace / "socks" / "file", "")
    identity.write(identity.workspace / "closed" / "file", "")
    settings = allowing("./socks", "./closed")
    settings["sandbox"]["filesystem"] = {"denyWrite": ["./closed"]}
    daemon = start_daemon(settings=settings)
    with ExitStack() as stack:
        command = stack.enter_context(Conversation(daemon, code))
        own = Path(command.hear())
        servers.listen(late, own)
        servers.listen("socks/late")
        servers.listen("closed/late")
        command.answer()
        assert command.hear() == ["EACCES", "ENOENT", "EACCES", "connected"]
        command.answer()
        command.end()
    assert servers.reached() == ["closed/late"]
    done = daemon.run("run", "--", "python3", "-I", "-S", "-c", INSIDE + "print(attempt('socks/late'))")
    assert done.stdout == "connected\n", done.stderr
    explained = daemon.run("explain", "socket", "socks/late")
    assert "when a command starts" in explained.stdout, explained.stdout


EARLIER = """
os.mkdir("socks/made")
os.link("out/link", "socks/made/link")
os.rename("out/move", "socks/move")
os.rename("out/directory", "socks/directory")
os.rename("swapped", "before")
os.rename("out/swapped", "swapped")
os.rename("linked/s", "socks/linked")
os.rename("linked", "linked.before")
os.symlink("socks", "linked")
os.rename("socks/renamed", "socks/renamed.now")
"""
LATER = """
brought = ["socks/made/link", "socks/move", "socks/directory/s", "swapped/s", "socks/linked", "socks/renamed.now"]
there = ["socks/there", "socks/relative", "socks/by a link"]
print(json.dumps([[attempt(path) for path in paths] for paths in (brought, there)]))
"""


def test_what_an_earlier_command_has_moved_is_not_reached(
    start_daemon: StartDaemon, identity: Identity, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server has bound it by another name than that of an allowed place. One that is moved has to be bound anew."""
    for name in ("out/link", "out/move", "out/directory/s", "out/swapped/s", "linked/s", "socks/renamed", "swapped/x"):
        servers.listen(name)
    servers.listen("socks/there")
    monkeypatch.chdir(identity.workspace)
    servers.listen("socks/relative", by_name="socks/relative")
    (identity.base / "workspace").symlink_to(identity.workspace)
    servers.listen("socks/by a link", by_name=str(identity.base / "workspace/socks/by a link"))
    daemon = start_daemon(settings=allowing("./socks", "./swapped"))
    assert daemon.run("run", "--", "python3", "-I", "-S", "-c", INSIDE + EARLIER).returncode == 0
    done = daemon.run("run", "--", "python3", "-I", "-S", "-c", INSIDE + LATER)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["EACCES"] * 6, ["connected"] * 3]
    assert servers.reached() == ["socks/there", "socks/relative", "socks/by a link"]


if os.geteuid() == 0:  # other users cannot mount anything

    def test_the_other_name_of_a_writable_place_opens_no_more(
        start_daemon: StartDaemon, identity: Identity, servers: Servers
    ) -> None:
        """A bind mount that only its own name is read-only under. In a namespace of this thread."""
        alias = identity.base / "alias"
        alias.mkdir()
        servers.listen("out/x")
        servers.listen("inner/there")
        code = """
os.link("out/x", "inner/x")
listen("inner/own")
print(json.dumps([attempt(sys.argv[1] + "/" + name) for name in ("x", "there", "own")]))
"""
        found: list[subprocess.CompletedProcess[str]] = []

        def in_a_namespace() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
            assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE
            assert libc.mount(os.fsencode(identity.workspace / "inner"), os.fsencode(alias), None, 0x1000, None) == 0
            daemon = start_daemon(settings=allowing(str(alias)))
            found.append(daemon.run("run", "--", "python3", "-I", "-S", "-c", INSIDE + code, str(alias)))
            daemon.stop()

        thread = threading.Thread(target=in_a_namespace)
        thread.start()
        thread.join()
        [done] = found
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == ["EACCES", "connected", "connected"]
        assert servers.reached() == ["inner/there"]


def test_commands_of_one_session_reach_each_other(daemon: DaemonProcess) -> None:
    """By default, in `/tmp` and in the workspace; those of another session do not. Abstract names are the command's."""
    names = f"'/tmp/sdt-{secrets.token_hex(8)}', 's', '\\0s'"
    server = f"for one in {names}: listen(one)\nprint('ready', flush=True); sys.stdin.readline()"
    client = f"print('ready', flush=True); sys.stdin.readline(); print(*map(attempt, ({names})))"
    code = """
import subprocess, sys
from sandboxd_client import Client
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
def start(box, code):
    one = box.spawn(["python3", "-I", "-S", "-c", code], **pipes)
    one.stdout.readline()
    return one
with Client(autostart=False) as box, Client(autostart=False) as another:
    server = start(box, sys.argv[1])
    for one in box, another: print(start(one, sys.argv[2]).communicate(b"\\n")[0].decode())
    server.communicate(b"\\n")
"""
    done = daemon.python(code, INSIDE + server, INSIDE + client)
    assert done.stdout.split() == [*["connected"] * 2, "ECONNREFUSED", "ENOENT", "EACCES", "ECONNREFUSED"], done.stderr
