"""Results of calls that make names: the same with the guard as from the kernel alone."""

from __future__ import annotations

import re
from typing import Any

from .conftest import Launcher
from .test_guard import tried

# Prints what came of each call: an error, or what is there afterwards. Descriptors are given by their flags.
OBSERVE = """
import contextlib, ctypes, errno, fcntl, itertools, json, os, resource, shutil, socket, stat, struct, sys
os.mkdir(sys.argv[1]); os.chdir(sys.argv[1])
libc, seen, place = ctypes.CDLL(None, use_errno=True), {}, itertools.count()
NAMES = ("file", "dir", "link", "dangling", "loop", "fifo", "dirlink", "absent", "out")
def checked(result):
    if result < 0: raise OSError(ctypes.get_errno(), "")
    return result
def renameat2(old, new, flags): checked(libc.renameat2(-100, old.encode(), -100, new.encode(), flags))
def fresh():
    os.mkdir(here := f"d{next(place)}"); os.chdir(here)
    with open("file", "w") as file: file.write("text")
    os.mkdir("dir"); os.symlink("file", "link"); os.symlink("absent", "dangling"); os.symlink("loop", "loop")
    os.mkfifo("fifo"); os.symlink("dir", "dirlink"); open("dir/in", "w").close()
def state():
    found = {}
    inside = [f"dir/{one}" for one in os.listdir("dir")] if os.path.isdir("dir") else []
    for name in os.listdir(".") + inside:
        is_ = os.lstat(name)
        found[name] = [oct(is_.st_mode), is_.st_size if stat.S_ISREG(is_.st_mode) else 0, is_.st_nlink]
    return found
def note(label, call):
    fresh(); mask = os.umask(0o022); os.umask(mask)
    before = state()
    try: result = call()
    except OSError as error: result = errno.errorcode.get(error.errno, error.errno)
    os.umask(mask)
    if isinstance(result, int) and result > 2:
        fd = result
        result = [oct(fcntl.fcntl(fd, fcntl.F_GETFL)), fcntl.fcntl(fd, fcntl.F_GETFD)]; os.close(fd)
    after = state()
    changed = [name for name in sorted(before | after) if before.get(name) != after.get(name)]
    seen[label] = [result, {name: after.get(name) for name in changed}]
    os.chdir("..")

# opens
FLAGS = ("O_EXCL", "O_TRUNC", "O_APPEND", "O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_PATH", "O_TMPFILE", "O_SYNC")
TARGETS = ("absent", "file", "dir", "link", "dangling", "loop", "fifo", "absent/", "file/", "dirlink/absent", "file/x",
           "none/x", "dir/", ".", "..", "dirlink", "./dir/../absent")
for way, most in (("O_RDONLY", 1), ("O_WRONLY", 1), ("O_RDWR", 2)):
    for some in itertools.chain(*(itertools.combinations(FLAGS[:9 if n < 2 else 6], n) for n in range(most + 1))):
        flags = os.O_CREAT | os.O_NONBLOCK | getattr(os, way)
        for one in some: flags |= getattr(os, one)
        for target in TARGETS:
            note(f"open {target} {way} {' '.join(some)}", lambda: os.open(target, flags, 0o666))
            old = flags & ~os.O_CREAT
            if len(some) < 2: note(f"open old {target} {way} {' '.join(some)}", lambda: os.open(target, old, 0o666))
# names
PATHS = ("absent", "absent/", "absent/.", "absent/..", "", ".", "..", "/", "file", "file/", "dir", "dir/", "link",
         "link/", "dangling", "dangling/", "loop/x", "file/x", "none/x", "dirlink/x", "dirlink/", "n" * 255, "n" * 256,
         "a//b", "dir//x", "./x", "x\\ny", "/proc/self/cwd/x", "/proc/thread-self/cwd/x", "/dev/fd/x",
         "../" * 60 + "x", "n/" * 2048)
MAKE = {
    "mkdir": lambda path: os.mkdir(path, 0o777), "sticky": lambda path: os.mkdir(path, 0o1777),
    "mknod": lambda path: os.mknod(path, 0o666), "mkfifo": lambda path: os.mkfifo(path, 0o666),
    "device": lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, 0x103),
    "symlink": lambda path: os.symlink("any", path), "empty": lambda path: os.symlink("", path),
    "link": lambda path: os.link("file", path), "linkdir": lambda path: os.link("dir", path),
    "linklink": lambda path: os.link("link", path, follow_symlinks=False),
    "linknone": lambda path: os.link("none", path), "rename": lambda path: os.rename("file", path),
    "renamedir": lambda path: os.rename("dir", path), "renamelink": lambda path: os.rename("link", path),
    "away": lambda path: os.rename(path, "new"), "unlink": os.unlink, "rmdir": os.rmdir,
    "truncate": lambda path: os.truncate(path, 1), "creat": lambda path: os.open(path, os.O_CREAT | os.O_WRONLY),
}
for (verb, make), path in itertools.product(MAKE.items(), PATHS):
    note(f"{verb} {path[:20]} {len(path)}", lambda: make(path))
for mask, (verb, make) in itertools.product((0, 0o027, 0o077, 0o777), MAKE.items()):
    def masked(make=make, mask=mask): os.umask(mask); return make("absent")
    note(f"{verb} with {mask:o}", masked)
# renames with flags
for flags, old, new in itertools.product((1, 2, 3, 4), NAMES[:5], NAMES):
    note(f"renameat2 {old} {new} {flags}", lambda: renameat2(old, new, flags))
# descriptors of directories, and none
note("at a file", lambda: os.mkdir("x", dir_fd=os.open("file", 0)))
note("at a closed one", lambda: os.mkdir("x", dir_fd=99))
note("absolute at a closed one", lambda: os.open(os.getcwd() + "/x", os.O_CREAT | os.O_RDWR, dir_fd=99))
def removed():
    here = os.open(".", 0); os.mkdir("r"); os.chdir("r"); os.rmdir("../r")
    try: os.mkdir("x")
    finally: os.fchdir(here); os.close(here)
note("in a removed one", removed)
# bad pointers
BAD = ctypes.c_void_p(1)
for name, words in {"mkdir": (BAD, 0o777), "open": (BAD, os.O_CREAT | os.O_RDWR, 0o666), "symlink": (b"x", BAD),
                    "link": (b"file", BAD), "rename": (b"file", BAD), "mknod": (BAD, 0o666, 0),
                    "renameat2": (-100, BAD, -100, b"x", 0), "mkdirat": (-100, ctypes.c_void_p(-1), 0)}.items():
    note(f"{name} of a bad pointer", lambda: checked(getattr(libc, name)(*words)))
for flag in (0, 0x100, 0x400, 0x1000, 0x8000):
    note(f"linkat {flag:x}", lambda: checked(libc.linkat(-100, b"link", -100, b"x", flag)))
# files without a name
def unnamed(how):
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
    if how == "path": os.link(f"/proc/self/fd/{fd}", "absent", follow_symlinks=True)
    if how == "empty": checked(libc.linkat(fd, b"", -100, b"absent", 0x1000))
    if how == "taken": os.link(f"/proc/self/fd/{fd}", "file", follow_symlinks=True)
    os.close(fd)
for how in ("path", "empty", "taken", "none"): note(f"tmpfile {how}", lambda: unnamed(how))
# default access lists, inherited bits
def listed(verb):
    entries = ((1, 7), (4, 5), (0x20, 1))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, bits, 2**32 - 1) for tag, bits in entries)
    os.setxattr("dir", "system.posix_acl_default", acl); os.umask(0o077); MAKE[verb]("dir/x")
def inherited(verb): os.chmod("dir", 0o2755); MAKE[verb]("dir/x")
for verb in ("mkdir", "mknod", "mkfifo", "creat", "symlink"):
    note(f"{verb} with a list", lambda: listed(verb)); note(f"{verb} with a group", lambda: inherited(verb))
def closed(verb, mode):
    os.chmod("dir", mode)
    try: return MAKE[verb]("dir/x")
    finally: os.chmod("dir", 0o755)
VERBS, MODES = ("mkdir", "creat", "link", "rename", "symlink", "unlink", "truncate"), (0, 0o100, 0o300, 0o500, 0o600)
for verb, mode in itertools.product(VERBS, MODES):
    note(f"{verb} in {mode:o}", lambda: closed(verb, mode))
# limits
def full():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))
    try: return os.open("absent", os.O_CREAT | os.O_RDWR)
    finally: resource.setrlimit(resource.RLIMIT_NOFILE, most)
note("no descriptor left", full)
def in_turn(): # the lowest number, as the kernel gives it
    first, last = os.open("file", 0), os.open("file", 0)
    os.close(first); new = os.open("absent", os.O_CREAT | os.O_RDWR); os.close(new); os.close(last)
    return new - first
note("the lowest number", in_turn)
def again(path, flags):
    fd = os.open("file", os.O_RDWR); old = os.dup(1); os.dup2(fd, 1); os.close(fd); os.symlink("/dev/stdout", "log")
    try: return os.close(os.open(path, flags | os.O_TRUNC))
    finally: os.dup2(old, 1); os.close(old)
for path in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "log"):
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_CREAT): note(f"a file as {path} {flags}", lambda: again(path, flags))
for path in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/null", "/dev/tty", "/dev/full", "/dev/stdin"):
    note(f"open {path}", lambda: os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOCTTY))
def bound(): socket.socket(socket.AF_UNIX).bind("absent")
note("bind", bound); note("open a socket", lambda: (bound(), os.open("absent", os.O_CREAT | os.O_WRONLY)))
print(json.dumps(seen))
"""
KNOWN = {
    "no descriptor left": "the file is made before its descriptor is refused",
    "open (old )?(file|fifo) O_.* O_NOFOLLOW.*": "F_GETFL shows no O_NOFOLLOW on what was there",
    r"(away|unlink|rmdir) (\.\./)+.*": "a name that is not there is ENOENT in a read-only place, too",
}
"""Labels, and why they differ."""


def test_calls_that_make_names_are_the_kernels(launch: Launcher) -> None:
    native: dict[str, Any] = tried(launch, OBSERVE, "native", native=True)
    guarded: dict[str, Any] = tried(launch, OBSERVE, "guarded")
    different = {label: (was, guarded.get(label)) for label, was in native.items() if guarded.get(label) != was}
    met = {label: [one for one in KNOWN if re.fullmatch(one, label)] for label in different}
    unknown = [f"{label}: {was} {now}" for label, (was, now) in different.items() if not met[label]]
    assert len(native) > 1000 and native.keys() == guarded.keys()
    assert not unknown, "\n".join(unknown)
    assert {one for some in met.values() for one in some} == KNOWN.keys()
