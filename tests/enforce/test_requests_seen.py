"""TLS that ends in the proxy, and rules for requests: what real programs of a sandbox get through."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin, serve_origin
from support.users import Identity

TLS = Path(__file__).parents[1] / "proxy" / "tls"
RULES = [
    {"host": "ok.test", "action": "allow", "methods": ["read"], "paths": ["/me/**"]},
    {"host": "ok.test", "action": "allow", "methods": ["POST"], "paths": ["/me/up"]},
]
PYTHON = """
import sys, urllib.request, urllib.error
for method, path, data in (
    ("GET", "/me/a", None), ("GET", "/you/a", None), ("POST", "/me/up", b"x" * 100000), ("PUT", "/me/up", b"x")
):
    request = urllib.request.Request(sys.argv[1] + path, data, method=method)
    try:
        print(method, path, urllib.request.urlopen(request).status)
    except urllib.error.HTTPError as error:
        print(method, path, error.code)
"""
ANSWERS = "GET /me/a 200\nGET /you/a 403\nPOST /me/up 200\nPUT /me/up 403\n"
PROGRAMS = (
    "curl -sS {more} -w '%{{http_code}} ' -o one {base}/me/a -o two {base}/you/b",
    "curl -sS --noproxy '*' {more} -w '%{{http_code}} ' -o one {base}/me/a -o two {base}/you/b",
    "wget -q -O one {base}/me/a && ! wget -q -O two {base}/you/b && printf '200 403 '",
)


@pytest.fixture
def secure_origin() -> Iterator[Origin]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    with serve_origin(context) as server:
        yield server


@pytest.fixture
def daemon(start_daemon: StartDaemon, identity: Identity) -> DaemonProcess:
    """The machine, as the daemon sees it, trusts the authority of the origin's certificate."""
    trusted = identity.write(identity.home / "ca.pem", (TLS / "ca.pem").read_text())
    network = {"requests": RULES, "tls": {"terminate": ["ok.test"]}, "strictAllowlist": True}
    return start_daemon(
        settings={"sandbox": {"network": network}},
        resolve={"ok.test": "127.0.0.1"},
        env={"SSL_CERT_FILE": str(trusted)},
    )


def test_programs_reach_what_rules_allow(daemon: DaemonProcess, secure_origin: Origin) -> None:
    """Those that read variables, and those that read the system's file of authorities; by proxy, and captured."""
    base = secure_origin.url("ok.test", "").replace("http:", "https:")
    done = daemon.run("run", "--", sys.executable, "-c", PYTHON, base)
    assert (done.returncode, done.stdout) == (0, ANSWERS), done.stderr
    assert [one[:2] for one in secure_origin.requests] == [("GET", "/me/a"), ("POST", "/me/up")]
    for program in PROGRAMS:
        done = daemon.run("run", "-c", program.format(base=base, more=""))
        assert (done.returncode, done.stdout) == (0, "200 403 "), (program, done.stderr)
    unset = "env -u CURL_CA_BUNDLE -u SSL_CERT_FILE "
    done = daemon.run(
        "run", "-c", unset + PROGRAMS[0].format(base=base, more="--cacert /etc/ssl/certs/ca-certificates.crt")
    )
    assert done.stdout == "200 403 ", done.stderr
    assert {one[1] for one in secure_origin.requests} == {"/me/a", "/me/up"}


def test_refusals_name_method_and_path(daemon: DaemonProcess, secure_origin: Origin) -> None:
    base = secure_origin.url("ok.test", "").replace("http:", "https:")
    done = daemon.run("run", "-c", f"curl -sS '{base}/you/b?token=secret'")
    assert "reason: GET ok.test" in done.stdout and "secret" not in done.stdout
    told = daemon.run("violations", "--json")
    [found] = [one for one in json.loads(told.stdout)["violations"] if one["kind"] == "network"]
    assert "secret" not in str(found | {"command": ""})
    assert (found["operation"], found["outcome"]) == ("GET", "requestDenied")
    assert found["target"] == f"ok.test:{secure_origin.port}/you/b"
    for text, answer in {
        f"{base}/me/x": "allowed",
        f"{base}/you/x": "denied",
        f"DELETE {base}/me/x": "denied",
        f"POST {base}/me/up": "allowed",
    }.items():
        assert answer in daemon.run("explain", "host", text).stdout.split("\n")[0], text


def test_the_command_trusts_no_more_than_listed_hosts(daemon: DaemonProcess, secure_origin: Origin) -> None:
    """The bundle is the machine's own and one authority, which is limited to the listed hosts; it cannot be written."""
    program = (
        "import os, ssl; path = os.environ['SSL_CERT_FILE']; print(os.access(path, os.W_OK));"
        "names = [one['subject'] for one in ssl.create_default_context().get_ca_certs()];"
        "print(len(names), sum('sandboxed commands' in str(name) for name in names))"
    )
    done = daemon.run("run", "--", sys.executable, "-c", program)
    assert done.stdout == "False\n2 1\n", done.stderr
    assert "sandboxd" not in Path("/etc/ssl/certs/ca-certificates.crt").read_text()


def test_no_command_chooses_whom_the_daemon_believes(
    start_daemon: StartDaemon, identity: Identity, secure_origin: Origin
) -> None:
    """Authorities in a project are protected there; once commands could write the place, they are not believed."""
    trusted = identity.write(identity.workspace / "ca.pem", (TLS / "ca.pem").read_text())
    network = {"requests": RULES, "tls": {"terminate": ["ok.test"]}, "strictAllowlist": True}
    start = {
        "settings": {"sandbox": {"network": network}},
        "resolve": {"ok.test": "127.0.0.1"},
        "env": {"SSL_CERT_FILE": str(trusted)},
    }
    base = secure_origin.url("ok.test", "/me/a").replace("http:", "https:")
    daemon = start_daemon(**start)
    done = daemon.run(
        "run", "-c", f"curl -sS -o /dev/null {base}; echo > ca.pem; rm -f ca.pem; mv ca.pem b; echo > beside"
    )
    assert trusted.read_text() == (TLS / "ca.pem").read_text(), done.stderr
    assert (identity.workspace / "beside").exists() and len(secure_origin.requests) == 1, done.stderr
    daemon.stop()
    daemon = start_daemon(**start)
    done = daemon.run("run", "--", "true")
    assert done.returncode == 125 and "commands could write" in done.stderr, done.stderr
    daemon.stop()
    advised = {"SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"}
    done = start_daemon(**start | {"env": advised}).run("run", "--", "true")
    assert done.returncode == 0, done.stderr
