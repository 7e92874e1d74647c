"""What people are told, and what helps: cases from the field in which a command fails for a reason that its own message
does not give. One daemon for all of them, with the defaults."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path

from support.daemons import DaemonProcess
from support.origin import Origin
from support.users import Identity
from support.waiting import wait_until

PACKAGE = """
mkdir -p pack/package && echo '{"name": "p", "version": "1.0.0"}' > pack/package/package.json &&
tar czf p.tgz -C pack package && rm -r pack
"""
REPOSITORY = """
git config --global user.name a; git config --global user.email a@a.test
git init -q -b main .; git commit -q --allow-empty -m i; git init -q --bare o.git; echo o.git > .git/info/exclude
git remote add origin ./o.git; git checkout -qb b; mkdir -p .vscode .claude/skills; echo 1 > .vscode/a
echo 1 > .mcp.json; echo 1 > .claude/skills/x.md; git add .; git commit -qm b; git checkout -q main
"""
NPM = "npm cache add ./p.tgz"
CONNECT = """
import socket, sys
for path in sys.argv[1:]:
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path)
            print("connected")
    except OSError as error:
        print(error.strerror)
"""


RUN = """
import json, sys
from sandboxd_client import Client
with Client(autostart=False) as box:
    done = box.run(f"exec 2>&1; {sys.argv[1]}", capture_output=True, text=True)
    print(json.dumps([done.returncode, done.stdout, {v.target: v.hint for v in done.violations if v.kind == "write"}]))
"""


def run(daemon: DaemonProcess, line: str, cwd: Path | None = None) -> tuple[int, str, dict[str, str]]:
    """Exit status, everything said, and the hints for refused writes by their targets."""
    done = daemon.python(RUN, line, cwd=cwd)
    assert done.returncode == 0, done.stderr
    status, said, hints = json.loads(done.stdout)
    return status, said, hints


def host(identity: Identity, line: str) -> None:
    identity.run(["/bin/sh", "-ec", line], check=True)


def test_failures_are_explained(daemon: DaemonProcess, identity: Identity, origin: Origin) -> None:
    work, home = identity.workspace, identity.home
    host(identity, REPOSITORY)
    _a_push_that_cannot_store_what_it_tracks(daemon, identity)
    _a_checkout_of_protected_files(daemon, identity)
    _clean(daemon, identity)
    # Not followed, since a command could have written the pointer
    host(identity, "mkdir -p ~/s/.jj/repo ~/w/.jj; printf ../../s/.jj/repo > ~/w/.jj/repo")
    status, _, found = run(daemon, "touch ../s/.jj/repo/x", cwd=home / "w")
    hint = found[f"{home}/s/.jj/repo/x"]
    assert status and ".jj/repo" in hint and hint.endswith("sandboxd allow path ~/s/.jj/repo")
    assert daemon.run("allow", "path", str(home / "s/.jj/repo")).returncode == 0
    assert run(daemon, "touch ../s/.jj/repo/x", cwd=home / "w")[0] == 0
    # a name that a line-wise reader of mountinfo would take for two
    (odd := work / "carriage\rreturn").mkdir()
    assert run(daemon, "touch x", cwd=identity.own(odd))[0] == 0
    _sockets_of_the_host(daemon, identity)
    _places_of_the_sandbox_itself(daemon, identity, origin)
    _two_at_once(daemon)


def _a_push_that_cannot_store_what_it_tracks(daemon: DaemonProcess, identity: Identity) -> None:
    """EBUSY does not stay without an explanation, and the explanation helps. What was pushed is known."""
    work = identity.workspace
    _, said, found = run(daemon, "git push -u origin HEAD; git rev-parse origin/main HEAD | uniq | wc -l")
    assert "Device or resource busy" in said and said.splitlines()[-1] == "1"
    hint = found[f"{work}/.git/config"]
    assert hint.endswith("outside the sandbox, with git config")
    assert daemon.run("settings", "set", "sandbox.filesystem.allowGitConfig", "true", "--yes").returncode == 0
    _, said, found = run(daemon, "git push -u origin HEAD && git config branch.main.merge; touch .git/hooks/x")
    assert "refs/heads/main" in said and [*found] == [f"{work}/.git/hooks/x"]
    assert daemon.run("settings", "unset", "sandbox.filesystem.allowGitConfig").returncode == 0


def _a_checkout_of_protected_files(daemon: DaemonProcess, identity: Identity) -> None:
    """Each path is reported, and what keeps names absent does not look like an edit."""
    work = identity.workspace
    names = (".claude/skills/x.md", ".mcp.json", ".vscode/a")
    line = "; ".join(f"git checkout b -- {name}" for name in names)
    _, said, found = run(daemon, f"{line}; git status --porcelain; git rev-parse --abbrev-ref @")
    for name in names:
        assert any(f"{work}/{name}".startswith(target) for target in found), (name, found)
    assert not {*said.splitlines()} & {" D .mcp.json", "?? .vscode/"} and said.splitlines()[-1] == "main"
    host(identity, 'git reset -q --hard; test -z "$(git status --porcelain)"')


def _clean(daemon: DaemonProcess, identity: Identity) -> None:
    """Placeholders hinder no program; an existing entry does, and is named."""
    status, said, found = run(daemon, "mv .git g")
    assert status and f"{identity.workspace}/.git/config in it is kept" in found[f"{identity.workspace}/.git"]
    status, said, found = run(daemon, "touch new; git clean -fdxq -e o.git; ls -A")
    assert status == 0 and "new" not in said and not found, (said, found)
    wait_until(lambda: not (identity.workspace / ".idea").exists(), "what kept it absent is gone")
    host(identity, "mkdir .idea")
    status, said, found = run(daemon, "touch new; git clean -fdxq -e o.git; ls -A")
    assert "failed to remove .idea" in said and "new" not in said and [*found] == [f"{identity.workspace}/.idea"]
    assert found[f"{identity.workspace}/.idea"].endswith("change it outside the sandbox")
    host(identity, "rmdir .idea")


def _sockets_of_the_host(daemon: DaemonProcess, identity: Identity) -> None:
    """That the place is mounted read-only does not matter."""
    places = [identity.runtime / "s.sock", identity.home / "s.sock"]
    places += [Path(f"/run/sdt-{os.getpid()}.sock")] if os.geteuid() == 0 else []
    listeners = []
    try:
        for path in places:
            listeners.append(listener := socket.socket(socket.AF_UNIX))
            listener.bind(str(path))
            listener.listen()
            path.chmod(0o777)
        paths = [str(path) for path in places]
        outside = identity.run(["/usr/bin/python3", "-c", CONNECT, *paths])
        assert outside.stdout.splitlines() == ["connected"] * len(places)
        inside = daemon.run("run", "--", "/usr/bin/python3", "-c", CONNECT, *paths)
        assert inside.stdout.splitlines() == ["Permission denied"] * len(places)
    finally:
        for listener in listeners:
            listener.close()
        for path in places:
            path.unlink(missing_ok=True)


def _places_of_the_sandbox_itself(daemon: DaemonProcess, identity: Identity, origin: Origin) -> None:
    """Whatever is closed for reading, helper and network are there."""
    for closed in (["/"], ["/**"], ["/tmp", "/var", "/run", "/home", "/root", "/opt", "~"]):
        files = {"denyRead": closed, "allowRead": ["/usr", "/lib", "/lib64", "/bin", "/etc/alternatives", "."]}
        settings = {"sandbox": {"filesystem": files, "network": {"allowedDomains": ["ok.test"]}}}
        file = identity.write(identity.base / "closed.json", json.dumps(settings))
        url = f"http://ok.test:{origin.port}/"
        line = f"curl -sS {url}; curl -sS --noproxy '*' {url}; ls ~ || echo closed"
        done = daemon.run("run", "--settings", str(file), "-c", line)
        assert done.stdout.count("hello") == 2 and done.stdout.endswith("closed\n"), done


def _two_at_once(daemon: DaemonProcess) -> None:
    """Neither meets the other's files, nor the host's."""
    name = f"sdt-{secrets.token_hex(8)}"
    line = f"mkdir /tmp/{name} $TMPDIR/{name} && echo $TMPDIR && cat"
    both = [daemon.popen("run", "-c", line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = {one.stdout.readline() for one in both if one.stdout is not None}
    assert len(lines - {""}) == 2
    for one in both:
        one.communicate()
        assert one.returncode == 0
    assert not Path(f"/tmp/{name}").exists()


def test_caches_of_package_managers(daemon: DaemonProcess, identity: Identity) -> None:
    """The hint of a refusal names the preset, which works without a cache and opens nothing else."""
    host(identity, PACKAGE)
    _, _, found = run(daemon, "mkdir -p ~/.npm/_cacache ~/.cargo/registry; mkdir -p ~/.cache/pip")
    for name in (".npm", ".cargo", ".cache"):
        ways = found[f"{identity.home}/{name}"].split("; or ")
        assert ways[0].endswith(": sandboxd allow preset caches") and "home overlay" in ways[1]
    assert daemon.run("allow", "preset", "caches").returncode == 0
    npm = NPM if shutil.which("npm", path=identity.environment()["PATH"]) else "touch ~/.npm/_cacache/content-v2"
    line = f"{npm} >npm.log 2>&1; echo $?; touch ~/.cargo/registry/x; touch ~/.cargo/config.toml; mkdir ~/.cargo/bin"
    done = daemon.run("run", "-c", line)
    assert done.stdout == "0\n" and "warning" not in done.stderr, (done, (identity.workspace / "npm.log").read_text())
    assert (identity.home / ".npm/_cacache/content-v2").exists() and (identity.home / ".cargo/registry/x").exists()
    assert sorted(path.name for path in (identity.home / ".cargo").iterdir() if path.name != "git") == ["registry"]
    assert run(daemon, "touch ~/.npm/_cacache/again")[0] == 0
    assert daemon.stop() == 0  # directories that stayed empty are gone
    assert {path.name for path in identity.home.iterdir()} == {".cargo", ".claude", ".local", ".npm"}


UNDER_ENOSYS = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
rows = [(0x20, 0, 0, 0), (0x15, 0, 1, 435), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7FFF0000)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
class Program(ctypes.Structure):
    _fields_ = [("size", ctypes.c_ushort), ("rows", ctypes.c_void_p)]
if os.geteuid():
    assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(rows), ctypes.addressof(text)))) == 0
assert libc.syscall(435, 0, 0) == -1 and ctypes.get_errno() == 38
os.execvp(sys.argv[1], sys.argv[1:])
"""
STRICT_BUBBLEWRAP = """#!/bin/sh
case "$1" in --version | --help) exec /usr/bin/bwrap "$@" ;; esac
echo >> "${0%/*}/used"
exec /usr/bin/bwrap --unshare-user --disable-userns "$@"
"""
THREADS = """
import threading
from sandboxd_client import Client
statuses = []
def work():
    with Client() as box:
        for _ in range(3):
            statuses.append(box.run(["/bin/true"], timeout=60).returncode)
threads = [threading.Thread(target=work) for _ in range(20)]
with Client() as box:
    print(*box.wrap(argv=["true"]).layers)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(statuses), set(statuses))
"""


def test_neither_clone3_nor_a_namespace_in_the_sandbox(identity: Identity) -> None:
    """Daemon and a client with twenty threads where clone3 answers ENOSYS. After bubblewrap has made its
    user namespace, the kernel refuses another one in it, and the filter is installed all the same."""
    identity.write(identity.base / "strict" / "bwrap", STRICT_BUBBLEWRAP, mode=0o755)
    under = identity.write(identity.base / "under.py", UNDER_ENOSYS)
    threads = identity.write(identity.base / "threads.py", THREADS)
    argv = [identity.code.python, str(under), *identity.python(str(threads))]
    try:
        done = identity.run(argv, env=identity.environment(SANDBOXD_TEST_PATH=str(identity.base / "strict")))
        layers, statuses = done.stdout.splitlines() or ("", "")
        assert statuses == "60 {0}" and {"namespaces", "seccomp"} <= {*layers.split()}, done
    finally:
        stopped = identity.run(identity.command("stop"))
    assert stopped.returncode == 0, stopped
    assert len((identity.base / "strict" / "used").read_text()) > 60
