"""Names that stay absent: the helper makes what the command may make, and the kernel refuses the rest."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sandboxd.backends.linux.helper.launch_configuration import Guard, LaunchConfiguration
from sandboxd.backends.linux.helper.notifications import MadeName, RefusedCall
from sandboxd.backends.linux.helper.supervision import flags_of
from sandboxd.backends.linux.landlock.confinement import LENT, TABLE
from sandboxd.backends.linux.seccomp.filter import build_filter
from sandboxd.plan.plan import Supervision

from .conftest import MACHINE, OPTIONS, Launcher, Sandbox

GUARDED = Supervision(writes=True, guard=True)
NAMES = (".vscode", ".mcp.json", ".config/fish/config.fish", "deep/.git/hooks")


def start(
    launch: Launcher,
    script: str,
    *arguments: str,
    names: Sequence[str] = NAMES,
    watched: Supervision = GUARDED,
    options: Sequence[str] = (),
    mounts: Sequence[str] = (),
    broken: bool = False,
    native: bool = False,
) -> Sandbox:
    """Starts a script in a workspace that is a zone, as are the `options`, and no `mounts`.

    A `broken` helper lets every call go on.

    `native`: with the kernel alone, in the same frame."""
    workspace = os.fsencode(launch.identity.workspace)
    zones = (workspace, *(os.fsencode(one) for one in options[1::3]))
    confinement = replace(TABLE[0].confinement, roots=(b"/tmp", b"/dev", b"/proc"))
    granted = confinement.granted & ~LENT
    if broken:  # the same directory for Landlock, and another mount for the helper
        options, zones = (*options, "--bind", str(launch.identity.workspace), "/tmp/alias"), (b"/tmp/alias",)
    if native:
        confinement, watched = replace(TABLE[0].confinement, roots=(*confinement.roots, workspace)), Supervision()
    guarded = tuple(b"%s/%s" % (workspace, os.fsencode(name)) for name in names)
    message = LaunchConfiguration(
        (b"python3", b"-I", b"-S", b"-c", script.encode(), *map(os.fsencode, arguments)),
        build_filter(MACHINE, watched),
        flags=flags_of(watched),
        confinement=confinement,
        guard=None if native else Guard(granted, zones, guarded),
    ).encode()
    here = str(launch.identity.workspace)
    sandbox = launch.start(launch.words((*OPTIONS, "--bind", here, here, *options, *mounts, "--chdir", here)))
    sandbox.accept()
    sandbox.send(message)
    return sandbox


def tried(launch: Launcher, script: str, *arguments: str, **keywords: Any) -> Any:
    """Return the JSON that a script prints."""
    sandbox = start(launch, script, *arguments, **keywords)
    status, out, err = sandbox.finish()
    assert status == 0, err
    return json.loads(out)


TRY = """
import ctypes, errno, json, os, sys
libc, seen = ctypes.CDLL(None, use_errno=True), {}
def renameat2(old, new, flags):
    if libc.renameat2(-100, old.encode(), -100, new.encode(), flags): raise OSError(ctypes.get_errno(), new)
os.mkdir("dir"); open("file", "w").close(); os.symlink(".mcp.json", "link"); os.mkdir("plain"); os.mkdir("tree")
for text in json.loads(sys.argv[1]):
    try: eval(text); seen[text] = 0
    except OSError as error: seen[text] = error.errno
print(json.dumps(seen))
"""
EACCES, EBUSY = errno.EACCES, errno.EBUSY
REFUSED = {
    # each kind of call, at a name, below one, and on the way to one
    "os.mkdir('.vscode')": EACCES,
    "os.mkdir('.vscode/')": EACCES,
    "os.mkdir('./plain/../.vscode')": EACCES,
    "os.mkdir(os.getcwd() + '//.vscode')": EACCES,
    "os.mkdir('.vscode', dir_fd=os.open('.', 0))": EACCES,
    "os.mkdir('/proc/self/cwd/.vscode')": EACCES,
    "os.mkdir('/proc/thread-self/cwd/.vscode')": EACCES,
    "os.mkdir(f'/dev/fd/{os.open(\".\", 0)}/.vscode')": EACCES,
    "open('.mcp.json', 'w')": EACCES,
    "open('link', 'w')": EACCES,
    "os.open('.mcp.json', os.O_CREAT | os.O_EXCL | os.O_RDWR)": EACCES,
    "os.mknod('.mcp.json')": EACCES,
    "os.mkfifo('.mcp.json')": EACCES,
    "os.symlink('dir', '.vscode')": EACCES,
    "os.link('file', '.mcp.json')": EACCES,
    "os.rename('file', '.mcp.json')": EACCES,
    "os.rename('dir', '.vscode')": EACCES,
    "renameat2('dir', '.vscode', 1)": EACCES,
    "renameat2('dir', '.vscode', 2)": EACCES,
    "os.symlink('dir', '.config')": EACCES,
    "os.rename('tree', '.config')": EACCES,
    "os.mkdir('.config')": 0,
    "os.mkdir('.config')  ": errno.EEXIST,
    "os.mkdir('.config/other')": 0,
    "os.mkdir('.config/fish')": 0,
    "open('.config/fish/config.fish', 'w')": EACCES,
    "open('.config/fish/other', 'w').close()": 0,
    "os.rename('.config/fish', '.config/moved')": EBUSY,
    "os.rename('.config', 'moved')": EBUSY,
    "os.rename('plain', '.config/other/plain')": 0,
    "os.rmdir('.config/other')": errno.ENOTEMPTY,
    "os.makedirs('deep/.git')": 0,
    "os.mkdir('deep/.git/hooks')": EACCES,
    "os.makedirs('deep/.git/objects')": 0,
    # what only resembles one
    "os.mkdir('.vscode2')": 0,
    "os.mkdir('dir/.vscode')": 0,
    "os.rename('dir/.vscode', 'dir/.mcp.json')": 0,
    "os.mkdir('/tmp/.vscode')": 0,
}


def test_a_guarded_name_is_made_in_no_way(launch: Launcher) -> None:
    sandbox = start(launch, TRY, json.dumps(list(REFUSED)))
    events = sandbox.rest()
    status, out, err = sandbox.finish()
    assert (status, json.loads(out)) == (0, REFUSED), err
    workspace = launch.identity.workspace
    assert not [name for name in (".vscode", ".mcp.json", "moved") if os.path.lexists(workspace / name)]
    reported = {os.path.relpath(one.path, workspace) for one in events if isinstance(one, RefusedCall)}
    assert {".vscode", ".mcp.json", ".config/fish/config.fish", "deep/.git/hooks"} <= reported
    assert {one.errno for one in events if isinstance(one, RefusedCall)} == {EACCES}


EROFS = errno.EROFS
BESIDE = {
    # in a place that can be written and is no zone: goes on without another look
    "open('/tmp/new', 'w').close()": (0, None),
    "open('/tmp/new', 'r+').close()": (0, None),
    "os.link('/tmp/new', '/tmp/second')": (0, None),
    "os.symlink('second', '/tmp/symlink')": (0, None),
    "open('/tmp/symlink', 'w').close()": (0, None),
    "os.mkdir('/tmp/d')": (0, None),
    "os.rename('/tmp/d', '/tmp/e')": (0, None),
    "os.unlink('/tmp/new')": (0, None),
    "open('/tmp/new', 'r+')": (errno.ENOENT, None),
    "open('/dev/null', 'w').close()": (0, None),
    # but for what is mounted there
    "open('/tmp/side/new', 'w')": (EROFS, "/tmp/side/new"),
    "open('/tmp/side/file', 'r+')": (EROFS, "/tmp/side/file"),
    "os.mkdir('/tmp/side/d')": (EROFS, "/tmp/side/d"),
    "os.mkdir('/tmp/side/e/')": (EROFS, "/tmp/side/e"),
    "os.rename('/tmp/e', '/tmp/side')": (EBUSY, "/tmp/side"),
    "open('/tmp/single', 'w')": (EROFS, "/tmp/single"),
    "os.rename('/tmp/single', '/tmp/other')": (EBUSY, "/tmp/single"),
    "os.rename('/tmp/second', '/tmp/single')": (EBUSY, "/tmp/single"),
    "os.unlink('/tmp/single')": (EBUSY, "/tmp/single"),
    "os.rename('/tmp/e', '/tmp/side/moved')": (errno.EXDEV, "/tmp/side/moved"),
    # and for links to a zone
    "os.symlink(os.getcwd() + '/led', '/tmp/led')": (0, None),
    "open('/tmp/led', 'w').close()": (0, None),
    "os.stat('led')": (0, None),
    "os.symlink(os.getcwd() + '/.mcp.json', '/tmp/to a name')": (0, None),
    "open('/tmp/to a name', 'w')": (EACCES, ".mcp.json"),
}


def test_beside_the_zones_what_mounts_refuse_is_reported(launch: Launcher) -> None:
    workspace = launch.identity.workspace
    (workspace / "side").mkdir()
    (workspace / "side" / "file").touch()
    for path in (workspace / "side", workspace / "side" / "file"):
        launch.identity.own(path)
    mounts = ("--ro-bind", f"{workspace}/side", "/tmp/side", "--ro-bind", f"{workspace}/side/file", "/tmp/single")
    sandbox = start(launch, TRY, json.dumps(list(BESIDE)), mounts=mounts)
    reported = [one.path for one in sandbox.rest() if isinstance(one, RefusedCall) for _ in range(one.count)]
    status, out, err = sandbox.finish()
    assert (status, json.loads(out)) == (0, {text: error for text, (error, _) in BESIDE.items()}), err
    expected = [os.path.join(workspace, path) for _, path in BESIDE.values() if path]
    assert sorted(reported) == sorted(expected)


THERE = {
    # what a person has made meanwhile, before any mount closes it
    "open('.mcp.json', 'w')": EACCES,
    "open('.mcp.json', 'r+')": EACCES,
    "open('.mcp.json', 'a')": EACCES,
    "os.open('.mcp.json', os.O_TRUNC)": EACCES,
    "open('link', 'r+')": EACCES,
    "open(f'/dev/fd/{os.open(\".mcp.json\", 0)}', 'w')": EACCES,
    "os.truncate('.mcp.json', 0)": EACCES,
    "os.chmod('.mcp.json', 0o777)": EACCES,
    "os.utime('.mcp.json')": EACCES,
    "os.unlink('.mcp.json')": EACCES,
    "os.rmdir('.vscode')": EACCES,
    "os.unlink('.vscode/settings.json')": EACCES,
    "os.unlink('.vscode/none')": errno.ENOENT,
    "os.rmdir('.vscode/none')": errno.ENOENT,
    "os.rmdir('.vscode/folder', dir_fd=os.open('.', 0))": EACCES,
    "open('.vscode/settings.json', 'w')": EACCES,
    "os.open('.vscode', os.O_TMPFILE | os.O_RDWR)": EACCES,
    "os.rename('.mcp.json', 'moved')": EBUSY,
    "os.rename('.vscode', 'dir/moved')": EBUSY,
    "os.rename('.vscode/settings.json', 'moved')": EBUSY,
    "os.rename('file', '.mcp.json')": EACCES,
    "os.rename('none', '.mcp.json')": errno.ENOENT,
    "renameat2('file', '.mcp.json', 2)": EACCES,
    "renameat2('.mcp.json', 'file', 2)": EBUSY,
    "os.rename('deep', 'moved')": EBUSY,
    "os.rename('deep/.git', 'moved')": EBUSY,
    "os.rename('deep/.git/hooks/x', 'moved')": EBUSY,
    "os.link('.mcp.json', 'moved')": EACCES,
    "os.link('/proc/self/cwd/.mcp.json', 'moved')": EACCES,
    "os.link('.vscode/settings.json', 'moved')": EACCES,
    "os.link('file', '.mcp.json')": errno.EEXIST,
    # and beside it
    "open('.mcp.json').close()": 0,
    "os.listdir('.vscode')": 0,
    "open('file', 'r+').close()": 0,
    "os.truncate('file', 0)": 0,
    "os.link('file', 'second')": 0,
    "os.unlink('second')": 0,
    "os.rmdir('plain')": 0,
    "os.unlink('deep/.git/config')": 0,
    "os.unlink('.gitmodules')": errno.ENOENT,
}


def test_what_a_person_makes_is_changed_in_no_way(launch: Launcher) -> None:
    work = launch.identity.workspace
    there = ".mcp.json", ".vscode/settings.json", "deep/.git/hooks/x", "deep/.git/config"
    make = "; ".join(f"mkdir -p {os.path.dirname(name) or '.'}; echo mine > {name}" for name in there)
    launch.identity.run(["sh", "-ec", f"{make}; mkdir .vscode/folder"], cwd=work)
    sandbox = start(launch, TRY, json.dumps(list(THERE)), names=(*NAMES, ".gitmodules"))
    events = sandbox.rest()
    status, out, err = sandbox.finish()
    assert (status, json.loads(out)) == (0, THERE), err
    assert {(work / name).read_text() for name in there[:3]} == {"mine\n"} and not os.path.lexists(work / "moved")
    reported = {os.path.relpath(one.path, work): one.errno for one in events if isinstance(one, RefusedCall)}
    assert reported.keys() >= {".mcp.json", ".vscode/settings.json", ".vscode", ".vscode/folder"}


def test_a_broken_helper_makes_nothing(launch: Launcher) -> None:
    """The kernel refuses by itself what a helper lets go on; all else works."""
    script = TRY.replace('os.mkdir("dir")', "os.chdir('/tmp'); os.mkdir('dir')")
    work = launch.identity.workspace
    launch.identity.run(["sh", "-c", "echo mine > old; mkdir empty"], cwd=work)
    calls = [f"os.mkdir({str(work / name)!r})" for name in (".vscode", "other")]
    calls += [f"os.unlink({str(work / 'old')!r})", f"os.rmdir({str(work / 'empty')!r})"]
    calls += [f"open({str(work / 'old')!r}, {how!r})" for how in ("w", "r+")]
    calls += [f"os.truncate({str(work / 'old')!r}, 0)"]
    allowed = ["os.mkdir('new')", "open('new/a', 'w').close()", "open('new/a', 'r+').close()", "os.unlink('new/a')"]
    expected = {**dict.fromkeys(calls, EACCES), **dict.fromkeys(allowed, 0)}
    assert tried(launch, script, json.dumps([*calls, *allowed]), broken=True) == expected
    assert (work / "old").read_text() == "mine\n" and len(os.listdir(work)) == 2


CONFINED = """
import ctypes, json, os
libc, seen = ctypes.CDLL(None, use_errno=True), []
def attempt(name):
    try: os.mkdir(name); seen.append(0)
    except OSError as error: seen.append(error.errno)
attempt("before")
rules = libc.syscall(444, (ctypes.c_uint64 * 1)(1 << 7), 8, 0)
assert libc.syscall(446, rules, 0) == 0
attempt("after")
if not os.fork(): attempt("child"); os._exit(seen[-1])
seen.append(os.waitstatus_to_exitcode(os.wait()[1]))
import resource
limit = resource.getrlimit(10)[1]
resource.setrlimit(10, (5, 5)); attempt("lower")
print(json.dumps(seen))
"""


def test_nothing_is_lent_to_a_confined_program(launch: Launcher) -> None:
    assert tried(launch, CONFINED) == [0, EACCES, EACCES, EACCES]


MADE = """
import os
os.makedirs("deep/.git/objects/"); os.mkdir("deep/.git/refs"); os.mknod("deep/.git/HEAD")
open("deep/.git/config", "w").close(); open("deep/.git/config", "w").close(); open("deep/.git/index", "w").close()
os.mkdir("t"); os.mkdir("u"); os.rename("u", "t/u"); os.rename("t/u", "hooks"); open("v", "w").close()
os.rename("v", "commondir"); os.link("commondir", "t/HEAD"); os.symlink("t", "t/.git"); os.rename("t/HEAD", "t/w")
for name in ("hooks", "refs"):
    try: os.mkdir("hooks")
    except OSError: pass
"""


def test_each_name_that_makes_a_repository_is_told(launch: Launcher) -> None:
    """In each way to make one, and each directory that is moved; only a new directory with its inode."""
    sandbox = start(launch, MADE)
    told = [one for one in sandbox.rest() if isinstance(one, MadeName)]
    assert sandbox.finish()[0] == 0
    work = launch.identity.workspace
    names = {os.path.relpath(one.path, work): one.inode for one in told}  # without a slash at the end
    new = [f"deep/.git{name}" for name in ("", "/objects", "/refs")]
    others = ["deep/.git/HEAD", "deep/.git/config", "t/u", "hooks", "commondir", "t/HEAD", "t/.git"]
    assert list(names) == [*new, *others]
    assert [names[name] for name in new] == [(work / name).stat().st_ino & 0xFFFFFFFF for name in new]
    assert not any(names[name] for name in others)


MASKS = """
import json, os, stat, threading
seen = []
def made(name):
    os.mkdir(name); seen.append(oct(stat.S_IMODE(os.stat(name).st_mode)))
made("first"); os.umask(0o077); made("second")
if not os.fork(): os.umask(0); os.mkdir("child"); os._exit(0)
os.wait(); seen.append(oct(stat.S_IMODE(os.stat("child").st_mode))); made("third")
thread = threading.Thread(target=os.umask, args=(0o027,)); thread.start(); thread.join(); made("fourth")
os.execv("/usr/bin/python3", ["python3", "-c", "import os,json,sys; os.mkdir('fifth'); print(json.dumps("
    + json.dumps(seen) + " + [oct(os.stat('fifth').st_mode & 0o7777)]))"])
"""


def test_names_are_made_with_the_mask_of_the_caller(launch: Launcher) -> None:
    os.umask(before := os.umask(0))
    first = oct(0o777 & ~before)
    assert tried(launch, MASKS) == [first, "0o700", "0o777", "0o700", "0o750", "0o750"]


STORM = """
import json, os, signal, sys, time
seen, got = {}, []
signal.signal(signal.SIGALRM, lambda *_: got.append(1))
if sys.argv[1] == "restart": signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
for n in range(3000):
    try: os.mkdir(f"d{n}"); os.close(os.open(f"f{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)); os.rename(f"f{n}", "f")
    except OSError as error: seen[error.errno] = seen.get(error.errno, 0) + 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps([seen, len(os.listdir()), len(got) > 10, sorted(os.listdir("/proc/self/fd"))]))
"""


def test_a_storm_of_signals_repeats_no_call(launch: Launcher) -> None:
    for how in ("restart", "interrupt"):
        seen, names, came, _ = tried(launch, f"import os; os.mkdir({how!r}); os.chdir({how!r})" + STORM, how)
        assert came and set(seen) <= ({"4"} if how == "interrupt" else set()), "EEXIST: the own name of an earlier try"
        assert how == "interrupt" or names == 3001


SHARED = """
import fcntl, json, os
seen, counted = {}, os.pipe()
for n in range(16):
    if not os.fork():
        for _ in range(60):
            try:
                with open("lock", "a") as file: fcntl.flock(file, fcntl.LOCK_EX)
                if _ % 3 == 0: os.unlink("lock")
            except FileNotFoundError: pass
            except OSError as error: os.write(counted[1], b"%d " % error.errno)
        os._exit(0)
for n in range(16): os.wait()
os.close(counted[1]); print(json.dumps(os.read(counted[0], 4096).decode()))
"""


def test_sixteen_processes_share_a_lock_file(launch: Launcher) -> None:
    assert tried(launch, SHARED) == ""


BLOCKED = """
import json, os, threading
os.mkfifo("pipe"); opened = []
def opens(): os.close(os.open("pipe", os.O_CREAT | os.O_WRONLY)); opened.append(1)
threads = [threading.Thread(target=opens) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads:
    while open(f"/proc/self/task/{thread.native_id}/syscall").read().startswith("running"): pass
for n in range(50): os.mkdir(f"d{n}")
blocked = not opened
reader = os.open("pipe", os.O_RDONLY)
for thread in threads: thread.join()
print(json.dumps([blocked, len(opened)]))
"""


def test_what_blocks_one_caller_keeps_no_other_waiting(launch: Launcher) -> None:
    assert tried(launch, BLOCKED) == [True, 8]


def test_the_guard_needs_what_it_rests_on(launch: Launcher) -> None:
    workspace = (os.fsencode(launch.identity.workspace),)
    given = LaunchConfiguration(
        (b"true",), build_filter(MACHINE, GUARDED), flags=flags_of(GUARDED), confinement=TABLE[0].confinement,
        guard=Guard(0, workspace, workspace),
    )  # fmt: skip
    assert LaunchConfiguration.decode(given.encode()) == given
    head = bytearray(given.encode())
    for wrong in ("zones", "names"):
        counts = head.index(struct.pack("<3I", 0, 1, 1))
        message = bytearray(head)
        struct.pack_into("<I", message, counts + (4 if wrong == "zones" else 8), 0xFFFFFFFF)
        sandbox = launch.start(launch.words())
        sandbox.accept()
        sandbox.send(bytes(message))
        status, _, err = sandbox.finish()
        assert status == 125 and "the configuration is malformed" in err


SWAP = """
import ctypes, json, os, threading, time
libc, end = ctypes.CDLL(None, use_errno=True), time.monotonic() + 2
root, fd, tried = os.getcwd().encode(), 100, [0]
name, guarded = ctypes.create_string_buffer(root + b"/.mcp.jsoX"), root + b"/.mcp.json"
os.makedirs("/tmp/safe"); here, safe = os.open(".", 0), os.open("/tmp/safe", 0); os.dup2(safe, fd)
def repeat(*ways):
    def run():
        while time.monotonic() < end:
            for way in ways: way()
    return threading.Thread(target=run)
def swap_bytes(): name.raw = guarded + b"\\0"; name.raw = root + b"/.mcp.jsoX\\0"
def swap_descriptors(): os.dup2(here, fd); os.dup2(safe, fd)
def swap_links():
    for target in (root.decode(), "/tmp/safe"): os.symlink(target, "/tmp/l"); os.rename("/tmp/l", "/tmp/link")
def swap_directories(): os.chdir(root); os.chdir("/tmp/safe")
def remove(*paths):
    for path in paths:
        for way in (os.unlink, os.rmdir):
            try: way(path)
            except OSError: pass
def prepare():
    try: open(root + b"/source", "w").close(); open(root + b"/source2", "w").close()
    except OSError: pass
def calls():
    for call in (lambda: libc.mkdir(name, 0o755), lambda: libc.open(name, os.O_CREAT | os.O_WRONLY, 0o644),
                 lambda: libc.symlink(b"x", name), lambda: libc.mknod(name, 0o100644, 0),
                 lambda: libc.link(root + b"/source", name), lambda: libc.rename(root + b"/source2", name),
                 lambda: libc.mkdir(b".mcp.json", 0o755), lambda: libc.rename(root + b"/source2", b".mcp.json"),
                 lambda: libc.openat(fd, b".mcp.json", os.O_CREAT | os.O_WRONLY, 0o644),
                 lambda: libc.mkdir(b"/tmp/link/.mcp.json", 0o755),
                 lambda: libc.mkdir(b"/proc/self/fd/100/.mcp.json", 0o755)):
        prepare()
        made = call(); tried[0] += 1
        if made > 100: os.close(made)
        assert not os.path.lexists(guarded), call.__code__
        remove(root + b"/.mcp.jsoX", "/tmp/safe/.mcp.json")
threads = [repeat(swap) for swap in (swap_bytes, swap_descriptors, swap_links, swap_directories)]
threads += [repeat(calls) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([tried[0] > 100, os.path.lexists(guarded)]))
"""


def test_swapped_paths_and_directories_make_nothing(launch: Launcher) -> None:
    for broken in (False, True):
        assert tried(launch, SWAP, broken=broken) == [True, False]


CHANGING = (
    SWAP[: SWAP.index("    for call in (")]
    + """
    for call in (lambda: libc.unlink(name), lambda: libc.rmdir(name), lambda: libc.truncate(name, 0),
                 lambda: libc.rename(name, root + b"/moved"), lambda: libc.renameat2(-100, name, -100, b"away", 2),
                 lambda: libc.open(name, os.O_WRONLY), lambda: libc.open(name, os.O_RDWR | os.O_TRUNC),
                 lambda: libc.open(name, os.O_WRONLY | os.O_CREAT), lambda: libc.link(name, root + b"/moved"),
                 lambda: libc.unlink(b".mcp.json"), lambda: libc.open(b".mcp.json", os.O_RDWR),
                 lambda: libc.unlinkat(fd, b".mcp.json", 0), lambda: libc.openat(fd, b".mcp.json", os.O_RDWR),
                 lambda: libc.unlink(b"/tmp/link/.mcp.json"), lambda: libc.open(b"/tmp/link/.mcp.json", os.O_RDWR)):
        for place in (root + b"/.mcp.jsoX", b"/tmp/safe/.mcp.json"):
            try: open(place, "w").close()
            except OSError: pass
        made = call(); tried[0] += 1
        if made > 100:
            at = os.readlink(f"/proc/self/fd/{made}"); os.close(made)
            assert at.encode() != guarded, at
        remove(root + b"/moved")
threads = [repeat(swap) for swap in (swap_bytes, swap_descriptors, swap_links, swap_directories)]
threads += [repeat(calls) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([tried[0] > 100, os.path.lexists(guarded)]))
"""
)


def test_swapped_paths_change_nothing_of_a_persons(launch: Launcher) -> None:
    work = launch.identity.workspace
    launch.identity.run(["sh", "-c", "echo mine > .mcp.json"], cwd=work)
    before = (work / ".mcp.json").stat()
    for broken in (False, True):
        assert tried(launch, CHANGING, broken=broken) == [True, True]
        after = (work / ".mcp.json").stat()
        assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, 5)
