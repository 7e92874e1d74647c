"""The families FS, RD and PR of the conformance list, as one program that tries everything twice: on files that are
denied, where each attempt has to fail and the host must not change, and on their twins, where each has to succeed."""

from __future__ import annotations

import json
import os
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
    "FS-01 open": lambda d: write(d + "/a"),
    "FS-01 create": lambda d: write(d + "/new", os.O_WRONLY | os.O_CREAT),
    "FS-01 mkdir": lambda d: os.mkdir(d + "/newdir"),
    "FS-02 through a link": lambda d: write(link("../" + d + "/a")),
    "FS-03 through two": lambda d: write(link("../" + link("../" + d + "/a"))),
    "FS-07 link into": lambda d: os.link("ways/file", d + "/linked"),
    "FS-09 rename over": lambda d: (shutil.copy("ways/file", "ways/f1"), os.rename("ways/f1", d + "/b")),
    "FS-09 rename into": lambda d: (shutil.copy("ways/file", "ways/f2"), renameat2("ways/f2", d + "/n2", 1)),
    "FS-09 exchange": lambda d: (shutil.copy("ways/file", "ways/f3"), renameat2("ways/f3", d + "/c", 2)),
    "FS-09 rename away": lambda d: (os.rename(d + "/e", "ways/e"), os.rename("ways/e", d + "/e")),
    "FS-12 rename the directory": lambda d: (os.rename(d, d + "2"), os.rename(d + "2", d)),
    "FS-12 rename one in it": lambda d: os.rename(d + "/sub", d + "/sub2"),
    "FS-13 remove and make again": lambda d: remade(d + "/g"),
    "FS-16 a late link": lambda d: os.symlink("../ways/file", d + "/late"),
    "FS-17 truncate": lambda d: os.truncate(d + "/a", 1),
    "FS-17 O_TRUNC": lambda d: write(d + "/a", os.O_WRONLY | os.O_TRUNC),
    "FS-17 append": lambda d: write(d + "/a", os.O_WRONLY | os.O_APPEND),
    "FS-17 fallocate": lambda d: os.posix_fallocate(os.open(d + "/a", os.O_WRONLY), 0, 100),
    "FS-17 copy_file_range": lambda d: os.copy_file_range(source(), os.open(d + "/a", os.O_WRONLY), 4),
    "FS-17 sendfile": lambda d: os.sendfile(os.open(d + "/a", os.O_WRONLY), source(), 0, 4),
    "FS-17 splice": lambda d: spliced(d + "/a"),
    "FS-18 chmod": lambda d: os.chmod(d + "/a", 0o640),
    "FS-18 fchmod": lambda d: os.fchmod(os.open(d + "/a", os.O_RDONLY), 0o644),
    "FS-18 chown": lambda d: os.chown(d + "/a", os.getuid(), os.getgid()),
    "FS-18 utimes": lambda d: os.utime(d + "/a", (1, 1)),
    "FS-18 setxattr": lambda d: os.setxattr(d + "/a", "user.x", b"x"),
    "FS-18 inode flags": lambda d: flags(d + "/a"),
    "FS-19 mapped": lambda d: mapped(d + "/a"),
    "FS-22 dots": lambda d: write(d + "/./sub2/../a"),
    "FS-22 slashes": lambda d: write(os.getcwd().replace("/", "//") + "//" + d + "///a"),
    "FS-31 fifo": lambda d: os.mkfifo(d + "/fifo"),
    "FS-31 socket": lambda d: os.mknod(d + "/socket", 0o140600),
    "RD-06 a descriptor that reads": lambda d: through_descriptor(d + "/a"),
    "PR-01 another name of the root": lambda d: write("/proc/self/root" + os.getcwd() + "/" + d + "/a"),
}
ALWAYS = {
    "FS-31 block device": lambda d: os.mknod(d + "/block", 0o60600, os.makedev(8, 0)),
    "FS-31 character device": lambda d: os.mknod(d + "/char", 0o20600, os.makedev(1, 1)),
    "PR-05 mount": lambda d: call(libc.mount(b"none", d.encode(), b"tmpfs", 0, None)),
    "PR-05 umount": lambda d: call(libc.umount2(b"closed", 2)),
    "PR-05 user namespace": lambda d: call(libc.unshare(0x10000000)),
    "PR-15 setuid": lambda d: os.setuid(12345),
    "PR-02 the owner": lambda d: os.kill(int(sys.argv[1]), 0),
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
    "RD-01 open": lambda d: open(d + "/a").read(),
    "RD-01 list": lambda d: os.listdir(d),
    "RD-01 stat": lambda d: os.stat(d + "/a"),
    "RD-01 access": lambda d: access(d + "/a"),
    "RD-01 readlink": lambda d: os.readlink(d + "/link"),
    "RD-01 xattr": lambda d: os.listxattr(d + "/a"),
    "RD-01 inotify": lambda d: call(libc.inotify_add_watch(libc.inotify_init1(0), d.encode(), 0x100)),
    "RD-01 open to walk": lambda d: os.open("a", os.O_RDONLY, dir_fd=os.open(d, os.O_PATH)),
    "RD-01 execute": lambda d: os.posix_spawn(d + "/program", ["program"], {}),
    "RD-05 hard link": lambda d: os.link(d + "/a", "other-" + d),
    "RD-05 move": moved,
    "RD-05 the root": lambda d: open("/proc/self/root" + os.getcwd() + "/" + d + "/a").read(),
    "RD-05 the working directory": lambda d: open("/proc/self/cwd/" + d + "/a").read(),
    "RD-08 open it up": lambda d: (os.chmod(d, 0o755), os.listdir(d)),
    "RD-08 a file in it": lambda d: open(d + "/mine", "w").close(),
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
    """FS-34."""
    (daemon.identity.workspace / "d").mkdir()
    daemon.identity.own(daemon.identity.workspace / "d")
    script = "mkdir e && cd e && rmdir ../e && ! ls ../e 2>/dev/null; echo x > /tmp/still && cat /tmp/still"
    assert daemon.run("run", "-c", script, cwd=daemon.identity.workspace / "d").stdout == "x\n"


def test_fs45_a_temporary_directory_that_is_turned_into_a_link(daemon: DaemonProcess) -> None:
    """FS-45."""
    script = "rm -rf $TMPDIR/* ; rmdir $TMPDIR; mv $TMPDIR x; ln -sfn / $TMPDIR/link; echo 1 > $TMPDIR/f; cat /tmp/f"
    assert daemon.run("run", "-c", script).stdout == "1\n"
    assert daemon.run("run", "-c", "echo 2 > $TMPDIR/f; cat /tmp/f").stdout == "2\n"


def test_other_names_of_a_denied_file_are_reported(daemon: DaemonProcess) -> None:
    """FS-08: a hard link that was there before is another name, which no mount covers (docs/files.md): a warning says
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


def test_a_file_that_is_only_read_can_be_opened_outside_at_any_time(daemon: DaemonProcess) -> None:
    """A lease (fcntl_locking(2), F_SETLEASE) takes no right to write, and lets whoever opens the file wait for 45 s."""
    file = daemon.identity.write(daemon.identity.home / "notes", "text")
    argv = ["python3", "-I", "-S", "-c", LEASE, str(file)]
    command = daemon.popen("run", "--", *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert command.stdin is not None and command.stdout is not None
    with command:
        said = [command.stdout.readline() for _ in range(2)]
        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))  # EAGAIN while there is a lease
        command.stdin.close()
    assert said == [b"Operation not permitted\n", b"True\n"] and command.returncode == 0
