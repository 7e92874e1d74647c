"""Parent proxies and proxies of the person's own, around real sandboxes. The origin plays the proxy: it answers a
request for a whole URL like any other."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Iterator

from support.daemons import StartDaemon
from support.origin import Origin
from support.users import Identity

SECRET = "hunter2"


def network(**keys: object) -> dict[str, object]:
    return {"sandbox": {"network": keys}}


def test_nw_31_a_parent_proxy_and_where_its_password_is_seen(
    start_daemon: StartDaemon, identity: Identity, origin: Origin
) -> None:
    """In no command, not in the settings file as commands see it, not in answers, not in the log."""
    parent = f"http://me:{SECRET}@127.0.0.1:{origin.port}"
    daemon = start_daemon(settings=network(allowedDomains=["far.test"], parentProxy=parent), env={"ALL_PROXY": parent})
    file = identity.home / ".claude" / "settings.json"
    script = f"curl -s http://far.test/x; curl -s -w '%{{http_code}}' -o /dev/null http://no.test/; cat {file}; env"
    done = daemon.run("run", "-c", script, env={"HTTPS_PROXY": parent, "npm_config_proxy": parent, "PIP_PROXY": parent})
    assert done.stdout.startswith(origin.body.decode() + "403")
    assert origin.requests == [("GET", "http://far.test/x", "far.test")]
    assert f"{file}: Permission denied" in done.stderr
    status = daemon.run("status").stdout
    assert f"allowed connections go through http://127.0.0.1:{origin.port} (sandbox.network.parentProxy)" in status
    assert "no command may read this file" in status
    shown = [daemon.run("status", "--json"), daemon.run("settings", "show"), daemon.run("settings", "show", "--json")]
    effective = daemon.python(
        "from sandboxd_client import Client\nwith Client() as box: print(box.policy_effective(), box.policy_describe())"
    )
    shown += [daemon.run("describe"), effective]
    assert f"http://***@127.0.0.1:{origin.port}" in shown[1].stdout
    for text in (done.stdout, done.stderr, status, daemon.output(), *(s.stdout + s.stderr for s in shown)):
        assert text and SECRET not in text
    assert SECRET in file.read_text()


@contextlib.contextmanager
def connect_proxy(port: int) -> Iterator[tuple[int, list[bytes]]]:
    """A proxy in which every CONNECT leads to one port of this machine: where it listens, and what it was asked."""
    asked: list[bytes] = []

    class Tunnel(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            head = b""
            while b"\r\n\r\n" not in head:
                head += self.request.recv(4096)
            asked.append(head.partition(b"\r\n")[0])
            with socket.create_connection(("127.0.0.1", port)) as far:
                self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=copy, args=(far, self.request))
                back.start()
                copy(self.request, far)
                back.join()

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tunnel) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server.server_address[1], asked
        server.shutdown()
        thread.join()


def test_programs_that_know_no_proxy_go_through_the_parent_too(start_daemon: StartDaemon, origin: Origin) -> None:
    """Captured connections: only the parent proxy could look the name up."""
    with connect_proxy(origin.port) as (port, asked):
        daemon = start_daemon(settings=network(allowedDomains=["far.test"], parentProxy=f"http://127.0.0.1:{port}"))
        script = "curl -sS --noproxy '*' http://far.test/; curl -sS --noproxy '*' http://no.test/ || echo refused"
        done = daemon.run("run", "-c", script)
        assert done.stdout == origin.body.decode() + "refused\n", done
        assert asked == [b"CONNECT far.test:80 HTTP/1.1"] and len(origin.connections) == 1


def test_a_proxy_of_one_s_own_decides_and_that_is_said(start_daemon: StartDaemon, origin: Origin) -> None:
    """A proxy of one's own decides and that is said."""
    daemon = start_daemon(settings=network(httpProxyPort=origin.port))
    code = """
import json
from sandboxd_client import Client
with Client() as box:
    line = "curl -s http://anything.test/; curl -s -x socks5h://127.0.0.1:1080 http://anything.test/"
    done = box.run(line, capture_output=True)
    status = box.status()
    wrap = box.wrap("true")
    print(json.dumps([done.stdout.decode(), [v.target for v in done.violations], wrap.layers, wrap.warnings,
                      status.layers, status.network]))
"""
    done = daemon.python(code)
    assert done.returncode == 0, done.stderr
    out, blocked, layers, warnings, status_layers, said = json.loads(done.stdout)
    assert out == origin.body.decode() and origin.requests == [("GET", "http://anything.test/", "anything.test")]
    assert blocked == ["anything.test:80"], "the SOCKS proxy is still ours"
    assert "network-proxy" not in layers and "own-proxy" in layers
    assert set(layers) - {"tmp-overlay"} == set(status_layers), "that one is of a session"
    assert any(f"your own proxy on port {origin.port}, which alone decides" in warning for warning in warnings)
    assert said == [
        f"HTTP proxy: your own proxy on port {origin.port} decides (httpProxyPort)",
        "SOCKS proxy: sandboxd decides",
        "programs that know no proxy: sandboxd decides",
    ]


def test_a_project_does_not_choose_the_proxy(start_daemon: StartDaemon, identity: Identity, origin: Origin) -> None:
    keys = network(httpProxyPort=origin.port, parentProxy=f"http://127.0.0.1:{origin.port}")
    identity.write(identity.workspace / ".claude" / "settings.json", json.dumps(keys))
    daemon = start_daemon(settings=network(allowedDomains=["far.test"]))
    done = daemon.run("run", "--", "curl", "-s", "-w", "%{http_code}", "-o", "/dev/null", "http://far.test/")
    assert done.stdout == "502" and origin.connections == []
