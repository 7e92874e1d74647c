"""Conformance, "must still work": what people do all day, in one sandbox for each kind of person. Each line of the
script says its name when it worked, so that one that fails does not hide the others."""

from __future__ import annotations

import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from support.bubblewrap import each_bubblewrap
from support.daemons import StartDaemon
from support.lab import GIT
from support.origin import Origin
from support.users import Identity, identity_names

PYTHON = """
import ctypes, multiprocessing, os, pwd, select, signal, socket, subprocess, sys, time

libc = ctypes.CDLL(None, use_errno=True)

def square(number):
    return number * number

def terminal():
    ours, theirs = os.openpty()
    os.write(theirs, b"typed\\n")
    return os.read(ours, 64) == b"typed\\r\\n" and os.ttyname(theirs).startswith("/dev/pts/")

def processes():
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            if pool.map(square, range(4)) != [0, 1, 4, 9]:
                return False
    return True

def watch():
    fd = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(fd, b".", 0x100)
    open("watched", "w").close()
    return bool(select.select([fd], [], [], 20)[0]) and b"watched" in os.read(fd, 4096)

def debugger():
    child = os.fork()
    if child == 0:
        libc.ptrace(0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(5)
    stopped = os.WIFSTOPPED(os.waitpid(child, 0)[1])
    libc.ptrace(7, child, 0, 0)
    return stopped and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5

def docker():
    try:
        socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock")
    except OSError:
        return True
    return False

if __name__ == "__main__":
    me = pwd.getpwuid(os.getuid())
    tried = {
        "openpty": terminal, "multiprocessing": processes, "inotify": watch, "debugger": debugger, "docker": docker,
        "getpwuid": lambda: me.pw_name == os.environ["USER"],
        "runtime": lambda: not (place := os.environ.get("XDG_RUNTIME_DIR")) or os.path.isdir(place),
        "timezone": lambda: time.tzset() or time.strftime("%z", time.localtime(0)) == "+0530",
    }
    for name, function in tried.items():
        try:
            print(name, "works" if function() else "FAILED")
        except Exception as error:
            print(name, "FAILED", repr(error))
"""

LINE = r"""
t() { name=$1; shift; if said=$("$@" 2>&1); then echo "$name works"; else echo "$name FAILED $? $said"; fi; }
commit() { cd "$1" && echo x >>file && git add file && git status --short && git diff --cached --stat | grep -q file &&
    git commit -qm "$1" && git log -1 --format=%s; }
repository() { git init -q repository && commit repository; }
worktree() { cd repository && git worktree add -q ../tree -b tree && cd .. && commit tree; }
substitution() { [ "$(cat <(echo a) /dev/fd/3 3<<<b)" = $'a\nb' ] && echo c | tee >(cat >/dev/null) | grep -q c; }
server() { python3 -I -S -m http.server 3000 --bind 127.0.0.1 >/dev/null 2>&1 & local pid=$!
    until exec 4<>/dev/tcp/127.0.0.1/3000; do sleep 0.05; done 2>/dev/null
    curl -sf http://localhost:3000/ >/dev/null; local status=$?; kill $pid; return $status; }
elevate() { ! su -c id root </dev/null; }
ssh_says() { ssh -o BatchMode=yes -o ConnectTimeout=20 -p "$1" ok.test true 2>&1 |
    grep -qi "banner\|protocol\|exchange"; }
without_runtime() { env -u XDG_RUNTIME_DIR sh -c 'd=$(mktemp -d) && touch $d/x && rm -r $d'; }
locale() { [ "$(printf 'é' | LC_ALL=C.UTF-8 wc -m)" = 1 ] && [ "$LANG" = C.UTF-8 ]; }
t repository repository; t worktree worktree; t substitution substitution; t server server; t elevate elevate
t ssh ssh_says "$1"; t without-runtime without_runtime; t locale locale; t curl curl -sf "http://ok.test:$1/"
t heredoc sh -c 'cat <<X | grep -q y
y
X'
TZ=IST-5:30 python3 -I -S program.py
"""
NAMES = {
    "repository", "worktree", "substitution", "server", "elevate", "ssh", "without-runtime", "locale", "curl",
    "heredoc", "openpty", "multiprocessing", "inotify", "debugger", "docker", "getpwuid", "runtime", "timezone",
}  # fmt: skip


@each_bubblewrap
def test_what_people_do_all_day(start_daemon: StartDaemon, identity: Identity, origin: Origin) -> None:
    """Programs that speak to themselves through Unix sockets, as a forkserver does, with sockets in `/tmp`."""
    network = {"allowedDomains": ["ok.test"], "allowUnixSockets": ["/tmp"]}
    daemon = start_daemon(settings={"sandbox": {"network": network}}, resolve={"ok.test": "127.0.0.1"})
    identity.write(identity.workspace / "program.py", PYTHON)
    done = daemon.run("run", "--", "bash", "-c", LINE, "bash", str(origin.port), env=GIT)
    assert set(done.stdout.splitlines()) == {f"{name} works" for name in NAMES}, (done.stdout, done.stderr)
    assert len(origin.connections) == 2, "ssh and curl"


PACKAGE = {
    "parcel/__init__.py": "def answer():\n    return 42\n",
    "parcel-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: parcel\nVersion: 1.0\n",
    "parcel-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "parcel-1.0.dist-info/RECORD": "",
}
TEST = """
import multiprocessing
import parcel

def test_it(tmp_path):
    with multiprocessing.Pool(2) as pool:
        assert pool.apply(parcel.answer) == 42
    (tmp_path / "file").write_text("x")
"""


@pytest.mark.parametrize("identity", identity_names()[:1], indirect=True)  # who has pip and pytest: the checkout's own
def test_a_package_from_an_index_and_a_test_that_uses_it(
    start_daemon: StartDaemon, identity: Identity, tmp_path: Path
) -> None:
    """pip with an index that is allowed and one that is not; then pytest with multiprocessing."""
    (tmp_path / "simple" / "parcel").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "simple" / "parcel" / "parcel-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in PACKAGE.items():
            wheel.writestr(name, text)
    asked: list[str] = []

    class Index(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            asked.append(self.headers["Host"])

    pins = {"index.test": "127.0.0.1", "other.test": "127.0.0.1"}
    daemon = start_daemon(settings={"sandbox": {"network": {"allowedDomains": ["index.test"]}}}, resolve=pins)
    identity.write(identity.workspace / "test_it.py", TEST)
    pip = '"$0" -m pip --disable-pip-version-check --isolated --no-cache-dir --retries 0 install -q --no-deps -t lib'
    line = (
        f"{pip} --trusted-host other.test -i http://other.test:$1/simple parcel >/dev/null 2>&1 && exit 3;"
        f"{pip} --trusted-host index.test -i http://index.test:$1/simple parcel &&"
        'PYTHONPATH=lib:$PYTHONPATH "$0" -m pytest -q -p no:cacheprovider test_it.py'
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Index, directory=str(tmp_path))) as index:
        Thread(target=index.serve_forever, args=(0.05,), daemon=True).start()
        done = daemon.run("run", "--", "sh", "-c", line, identity.code.python, str(index.server_port))
        index.shutdown()
    assert done.returncode == 0 and "1 passed" in done.stdout, (done.stdout, done.stderr)
    assert asked and {host.split(":")[0] for host in asked} == {"index.test"}
