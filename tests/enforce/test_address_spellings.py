"""A real sandbox: however an address of this machine is written, and on whichever way it
is asked for, the listener on it counts nothing. The name that is allowed for it works on each way."""

from __future__ import annotations

import json

import pytest

from support.daemons import StartDaemon
from support.origin import Origin
from support.users import identity_names

PROGRAM = r"""
import ipaddress, json, os, socket, struct, sys
from urllib.parse import urlsplit

port = int(sys.argv[1])
HTTP = ("127.0.0.1", urlsplit(os.environ["HTTP_PROXY"]).port)
SOCKS = ("127.0.0.1", 1080)
SPELLINGS = [
    "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "0177.0.0.1", "127.0.0.01", "127.0.0.1.",
    "0.0.0.0", "0", "127.0.0.2", "127.255.255.254", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]", "[::127.0.0.1]", "[::7f00:1]", "[::ffff:0:7f00:1]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]",
    "[64:ff9b::127.0.0.1]", "[64:ff9b:1::7f00:1]", "[2001:0:7f00:1::]", "[2001:db8::5efe:7f00:1]", "[fe80::1%lo]",
    "127.0.0.1%00.ok.test", "127.0.0.1\t", "1\u0662\u0667.0.0.1", "\u2460\u2461\u2466.0.0.1", "256.0.0.1",
    "127.0.0.1.ok.no", "4294967297", "127.0.0.1.nip.no", "0x7f000001.",
]

def spoken(sock):
    sock.sendall(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
    return b"origin" in sock.makefile("rb").read()

def plain(name):
    with socket.create_connection(HTTP, 20) as sock:
        sock.sendall(f"GET http://{name}:{port}/ HTTP/1.0\r\n\r\n".encode())
        return b"origin" in sock.makefile("rb").read()

def tunnel(name):
    with socket.create_connection(HTTP, 20) as sock:
        sock.sendall(f"CONNECT {name}:{port} HTTP/1.1\r\n\r\n".encode())
        return sock.recv(4096).startswith(b"HTTP/1.1 200") and spoken(sock)

def by_name(name):
    data = name.encode()
    with socket.create_connection(SOCKS, 20) as sock:
        sock.sendall(b"\5\1\0\5\1\0\3" + bytes([len(data)]) + data + struct.pack(">H", port))
        stream = sock.makefile("rb")
        answer = stream.read(12)
        return answer[3:4] == b"\0" and spoken(sock)

def by_address(name):
    address = ipaddress.ip_address(name.strip("[]"))
    kind = b"\1" if address.version == 4 else b"\4"
    with socket.create_connection(SOCKS, 20) as sock:
        sock.sendall(b"\5\1\0\5\1\0" + kind + address.packed + struct.pack(">H", port))
        return sock.makefile("rb").read(12)[3:4] == b"\0" and spoken(sock)

def direct(name):
    with socket.create_connection((name.strip("[]"), port), 20) as sock:
        return spoken(sock)

WAYS = {"plain": plain, "tunnel": tunnel, "by name": by_name, "by address": by_address, "direct": direct}
through = []
for way, ask in WAYS.items():
    for name in ["ok.test", *SPELLINGS]:
        try:
            if ask(name):
                through.append([way, name])
        except (OSError, ValueError):
            pass
print(json.dumps(through))
"""


@pytest.mark.parametrize("identity", identity_names()[-1:], indirect=True)
def test_no_spelling_of_an_address_leads_to_it(start_daemon: StartDaemon, origin: Origin) -> None:
    """Plain requests, CONNECT, SOCKS5 by name and by address, captured connections and names of the resolver."""
    network = {"allowedDomains": ["ok.test", "*"], "strictAllowlist": True}
    daemon = start_daemon(settings={"sandbox": {"network": network}}, resolve={"ok.test": "127.0.0.1"})
    done = daemon.run("run", "--", "/usr/bin/python3", "-I", "-S", "-c", PROGRAM, str(origin.port))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[way, "ok.test"] for way in ("plain", "tunnel", "by name", "direct")]
    assert len(origin.connections) == 4
    allowed = ("run", "--allow-domain", f"127.0.0.1:{origin.port}", "--", "/usr/bin/python3", "-I", "-S", "-c", PROGRAM)
    literal = json.loads(daemon.run(*allowed, str(origin.port)).stdout)
    for way in ("plain", "tunnel", "by name"):
        assert [way, "2130706433"] in literal, "one that is allowed is allowed in each of its spellings"
    assert ["by address", "[::ffff:127.0.0.1]"] in literal, literal
