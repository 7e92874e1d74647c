"""What mounts let pass and Landlock refuses: standard input reopened for writing, FIFOs outside, signals to the rest of
the job. And all that must go on as before. The oracle is the host, where the same program can do everything."""

from __future__ import annotations

import json
import os
import shlex

from support.daemons import StartDaemon
from support.terminal import Terminal
from support.waiting import wait_until

PROGRAM = """
import ctypes, json, os, shutil, signal, socket, struct, sys, tempfile
outside, done = sys.argv[1], {}
libc = ctypes.CDLL(None, use_errno=True)
def opened(path, flags):
    os.close(os.open(path, flags))
def write(path, flags=os.O_WRONLY):
    fd = os.open(path, flags)
    os.write(fd, b"x")
    return fd
def fifo(path):
    fd = write(path, os.O_RDWR)
    assert os.read(fd, 1) == b"x"
def by_another():
    child = os.fork()
    if not child: signal.pause()
    try: opened(f"/proc/{child}/fd/0", os.O_WRONLY)
    finally: os.kill(child, signal.SIGKILL); os.waitpid(child, 0)
def inherited():
    copy = os.dup(0)
    opened(f"/proc/thread-self/fd/{copy}", os.O_RDWR)
refused = {
    "proc": lambda: opened("/proc/self/fd/0", os.O_WRONLY), "dev": lambda: opened("/dev/stdin", os.O_RDWR),
    "fd": lambda: opened("/dev/fd/0", os.O_WRONLY | os.O_APPEND), "copy": inherited, "by_another": by_another,
    "emptied_by_open": lambda: opened("/proc/self/fd/0", os.O_RDONLY | os.O_TRUNC),
    "emptied": lambda: os.truncate("/proc/self/fd/0", 0), "fifo": lambda: fifo(outside + "/fifo"),
    "fifo_nonblocking": lambda: write(outside + "/read.fifo", os.O_WRONLY | os.O_NONBLOCK),
}
def between_directories():
    os.makedirs("a/d"); os.makedirs("b")
    open("a/f", "w").close()
    os.rename("a/f", "b/f"); os.link("b/f", "a/g"); os.rename("a/d", "b/d"); os.replace("a/g", "b/d/g")
    libc.renameat2(-100, b"b/f", -100, b"b/d/g", 2)
    assert not ctypes.get_errno(), ctypes.get_errno()
    shutil.rmtree("a"); shutil.rmtree("b")
def temporary_file(directory):
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"t")
    os.close(write(f"/proc/self/fd/{fd}"))
    os.makedirs(directory + "/sub", exist_ok=True)
    for place in ("linked", "sub/linked"):
        name = f"{directory}/{place}"
        if libc.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, name.encode(), 0x400):  # AT_SYMLINK_FOLLOW
            raise OSError(ctypes.get_errno(), "linkat", name)
    os.unlink(directory + "/linked"); shutil.rmtree(directory + "/sub")
def unlinked(directory):
    made = tempfile.mkdtemp(dir=directory)
    fd = os.open(made + "/f", os.O_CREAT | os.O_RDONLY, 0o600)
    os.unlink(made + "/f"); os.rmdir(made)
    os.truncate(f"/proc/self/fd/{fd}", 0)
    os.close(write(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_TRUNC))
def memory():
    fd = os.memfd_create("m")
    os.close(write(f"/proc/self/fd/{fd}")); os.truncate(f"/dev/fd/{fd}", 0)
def pipe():
    reads, writes = os.pipe()
    os.close(write(f"/dev/fd/{writes}"))
    assert os.read(reads, 1) == b"x"
def terminal():
    ours, theirs = os.openpty()
    os.close(write(os.ttyname(theirs), os.O_RDWR | os.O_NOCTTY))
def traced():
    child = os.fork()
    if not child: signal.pause()
    error = libc.ptrace(0x4206, child, 0, 0)  # PTRACE_SEIZE
    os.kill(child, 0); os.kill(child, signal.SIGKILL); os.waitpid(child, 0)
    assert not error, ctypes.get_errno()
def own_fifo():
    os.mkfifo("fifo"); fifo("fifo"); os.unlink("fifo")
def named(path, text):
    with open(path, "w") as file: file.write(text)
allowed = {
    "input_read": lambda: opened("/proc/self/fd/0", os.O_RDONLY),
    "fifo_read": lambda: opened(outside + "/read.fifo", os.O_RDONLY | os.O_NONBLOCK),
    "output": lambda: opened("/proc/self/fd/1", os.O_WRONLY | os.O_APPEND),
    "errors": lambda: os.close(write("/dev/stderr")), "errors_emptied": lambda: os.truncate("/proc/self/fd/2", 0),
    "own_fifo": own_fifo, "listed_fifo": lambda: fifo(outside + "/listed.fifo"),
    "listed_file": lambda: named(outside + "/listed", "x"), "between_directories": between_directories,
    "temporary_file": lambda: temporary_file("."), "temporary_file_tmp": lambda: temporary_file("/tmp"),
    "unlinked": lambda: unlinked("."), "unlinked_tmp": lambda: unlinked("/tmp"), "memory": memory, "pipe": pipe,
    "shm": lambda: unlinked("/dev/shm"),
    "null": lambda: os.close(write("/dev/null")), "terminal": terminal, "traced": traced,
    "comm": lambda: named("/proc/self/comm", "c"), "oom": lambda: named("/proc/self/oom_score_adj", "500"),
    "group": lambda: os.kill(0, 0), "own": lambda: os.kill(os.getpid(), 0),
}
for name, attempt in (refused | allowed).items():
    ctypes.set_errno(0)
    try: attempt(); done[name] = "done"
    except OSError as error: done[name] = os.strerror(error.errno) + (" " + str(error.filename)) * (name in allowed)
    except AssertionError as error: done[name] = repr(error)
print(json.dumps([{name: done[name] for name in some} for some in (refused, allowed)]))
"""


def test_what_mounts_let_pass_is_refused_and_the_rest_goes_on(start_daemon: StartDaemon) -> None:
    """What a file given as standard input, and a FIFO, can be used for. The same program on the host does all of it."""
    daemon = start_daemon()
    identity = daemon.identity
    outside = identity.base / "outside"
    outside.mkdir()
    identity.own(outside)
    for name in ("given", "listed"):
        identity.write(outside / name, "keep me")
    for name in ("fifo", "read.fifo", "listed.fifo"):
        os.mkfifo(outside / name, 0o600)
        identity.own(outside / name)
    reader = os.open(outside / "read.fifo", os.O_RDONLY | os.O_NONBLOCK)
    script = identity.write(identity.workspace / "try.py", PROGRAM)
    listed = [word for name in ("listed", "listed.fifo") for word in ("--allow-write", str(outside / name))]
    plain = ["python3", str(script), str(outside)]
    try:
        for argv, held_back in ((identity.command("run", *listed, "--", *plain), True), (plain, False)):
            line = f"exec {shlex.join(argv)} < {outside}/given > {outside}/out 2> {outside}/err"
            assert identity.run(["/bin/sh", "-c", line], env=daemon.environment()).returncode == 0
            assert (outside / "err").read_text() == "", "the errors went elsewhere"
            refused, allowed = json.loads((outside / "out").read_text())
            assert set(refused.values()) == ({"Permission denied"} if held_back else {"done"}), refused
            assert set(allowed.values()) == {"done"}, allowed
            assert ((outside / "given").read_text() == "keep me") is held_back
    finally:
        os.close(reader)


LAYERS = """
from sandboxd_client import Client
with Client(autostart=False) as box:
    print(*box.wrap(argv=["true"]).layers)
"""
SUSPENDED = "import os, signal; os.kill(0, signal.SIGTSTP); print('goes ' + 'on')"
JOB = "import os, signal; signal.signal(15, lambda *_: print('own')); os.kill(0, 15); print('sent')"


def test_the_rest_of_the_job_gets_no_signal_and_both_are_layers(start_daemon: StartDaemon) -> None:
    """Each layer that is enforced is named, and tried by `check`. With a terminal a command shares the process
    group of the shell's job: `kill 0` reaches its own processes there and no others; the twin is not sandboxed. It can
    suspend the job, as Ctrl-Z does."""
    daemon = start_daemon()
    identity = daemon.identity
    assert {"landlock", "landlock-signals"} <= set(daemon.python(LAYERS).stdout.split())
    checked = json.loads(daemon.run("check", "--json").stdout)
    assert [step["ok"] for step in checked["steps"] if step["name"] == "landlock"] == [True]
    assert {"landlock", "landlock-signals"} <= set(checked["layers"])
    as_them = ["setpriv", f"--reuid={identity.uid}", f"--regid={identity.gid}", "--clear-groups"]
    argv = [*(() if identity.is_me else as_them), "/bin/bash", "--norc", "--noprofile", "--noediting", "-i"]
    with Terminal(argv, env={**daemon.environment(), "PS1": "%%-", "HISTFILE": ""}, cwd=identity.workspace) as shell:
        said = identity.workspace / "said"
        for prefix, outcome in (("sandboxd run -- ", "survived=0"), ("", "survived=143")):
            shell.type(f"{{ {prefix}python3 -c {shlex.quote(JOB)} > said; }} | cat; echo survived''=${{PIPESTATUS[1]}}")
            shell.expect(outcome)
            shell.expect("%%-")
            # its parent may end before it does
            wait_until(lambda: sorted(said.read_text().split()) == ["own", "sent"])
            said.unlink()
        # an editor at Ctrl-Z: without more, it alone would stop, and the shell wait for what is left of the job
        shell.type(f"sandboxd run -- python3 -c {shlex.quote(SUSPENDED)} | cat")
        shell.expect("Stopped")
        shell.expect("%%-")
        shell.type("fg")
        shell.expect("goes on")
