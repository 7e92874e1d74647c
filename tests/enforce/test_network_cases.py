"""Cases of the network that only a real sandbox shows, and a reason that has to be told wherever a
host is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.daemons import StartDaemon
from support.origin import Origin
from support.users import Identity
from support.waiting import wait_until

WHY = "use the mirror at mirror.test"
PROGRAM = """
import json, os, sys
from pathlib import Path
from sandboxd_client import Client

port, certificate = sys.argv[1:]
url = f"http://no.test:{port}/"
os.environ["NODE_EXTRA_CA_CERTS"] = certificate

def listening():
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return sorted(row[1] for row in rows if row[3] == "0A" and int(row[7]) == os.getuid())

with Client(autostart=False) as box, box.session(".") as session:
    before = listening()
    with session.spawn("read go", stdin=-1) as running:
        while not session._client.status().commands:
            pass
        ports = before == listening()
        running.stdin.close()
    wrap = session.wrap("true")
    body = session.run(["curl", "-s", url], capture_output=True, text=True)
    socks = session.run(["curl", "-s", "-x", "socks5h://127.0.0.1:1080", url], command_id="s", capture_output=True)
    told = [
        body.stdout,
        body.violations[0].hint,
        socks.violations[0].hint,
        session.policy_explain("host", f"no.test:{port}").reason.text,
        box.violation_annotate("s", "").stderr,
        session._client.permission_request("network", session_id=session.id, host="no.test", port=int(port)).text,
    ]
    print(json.dumps([ports, wrap.warnings, socks.returncode, told]))
"""


@pytest.mark.usefixtures("host_snapshot")  # alone: other new listeners on this machine would look like the test's
def test_reasons_ports_and_certificates(start_daemon: StartDaemon, identity: Identity, origin: Origin) -> None:
    certificate = identity.write(identity.home / ".certs" / "ca.pem", "x")
    network = {"deniedDomains": ["no.test"], "deniedDomainReasons": {"no.test": WHY}}
    sandbox = {"network": network, "filesystem": {"denyRead": ["~/.certs"]}}
    daemon = start_daemon(settings={"sandbox": sandbox}, resolve={"no.test": "127.0.0.1"})
    done = daemon.python(PROGRAM, str(origin.port), str(certificate))
    assert done.returncode == 0, done.stderr
    no_ports, warnings, status, told = json.loads(done.stdout)
    assert no_ports, "a sandbox opens no port of the host, so nobody else can use its proxies"
    assert status == 97 and origin.connections == []  # curl: the SOCKS proxy said no
    assert [WHY in text for text in told] == [True] * len(told), told
    assert any(f"NODE_EXTRA_CA_CERTS names {certificate}, which the command may not read" in one for one in warnings)
    Path(certificate).unlink()


INSIDE = """
import os, socket, sys, time
from pathlib import Path
from urllib.parse import urlsplit

port, proxy = int(sys.argv[1]), urlsplit(os.environ["HTTP_PROXY"])

def tunnel():
    sock = socket.create_connection((proxy.hostname, proxy.port), 20)
    sock.sendall(b"CONNECT ok.test:%d HTTP/1.1\\r\\n\\r\\n" % port)
    answer = sock.recv(4096)
    return sock if answer.startswith(b"HTTP/1.1 200") else None

def alive(sock):
    try:
        sock.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        answer = b""
        while not answer.endswith(b"origin\\n"):
            piece = sock.recv(4096)
            if not piece:
                return False
            answer += piece
        return answer.startswith(b"HTTP/1.1 200")
    except OSError:
        return False

def wait(name):
    Path("at-" + name).touch()
    while not Path(name).exists():
        time.sleep(0.02)

open_one = tunnel()
said = [alive(open_one)]
wait("reloaded")
said += [alive(open_one), alive(tunnel())]
wait("killed")
said.append(alive(open_one))
for attempt in (tunnel, lambda: socket.create_connection(("127.0.0.1", port), 5)):
    try:
        said.append(attempt() is not None)
    except OSError:
        said.append(False)
Path("said").write_text(repr(said))
"""


def test_tunnels_survive_changed_settings(start_daemon: StartDaemon, identity: Identity, origin: Origin) -> None:
    network = {"allowedDomains": ["ok.test"]}
    daemon = start_daemon(settings={"sandbox": {"network": network}}, resolve={"ok.test": "127.0.0.1"})
    script = identity.write(identity.workspace / "inside.py", INSIDE)
    argv = ("run", "--", "/usr/bin/python3", str(script), str(origin.port))
    command = daemon.popen(*argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until((identity.workspace / "at-reloaded").exists, "the tunnel is open")
        for changed in ({"network": {**network, "strictAllowlist": True}}, {"network": network, "allowPty": True}):
            identity.write(identity.home / ".claude" / "settings.json", json.dumps({"sandbox": changed}))
            assert daemon.run("settings", "show", "--json").returncode == 0
        wait_until(lambda: daemon.output().count("settings changed") >= 1, "the settings are in force")
        identity.write(identity.workspace / "reloaded", "")
        wait_until((identity.workspace / "at-killed").exists, "the tunnel was tried")
        connections = len(origin.connections)
        daemon.process.kill()
        daemon.process.wait()
        identity.write(identity.workspace / "killed", "")
        wait_until((identity.workspace / "said").exists, "the command has tried")
        assert (identity.workspace / "said").read_text() == "[True, True, True, False, False, False]"
        assert len(origin.connections) == connections
    finally:
        command.wait(30)
