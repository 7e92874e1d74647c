"""One localhost for the commands of a session: what one of them serves, the others reach, and nothing
else does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.origin import serve_origin

# A server of the address given, which says its name to each client; and a client, which prints what came or the error.
PROGRAMS = """
SERVER = '''
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.socket(family)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((sys.argv[1], int(sys.argv[2])))
server.listen(64)
print(server.getsockname()[1], flush=True)
while True:
    peer, _ = server.accept()
    peer.sendall(sys.argv[3].encode() + b" " + peer.recv(100))
    peer.close()
'''
CLIENT = '''
import socket, sys
for where in sys.argv[2:]:
    try:
        with socket.create_connection((where, int(sys.argv[1]))) as peer:
            assert peer.getpeername()[0] == where or where == "localhost", peer.getpeername()
            peer.sendall(b"hello")
            print(where, peer.recv(100).decode() or "nothing")
    except OSError as error:
        print(where, type(error).__name__)
'''
import json, subprocess, sys, time
from sandboxd_client import Client
PYTHON = [sys.executable, "-I", "-S", "-c"]

def serve(session, address, port=0, name="server"):
    child = session.spawn([*PYTHON, SERVER, address, str(port), name], stdout=subprocess.PIPE, text=True)
    return child, int(child.stdout.readline())

def client(port, *where):
    return [*PYTHON, CLIENT, str(port), *where]

def ask(session, port, *where):
    done = session.run(client(port, *where), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())
"""


def script(daemon: DaemonProcess, code: str, *arguments: str) -> Any:
    """The JSON that a program with `serve` and `ask` prints last."""
    done = daemon.python(PROGRAMS + code, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def daemon(share_daemon: StartDaemon) -> DaemonProcess:
    return share_daemon(settings={})


EVERYWHERE = ["127.0.0.1", "127.5.6.7", "::1", "localhost"]


@pytest.mark.parametrize(
    ("address", "answering"),
    [
        ("0.0.0.0", ["127.0.0.1", "127.5.6.7", "localhost"]),
        ("::", EVERYWHERE),
        ("127.0.0.1", ["127.0.0.1", "localhost"]),
        ("127.5.6.7", ["127.5.6.7"]),
        ("::1", ["::1", "localhost"]),
    ],
)
def test_a_server_is_reached_at_its_address_only(daemon: DaemonProcess, address: str, answering: list[str]) -> None:
    code = """
with Client(autostart=False) as box, box.session(".") as session:
    child, port = serve(session, sys.argv[1])
    print(json.dumps(ask(session, port, *sys.argv[2:])))
    child.kill()
"""
    found = script(daemon, code, address, *EVERYWHERE)
    assert found == {one: "server hello" if one in answering else "ConnectionRefusedError" for one in EVERYWHERE}


def test_every_port_is_shared(daemon: DaemonProcess) -> None:
    code = """
with Client(autostart=False) as box, box.session(".") as session:
    ports = [1024, 3000, 8080, 32768, 65535]
    children = [serve(session, "127.0.0.1", port, str(port))[0] for port in ports]
    print(json.dumps([ask(session, port, "127.0.0.1")["127.0.0.1"] for port in ports]))
    for child in children: child.kill()
"""
    assert script(daemon, code) == [f"{port} hello" for port in (1024, 3000, 8080, 32768, 65535)]


def test_a_client_that_was_there_first_reaches_it(daemon: DaemonProcess) -> None:
    """It tries until the server is up, as programs do that wait for a port."""
    code = """
with Client(autostart=False) as box, box.session(".") as session:
    once = "timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/3000; echo hi >&3; head -c 6 <&3'"
    waiting = "until " + once + "; do sleep 0.02; done"
    first = session.spawn(["bash", "-c", "echo up; " + waiting + " 2>&-"], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "up\\n"
    child, _ = serve(session, "127.0.0.1", 3000)
    print(json.dumps(first.communicate()[0]))
    child.kill()
"""
    assert script(daemon, code) == "server"


def test_other_sessions_and_the_host_do_not_reach_it(daemon: DaemonProcess) -> None:
    code = """
import socket
with Client(autostart=False) as box, box.session(".") as session, box.session(".") as other:
    child, port = serve(session, "0.0.0.0")
    found = [ask(session, port, "127.0.0.1"), ask(other, port, "127.0.0.1")]
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        found.append("reached from the host")
    except OSError as error:
        found.append(type(error).__name__)
    print(json.dumps(found))
    child.kill()
"""
    assert script(daemon, code) == [
        {"127.0.0.1": "server hello"}, {"127.0.0.1": "ConnectionRefusedError"}, "ConnectionRefusedError",
    ]  # fmt: skip


def test_ports_of_the_host_stay_closed(daemon: DaemonProcess) -> None:
    code = """
with Client(autostart=False) as box, box.session(".") as session:
    child, _ = serve(session, "127.0.0.1")
    print(json.dumps(ask(session, int(sys.argv[1]), "127.0.0.1", "::1")))
    child.kill()
"""
    with serve_origin() as origin:
        before = len(origin.connections)
        found = script(daemon, code, str(origin.port))
        assert set(found.values()) == {"ConnectionRefusedError"}
        assert len(origin.connections) == before


def test_its_own_server_comes_first(daemon: DaemonProcess) -> None:
    code = """
with Client(autostart=False) as box, box.session(".") as session:
    one, port = serve(session, "127.0.0.1", 0, "one")
    both = '%s -c "$1" 127.0.0.1 $3 two & until %s -c "$2" $3 127.0.0.1 | grep two; do sleep 0.02; done; kill $!'
    both = both.replace("%s", sys.executable)
    done = session.run(["bash", "-c", both, "bash", SERVER, CLIENT, str(port)], capture_output=True, text=True)
    print(json.dumps([done.stdout.splitlines()[-1], ask(session, port, "127.0.0.1")]))
    one.kill()
"""
    assert script(daemon, code) == ["127.0.0.1 two hello", {"127.0.0.1": "one hello"}]


def test_the_end_of_a_command_ends_its_servers(daemon: DaemonProcess) -> None:
    """For the others the port refuses from then on, and the other servers stay."""
    code = """
with Client(autostart=False) as box, box.session(".") as session:
    one, first = serve(session, "127.0.0.1", 0, "one")
    two, second = serve(session, "127.0.0.1", 0, "two")
    found = [ask(session, first, "127.0.0.1")]
    one.kill(); one.wait()
    while sum(one.commands for one in box.session_list().sessions) > 1: time.sleep(0.01)
    found += [ask(session, first, "127.0.0.1"), ask(session, second, "127.0.0.1")]
    print(json.dumps([one["127.0.0.1"] for one in found]))
    two.kill()
"""
    assert script(daemon, code) == ["one hello", "ConnectionRefusedError", "two hello"]


def test_a_server_that_has_closed_refuses_soon(daemon: DaemonProcess) -> None:
    """Its command goes on, so only a connection shows that it is gone."""
    code = """
with Client(autostart=False) as box, box.session(".") as session:
    closing = SERVER.replace("while True:", "if True:")
    closing += "\\nserver.close(); print('closed', flush=True); sys.stdin.read()"
    child = session.spawn([*PYTHON, closing, "127.0.0.1", "0", "one"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True)
    port = int(child.stdout.readline())
    found = [ask(session, port, "127.0.0.1")["127.0.0.1"], child.stdout.readline()]
    last = ""
    while last != "ConnectionRefusedError":
        last = ask(session, port, "127.0.0.1")["127.0.0.1"]
        assert last in ("OSError", "ConnectionResetError", "ConnectionRefusedError", "nothing"), last
    print(json.dumps(found))
    child.kill()
"""
    assert script(daemon, code) == ["one hello", "closed\n"]


def test_connections_are_those_of_their_command(daemon: DaemonProcess) -> None:
    """A server of another command does not connect for its client: each refusal names the command that asked."""
    code = """
with Client(autostart=False) as box, box.session(".") as session:
    child, port = serve(session, "127.0.0.1")
    done = session.run(["curl", "-sS", "http://192.0.2.9:81/"], capture_output=True, command_id="asker")
    print(json.dumps([(one.command_id == "asker", one.target) for one in done.violations]))
    child.kill()
"""
    assert script(daemon, code) == [[True, "192.0.2.9:81"]]


def test_servers_stay_reachable_over_a_restart(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings={})
    code = """
with Client(autostart=False) as box, box.session(".") as session:
    one, first = serve(session, "127.0.0.1", 0, "one")
    talk = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));" \\
           "print('up', flush=True); " \\
           "sys.stdin.read(); s.sendall(b'late'); print(s.recv(99).decode())"
    open_one = session.spawn([*PYTHON, talk, str(first)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert open_one.stdout.readline() == "up\\n"
    box.restart()
    two, second = serve(session, "::1", 0, "two")
    found = [open_one.communicate()[0], ask(session, first, "127.0.0.1"), ask(session, second, "::1")]
    print(json.dumps(found))
    one.kill(); two.kill()
"""
    assert script(daemon, code) == ["one late\n", {"127.0.0.1": "one hello"}, {"::1": "two hello"}]


def test_a_published_port_leads_to_a_server_of_another(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(settings={"sandbox": {"network": {"allowLocalBinding": True}}})
    code = """
import contextlib, socket
with Client(autostart=False) as box, box.session(".") as session:
    child, port = serve(session, "127.0.0.1")
    holding = session.spawn(["sleep", "600"], publish=["0:%d" % port])
    (published,) = [one for session in box.session_list().sessions for one in session.published]
    outside = int(published.split(":")[1])
    answer = b""
    while not answer:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", outside)) as peer:
            peer.sendall(b"browser")
            answer = peer.recv(100)
    print(json.dumps(answer.decode()))
    holding.kill(); child.kill()
"""
    assert script(daemon, code) == "server browser"


def test_the_layer_says_that_localhost_is_shared(daemon: DaemonProcess) -> None:
    code = """
with Client(autostart=False) as box:
    print(json.dumps(box.wrap(argv=["true"]).layers))
"""
    assert "session-localhost" in script(daemon, code)
