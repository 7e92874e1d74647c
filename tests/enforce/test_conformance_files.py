"""The families FS, RD and PR of the conformance list, as one program that tries everything twice: on files that are
denied, where each attempt has to fail and the host must not change, and on their twins, where each has to succeed."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.bubblewrap import each_bubblewrap
from support.daemons import DaemonProcess, StartDaemon
from support.snapshot import describe_tree
from support.users import Identity

pytestmark = each_bubblewrap

WRITES = r"""
import ctypes, errno, fcntl, json, mmap, os, shutil, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result < 0: raise OSError(ctypes.get_errno(), "call")
def renameat2(a, b, flags): call(libc.renameat2(-100, a.encode(), -100, b.encode(), flags))
def write(path, flags=os.O_WRONLY):
    fd = os.open(path, flags)
    os.write(fd, b"x"); os.close(fd)
def source():
    with open("ways/source", "wb") as f: f.write(b"xxxx")
    return os.open("ways/source", os.O_RDONLY)
def link(text):
    name = "ways/" + str(len(os.listdir("ways")))
    os.symlink(text, name)
    return name
def mapped(path):
    fd = os.open(path, os.O_RDWR)
    mmap.mmap(fd, 1)[0] = 120
def spliced(path):
    r, w = os.pipe(); os.write(w, b"x")
    os.splice(r, os.open(path, os.O_WRONLY), 1)
def flags(path):
    fd = os.open(path, os.O_RDONLY)
    old = fcntl.ioctl(fd, 0x80086601, struct.pack("L", 0))
    fcntl.ioctl(fd, 0x40086602, struct.pack("L", struct.unpack("L", old)[0] | 0x80))
def remade(path): os.unlink(path); open(path, "w").close()
def through_descriptor(path):
    write("/proc/self/fd/%d" % os.open(path, os.O_RDONLY))
OPERATIONS = {
    "write: open": lambda d: write(d + "/a"),
    "write: create": lambda d: write(d + "/new", os.O_WRONLY | os.O_CREAT),
    "write: mkdir": lambda d: os.mkdir(d + "/newdir"),
    "write: through a link": lambda d: write(link("../" + d + "/a")),
    "write: through two": lambda d: write(link("../" + link("../" + d + "/a"))),
    "write: link into": lambda d: os.link("ways/file", d + "/linked"),
    "write: rename over": lambda d: (shutil.copy("ways/file", "ways/f1"), os.rename("ways/f1", d + "/b")),
    "write: rename into": lambda d: (shutil.copy("ways/file", "ways/f2"), renameat2("ways/f2", d + "/n2", 1)),
    "write: exchange": lambda d: (shutil.copy("ways/file", "ways/f3"), renameat2("ways/f3", d + "/c", 2)),
    "write: rename away": lambda d: (os.rename(d + "/e", "ways/e"), os.rename("ways/e", d + "/e")),
    "write: rename the directory": lambda d: (os.rename(d, d + "2"), os.rename(d + "2", d)),
    "write: rename one in it": lambda d: os.rename(d + "/sub", d + "/sub2"),
    "write: remove and make again": lambda d: remade(d + "/g"),
    "write: a late link": lambda d: os.symlink("../ways/file", d + "/late"),
    "write: truncate": lambda d: os.truncate(d + "/a", 1),
    "write: O_TRUNC": lambda d: write(d + "/a", os.O_WRONLY | os.O_TRUNC),
    "write: append": lambda d: write(d + "/a", os.O_WRONLY | os.O_APPEND),
    "write: fallocate": lambda d: os.posix_fallocate(os.open(d + "/a", os.O_WRONLY), 0, 100),
    "write: copy_file_range": lambda d: os.copy_file_range(source(), os.open(d + "/a", os.O_WRONLY), 4),
    "write: sendfile": lambda d: os.sendfile(os.open(d + "/a", os.O_WRONLY), source(), 0, 4),
    "write: splice": lambda d: spliced(d + "/a"),
    "write: chmod": lambda d: os.chmod(d + "/a", 0o640),
    "write: fchmod": lambda d: os.fchmod(os.open(d + "/a", os.O_RDONLY), 0o644),
    "write: chown": lambda d: os.chown(d + "/a", os.getuid(), os.getgid()),
    "write: utimes": lambda d: os.utime(d + "/a", (1, 1)),
    "write: setxattr": lambda d: os.setxattr(d + "/a", "user.x", b"x"),
    "write: inode flags": lambda d: flags(d + "/a"),
    "write: mapped": lambda d: mapped(d + "/a"),
    "write: dots": lambda d: write(d + "/./sub2/../a"),
    "write: slashes": lambda d: write(os.getcwd().replace("/", "//") + "//" + d + "///a"),
    "write: fifo": lambda d: os.mkfifo(d + "/fifo"),
    "write: socket": lambda d: os.mknod(d + "/socket", 0o140600),
    "read: a descriptor that reads": lambda d: through_descriptor(d + "/a"),
    "process: another name of the root": lambda d: write("/proc/self/root" + os.getcwd() + "/" + d + "/a"),
}
ALWAYS = {
    "write: block device": lambda d: os.mknod(d + "/block", 0o60600, os.makedev(8, 0)),
    "write: character device": lambda d: os.mknod(d + "/char", 0o20600, os.makedev(1, 1)),
    "process: mount": lambda d: call(libc.mount(b"none", d.encode(), b"tmpfs", 0, None)),
    "process: umount": lambda d: call(libc.umount2(b"closed", 2)),
    "process: user namespace": lambda d: call(libc.unshare(0x10000000)),
    "process: setuid": lambda d: os.setuid(12345),
    "process: the owner": lambda d: os.kill(int(sys.argv[1]), 0),
}
os.mkdir("ways"); open("ways/file", "w").close()
done = {}
for name, operation in OPERATIONS.items():
    for directory in ("closed", "free"):
        try: operation(directory); done[directory + " " + name] = "done"
        except OSError as error: done[directory + " " + name] = errno.errorcode[error.errno]
for name, operation in ALWAYS.items():
    try: operation("free"); done["never " + name] = "done"
    except OSError as error: done["never " + name] = errno.errorcode[error.errno]
print(json.dumps(done))
"""

READS = r"""
import ctypes, errno, json, os
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result < 0: raise OSError(ctypes.get_errno(), "call")
def access(path):
    if not os.access(path, os.R_OK): raise PermissionError(errno.EACCES, "access")
def moved(d): os.rename(d + "/b", "taken"); open("taken").read()
OPERATIONS = {
    "read: open": lambda d: open(d + "/a").read(),
    "read: list": lambda d: os.listdir(d),
    "read: stat": lambda d: os.stat(d + "/a"),
    "read: access": lambda d: access(d + "/a"),
    "read: readlink": lambda d: os.readlink(d + "/link"),
    "read: xattr": lambda d: os.listxattr(d + "/a"),
    "read: inotify": lambda d: call(libc.inotify_add_watch(libc.inotify_init1(0), d.encode(), 0x100)),
    "read: open to walk": lambda d: os.open("a", os.O_RDONLY, dir_fd=os.open(d, os.O_PATH)),
    "read: execute": lambda d: os.posix_spawn(d + "/program", ["program"], {}),
    "read: hard link": lambda d: os.link(d + "/a", "other-" + d),
    "read: move": moved,
    "read: the root": lambda d: open("/proc/self/root" + os.getcwd() + "/" + d + "/a").read(),
    "read: the working directory": lambda d: open("/proc/self/cwd/" + d + "/a").read(),
    "read: open it up": lambda d: (os.chmod(d, 0o755), os.listdir(d)),
    "read: a file in it": lambda d: open(d + "/mine", "w").close(),
}
done = {}
for name, operation in OPERATIONS.items():
    for directory in ("secret", "free"):
        try: operation(directory); done[directory + " " + name] = "done"
        except OSError as error: done[directory + " " + name] = errno.errorcode[error.errno]
print(json.dumps(done))
"""


def fill(identity: Identity, name: str) -> Path:
    for file in "abcefg":
        identity.write(identity.workspace / name / file, f"{file} of it\n")
    identity.write(identity.workspace / name / "sub" / "file", "in it\n")
    identity.write(identity.workspace / name / "program", "#!/bin/sh\n", mode=0o755)
    (identity.workspace / name / "link").symlink_to("a")
    return identity.workspace / name


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> DaemonProcess:
    return start_daemon(settings={"sandbox": {"filesystem": {"denyWrite": ["./closed"], "denyRead": ["./secret"]}}})


def attempt(daemon: DaemonProcess, program: str, *words: str) -> dict[str, Any]:
    done = daemon.run("run", "--", "python3", "-I", "-S", "-c", program, *words)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_what_is_closed_cannot_be_changed(daemon: DaemonProcess) -> None:
    closed = fill(daemon.identity, "closed")
    fill(daemon.identity, "free")
    before = describe_tree(closed)
    said = attempt(daemon, WRITES, str(daemon.pid))
    assert [name for name, result in said.items() if name.startswith(("closed", "never")) and result == "done"] == []
    assert describe_tree(closed) == before
    assert {name: result for name, result in said.items() if name.startswith("free") and result != "done"} == {}


def test_what_is_secret_cannot_be_read(daemon: DaemonProcess) -> None:
    secret = fill(daemon.identity, "secret")
    fill(daemon.identity, "free")
    before = describe_tree(secret)
    said = attempt(daemon, READS)
    assert [name for name, result in said.items() if name.startswith("secret") and result == "done"] == []
    assert describe_tree(secret) == before
    assert {name: result for name, result in said.items() if name.startswith("free") and result != "done"} == {}


def test_fs34_a_working_directory_that_goes(daemon: DaemonProcess) -> None:
    (daemon.identity.workspace / "d").mkdir()
    daemon.identity.own(daemon.identity.workspace / "d")
    still = f"/tmp/sdt-{secrets.token_hex(8)}"
    script = f"mkdir e && cd e && rmdir ../e && ! ls ../e 2>/dev/null; echo x > {still} && cat {still}"
    assert daemon.run("run", "-c", script, cwd=daemon.identity.workspace / "d").stdout == "x\n"
    assert not Path(still).exists()


def test_fs45_a_temporary_directory_that_is_turned_into_a_link(daemon: DaemonProcess) -> None:
    script = "rm -rf $TMPDIR/* ; rmdir $TMPDIR; mv $TMPDIR x; ln -sfn / $TMPDIR/link; echo 1 > $TMPDIR/f; cat $TMPDIR/f"
    assert daemon.run("run", "-c", script).stdout == "1\n"
    assert daemon.run("run", "-c", "echo 2 > $TMPDIR/f; cat $TMPDIR/f").stdout == "2\n"


def test_other_names_of_a_denied_file_are_reported(daemon: DaemonProcess) -> None:
    """A hard link that was there before is another name, which no mount covers (docs/files.md): a warning says
    how many there are. Where there is one name there is no warning."""
    workspace = daemon.identity.workspace
    secret = daemon.identity.write(workspace / "secret", "s")
    daemon.identity.write(workspace / "closed", "one name")
    (workspace / "other").hardlink_to(secret)
    code = "from sandboxd_client import Client\nprint(*Client(autostart=False).wrap(argv=['true'], cwd='.').warnings)"
    said = daemon.python(code, cwd=workspace).stdout
    assert said == f"{secret} has 2 names (hard links); only this one is denied\n"


# Takes a lease on argv[1] and says how that went; then waits for its standard input to end.
LEASE = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(file, fcntl.LOCK_SH)
try:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print("granted", flush=True)
except OSError as error:
    print(os.strerror(error.errno), flush=True)
print(fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_UNLCK, flush=True)
sys.stdin.read()
"""


def test_a_read_only_file_can_be_opened_outside_at_any_time(daemon: DaemonProcess) -> None:
    """A lease (fcntl_locking(2), F_SETLEASE) takes no right to write, and delays other openers of the file by 45 s."""
    file = daemon.identity.write(daemon.identity.home / "notes", "text")
    argv = ["python3", "-I", "-S", "-c", LEASE, str(file)]
    command = daemon.popen("run", "--", *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert command.stdin is not None and command.stdout is not None
    with command:
        said = [command.stdout.readline() for _ in range(2)]
        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))  # EAGAIN while there is a lease
        command.stdin.close()
    assert said == [b"Operation not permitted\n", b"True\n"] and command.returncode == 0
