"""Programs that know nothing of proxies, in real sandboxes: what is allowed works, what is not fails at once and leaves
no trace at the server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from support.bubblewrap import each_bubblewrap
from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin, serve_origin
from support.ports import closed_port
from support.users import Identity
from support.waiting import wait_until

UNSET = "unset ${!http*} ${!https*} ${!HTTP*} ${!ALL*} ${!all_*} ${!GRPC*} NO_PROXY no_proxy; "

CLIENTS = {
    "curl": "curl -sS http://{host}:{port}/",
    "bash": 'exec 3<>/dev/tcp/{host}/{port} && printf "GET / HTTP/1.0\\r\\n\\r\\n" >&3 && cat <&3',
    "python": """python3 -I -S -c '
import socket
with socket.create_connection(("{host}", {port})) as s:
    assert s.getpeername()[1] == {port}
    s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    while data := s.recv(4096): print(data.decode())
'""",
    "asyncio": """python3 -I -S -c '
import asyncio
async def main():
    reader, writer = await asyncio.open_connection("{host}", {port})
    writer.write(b"GET / HTTP/1.0\\r\\n\\r\\n")
    print((await reader.read()).decode())
asyncio.run(main())
'""",
    "fast open": """python3 -I -S -c '
import socket, threading
def fetch():
    s = socket.socket()
    to = socket.gethostbyname("{host}"), {port}
    assert s.sendto(b"GET / HTTP/1.0\\r\\n\\r\\n", 0x20000000, to) == 18
    return b"".join(iter(lambda: s.recv(4096), b"")).decode()
alone = fetch()
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(alone if alone.split("\\r\\n\\r\\n")[1] in fetch() else "differs")
'""",
    "mptcp": """python3 -I -S -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
s.connect((socket.gethostbyname("{host}"), {port}))
s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
while data := s.recv(4096): print(data.decode())
'""",
    "thread, dissolved and connected again": """python3 -I -S -c '
import ctypes, socket, threading
def work():
    s = socket.socket()
    s.connect(("{host}", {port}))
    ctypes.CDLL(None).connect(s.fileno(), bytes(16), 16)
    s.connect(("{host}", {port}))
    s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    while data := s.recv(4096): print(data.decode())
t = threading.Thread(target=work); t.start(); t.join()
'""",
    "new session": "setsid --wait sh -c 'sh -c \"curl -sS http://{host}:{port}/\"'",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Origin]:
    with serve_origin() as origin:
        yield origin


@pytest.fixture
def capturing(share_daemon: StartDaemon) -> DaemonProcess:
    network = {"allowedDomains": ["ok.test"], "strictAllowlist": True}
    return share_daemon(
        resolve={"ok.test": "127.0.0.1", "denied.test": "127.0.0.1"}, settings={"sandbox": {"network": network}}
    )


def run(daemon: DaemonProcess, line: str) -> subprocess.CompletedProcess[str]:
    return daemon.run("run", "--", "bash", "-c", UNSET + line)


def wrap(daemon: DaemonProcess) -> dict[str, Any]:
    code = """
import json
from sandboxd_client import Client
with Client(autostart=False) as box:
    launch = box.wrap(argv=["true"])
    print(json.dumps({"layers": launch.layers, "warnings": launch.warnings}))
"""
    answer: dict[str, Any] = json.loads(daemon.python(code).stdout)
    return answer


def blocked(daemon: DaemonProcess, line: str) -> list[tuple[str, str]]:
    """Operation and target of each violation of a command."""
    code = """
import json, sys
from sandboxd_client import Client
with Client(autostart=False) as box:
    done = box.run(sys.argv[1], shell="/bin/bash", capture_output=True, text=True)
    print(json.dumps([[v.operation, v.target] for v in done.violations]))
"""
    done = daemon.python(code, UNSET + line)
    assert done.returncode == 0, done.stderr
    return [(operation, target) for operation, target in json.loads(done.stdout)]


@each_bubblewrap
def test_what_is_allowed_works(capturing: DaemonProcess, server: Origin) -> None:
    assert "network-capture" in wrap(capturing)["layers"]
    assert not wrap(capturing)["warnings"]
    for name, client in CLIENTS.items():
        done = run(capturing, client.format(host="ok.test", port=server.port))
        assert "hello from the origin" in done.stdout, (name, done.stderr)


@each_bubblewrap
def test_what_is_not_allowed_fails_and_nothing_arrives(capturing: DaemonProcess, server: Origin) -> None:
    before = len(server.connections)
    tried = []
    for host in ("denied.test", "192.0.2.77", "[2001:db8::77]", "169.254.169.254", "127.0.0.1", "127.0.0.2", "[::1]"):
        for client, name in (("curl", host), ("python", host.strip("[]"))):
            tried.append("timeout 20 " + CLIENTS[client].format(host=name, port=server.port) + "; echo status $?")
    done = run(capturing, "\n".join(tried))
    statuses = [line.removeprefix("status ") for line in done.stdout.splitlines() if line.startswith("status ")]
    assert len(statuses) == len(tried)
    assert not {"0", "124"} & set(statuses), (statuses, done.stderr)
    assert len(server.connections) == before


def test_a_denied_address_is_one_violation(capturing: DaemonProcess) -> None:
    assert blocked(capturing, "curl -sS http://192.0.2.77:81/") == [("connect", "192.0.2.77:81")]
    assert blocked(capturing, "exec 3<>/dev/tcp/2001:db8::77/81; cat <&3") == [("connect", "2001:db8::77:81")]
    assert blocked(capturing, "exec 3<>/dev/tcp/127.0.0.1/81") == []


CONNECTS = """python3 -I -S -c '
import errno, socket, sys
for host, port in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as s:
        print(errno.errorcode.get(s.connect_ex(address), "connected"), end=" ")
' """


def test_connect_tells_what_becomes_of_it(capturing: DaemonProcess, server: Origin) -> None:
    """So a loop that waits for a port goes on until the server is there."""
    before = len(server.connections)
    line = CONNECTS + f"ok.test {server.port} ok.test {closed_port()} 192.0.2.77 80 2001:db8::77 80 127.0.0.1 81"
    done = run(capturing, line)
    assert done.stdout.split() == ["connected", "ECONNREFUSED", "EACCES", "EACCES", "ECONNREFUSED"], done.stderr
    wait_until(lambda: len(server.connections) == before + 1, "the server has seen the one that was connected")


DATAGRAMS = """python3 -I -S -c '
import errno, socket
def refused(f):
    try: f()
    except OSError as e: return errno.errorcode[e.errno]
def to(family, address, *protocol):
    s = socket.socket(family, socket.SOCK_DGRAM, *protocol)
    s.bind(("", 9999))
    return refused(lambda: s.sendto(bytes([128 if family == 10 else 8]) + bytes(7), (address, 9999)))
print(to(socket.AF_INET, "192.0.2.77"), to(socket.AF_INET6, "2001:db8::77"), to(socket.AF_INET, "224.0.0.251"))
a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); a.bind(("127.0.0.1", 0))
a.sendto(b"own", a.getsockname()); print(a.recv(9))
print(refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)))
print(refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)))
'"""


def test_everything_but_tcp_is_refused_at_once(capturing: DaemonProcess) -> None:
    done = run(capturing, DATAGRAMS)
    assert done.stdout.split("\n") == ["EPERM EPERM EPERM", "b'own'", "EPERM", "EPROTONOSUPPORT", ""], done.stderr


def test_fifty_starts_at_once(capturing: DaemonProcess, server: Origin) -> None:
    code = """
import asyncio, sys
from sandboxd_client import AsyncClient
async def main():
    async with AsyncClient(autostart=False) as box:
        runs = [box.run(["bash", "-c", sys.argv[1]], capture_output=True, text=True) for _ in range(50)]
        print([done.stdout.count("hello from the origin") for done in await asyncio.gather(*runs)])
asyncio.run(main())
"""
    line = CLIENTS["bash"].format(host="ok.test", port=server.port)
    done = capturing.python(code, UNSET + line)
    assert json.loads(done.stdout) == [1] * 50, done.stderr


def test_servers_inside_are_reached_inside(capturing: DaemonProcess) -> None:
    done = run(
        capturing,
        """python3 -I -S -c '
import socket, threading
for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")):
    server = socket.create_server((address, 8000 if family == 10 else 0), family=family)
    with socket.create_connection(("localhost" if family == 10 else "127.0.0.1", server.getsockname()[1])) as client:
        peer, _ = server.accept()
        peer.sendall(b"inside")
        assert client.recv(6) == b"inside"
        peer.close()
    server.close()
with socket.create_server(("0.0.0.0", 0)) as server:
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.connect(("192.0.2.1", 9))
    for address in ("198.18.0.1", own.getsockname()[0]):
        socket.create_connection((address, server.getsockname()[1])).close()
print("ok")
'""",
    )
    assert done.stdout == "ok\n", done.stderr


def test_the_sandbox_gains_nothing(capturing: DaemonProcess) -> None:
    done = run(capturing, "grep Cap /proc/self/status; ip route add default dev lo 2>&1; nft list ruleset 2>&1")
    assert "CapEff:\t0000000000000000" in done.stdout
    assert "CapPrm:\t0000000000000000" in done.stdout


def test_it_can_be_switched_off(start_daemon: StartDaemon, server: Origin) -> None:
    network = {"allowedDomains": ["ok.test"], "strictAllowlist": True, "transparent": False}
    daemon = start_daemon(resolve={"ok.test": "127.0.0.1"}, settings={"sandbox": {"network": network}})
    assert "network-capture" not in wrap(daemon)["layers"]
    assert not wrap(daemon)["warnings"]
    before = len(server.connections)
    assert run(daemon, f"curl -sS http://ok.test:{server.port}/").returncode != 0
    assert run(daemon, "curl -sS http://192.0.2.77/").returncode == 7
    assert len(server.connections) == before
    proxied = daemon.run("run", "--", "curl", "-sS", f"http://ok.test:{server.port}/")
    assert proxied.stdout == "hello from the origin\n"


@pytest.mark.parametrize("key", ["allowLocalPorts", "allowedDomains"])
def test_local_ports(start_daemon: StartDaemon, server: Origin, key: str) -> None:
    """The listed port works, another one is refused; a server of the command's own comes first."""
    with serve_origin() as other:
        listed = {"allowLocalPorts": [server.port], "allowedDomains": [f"localhost:{server.port}", "*"]}[key]
        network = {key: listed, "strictAllowlist": True}
        daemon = start_daemon(settings={"sandbox": {"network": network}})
        for host in ("localhost", "127.0.0.1", "[::1]"):
            assert run(daemon, f"curl -sS http://{host}:{server.port}/").stdout == "hello from the origin\n"
            assert run(daemon, f"curl -sS http://{host}:{other.port}/").returncode == 7
        proxied = daemon.run("run", "--", "curl", "-sS", f"http://localhost:{server.port}/")
        assert proxied.stdout == "hello from the origin\n", proxied.stderr
        assert not other.connections
        told = run(daemon, CONNECTS + f"localhost {server.port} ::1 {server.port} 127.0.0.1 {other.port}")
        assert told.stdout.split() == ["connected", "connected", "ECONNREFUSED"], told.stderr
        before = len(server.connections)
        own = run(
            daemon,
            f"""python3 -I -S -c '
import socket
server = socket.create_server(("127.0.0.1", {server.port}))
with socket.create_connection(("localhost", {server.port})) as client:
    peer, _ = server.accept()
    peer.sendall(b"own")
    print(client.recv(3))
'""",
        )
        assert own.stdout == "b'own'\n", own.stderr
        assert len(server.connections) == before
        explained = daemon.run("explain", "host", f"localhost:{server.port}")
        assert key in explained.stdout, explained.stdout


LIMITED = """
import sys
from sandboxd.backends.linux.network import capture_probe
from sandboxd.backends.linux.network.capture import Reach
from sandboxd.backends.linux.network.namespace_request import NamespaceError
from sandboxd.backends.linux.network.namespace_worker import NamespaceWorker

begin = NamespaceWorker._begin

def limited(self, request, *namespaces):
    # as on a machine without nf_tables (ports), or where the namespace cannot be entered (variables)
    program = request._program
    if program.sockets and (LIMIT == "variables" or program.encoded.find(b"tproxy") >= 0):
        request.future.set_exception(NamespaceError("cannot install packet rules", 95))
    else:
        begin(self, request, *namespaces)

NamespaceWorker._begin = limited
from sandboxd.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize("limit", ["ports", "variables"])
def test_a_machine_that_can_do_less(identity: Identity, start_daemon: StartDaemon, server: Origin, limit: str) -> None:
    script = f"#!{identity.code.python} -I\nLIMIT = {limit!r}\n{LIMITED}"
    identity.write(identity.base / "bin" / "sandboxd", script, mode=0o755)
    network = {"allowedDomains": [f"ok.test:{server.port}"], "strictAllowlist": True, "allowLocalPorts": [server.port]}
    daemon = start_daemon(resolve={"ok.test": "127.0.0.1"}, settings={"sandbox": {"network": network}})
    answer = wrap(daemon)
    assert ("network-capture-ports" in answer["layers"]) is (limit == "ports")
    assert "network-capture" not in answer["layers"]
    (warning,) = answer["warnings"]
    assert "cannot install packet rules: Operation not supported" in warning
    curl = f"curl -sS http://ok.test:{server.port}/"
    before = len(server.connections)
    if limit == "ports":
        step = next(line for line in daemon.run("check").stdout.splitlines() if "network capture" in line)
        assert "cannot install packet rules" in step
        done = run(daemon, curl)
        assert done.stdout == "hello from the origin\n", (done.stderr, daemon.output())
        assert run(daemon, f"curl -sS http://localhost:{server.port}/").stdout == "hello from the origin\n"
        assert run(daemon, "timeout 20 curl -sS http://localhost:80/").returncode not in (0, 124)
        assert run(daemon, "exec 3<>/dev/tcp/ok.test/81").returncode == 1
        assert blocked(daemon, "curl -sS http://192.0.2.77/") == [("connect", "192.0.2.77:80")]
    else:
        assert run(daemon, curl).returncode == 6
        assert len(server.connections) == before
        assert run(daemon, "curl -sS http://192.0.2.77/").returncode == 7
    assert daemon.run("run", "-c", curl).stdout == "hello from the origin\n"


def test_what_was_promised_and_fails_fails_the_command(identity: Identity, start_daemon: StartDaemon) -> None:
    """The first program is that of the probe; all others are refused, also the second try."""
    broken = LIMITED.replace('(LIMIT == "variables" or program.encoded.find(b"tproxy") >= 0)', "COUNT.pop() > 1")
    script = f"#!{identity.code.python} -I\nCOUNT = [2, 2, 2, 0]\n{broken}"
    identity.write(identity.base / "bin" / "sandboxd", script, mode=0o755)
    daemon = start_daemon()
    done = daemon.run("run", "--", "touch", "ran")
    assert done.returncode == 125
    assert "network" in done.stderr
    assert not (identity.workspace / "ran").exists()
