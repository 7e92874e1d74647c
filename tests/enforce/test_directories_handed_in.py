"""Names by directories that a server outside hands in (SCM_RIGHTS).

None is made, removed or moved outside writable places. The oracle is the host, the twin a place that can be written.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.hands import Hands
from support.users import Identity

INSIDE = r"""
import ctypes, errno, json, os, signal, socket, sys, threading
signal.alarm(30)
hands, place, above, here = sys.argv[1], *map(os.fsencode, sys.argv[2:5])
if sys.argv[5] == "threads": threading.Thread(target=threading.Event().wait, daemon=True).start()
libc = ctypes.CDLL(None, use_errno=True)
def received(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(hands)
        one.sendall(path + b"\n")
        return socket.recv_fds(one, 10, 1)[1][0]
given, over, own = received(place), received(above), os.open(".", os.O_RDONLY)
inside = os.path.relpath(here, above)
def written(name, flags):
    fd = os.open(name, flags | os.O_WRONLY, 0o600, dir_fd=given)
    os.close(fd)
def temporary():
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600, dir_fd=given)
    if libc.linkat(fd, b"", given, b"linked", 0x1000): raise OSError(ctypes.get_errno(), "")
def exchanged():
    if libc.renameat2(given, b"file", own, b"mine", 2): raise OSError(ctypes.get_errno(), "")
def listens():
    os.fchdir(given)
    try:
        with socket.socket(socket.AF_UNIX) as one: one.bind("socket")
    finally: os.fchdir(own)
def way(path):
    os.fchdir(given)
    try: os.mkdir(path)
    finally: os.fchdir(own)
open("mine", "w").close(); open("second", "w").close()
attempts = {
    "create": lambda: written("made", os.O_CREAT | os.O_EXCL), "write": lambda: written("file", 0),
    "empty": lambda: written("file", os.O_TRUNC), "temporary": temporary,
    "mkdir": lambda: os.mkdir("made.d", dir_fd=given), "mkdir below": lambda: os.mkdir("full/made", dir_fd=given),
    "mkdir there": lambda: way("there"), "mkdir by number": lambda: os.mkdir(f"/proc/self/fd/{given}/numbered"),
    "symlink": lambda: os.symlink("/", "made.l", dir_fd=given),
    "fifo": lambda: os.mkfifo("made.p", dir_fd=given), "bind": listens,
    "link": lambda: os.link("file", "made.h", src_dir_fd=given, dst_dir_fd=given),
    "rename": lambda: os.rename("one", "renamed", src_dir_fd=given, dst_dir_fd=given),
    "rename below": lambda: os.rename("two", "full/two", src_dir_fd=given, dst_dir_fd=given),
    "replace": lambda: os.replace("three", "four", src_dir_fd=given, dst_dir_fd=given),
    "unlink": lambda: os.unlink("five", dir_fd=given), "rmdir": lambda: os.rmdir("empty", dir_fd=given),
    "take": lambda: os.rename(place.removeprefix(above + b"/") + b"/full", inside + b"/taken",
                              src_dir_fd=over, dst_dir_fd=over),
    "bring": lambda: os.rename(inside + b"/second", place.removeprefix(above + b"/") + b"/brought",
                               src_dir_fd=over, dst_dir_fd=over),
    "link out": lambda: os.link(inside + b"/mine", place.removeprefix(above + b"/") + b"/out",
                                src_dir_fd=over, dst_dir_fd=over),
}
# Other mounts of the same file system, as before.
borders = {"exchange": exchanged, "mv": lambda: os.rename("mine", "moved", src_dir_fd=own, dst_dir_fd=given)}
def tried(attempt):
    try: return attempt() or "done"
    except OSError as error: return errno.errorcode[error.errno]
print(json.dumps([{name: tried(attempt) for name, attempt in some.items()} for some in (attempts, borders)]))
"""


def furnish(identity: Identity, place: Path) -> Path:
    place.mkdir()
    identity.own(place)
    for name in ("full", "empty"):
        (place / name).mkdir()
        identity.own(place / name)
    for name in ("file", "one", "two", "three", "four", "five", "full/kept"):
        identity.write(place / name, "keep me")
    return place


def contents(place: Path) -> dict[str, object]:
    return {str(path.relative_to(place)): path.is_file() and path.read_text() for path in place.rglob("*")}


def run(daemon: DaemonProcess, hands: Hands, place: Path, kind: str, *options: str) -> tuple[list[dict[str, str]], str]:
    words = [hands.path, str(place), str(place.parent), str(daemon.identity.workspace), kind]
    argv = ["run", "--show-violations", *options, "--", "python3", "-I", "-S", "-c", INSIDE, *words]
    done = daemon.run(*argv)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("kind", ["alone", "threads"])
def test_a_directory_handed_in_changes_no_name_outside(
    start_daemon: StartDaemon, identity: Identity, hands: Hands, kind: str
) -> None:
    """The descriptor leads to the mounts of the host.

    With threads a child of the helper binds Unix sockets, as confined as the command.
    """
    daemon = start_daemon(settings={"sandbox": {"network": {"allowUnixSockets": [hands.path]}}})
    places = ("outside", ".listed")  # a hidden one is no zone, where only the helper makes names
    outside, listed = (furnish(identity, identity.base / name) for name in places)
    before = contents(outside)
    (refused, borders), said = run(daemon, hands, outside, kind)
    assert contents(outside) == before
    assert set(refused.values()) == {"EACCES"} or set(refused.values()) == {"EACCES", "EXDEV"}, refused
    assert {name for name, result in refused.items() if result == "EXDEV"} <= {"take", "bring", "link out"}
    assert set(borders.values()) == {"EXDEV"}
    assert str(outside / "made.d") in said and str(outside / "five") in said, said

    for name in ("mine", "second"):
        (identity.workspace / name).unlink(missing_ok=True)
    (allowed, borders), said = run(daemon, hands, listed, kind, "--allow-write", str(listed))
    refused = {name: how for name, how in allowed.items() if how != "done"}
    zone = {"take": "EACCES", "bring": "EACCES", "link out": "EXDEV"}  # to and from the workspace, which is one
    assert refused == zone, (allowed, said)
    assert set(borders.values()) == {"EXDEV"} and str(listed) not in said
    made = "made made.d made.l made.p made.h linked numbered there socket renamed"
    assert set(made.split()) <= set(os.listdir(listed))
    assert not {"one", "five", "empty"} & set(os.listdir(listed))


ORDINARY = r"""
import errno, json, os, shutil, subprocess, sys
places = [place + "/" + sys.argv[1] for place in sys.argv[2:]]  # with the beginning of a name: other programs use /tmp
def tried(attempt):
    try: attempt(); return "done"
    except OSError as error: return errno.errorcode[error.errno]
def within(place):  # as npm and git rename: a temporary name, a directory over an empty one, from one to another
    os.makedirs(place + "a/b"); os.makedirs(place + "c"); os.mkdir(place + "c/b")
    open(place + "a/b/f", "w").close()
    os.rename(place + "a/b", place + "c/b"); os.link(place + "c/b/f", place + "a/g")
    os.replace(place + "a/g", place + "c/h"); os.symlink("h", place + "c/i"); os.rename(place + "c/i", place + "i")
    os.mkfifo(place + "a/p"); os.rename(place + "a/p", place + "p"); os.unlink(place + "p"); os.unlink(place + "i")
    shutil.rmtree(place + "a"); shutil.rmtree(place + "c")
def between(one, other):
    with open(one + "x", "w") as file: file.write("x")
    os.mkdir(one + "d")
    said = tried(lambda: os.rename(one + "x", other + "x"))
    shutil.move(one + "d", other + "d"); os.rmdir(other + "d")
    os.unlink((other if said == "done" else one) + "x")
    return said
out = {place: tried(lambda: within(place)) for place in places}
out["between"] = sorted({between(a, b) for a in places for b in places if a != b})
print(json.dumps(out))
"""


def test_renames_in_and_between_writable_places_go_on(start_daemon: StartDaemon, identity: Identity) -> None:
    """The places are the workspace, /tmp, $TMPDIR, /dev/shm, a listed directory."""
    daemon = start_daemon()
    listed = identity.base / "listed"
    listed.mkdir()
    identity.own(listed)
    line = f'exec python3 -I -S -c "$0" sdt-{secrets.token_hex(8)} . /tmp $TMPDIR/. /dev/shm {listed}'
    done = daemon.run("run", "--show-violations", "--allow-write", str(listed), "--", "sh", "-c", line, ORDINARY)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "EXDEV" in said["between"] and set(said.pop("between")) <= {"EXDEV", "done"}
    assert set(said.values()) == {"done"} and len(said) == 5 and done.stderr == ""
    git = """set -e; git init -q r; cd r; git config user.email a@b; git config user.name a
        mkdir -p a/b; echo 1 > a/b/f
        git add .; git commit -qm one; git mv a/b/f a/g; git commit -qam two; git checkout -qb other HEAD~1; echo 2 > n
        git add n; git stash -q; git stash pop -q
        git commit -qam three; git rebase -q master || git rebase -q main
        git gc -q; git worktree add -q ../w; git log --oneline | wc -l"""
    done = daemon.run("run", "--", "sh", "-c", git)
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr
