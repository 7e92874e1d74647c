"""Cases of the network that only a real sandbox shows: F103, F114, and a reason that has to be told wherever a host is
refused."""

from __future__ import annotations

import json
from pathlib import Path

from support.daemons import StartDaemon
from support.origin import Origin
from support.users import Identity

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


def test_reasons_ports_and_certificates(start_daemon: StartDaemon, identity: Identity, origin: Origin) -> None:
    certificate = identity.write(identity.home / ".certs" / "ca.pem", "x")
    network = {"deniedDomains": ["no.test"], "deniedDomainReasons": {"no.test": WHY}}
    sandbox = {"network": network, "filesystem": {"denyRead": ["~/.certs"]}}
    daemon = start_daemon(settings={"sandbox": sandbox}, resolve={"no.test": "127.0.0.1"})
    done = daemon.python(PROGRAM, str(origin.port), str(certificate))
    assert done.returncode == 0, done.stderr
    no_ports, warnings, status, told = json.loads(done.stdout)
    assert no_ports, "F103: a sandbox opens no port of the host, so nobody else can use its proxies"
    assert status == 97 and origin.connections == []  # curl: the SOCKS proxy said no
    assert [WHY in text for text in told] == [True] * len(told), told
    assert any(f"NODE_EXTRA_CA_CERTS names {certificate}, which the command may not read" in one for one in warnings)
    Path(certificate).unlink()
