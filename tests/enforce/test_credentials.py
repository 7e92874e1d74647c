"""Credentials of a person that commands use and never hold: what a command sees, what the server gets."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin, serve_origin
from support.users import Identity

TLS = Path(__file__).parents[1] / "proxy" / "tls"
GIVEN, OF_FILE, OF_PROGRAM = "ghp_given0123456789abcdefgh", "npm_file0123456789", "sk-program0123456789"
INJECT = [
    {"host": "ok.test", "header": "Authorization: Bearer {value}", "from": "env:GH_TOKEN", "paths": ["/env/**"]},
    {"host": "ok.test", "basic": "me", "from": "file:~/.npmrc#_authToken=*", "paths": ["/file/**"]},
    {"host": "ok.test", "header": "X-Source", "from": "file:~/.source", "paths": ["/source/**"]},
    {"host": "ok.test", "query": "key", "from": 'command:["/bin/cat", "~/.program"]', "paths": ["/program/**"]},
]
MASK = [{"env": "OTHER"}, {"file": "~/.npmrc", "pattern": "_authToken=*"}, {"file": "~/.whole"}]
BY_PROJECT = [{"file": path, "pattern": "nothing=*"} for path in ("~/.npmrc", "~/.source", "~/.program", "~/.whole")]
"""Masks that fit nothing, by which a project would have the files shown."""
LOOK = r"""
printf '%s\n' "$GH_TOKEN" "$OTHER"
cat ~/.npmrc ~/.whole
cat ~/.program ~/.source 2>&1 | grep -c denied
cat /proc/*/environ 2>/dev/null | tr '\0' '\n' | grep -c "$(printf 'given012345%s' 6789)"
"""


@pytest.fixture
def secure_origin() -> Iterator[Origin]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    with serve_origin(context) as server:
        yield server


@pytest.fixture
def daemon(start_daemon: StartDaemon, identity: Identity) -> DaemonProcess:
    trusted = identity.write(identity.home / "ca.pem", (TLS / "ca.pem").read_text())
    identity.write(identity.home / ".npmrc", f"registry=https://ok.test/\n//ok.test/:_authToken={OF_FILE}\n")
    identity.write(identity.home / ".whole", "another-secret\n")
    identity.write(identity.home / ".program", OF_PROGRAM)
    identity.write(identity.home / ".source", "nothing in it but-a-source\n")
    of_project = {"sandbox": {"credentials": {"mask": BY_PROJECT, "inject": INJECT}}}
    identity.write(identity.workspace / ".claude" / "settings.json", json.dumps(of_project))
    network = {"allowedDomains": ["ok.test", "also.test"], "maxUpload": {"also.test": "20K"}}
    inject = json.loads(json.dumps(INJECT).replace("~/.program", f"{identity.home}/.program"))
    closed = {"denyRead": ["~/.program"]}
    return start_daemon(
        settings={
            "sandbox": {"network": network, "filesystem": closed, "credentials": {"inject": inject, "mask": MASK}}
        },
        resolve={"ok.test": "127.0.0.1", "also.test": "127.0.0.1"},
        env={"SSL_CERT_FILE": str(trusted)},
    )


def test_commands_use_credentials_and_never_hold_them(daemon: DaemonProcess, secure_origin: Origin) -> None:
    base = secure_origin.url("ok.test", "").replace("http:", "https:")
    variables = {"GH_TOKEN": GIVEN, "OTHER": "of-the-caller"}
    refused = daemon.run("run", "-c", f"curl -sS {base}/env/a", env=variables)
    assert "credential_missing" in refused.stdout + refused.stderr or "sandboxd credential set" in refused.stdout
    done = daemon.run("credential", "set", "GH_TOKEN", input=GIVEN + "\n")
    assert (done.returncode, done.stdout) == (0, "GH_TOKEN: set\n"), done.stderr
    done = daemon.run("run", "-c", LOOK, env=variables)
    token, other, _, line, whole, closed, found = done.stdout.splitlines()
    assert token.startswith("ghp_") and len(token) == len(GIVEN) and token != GIVEN, done.stdout
    assert other not in ("", variables["OTHER"]) and found == "0"
    assert line.startswith("//ok.test/:_authToken=npm_") and closed == "2"
    for secret in (GIVEN, OF_FILE, OF_PROGRAM, "another-secret", "of-the-caller", "but-a-source"):
        assert secret not in done.stdout + done.stderr
    assert whole
    line = (
        f"own=$(sed -n s/.*_authToken=//p ~/.npmrc); echo $GH_TOKEN $own;"
        f"curl -sS {base}/env/a {base}/file/a {base}/program/a {base}/you -H 'X-Mine: '$GH_TOKEN;"
        f"curl -sS -u me:$own -d $own {base}/file/b; curl -sS -H 'Authorization: token '$GH_TOKEN {base}/env/b"
    )
    done = daemon.run("run", "-c", line, env=variables)
    assert done.returncode == 0, done.stderr
    heads = secure_origin.heads
    basic = "Basic " + base64.b64encode(f"me:{OF_FILE}".encode()).decode()
    assert [head.get("Authorization") for head in heads] == [
        f"Bearer {GIVEN}", basic, None, None, basic, f"token {GIVEN}"
    ]  # fmt: skip
    assert [one[1] for one in secure_origin.requests][2] == f"/program/a?key={OF_PROGRAM}"
    token, own = done.stdout.splitlines()[0].split(" ")
    assert {head["X-Mine"] for head in heads if "X-Mine" in head} == {token}
    assert done.stdout.count(own) == 2 and OF_FILE not in done.stdout  # a body is passed on as the command sent it
    told = daemon.run("violations", "--json").stdout
    assert "credentialMisplaced" in told
    listed = daemon.run("credential", "list").stdout
    assert "env:GH_TOKEN: set" in listed
    kept = [path.read_text(errors="replace") for path in daemon.identity.home.rglob("*") if path.is_file()]
    shown = (told, listed, *(daemon.run(*words).stdout for words in (("status", "--json"), ("settings",), ("logs",))))
    for secret in (GIVEN, OF_PROGRAM):
        assert secret not in "".join(shown) and sum(secret in text for text in kept) <= (secret == OF_PROGRAM)
    for name, answer in {".npmrc": "allowed", ".whole": "allowed", ".source": "denied", ".program": "denied"}.items():
        assert daemon.run("explain", "path", f"~/{name}").stdout.startswith(answer), name
    status = json.loads(daemon.run("status", "--json").stdout)
    assert int(Path(f"/proc/{status['pid']}/coredump_filter").read_text(), 16) == 0
    assert daemon.run("restart").returncode == 0
    assert "env:GH_TOKEN: missing" in daemon.run("credential", "list").stdout
    done = daemon.run("run", "-c", f"curl -sS -o a -o b -w '%{{http_code}} ' {base}/file/c {base}/env/c")
    assert done.stdout == "200 502 ", done.stderr
    assert secure_origin.heads[-1]["Authorization"] == basic


def test_no_more_is_sent_than_a_limit_allows(daemon: DaemonProcess, origin: Origin) -> None:
    url = origin.url("also.test")
    post = "curl -sS -w '%{http_code} ' --data-binary @a " + url
    script = f"head -c 15000 /dev/zero > a; {post} -o one; {post} -o two; curl -sS -p -o three {url} || echo no"
    done = daemon.run("run", "-c", script)
    assert done.stdout == "200 403 no\n", (done.stdout, done.stderr)
    assert len(origin.connections) == 2
    assert '"uploadLimit"' in daemon.run("violations", "--json").stdout
