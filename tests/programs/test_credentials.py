"""Programs that log in, with credentials that only the daemon holds, at a server that checks them.

git, pip, npm, cargo, curl, gh, and the token flow of container registries: each does its work inside, and finds the
value nowhere. `./dev programs` runs this."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import shlex
import shutil
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.users import Identity

TLS = Path(__file__).parents[1] / "proxy" / "tls"
VALUES = {name: f"{prefix}{name}0123456789abcdef" for name, prefix in (
    ("git", "ghp_"), ("pip", "pypi-"), ("npm", "npm_"), ("cargo", "cio"), ("registry", "dckr_pat_"), ("curl", "sk-"),
    ("gh", "ghp_"),
)}  # fmt: skip
RUST = (
    f"export RUSTUP_HOME={os.environ.get('RUSTUP_HOME', Path.home() / '.rustup')}"
    f" PATH=$PATH:{Path(shutil.which('cargo') or '/').parent}"
)
BEARER = "of-the-token-service"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


EXPECTED = {
    "git": basic("me", VALUES["git"]),
    "pip": basic("__token__", VALUES["pip"]),
    "npm": f"Bearer {VALUES['npm']}",
    "cargo": VALUES["cargo"],
    "token": basic("me", VALUES["registry"]),
    "v2": f"Bearer {BEARER}",
    "curl": VALUES["curl"],
    "api": f"token {VALUES['gh']}",
}


def wheel() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        info = "mine-1.0.dist-info/"
        file.writestr("mine.py", "print('from mine')\n")
        file.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        file.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(info + "RECORD", "")
    return data.getvalue()


def archive(**files: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        for name, text in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(text)
            file.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(data.getvalue(), mtime=0)


@dataclass
class Server:
    """`seen` are the programs whose credential was right, `wrong` what came instead."""

    port: int
    repositories: Path
    seen: list[str] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)

    @property
    def base(self) -> str:
        return f"https://ok.test:{self.port}"


def answer(server: Server, path: str) -> tuple[int, str, bytes]:
    """The answer to an authorized request."""
    base = server.base
    crate = archive(**{"mine-1.0.0__Cargo.toml": '[package]\nname = "mine"\nversion = "1.0.0"\nedition = "2021"\n',
                       "mine-1.0.0__src__lib.rs": ""})  # fmt: skip
    npm = archive(
        **{"package__package.json": '{"name": "mine", "version": "1.0.0"}',
           "package__index.js": "console.log('from mine')"}
    )  # fmt: skip
    index = {"name": "mine", "vers": "1.0.0", "deps": [], "cksum": hashlib.sha256(crate).hexdigest(),
             "features": {}, "yanked": False}  # fmt: skip
    packument = {"name": "mine", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {
        "name": "mine", "version": "1.0.0",
        "dist": {"tarball": f"{base}/npm/mine/-/mine-1.0.0.tgz", "shasum": hashlib.sha1(npm).hexdigest()},
    }}}  # fmt: skip
    pages: dict[str, tuple[str, bytes]] = {
        "/pip/simple/mine/": ("text/html", b'<a href="../../mine-1.0-py3-none-any.whl">mine-1.0-py3-none-any.whl</a>'),
        "/pip/mine-1.0-py3-none-any.whl": ("application/octet-stream", wheel()),
        "/npm/mine": ("application/json", json.dumps(packument).encode()),
        "/npm/mine/-/mine-1.0.0.tgz": ("application/octet-stream", npm),
        "/cargo/config.json": (
            "application/json",
            json.dumps({"dl": f"{base}/cargo/dl", "api": f"{base}/cargo", "auth-required": True}).encode(),
        ),
        "/cargo/mi/ne/mine": ("text/plain", json.dumps(index).encode()),
        "/cargo/dl/mine/1.0.0/download": ("application/octet-stream", crate),
        "/token": ("application/json", json.dumps({"token": BEARER}).encode()),
        "/v2/mine/manifests/latest": ("application/json", b'{"manifest": "mine"}'),
        "/curl/": ("text/plain", b"from curl"),
        "/api/v3/user": ("application/json", b'{"login": "me-myself"}'),
    }
    kind, body = pages.get(path, ("text/plain", b""))
    return (200, kind, body) if body else (404, kind, b"none")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    repositories = tmp_path / "git"
    bare = repositories / "git" / "mine.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", bare], check=True)
    subprocess.run(["git", "-C", bare, "config", "http.receivepack", "true"], check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def serve(self) -> None:
            path, _, query = self.path.partition("?")
            body = self.read()
            program = path.split("/")[1]
            given = self.headers.get("X-Api-Key" if program == "curl" else "Authorization", "")
            if given != EXPECTED.get(program):
                here.wrong.append((program, given))
                realm = f'Bearer realm="{here.base}/token",service="mine"' if program == "v2" else 'Basic realm="x"'
                self.reply(401, "text/plain", b"who is it?", ("WWW-Authenticate", realm))
                return
            here.seen.append(program)
            if program == "git":
                self.git(path, query, body)
            else:
                self.reply(*answer(here, path))

        do_GET = do_POST = do_PUT = do_HEAD = serve

        def read(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))

        def reply(self, status: int, kind: str, body: bytes, *more: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *more):
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def git(self, path: str, query: str, body: bytes) -> None:
            environment = {
                "GIT_PROJECT_ROOT": str(here.repositories), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path,
                "QUERY_STRING": query, "REQUEST_METHOD": self.command, "REMOTE_USER": "me",
                "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""), "PATH": os.environ["PATH"],
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }  # fmt: skip
            done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=environment)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            status = int(headers.pop("Status", "200").split(" ")[0])
            self.reply(status, headers.pop("Content-Type", "text/plain"), content, *headers.items())

        def log_message(self, *_: Any) -> None:
            return None

    class Listening(ThreadingHTTPServer):
        daemon_threads = True

        def get_request(self) -> tuple[Any, Any]:
            sock, peer = super().get_request()
            return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), peer

        def handle_error(self, *_: Any) -> None:
            return None

    with Listening(("127.0.0.1", 0), Handler) as listening:
        here = Server(listening.server_address[1], repositories)
        threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
        yield here
        listening.shutdown()


def entry(name: str, **more: Any) -> dict[str, Any]:
    return {"host": "ok.test", "from": f"env:{name.upper()}_VALUE", "variables": [], "paths": [f"/{name}/**"], **more}


INJECT = [
    entry("git", basic="me"),
    entry("pip", basic="__token__"),
    entry("npm", header="Authorization: Bearer {value}"),
    entry("cargo", header="Authorization", variables=["CARGO_REGISTRIES_MINE_TOKEN"]),
    entry("registry", basic="me", paths=["/token"]),
    entry("curl", header="X-Api-Key"),
    entry("gh", header="Authorization: token {value}", paths=["/api/**"], variables=["GH_ENTERPRISE_TOKEN"]),
]
TOKEN_FLOW = """
import json, re, sys, urllib.error, urllib.request
url = sys.argv[1] + "/v2/mine/manifests/latest"
try:
    urllib.request.urlopen(url)
except urllib.error.HTTPError as refused:
    realm = re.search('realm="([^"]+)"', refused.headers["WWW-Authenticate"])[1]
token = json.load(urllib.request.urlopen(realm + "?service=mine&scope=repository:mine:pull"))["token"]
print(urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": "Bearer " + token})).read().decode())
"""
CASES = {
    "git": (
        """git -c init.defaultBranch=main init -q w && cd w
        git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one
        git push -q {base}/git/mine.git HEAD:main
        git clone -q {base}/git/mine.git ../c && git -C ../c log --format=%s""",
        "one",
    ),
    "pip": (
        """python3 -m pip install -q --disable-pip-version-check --no-cache-dir --target t -i {base}/pip/simple mine
        python3 t/mine.py""",
        "from mine",
    ),
    "npm": (
        """export npm_config_cache=$TMPDIR/npm
        npm install --silent --no-audit --no-fund --registry {base}/npm/ mine && node node_modules/mine""",
        "from mine",
    ),
    "cargo": (
        """{rust} CARGO_HOME=$TMPDIR/cargo CARGO_REGISTRIES_MINE_INDEX=sparse+{base}/cargo/
        export CARGO_REGISTRY_GLOBAL_CREDENTIAL_PROVIDERS=cargo:token
        cargo new -q --lib one --vcs none && cd one
        cargo add -q mine --registry mine && cargo fetch && echo fetched""",
        "fetched",
    ),
    "v2": (f"python3 -c {shlex.quote(TOKEN_FLOW)} {{base}}", '{"manifest": "mine"}'),
    "curl": ("curl -sSf {base}/curl/", "from curl"),
    "api": ("base={base}; GH_CONFIG_DIR=$TMPDIR/gh GH_HOST=${base#https://} gh api user -q .login", "me-myself"),
}


@pytest.fixture
def daemon(start_daemon: StartDaemon, identity: Identity) -> DaemonProcess:
    trusted = identity.write(identity.home / "ca.pem", (TLS / "ca.pem").read_text())
    sandbox = {"network": {"allowedDomains": ["ok.test"]}, "credentials": {"inject": INJECT}}
    environment = {f"{name.upper()}_VALUE": value for name, value in VALUES.items()}
    return start_daemon(
        settings={"sandbox": sandbox}, resolve={"ok.test": "127.0.0.1"},
        env={"SSL_CERT_FILE": str(trusted), **environment},
    )  # fmt: skip


def test_programs_log_in_without_holding_a_credential(daemon: DaemonProcess, server: Server) -> None:
    left_out: list[str] = []
    for name, (line, says) in CASES.items():
        program = {"v2": "python3", "cargo": "{rust}; cargo", "api": "gh"}.get(name, name)
        if daemon.run("run", "-c", f"{program.format(rust=RUST)} --version >/dev/null").returncode:
            left_out.append(name)
            continue
        server.seen.clear()
        work = daemon.identity.workspace / name
        work.mkdir()
        daemon.identity.own(work)
        done = daemon.run(
            "run", "-c", "set -e\n" + line.replace("{base}", server.base).replace("{rust}", RUST), cwd=work
        )
        assert done.returncode == 0 and says in done.stdout, (name, done.stdout, done.stderr, server.wrong)
        assert name in server.seen
        text = "".join(file.read_text(errors="replace") for file in work.rglob("*") if file.is_file())
        assert not any(value in text + done.stdout + done.stderr for value in VALUES.values()), name
        server.wrong.clear()
    if left_out:
        pytest.skip(f"this user lacks {', '.join(left_out)}")
