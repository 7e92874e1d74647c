"""Real programs without proxy variables, by name: what is allowed works, of the rest they say that there is no such
name. What they do with sockets is in `test_capture.py`."""

from __future__ import annotations

import contextlib
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin, serve_origin
from support.ports import free_port
from support.users import identity_names
from support.waiting import wait_until

UNSET = "unset ${!http*} ${!https*} ${!HTTP*} ${!ALL*} ${!all_*} ${!GRPC*} NO_PROXY no_proxy JAVA_TOOL_OPTIONS; "
SETTINGS = {
    "sandbox": {"network": {"allowedDomains": ["ok.test"], "deniedDomains": ["no.test"], "strictAllowlist": True}}
}
PINS = {"ok.test": "127.0.0.1", "no.test": "127.0.0.1"}

FETCH = "fetch(process.argv[1]).then(r => r.text()).then(console.log, e => console.log(String(e.cause)))"
RESOLVE = "require('dns').resolve4(process.argv[1], (e, found) => console.log(e ? e.code : found[0]))"
JAVA = """
import java.net.*; import java.net.http.*; import java.util.concurrent.CompletableFuture;
class Get {
  static CompletableFuture<String> get(String url) {
    var plain = HttpClient.newBuilder().proxy(HttpClient.Builder.NO_PROXY).build();
    return (url.contains(":3000/") ? HttpClient.newHttpClient() : plain)
      .sendAsync(HttpRequest.newBuilder(URI.create(url)).build(), HttpResponse.BodyHandlers.ofString())
      .handle((answer, error) -> answer != null ? answer.body() : String.valueOf(error.getCause()));
  }
  public static void main(String[] urls) throws Exception {
    for (String url : urls) System.out.println(get(url).get().split("\\n")[0]);
    try { InetAddress.getByName("no.test"); } catch (UnknownHostException error) { System.out.println(error); }
  }
}
"""

SERVE = """
python3 -I -S -m http.server 3000 --bind :: >/dev/null 2>&1 &
until exec 4<>/dev/tcp/127.0.0.1/3000; do sleep 0.05; done 2>/dev/null
"""

# What is run, and what it says of a name that is not allowed. $1 is the name, $2 the port.
PROGRAMS = {
    "curl": ("curl -sS http://$1:$2/", "Could not resolve host: no.test"),
    "wget": ("wget -nv -O- http://$1:$2/", "unable to resolve host address"),
    "getent": ("getent ahosts $1 && curl -sS http://$1:$2/", ""),
    "bash": ("exec 3<>/dev/tcp/$1/$2; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3", "Name or service not known"),
    "python3": (
        "python3 -I -S -c 'import sys, urllib.request as u; print(u.urlopen(f\"http://{sys.argv[1]}:{sys.argv[2]}\").read())'"
        " $1 $2",
        "Name or service not known",
    ),
    "node": (f'node -e "{FETCH}" http://$1:$2/ 2>&1', "ENOTFOUND no.test"),
    "node ares": (f'node -e "{RESOLVE}" $1; curl -sS http://$1:$2/', "ENOTFOUND"),
}


# What has nothing to do with who runs it is tried once.
AS_A_USER = pytest.mark.parametrize("identity", identity_names()[-1:], indirect=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Origin]:
    with serve_origin() as origin:
        yield origin


@pytest.fixture
def capturing(start_daemon: StartDaemon) -> DaemonProcess:
    return start_daemon(resolve=PINS, settings=SETTINGS)


def run(daemon: DaemonProcess, line: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return daemon.run("run", "--show-violations", "--", "bash", "-c", UNSET + line, "bash", *map(str, arguments))


def test_clients_by_name(capturing: DaemonProcess, server: Origin) -> None:
    """Clients by name."""
    for name in [name for name in PROGRAMS if shutil.which(name.split()[0])]:
        line, complaint = PROGRAMS[name]
        done = run(capturing, line, "ok.test", server.port)
        assert "hello from the origin" in done.stdout, (name, done)
        before = len(server.connections)
        done = run(capturing, line, "no.test", server.port)
        assert "hello" not in done.stdout and complaint in done.stdout + done.stderr, (name, done)
        assert "sandboxd: blocked network DNS no.test (rule no.test)" in done.stderr, (name, done)
        assert len(server.connections) == before, name


@AS_A_USER
@pytest.mark.skipif(not shutil.which("java"), reason="no Java on this machine")
def test_java(capturing: DaemonProcess, server: Origin) -> None:
    """Java."""
    capturing.identity.write(capturing.identity.workspace / "Get.java", JAVA)
    urls = [f"http://{name}:{server.port}/" for name in ("ok.test", "no.test")]
    inside = [f"http://{host}:3000/" for host in ("localhost", "127.0.0.1", "[::1]")]
    line = SERVE + 'exec java -XX:TieredStopAtLevel=1 Get.java "$@"'
    done = capturing.run("run", "--", "bash", "-c", line, "bash", *urls, *inside)
    assert done.stdout.splitlines() == [
        "hello from the origin",
        "java.net.ConnectException",  # what HttpClient makes of a name that is none
        *["<!DOCTYPE HTML>"] * 3,  # of the server inside, by the client that minds the proxy properties
        "java.net.UnknownHostException: no.test",
    ], done


def git(*words: object, cwd: Path) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@ok.test")
    subprocess.run(["git", *who, *map(str, words)], cwd=cwd, check=True, capture_output=True)


@contextlib.contextmanager
def git_daemon(base: Path) -> Iterator[int]:
    """git:// on loopback, with one repository `r.git`."""
    work = base / "work"
    work.mkdir()
    git("init", "-q", cwd=work)
    git("commit", "-q", "--allow-empty", "-m", "x", cwd=work)
    git("clone", "-q", "--bare", work, base / "r.git", cwd=base)
    port = free_port()
    process = subprocess.Popen(
        ["git", "daemon", "--export-all", "--listen=127.0.0.1", f"--port={port}", f"--base-path={base}", str(base)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip

    def accepts() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(accepts, "git daemon listens")
        yield port
    finally:
        process.terminate()
        process.wait()


@AS_A_USER
def test_git_and_ssh(capturing: DaemonProcess, server: Origin, tmp_path: Path) -> None:
    with git_daemon(tmp_path) as port:
        done = run(capturing, "git ls-remote git://$1:$2/r.git", "ok.test", port)
        assert done.stdout.endswith("\tHEAD\n") or "refs/heads/" in done.stdout, done
        done = run(capturing, "git ls-remote git://$1:$2/r.git", "no.test", port)
        assert "unable to look up no.test" in done.stderr
    before = len(server.connections)
    ssh = "ssh -v -F none -o BatchMode=yes -o ConnectTimeout=20 -p $2 $1 true"
    done = run(capturing, ssh, "ok.test", server.port)
    assert "Connection established" in done.stderr and len(server.connections) == before + 1
    done = run(capturing, ssh, "no.test", server.port)
    assert "Could not resolve hostname no.test" in done.stderr


# names

LOOK_UP = """
import socket, struct, sys
def ask(name, kind, server, tcp=False):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + bytes(1)
    message = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack("!HH", kind, 1)
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        sock.connect((server, 53))
        if not tcp:
            sock.send(message)
            return sock.recv(4096)
        sock.sendall(struct.pack("!H", len(message)) + message)
        size = struct.unpack("!H", sock.recv(2, socket.MSG_WAITALL))[0]
        return sock.recv(size, socket.MSG_WAITALL)
for server in sys.argv[1:]:
    for tcp in (False, True):
        code = [ask(name, kind, server, tcp)[3] & 15 for name, kind in (
            ("ok.test", 1), ("ok.test", 16), ("stolen-secret." + "x" * 60 + ".no.test", 16), ("a.elsewhere.test", 1))]
        print(server, tcp, *code)
"""


def test_whatever_server_is_asked_ours_answers(capturing: DaemonProcess) -> None:
    """The long name carries something out where a real server is asked."""
    servers = ["127.0.0.1", "127.0.0.53", "192.0.2.53", "::1", "2001:db8::53"]
    done = run(capturing, 'exec python3 -I -S -c "$@"', LOOK_UP, *servers)
    assert done.stdout.splitlines() == [f"{server} {tcp} 0 0 3 3" for server in servers for tcp in (False, True)], done
    assert "blocked network DNS a.elsewhere.test" in done.stderr


PLACES = """
import socket
found = lambda *what: sorted({answer[4][0] for answer in socket.getaddrinfo(*what)})
print(open("/etc/resolv.conf").read().split()[-1] in ("127.0.0.1", "."))
print([line.split()[0] for line in open("/etc/hosts") if "localhost" in line])
print(found("localhost", 1), found("a.localhost", 1), found(socket.gethostname(), 1)[:1])
for family in (socket.AF_INET, socket.AF_INET6):
    name = socket.gethostbyaddr(found("ok.test", 1, family, 0, 0, socket.AI_ADDRCONFIG)[0])[0]
    print(name, found("ok.test", 1, family) == found("OK.test.", 1, family))
try: open("/etc/hosts", "a")
except OSError as error: print(error.strerror)
"""


def test_where_names_are_looked_up(capturing: DaemonProcess) -> None:
    done = run(capturing, 'exec python3 -I -S -c "$1"', PLACES)
    assert done.stdout.splitlines() == [
        "True", "['127.0.0.1', '::1']", "['127.0.0.1', '::1'] ['127.0.0.1', '::1'] ['127.0.0.1']",
        "ok.test True", "ok.test True", "Read-only file system",
    ] or "Permission denied" in done.stdout.splitlines()[-1], done  # fmt: skip


@AS_A_USER
def test_without_capture_the_hosts_files_stay(start_daemon: StartDaemon) -> None:
    settings = {"sandbox": {"network": {"transparent": False}}}
    done = start_daemon(settings=settings).run("run", "--", "cat", "/etc/hosts", "/etc/resolv.conf")
    assert done.stdout == Path("/etc/hosts").read_text() + Path("/etc/resolv.conf").read_text()


# servers inside

URLS = " ".join(f"http://{host}:3000/" for host in ("localhost", "127.0.0.1", "[::1]", "localhost.", "a.localhost"))
GET = """
code() { curl -sS -o /dev/null -w '%{http_code} ' "$@"; }
for url; do
  code $url; code --noproxy '' $url
  python3 -I -S -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).status)' $url
done
"""


def test_servers_inside_with_proxy_variables_set(capturing: DaemonProcess) -> None:
    done = capturing.run("run", "--show-violations", "--", "bash", "-c", SERVE + GET, "bash", *URLS.split())
    assert done.stdout.splitlines() == ["200 200 200"] * 5, done
    assert "blocked" not in done.stderr


# published ports

PERMITTED = {"sandbox": {"network": {"allowLocalBinding": True}}}
SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", 3000)) as listener:
    while True:
        client, _ = listener.accept()
        with client:
            client.sendall(b"from inside")
"""


def answer_at(port: int) -> bytes | None:
    """None while nothing is there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        return sock.recv(100) or None
    return None


def test_a_published_server_is_reached_until_the_command_ends(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings=PERMITTED)
    port = free_port()
    command = daemon.popen("run", "--publish", f"{port}:3000", "--", "python3", "-I", "-S", "-c", SERVER)
    try:
        assert wait_until(lambda: answer_at(port), "the server inside answers") == b"from inside"
        assert f"127.0.0.1:{port}:3000" in daemon.run("status").stdout
        taken = daemon.run("run", "--publish", f"{port}:80", "--", "echo", "ran")
        assert (taken.returncode, taken.stdout) == (125, "")
        assert "something on this machine listens there" in taken.stderr
    finally:
        command.terminate()
        command.wait()
    wait_until(lambda: answer_at(port) is None, "the listener is gone")
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_server_is_published_at_a_unix_socket_of_its_owner(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings=PERMITTED)
    path = daemon.identity.home / "web.sock"

    def answer() -> bytes | None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            return sock.recv(100) or None
        return None

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # as a daemon that was killed leaves it
    daemon.identity.own(path)
    command = daemon.popen("run", "--publish", f"{path}:3000", "--", "python3", "-I", "-S", "-c", SERVER)
    try:
        assert wait_until(answer, "the server inside answers") == b"from inside"
        status = path.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, daemon.identity.uid)
        taken = daemon.run("run", "--publish", f"{path}:80", "--", "echo", "ran")
        assert (taken.returncode, taken.stdout) == (125, "") and "it exists" in taken.stderr
        assert daemon.run("restart").returncode == 0
        assert answer() == b"from inside"
    finally:
        command.terminate()
        command.wait()
    wait_until(lambda: not path.exists(), "the socket is gone")
    path.write_text("a file of a person's")
    daemon.identity.own(path)
    refused = daemon.run("run", "--publish", f"{path}:3000", "--", "echo", "ran")
    assert (refused.returncode, refused.stdout) == (125, "") and path.read_text() == "a file of a person's"


def test_the_proxy_of_a_sandbox_is_not_published(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings=PERMITTED)
    for port in (53, 1080, 3128):
        done = daemon.run("run", "--publish", f"{free_port()}:{port}", "--", "echo", "ran")
        assert (done.returncode, done.stdout) == (125, "") and "proxy listens there" in done.stderr, done


@AS_A_USER
def test_what_is_not_permitted_is_not_published(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    for port, why in (("3000", "allowLocalBinding"), ("0.0.0.0:3000:3000", "this machine only"), ("x", "[HOST:]PORT")):
        done = daemon.run("run", "--publish", port, "--", "echo", "ran")
        assert (done.returncode, done.stdout) == (125, "") and why in done.stderr, done


RESTARTED = """
import os, socket, sys, time
known = socket.gethostbyname("ok.test")
listener = socket.create_server(("127.0.0.1", 3000))
print(known, flush=True)
sys.stdin.readline()
with socket.create_connection((known, int(sys.argv[1]))) as sock:  # no look-up: the address is known
    sock.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    print(sock.recv(4096, socket.MSG_WAITALL).decode()[-22:], end="", flush=True)
print(socket.gethostbyname("ok.test") == known, flush=True)
client, _ = listener.accept()
client.sendall(b"from inside")
client.close()
sys.stdin.readline()
"""


@AS_A_USER
def test_names_and_published_ports_outlive_the_daemon(start_daemon: StartDaemon, server: Origin) -> None:
    network = {**SETTINGS["sandbox"]["network"], **PERMITTED["sandbox"]["network"]}
    daemon = start_daemon(resolve=PINS, settings={"sandbox": {"network": network}})
    port = free_port()
    command = daemon.popen(
        "run", "--publish", f"{port}:3000", "--", "python3", "-I", "-S", "-c", RESTARTED, str(server.port),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert command.stdin is not None and command.stdout is not None
    try:
        assert command.stdout.readline().startswith("198.18.")
        done = daemon.run("restart")
        assert done.returncode == 0, done
        print("go", file=command.stdin, flush=True)
        assert command.stdout.readline() == "hello from the origin\n"
        assert command.stdout.readline() == "True\n"
        assert answer_at(port) == b"from inside"
    finally:
        command.terminate()
        command.communicate()
