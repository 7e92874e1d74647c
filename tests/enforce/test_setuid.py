"""No set-user-ID program is left behind by a command: running one gives the rights of its owner."""

from __future__ import annotations

import json
import stat

from support.daemons import DaemonProcess

ATTEMPTS = """
import ctypes, json, os, shutil, struct
libc = ctypes.CDLL(None, use_errno=True)
def openat2(mode):
    how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, mode, 0)
    if libc.syscall(437, -100, b"by-openat2", how, 24) < 0: raise OSError(ctypes.get_errno(), "openat2")
shutil.copy("/bin/true", "program")
program = os.open("program", os.O_RDONLY)
attempts = {
    "chmod": lambda: os.chmod("program", 0o4755), "fchmod": lambda: os.fchmod(program, 0o6755),
    "fchmodat": lambda: os.chmod("program", 0o4755, dir_fd=os.open(".", os.O_RDONLY)),
    "open": lambda: os.open("by-open", os.O_CREAT | os.O_WRONLY, 0o4755), "openat2": lambda: openat2(0o4755),
    "tmpfile": lambda: os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o4755),
    "mknod": lambda: os.mknod("by-mknod", 0o104755), "mkdir": lambda: os.mkdir("by-mkdir", 0o4755),
    "setgid": lambda: (os.mkdir("shared"), os.chmod("shared", 0o2775)), "ordinary": lambda: os.chmod("program", 0o700),
}
done = {}
for name, attempt in attempts.items():
    try: attempt(); done[name] = "done"
    except OSError as error: done[name] = os.strerror(error.errno)
print(json.dumps(done))
"""


def test_every_way_to_make_one_is_refused(daemon: DaemonProcess) -> None:
    workspace = daemon.identity.workspace
    done = json.loads(daemon.run("run", "--", "python3", "-c", ATTEMPTS).stdout)
    assert {name for name, said in done.items() if said == "done"} == {
        "chmod",
        "fchmod",
        "fchmodat",
        "mkdir",
        "setgid",
        "ordinary",
    }, done  # the first three without the bit
    assert not [path for path in workspace.rglob("*") if path.stat().st_mode & stat.S_ISUID]
    assert (workspace / "shared").stat().st_mode & stat.S_ISGID


def test_ordinary_work_does_not_notice(daemon: DaemonProcess) -> None:
    """An archive with such a program in it, such as a root file system."""
    workspace = daemon.identity.workspace
    program = daemon.identity.write(workspace / "rootfs" / "su", "x", mode=0o755)
    program.chmod(0o4755)
    unpack = "tar cf a.tar rootfs && mkdir out && tar xf a.tar --no-same-permissions -C out"
    done = daemon.run("run", "-c", f"git init -q --shared repo && {unpack}")
    assert done.returncode == 0, done.stderr
    assert (workspace / "out" / "rootfs" / "su").stat().st_mode & 0o7777 == 0o755
