"""What the helper says of file calls that the mounts refuse, and that it says nothing of all the others."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import Descriptors, ExecFailed, Exited, Started
from sandboxd.backends.linux.helper.notifications import Lost, RefusedCall, ReportedAccess
from sandboxd.backends.linux.seccomp.notified_calls import call_name
from sandboxd.host.features import closed_memory, why_unwatched
from sandboxd.plan.plan import Supervision
from support import processes
from support.users import Identity
from support.waiting import wait_until

from .conftest import MACHINE, OPTIONS, PYTHON, Launcher, Sandbox, configuration
from .test_filter import elf

WRITES = Supervision(writes=True)
READS = Supervision(writes=True, reads=True)


class Places:
    """A directory that is read-only in the sandbox, with a writable one in it, and things that are masked."""

    def __init__(self, base: Path, identity: Identity) -> None:
        self.base = base
        self.mask = base / "mask"
        for name in ("open", "closed", "closed/empty", "secret", "shelf/below", "cover", "open/inner"):
            (base / name).mkdir(parents=True)
        for name in (
            "file",
            "second",
            "third",
            "fourth",
            "open/file",
            "closed/file",
            "secret/file",
            "hidden",
            "open/guarded",
            "mask",
        ):
            (base / name).write_text("x")
        (base / "link").symlink_to("third")
        (base / "open/link").symlink_to("../fourth")
        self.mask.chmod(0)
        for path in (base, *base.rglob("*")):
            os.lchown(path, identity.uid, identity.gid)
            if not path.is_symlink():
                identity.own(path)

    @property
    def options(self) -> tuple[str, ...]:
        base = str(self.base)
        mounts = (
            *("--bind", f"{base}/open", f"{base}/open"),
            *("--ro-bind", f"{base}/open/guarded", f"{base}/open/guarded"),
            *("--perms", "0000", "--size", "4096", "--tmpfs", f"{base}/secret", "--remount-ro", f"{base}/secret"),
            *("--ro-bind", str(self.mask), f"{base}/hidden"),
            *("--perms", "0555", "--size", "4096", "--tmpfs", f"{base}/open/inner"),
        )
        return (*OPTIONS[:9], *mounts, *OPTIONS[9:])


@pytest.fixture
def places(identity: Identity, tmp_path: Path) -> Iterator[Places]:
    base = identity.runtime / "places"
    base.mkdir()
    yield Places(base, identity)


def reports(sandbox: Sandbox) -> list[RefusedCall]:
    sandbox.expect(Started())
    events = sandbox.rest()
    status, _, err = sandbox.finish()
    assert isinstance(events[-1], Exited) and status == 0, err
    assert all(isinstance(event, RefusedCall) for event in events[:-1]), events
    return [event for event in events if isinstance(event, RefusedCall)]


def told(launch: Launcher, places: Places, script: str, watched: Supervision = WRITES) -> list[tuple[str, str]]:
    """Runs Python statements in the base directory; the names of the calls and the paths of what was reported."""
    text = f"import ctypes, os, sys; os.chdir({str(places.base)!r})\n{script}"
    found = reports(launch.python(text, watched=watched, options=places.options))
    base = str(places.base) + "/"
    assert {report.process for report in found} <= {PYTHON}
    return [(call_name(report.call, MACHINE), report.path.removeprefix(base)) for report in found]


# Each of them alone: a statement that fails, and what is reported. (As the kernel has it: O_CREAT 64, O_EXCL 128.)
REFUSED = {
    "open('new', 'w')": ("openat", "new"),
    "open('file', 'a')": ("openat", "file"),
    "open('second', 'r+')": ("openat", "second"),
    "open('link', 'w')": ("openat", "third"),
    "open('open/link', 'w')": ("openat", "fourth"),
    "open('open/../closed//file/../new', 'w')": None,  # file is no directory: that is why it fails
    "open('open/../closed//new', 'w')": ("openat", "closed/new"),
    "open(os.getcwd() + '/absolute', 'w')": ("openat", "absolute"),
    "open('open/guarded', 'w')": ("openat", "open/guarded"),
    "open('hidden', 'w')": ("openat", "hidden"),
    "open('secret/new', 'w')": ("openat", "secret/new"),
    "open('secret/a/b/c', 'w')": ("openat", "secret/a/b/c"),
    "open('open/inner/new', 'w')": ("openat", "open/inner/new"),
    "open('open/inner', 'w')": ("openat", "open/inner"),
    "os.open('closed', os.O_TMPFILE | os.O_RDWR)": ("openat", "closed"),
    "os.open('empty', os.O_CREAT | os.O_RDONLY)": ("openat", "empty"),
    "os.truncate('file', 0)": ("truncate", "file"),
    "os.mkdir('new')": ("mkdir", "new"),
    "os.mkdir('slashes///')": ("mkdir", "slashes"),
    "os.mkdir('open/inner')": None,  # it is there outside, too
    "os.mkdir('new', dir_fd=os.open('closed', 0))": ("mkdirat", "closed/new"),
    "os.mknod('new')": ("mknodat", "new"),
    "os.mkfifo('pipe')": ("mknodat", "pipe"),
    "os.symlink('x', 'new')": ("symlink", "new"),
    "os.link('open/file', 'new')": ("link", "new"),
    "os.link('file', 'new', src_dir_fd=os.open('closed', 0))": ("linkat", "new"),
    "os.rename('file', 'other')": ("rename", "file"),
    "os.rename('open/guarded', 'open/x', src_dir_fd=os.open('.', 0))": ("renameat", "open/guarded"),
    "os.rename('open/file', 'open/guarded')": ("rename", "open/guarded"),
    "os.rename('file', 'other', src_dir_fd=os.open('closed', 0))": ("renameat", "closed/file"),
    "os.rename('open/file', 'other')": ("rename", "other"),  # another mount, and nothing could be made there either
    "os.rename('open/file', 'open/inner/other')": ("rename", "open/inner/other"),
    "ctypes.CDLL(None).renameat2(-100, b'open/file', -100, b'open/inner', 1)": None,
    "os.unlink('file')": ("unlink", "file"),
    "os.unlink('link')": ("unlink", "link"),
    "os.unlink('open/guarded')": ("unlink", "open/guarded"),
    "os.unlink('file', dir_fd=os.open('closed', 0))": ("unlinkat", "closed/file"),
    "os.rmdir('closed/empty')": ("rmdir", "closed/empty"),
    "os.rmdir('open/inner')": ("rmdir", "open/inner"),
    "os.rmdir('inner', dir_fd=os.open('open', 0))": ("unlinkat", "open/inner"),
    "os.chmod('file', 0)": ("chmod", "file"),
    "os.chown('file', -1, -1)": ("chown", "file"),
    "os.lchown('link', -1, -1)": ("lchown", "link"),
    "os.utime('file')": ("utimensat", "file"),
    "os.utime('link', follow_symlinks=False)": ("utimensat", "link"),
    "os.setxattr('file', 'user.x', b'')": ("setxattr", "file"),
    "os.removexattr('file', 'user.x')": ("removexattr", "file"),
    "os.setxattr('link', 'user.x', b'', follow_symlinks=False)": ("lsetxattr", "link"),
}

# Fails for a reason that is not the sandbox's, or does not fail.
NOT_REPORTED = [
    "open('file')",
    "open('open/new', 'w')",
    "open('open/file', 'w')",
    "open('open/file', 'w').truncate(0)",
    "open('/dev/null', 'w')",
    "open('/dev/null', 'r+')",
    "open('/tmp/new', 'w')",
    "open('missing/new', 'w')",
    "open('file/new', 'w')",
    "open('missing', 'r+')",
    "open('closed', 'w')",
    "os.open('file', os.O_CREAT | os.O_EXCL | os.O_WRONLY)",
    "os.open('file', os.O_CREAT | os.O_RDONLY)",
    "os.open('file', os.O_PATH | os.O_CREAT)",
    "os.open('secret', os.O_PATH)",
    "open('hidden')",
    "os.listdir('secret')",
    "open('secret/file')",
    "os.mkdir('closed')",
    "os.makedirs('closed', exist_ok=True)",
    "os.mkdir('open/d')",
    "os.mkdir('')",
    "os.unlink('missing')",
    "os.unlink('open/file')",
    "os.rmdir('missing')",
    "os.rmdir('open')",  # there is something in it, mount or not: git stash tries that with .git
    "os.rmdir('open', dir_fd=os.open('.', 0))",
    "os.rmdir('closed')",
    "os.rmdir('open/inner/.')",
    "os.rmdir('closed/empty/..')",
    "os.rmdir('file')",
    "os.unlink('open')",
    "os.unlink('closed')",
    "os.rmdir('open/guarded')",
    "os.rename('missing', 'x')",
    "os.rename('open/file', 'open/other')",
    "os.rename('file', 'open/other')",
    "os.rename('/tmp/new', 'open/other')",  # another mount: EXDEV
    "os.rename('/tmp/new', 'open/guarded')",
    "os.rename('/tmp/missing', 'other')",
    "os.rename('open/guarded', '/tmp/other')",
    "os.rename('open/guarded', 'open/missing/other')",
    "ctypes.CDLL(None).renameat2(-100, b'open/file', -100, b'open/guarded', 1)",  # RENAME_NOREPLACE, as mv(1)
    "ctypes.CDLL(None).renameat2(-100, b'/tmp/new', -100, b'open', 1)",
    "ctypes.CDLL(None).renameat2(-100, b'/tmp/new', -100, b'open/.', 1)",
    "os.link('missing', 'x')",
    "os.link('open/file', 'open/second')",
    "os.symlink('x', 'open/second')",
    "os.symlink('x', 'link')",
    "os.chmod('missing', 0)",
    "os.chmod('open/file', 0o600)",
    "os.utime('open/file')",
    "os.utime(os.open('open/file', 1))",
    "os.truncate('open/file', 0)",
    "os.truncate('closed', 0)",
    "os.chmod('open/file', 0); open('open/file', 'a')",
    "os.chmod('open', 0o555); open('open/new', 'w')",
    "ctypes.CDLL(None).mkdir(8, 0)",  # not an address
    "open('x' * 5000, 'w')",
    "open('/proc/self/comm', 'w').write('x')",
    "open('/dev/stdout', 'w')",
]


def run_each(
    launch: Launcher, places: Places, statements: Sequence[str], watched: Supervision = WRITES
) -> list[list[tuple[str, str]]]:
    """Each statement in a child of its own, one after the other; a mkdir in the base directory, which is always
    reported, says where the next one begins."""
    script = f"""
for n, statement in enumerate({list(statements)!r}):
    try: os.mkdir(f"begin-{{n}}")
    except OSError: pass
    if not os.fork():
        try: exec(statement)
        except OSError as error: pass
        os._exit(0)
    os.wait()
"""
    found: list[list[tuple[str, str]]] = []
    for call, path in told(launch, places, script, watched):
        if path == f"begin-{len(found)}":
            found.append([])
        else:
            found[-1].append((call, path))
    return found


def test_what_the_mounts_refuse_is_reported_once(launch: Launcher, places: Places) -> None:
    got = run_each(launch, places, list(REFUSED))
    wanted = [[expected] if expected else [] for expected in REFUSED.values()]
    assert dict(zip(REFUSED, got, strict=True)) == dict(zip(REFUSED, wanted, strict=True))


def test_what_does_not_fail_or_fails_by_itself_is_not_reported(launch: Launcher, places: Places) -> None:
    got = run_each(launch, places, NOT_REPORTED)
    assert dict(zip(NOT_REPORTED, got, strict=True)) == {statement: [] for statement in NOT_REPORTED}


def test_reads_of_what_is_masked(launch: Launcher, places: Places) -> None:
    """And nothing of other reads, nor of what cannot be read because of its mode."""
    statements = {
        "open('hidden')": [("openat", "hidden")],
        "os.listdir('secret')": [("openat", "secret")],
        "open('secret/file')": [("openat", "secret/file")],
        "open('secret/a/b')": [("openat", "secret/a/b")],
        "open('file')": [],
        "open('missing')": [],
        "os.listdir('.')": [],
        "os.listdir('open/inner')": [],
        "open('/dev/null')": [],
        "os.chmod('open/file', 0); open('open/file')": [],
        "os.open('secret', os.O_PATH)": [],
        "os.stat('hidden')": [],
        "open('/proc/self/environ')": [],
    }
    assert dict(zip(statements, run_each(launch, places, list(statements), READS), strict=True)) == statements


def test_reads_and_writes_are_told_apart(launch: Launcher, places: Places) -> None:
    script = """
for mode in ("r", "w"):
    try: open("hidden", mode)
    except OSError: pass"""
    text = f"import os; os.chdir({str(places.base)!r})\n{script}"
    found = reports(launch.python(text, watched=READS, options=places.options))
    assert [(report.access, report.count) for report in found] == [(ReportedAccess.READ, 1), (ReportedAccess.WRITE, 1)]


def test_equal_ones_are_counted(launch: Launcher, places: Places) -> None:
    script = """
for n in range(1000):
    try: open(f"new-{n % 2}", "w")
    except OSError: pass"""
    text = f"import os; os.chdir({str(places.base)!r})\n{script}"
    found = reports(launch.python(text, watched=WRITES, options=places.options))
    assert {report.path for report in found} == {f"{places.base}/new-0", f"{places.base}/new-1"}
    assert sum(report.count for report in found) == 1000
    assert len(found) < 500


def test_a_flood_is_bounded_and_what_is_lost_is_counted(launch: Launcher, places: Places) -> None:
    script = f"""
import os
os.chdir({str(places.base)!r})
for n in range(5000):
    try: os.mkdir(f"new-{{n}}")
    except OSError: pass"""
    sandbox = launch.python(script, watched=WRITES, options=places.options)
    sandbox.expect(Started())
    *events, last = sandbox.rest()
    assert last == Exited(0, 0)
    told = sum(event.count for event in events if isinstance(event, RefusedCall))
    lost = sum(event.count for event in events if isinstance(event, Lost))
    assert told + lost == 5000
    assert 256 <= told < 5000


def test_a_daemon_that_does_not_read_holds_nobody_up(launch: Launcher, places: Places) -> None:
    script = f"""
import os
os.chdir({str(places.base)!r})
for n in range(3000):
    try: os.mkdir("x" * 200 + f"-{{n}}")
    except OSError: pass
print("done")"""
    sandbox = launch.python(script, watched=WRITES, options=places.options)
    out, err = sandbox.process.communicate(timeout=60)
    assert (out, err) == (b"done\n", b"")
    assert sandbox.rest()[-1] == Exited(0, 0)


def test_a_long_path_is_cut(launch: Launcher, places: Places) -> None:
    script = f"""
import os
os.chdir({str(places.base / "open")!r})
for _ in range(8):
    os.mkdir("d" * 200); os.chdir("d" * 200)
os.symlink({str(places.base / "file")!r}, "link")
for name in ("link",):
    try: os.unlink({str(places.base)!r} + "/open" + "/." * 1200 + "/../file")
    except OSError: pass
try: os.mkdir("../" * 9 + "n" * 250 + "/")
except OSError: pass
try: open({str(places.base)!r} + "/secret/" + ("y" * 200 + "/") * 6, "w")
except OSError: pass"""
    found = reports(launch.python(script, watched=WRITES, options=places.options))
    assert [(len(os.fsencode(report.path)), report.is_cut) for report in found] == [
        (len(f"{places.base}/file"), False),
        (len(f"{places.base}/") + 250, False),
        (984, True),
    ]


def test_names_that_are_not_text(launch: Launcher, places: Places) -> None:
    script = f"""
import os, shutil, subprocess
os.chdir({str(places.base)!r})
program = shutil.copy(b"/bin/mkdir", b"/tmp/\\xff\\n\\x1b[31m")
subprocess.call([program, b"\\xfe\\n\\x1b[2J"], stderr=subprocess.DEVNULL)"""
    (report,) = reports(launch.python(script, watched=WRITES, options=places.options))
    assert os.fsencode(report.path) == os.fsencode(str(places.base)) + b"/\xfe\n\x1b[2J"
    assert os.fsencode(report.process).startswith(b"\xff")


def test_threads_children_and_other_sessions(launch: Launcher, places: Places) -> None:
    script = f"""
import os, threading
os.chdir({str(places.base)!r})
def make(name):
    try: os.mkdir(name)
    except OSError: pass
def elsewhere(name):
    libc = __import__("ctypes").CDLL(None); libc.unshare(0x200)  # a working directory of this thread
    os.chdir("closed"); make(name)
for target, name in ((make, "thread"), (elsewhere, "own-directory")):
    thread = threading.Thread(target=target, args=(name,)); thread.start(); thread.join()
if not os.fork():
    make("child"); os._exit(0)
os.wait()
if not os.fork():
    os.setsid()
    if not os.fork():
        make("session"); os._exit(0)
    os.wait(); os._exit(0)
os.wait()
"""
    found = reports(launch.python(script, watched=WRITES, options=places.options))
    names = {report.path.removeprefix(f"{places.base}/"): report.pid for report in found}
    assert set(names) == {"thread", "closed/own-directory", "child", "session"}
    assert names["thread"] == names["closed/own-directory"] != names["child"]


def test_a_caller_that_cannot_be_read_is_not_held_up(launch: Launcher, places: Places) -> None:
    script = f"""
import ctypes, os
os.chdir({str(places.base)!r})
ctypes.CDLL(None).prctl(4, 0)
open("open/made", "w")
try: os.mkdir("new")
except OSError: print("refused")"""
    sandbox = launch.python(script, watched=WRITES, options=places.options)
    sandbox.expect(Started(), Exited(0, 0))
    assert sandbox.finish() == (0, "refused\n", "")


def test_a_caller_that_is_killed_or_interrupted_meanwhile(launch: Launcher, places: Places) -> None:
    script = f"""
import os, signal, time
os.chdir({str(places.base / "open")!r})
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
made = 0
for n in range(300):
    while True:
        try: os.mkdir(f"d{{n}}")
        except InterruptedError: continue
        except FileExistsError: print("twice")
        break
signal.setitimer(signal.ITIMER_REAL, 0)
for n in range(20):
    child = os.fork()
    if not child:
        while True: os.stat("."); open("x", "w")
    while not os.path.exists("x"): time.sleep(0.001)
    time.sleep(0.002); os.kill(child, signal.SIGKILL); os.wait()
print(len(os.listdir(".")))
"""
    sandbox = launch.python(script, watched=WRITES, options=places.options)
    sandbox.expect(Started(), Exited(0, 0))
    assert sandbox.finish() == (0, "305\n", "")


def test_a_debugger_sees_the_calls_of_its_child(launch: Launcher, places: Places) -> None:
    script = f"""
import ctypes, os, signal
os.chdir({str(places.base)!r})
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    try: os.mkdir("new")
    except OSError: os._exit(3)
os.waitpid(child, 0)
while True:
    assert libc.ptrace(24, child, 0, 0) == 0
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status): break
assert os.WEXITSTATUS(status) == 3
"""
    assert [report.path for report in reports(launch.python(script, watched=WRITES, options=places.options))] == [
        f"{places.base}/new"
    ]


def test_a_filter_of_the_commands_own(launch: Launcher, places: Places) -> None:
    """A program may restrict itself further; it can take no listener of its own, and hides no call from the first."""
    script = f"""
import ctypes, errno, os, struct
os.chdir({str(places.base)!r})
libc = ctypes.CDLL(None, use_errno=True)
def install(flags, action):
    code = struct.pack("<HBBI", 6, 0, 0, action)
    program = struct.pack("<HxxxxxxQ", 1, ctypes.cast(ctypes.create_string_buffer(code), ctypes.c_void_p).value)
    return libc.syscall({317 if MACHINE == "x86_64" else 277}, 1, flags, program)
assert install(8, 0x7fff0000) == -1 and ctypes.get_errno() == errno.EBUSY
assert install(0, 0x7fff0000) == 0
try: os.mkdir("new")
except OSError as error: assert error.errno == errno.EROFS
"""
    assert len(reports(launch.python(script, watched=WRITES, options=places.options))) == 1


def test_the_command_holds_no_listener(launch: Launcher) -> None:
    script = "import os; print(sorted(os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')))"
    sandbox = launch.python(script, watched=WRITES)
    assert sandbox.finish() == (0, "['0', '1', '2'] 4\n", "")


def test_a_command_that_cannot_be_run(launch: Launcher) -> None:
    sandbox = launch(["no-such-program"], watched=WRITES)
    assert [type(event).__name__ for event in sandbox.rest()] == ["ExecFailed", "Exited"]
    assert sandbox.finish()[0] == 127


@pytest.mark.parametrize("n", range(5))
def test_a_command_that_ends_at_once(launch: Launcher, n: int) -> None:
    sandbox = launch(["true"], watched=WRITES)
    sandbox.expect(Started(), Exited(0, 0))
    assert sandbox.finish()[0] == 0


def test_a_report_made_just_before_the_end_arrives(launch: Launcher, places: Places) -> None:
    sandbox = launch(["mkdir", str(places.base / "new")], watched=WRITES, options=places.options)
    events = sandbox.rest()
    assert [type(event) for event in events] == [Started, RefusedCall, Exited]


HOLDING_A_LISTENER = f"""
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
code = struct.pack("<HBBI", 6, 0, 0, 0x7fff0000)
program = struct.pack("<HxxxxxxQ", 1, ctypes.cast(ctypes.create_string_buffer(code), ctypes.c_void_p).value)
assert libc.syscall({317 if MACHINE == "x86_64" else 277}, 1, 8, program) >= 0
if not os.fork():  # it keeps the listener
    os.read(0, 1); os._exit(0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_where_a_listener_is_there_already(launch: Launcher) -> None:
    """The command is not run, and the reason is printed."""
    sandbox = launch.start(["/usr/bin/env", "python3", "-I", "-S", "-c", HOLDING_A_LISTENER, *launch.words()], stdin=-1)
    sandbox.accept()
    sandbox.send(configuration(["echo", "ran"], watched=WRITES))
    assert [type(event) for event in sandbox.rest()] == [Descriptors, ExecFailed, Exited]
    status, out, err = sandbox.finish()
    assert (status, out) == (125, "")
    assert err.startswith("sandboxd: something else already watches the system calls\nhint: ")


def test_the_probe(launch: Launcher, tmp_path: Path) -> None:
    assert why_unwatched(launch.helper) == ""
    for words, said in (
        (["exit", "22"], "does not know"),
        (["exit", "1"], "refuses"),
        (["exit", "5"], "Input/output error"),
    ):
        pretended = tmp_path / words[1]
        pretended.write_text("#!/bin/sh\n" + " ".join(words))
        pretended.chmod(0o755)
        assert said in why_unwatched(str(pretended))
    assert "cannot be run" in why_unwatched(str(tmp_path / "missing"))
    for scope, unwatched in (("0", False), ("1", False), ("2", True), ("3", True), ("", False)):
        (tmp_path / "scope").write_text(scope + "\n")
        assert ("ptrace_scope" in closed_memory(str(tmp_path / "scope"))) is unwatched
    probing = launch.start(
        ["/usr/bin/env", "python3", "-I", "-S", "-c", HOLDING_A_LISTENER, launch.helper, "probe"], stdin=-1
    )
    assert probing.process.wait(30) == errno.EBUSY


@pytest.mark.skipif(MACHINE != "x86_64", reason="the program is made of x86_64 instructions")
def test_a_static_program(launch: Launcher, places: Places) -> None:
    path = os.fsencode(places.base / "new") + b"\0"
    code = (
        b"\xb8\x53\0\0\0"  # mov eax, mkdir
        b"\x48\x8d\x3d\x10\0\0\0"  # lea rdi, [rip + 16]
        b"\xbe\xff\x01\0\0"  # mov esi, 0777
        b"\x0f\x05"  # syscall
        b"\xb8\x3c\0\0\0"  # mov eax, exit
        b"\x31\xff"  # xor edi, edi
        b"\x0f\x05"  # syscall
    )
    program = places.base / "program"
    program.write_bytes(elf(64, code + path))
    program.chmod(0o755)
    found = reports(launch([str(program)], watched=WRITES, options=places.options))
    assert [(call_name(report.call, MACHINE), report.path, report.process) for report in found] == [
        ("mkdir", f"{places.base}/new", "program")
    ]


def test_when_init_is_killed_nobody_goes_on(launch: Launcher, places: Places) -> None:
    script = f"import os\nos.chdir({str(places.base / 'open')!r})\nwhile True: os.mkdir('d'); os.rmdir('d')"
    sandbox = launch.python(script, watched=WRITES, options=places.options)
    sandbox.expect(Started())
    inside = [process.pid for process in processes.descendants(sandbox.process.pid)]
    os.kill(inside[0], signal.SIGKILL)
    sandbox.process.wait(30)
    wait_until(lambda: not any(processes.is_alive(pid) for pid in inside), "everything in the sandbox has ended")


def test_a_daemon_that_is_gone_is_not_waited_for(launch: Launcher, places: Places) -> None:
    """And init has nothing to do any more: it does not wake up for reports without a receiver."""
    script = f"""
import os, sys
os.chdir({str(places.base)!r})
def refused(n):
    try: os.mkdir(f"new-{{n}}")
    except OSError: return 1
print(sum(map(refused, range(400))), flush=True)
sys.stdin.readline()
print(sum(map(refused, range(400))), flush=True)
sys.stdin.readline()"""
    sandbox = launch.python(script, watched=WRITES, options=places.options, stdin=-1)
    sandbox.expect(Started())
    process = sandbox.process
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"400\n"
    init = processes.descendants(process.pid)[0].pid
    sandbox.hang_up()
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"400\n"
    wait_until(lambda: wake_ups(init) == wake_ups(init, after_s=0.2), "init has gone to sleep")
    process.stdin.close()
    assert process.wait(30) == 0


def wake_ups(pid: int, after_s: float = 0) -> str:
    time.sleep(after_s)
    text = Path(f"/proc/{pid}/status").read_text()
    return next(line for line in text.splitlines() if line.startswith("voluntary_ctxt_switches"))
