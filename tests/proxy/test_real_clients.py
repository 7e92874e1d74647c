"""Programs that people use, through the proxies, against loopback servers. Names only the proxy knows.

Which programs are tried depends on what the machine has; curl, git, pip and Python are always there.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import http.server
import io
import json
import os
import random
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandboxd.plan.environment import change_environment
from support.fake_host import place
from support.proxies import Proxies, running_proxies

TLS = Path(__file__).with_name("tls")


class Files(http.server.SimpleHTTPRequestHandler):
    """Files of a directory, uploads into it, and a count."""

    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def do_PUT(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = hashlib.sha256(body).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        return None


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    connections = 0


@contextlib.contextmanager
def serving(directory: Path, *, tls: bool = False) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), functools.partial(Files, directory=str(directory))) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "server.pem")
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    output: bytes
    errors: bytes


@dataclass(slots=True)
class Box:
    """Runs programs with the variables a sandbox sets."""

    proxies: Proxies
    directory: Path
    extra: dict[str, str] = field(default_factory=dict)

    async def run(self, *words: str | Path) -> Outcome:
        here = place(http_port=self.proxies.http_port, socks_port=self.proxies.socks_port)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "LANG": "C.UTF-8",
            **self.extra,
            **change_environment(here, str(self.directory), self.extra).set,
        }
        process = await asyncio.create_subprocess_exec(
            *map(str, words),
            env=environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        output, errors = await process.communicate()
        assert process.returncode is not None
        return Outcome(process.returncode, output, errors)


async def test_curl(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3_000_000)
    (tmp_path / "file").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest().encode()
    with serving(tmp_path) as plain, serving(tmp_path, tls=True) as tls:
        async with running_proxies("ok.test") as proxies:
            box = Box(proxies, tmp_path)
            base = f"http://ok.test:{plain.server_port}"
            secure = f"https://ok.test:{tls.server_port}"
            socks = f"socks5h://127.0.0.1:{proxies.socks_port}"
            downloads: tuple[list[str | Path], ...] = (
                [f"{base}/file"],
                ["--proxytunnel", f"{base}/file"],
                ["--cacert", TLS / "ca.pem", f"{secure}/file"],
                ["-x", socks, f"{base}/file"],
                ["-x", socks, "--cacert", TLS / "ca.pem", f"{secure}/file"],
                ["-x", socks.replace("//", "//any:thing@"), f"{base}/file"],
                ["--http1.0", f"{base}/file"],
            )
            for words in downloads:
                done = await box.run("curl", "-sSf", *words)
                assert done.status == 0 and hashlib.sha256(done.output).hexdigest().encode() == digest, (words, done)
            uploads: tuple[list[str | Path], ...] = (
                ["-T", tmp_path / "file", f"{base}/up"],
                ["-T", tmp_path / "file", "-H", "Transfer-Encoding: chunked", f"{base}/up"],
                ["-T", tmp_path / "file", "-H", "Expect: 100-continue", f"{base}/up"],
                ["--cacert", TLS / "ca.pem", "-T", tmp_path / "file", f"{secure}/up"],
            )
            for words in uploads:
                done = await box.run("curl", "-sSf", *words)
                assert (done.status, done.output) == (0, digest), (words, done)
            head = await box.run("curl", "-sSI", f"{base}/file")
            assert b"Content-Length: 3000000" in head.output
            many = await box.run("curl", "-sSf", "-w", "%{num_connects} ", *["-o", "/dev/null", f"{base}/file"] * 5)
            assert many.output.split() == [b"1", b"0", b"0", b"0", b"0"], "one connection to the proxy for all"
            assert proxies.blocked == []


async def test_curl_understands_a_refusal(tmp_path: Path) -> None:
    with serving(tmp_path) as plain, serving(tmp_path, tls=True) as tls:
        async with running_proxies("ok.test") as proxies:
            box = Box(proxies, tmp_path)
            done = await box.run("curl", "-sSi", f"http://no.test:{plain.server_port}/file")
            assert done.output.startswith(b"HTTP/1.1 403 ") and b"sandboxd allow domain no.test" in done.output
            done = await box.run("curl", "-sSk", f"https://no.test:{tls.server_port}/file")
            assert done.status == 56 and b"403" in done.errors
            done = await box.run("curl", "-sS", "-x", f"socks5h://127.0.0.1:{proxies.socks_port}", "http://no.test/")
            assert done.status == 97
            assert plain.connections == tls.connections == 0 and len(proxies.blocked) == 3


async def test_curl_follows_a_redirect_to_a_refusal(tmp_path: Path) -> None:

    class Redirect(Files):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"http://no.test:{self.server.server_port}/")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with Server(("127.0.0.1", 0), functools.partial(Redirect, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        async with running_proxies("ok.test") as proxies:
            done = await Box(proxies, tmp_path).run("curl", "-sSLi", f"http://ok.test:{server.server_port}/")
            assert b" 302 " in done.output and b"HTTP/1.1 403 " in done.output and server.connections == 1
        server.shutdown()


async def test_git(tmp_path: Path) -> None:
    """Smaller."""
    quiet = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "PATH": os.environ["PATH"]}
    work, served = tmp_path / "work", tmp_path / "served"
    served.mkdir()

    def git(*words: str, cwd: Path = tmp_path) -> None:
        subprocess.run(["git", *words], cwd=cwd, env={**quiet, "HOME": str(tmp_path)}, check=True, capture_output=True)

    git("init", "-q", str(work))
    (work / "big").write_bytes(random.Random(2).randbytes(20_000_000))
    git("add", "big", cwd=work)
    git("-c", "user.name=a", "-c", "user.email=a@ok.test", "commit", "-qm", "big", cwd=work)
    git("clone", "-q", "--bare", str(work), str(served / "repo.git"))
    git("update-server-info", cwd=served / "repo.git")
    with serving(served) as plain, serving(served, tls=True) as tls:
        async with running_proxies("ok.test") as proxies:
            box = Box(proxies, tmp_path, {**quiet, "GIT_SSL_CAINFO": str(TLS / "ca.pem"), "GIT_TERMINAL_PROMPT": "0"})
            for name, url in (
                ("http", f"http://ok.test:{plain.server_port}"),
                ("https", f"https://ok.test:{tls.server_port}"),
            ):
                done = await box.run("git", "clone", "-q", f"{url}/repo.git", tmp_path / name)
                assert done.status == 0, done
                assert (await box.run("git", "-C", tmp_path / name, "fsck", "--full")).status == 0
            denied = await box.run(
                "git", "clone", "-q", f"http://no.test:{plain.server_port}/repo.git", tmp_path / "no"
            )
            assert denied.status != 0 and b"403" in denied.errors


async def test_pip(tmp_path: Path) -> None:
    index = tmp_path / "served" / "simple" / "thing"
    index.mkdir(parents=True)
    wheel = "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(index / wheel, "w") as archive:
        archive.writestr("thing.py", "")
        archive.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        archive.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("thing-1.0.dist-info/RECORD", "")
    (index / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    with serving(tmp_path / "served") as plain:
        async with running_proxies("ok.test") as proxies:
            box = Box(proxies, tmp_path, {"PIP_CONFIG_FILE": "/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
            done = await box.run(
                sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir",
                "--trusted-host", "ok.test",
                "--index-url", f"http://ok.test:{plain.server_port}/simple", "-d", tmp_path / "got", "thing",
            )  # fmt: skip
            assert done.status == 0, done
            assert (tmp_path / "got" / wheel).read_bytes() == (index / wheel).read_bytes()


async def test_pythons_urllib(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    code = "import ssl, sys, urllib.request as r; c = ssl.create_default_context(cafile=sys.argv[2]); \
print(r.urlopen(sys.argv[1], context=c).read().decode())"
    with serving(tmp_path) as plain, serving(tmp_path, tls=True) as tls:
        async with running_proxies("ok.test") as proxies:
            box = Box(proxies, tmp_path)
            for url in (f"http://ok.test:{plain.server_port}/file", f"https://ok.test:{tls.server_port}/file"):
                done = await box.run(sys.executable, "-c", code, url, TLS / "ca.pem")
                assert done.output == b"hello\n", done
            done = await box.run(sys.executable, "-c", code, f"https://no.test:{tls.server_port}/", TLS / "ca.pem")
            assert b"Tunnel connection failed: 403 Forbidden" in done.errors


LIBRARIES = {
    "requests": """
import requests
for url in urls:
    answer = requests.get(url, verify=ca)
    print(answer.status_code, answer.text.split("\\n")[0])
try: requests.get(denied, verify=ca)
except requests.exceptions.ProxyError as error: print("403 Forbidden" in str(error))
""",
    "httpx": """
import httpx, ssl
context = ssl.create_default_context(cafile=ca)
for url in urls:
    answer = httpx.get(url, verify=context)
    print(answer.status_code, answer.text.split("\\n")[0])
try: httpx.get(denied, verify=context)
except httpx.ProxyError as error: print("403 Forbidden" in str(error))
""",
    "aiohttp": """
import aiohttp, asyncio, ssl
context = ssl.create_default_context(cafile=ca)
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session:
        for url in urls:
            async with session.get(url, ssl=context) as answer:
                print(answer.status, (await answer.text()).split("\\n")[0])
        try: await session.get(denied, ssl=context)
        except aiohttp.ClientHttpProxyError as error: print(error.status == 403)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("library", LIBRARIES)
async def test_pythons_libraries(library: str, tmp_path: Path) -> None:
    """With the variables as they are, without a package for SOCKS."""
    (tmp_path / "file").write_bytes(b"hello")
    code = "import sys; ca, denied, *urls = sys.argv[1:]" + LIBRARIES[library]
    with serving(tmp_path) as plain, serving(tmp_path, tls=True) as tls:
        async with running_proxies("ok.test") as proxies:
            urls = [f"http://ok.test:{plain.server_port}/file", f"https://ok.test:{tls.server_port}/file"]
            urls.append(f"http://no.test:{plain.server_port}/file")
            denied = f"https://no.test:{tls.server_port}/file"
            done = await Box(proxies, tmp_path).run(sys.executable, "-c", code, TLS / "ca.pem", denied, *urls)
    assert done.output.decode().splitlines()[:2] == ["200 hello"] * 2, done
    refused, tunnel = done.output.decode().splitlines()[2:]
    assert refused.startswith("403 Blocked by the sandbox") and tunnel == "True"


async def wget(box: Box, plain: Server, tls: Server) -> None:
    done = await box.run("wget", "-qO-", f"http://ok.test:{plain.server_port}/file")
    assert done.output == b"hello", done
    done = await box.run(
        "wget", "-qO-", f"--ca-certificate={TLS / 'ca.pem'}", f"https://ok.test:{tls.server_port}/file"
    )
    assert done.output == b"hello", done
    assert (await box.run("wget", "-qO-", f"http://no.test:{plain.server_port}/file")).status == 8


async def node(box: Box, plain: Server, tls: Server) -> None:
    """With plain modules, as old versions have no proxy support of their own."""
    code = """
const http = require("http"), tls = require("tls"), proxy = new URL(process.env.http_proxy);
const [url, host, port] = process.argv.slice(1);
http.get({host: proxy.hostname, port: proxy.port, path: url, headers: {host: "ok.test"}}, answer => {
  answer.on("data", data => process.stdout.write(data));
  answer.on("end", () => {
    const request = http.request({host: proxy.hostname, port: proxy.port, method: "CONNECT", path: `${host}:${port}`});
    request.on("connect", (answer, socket) => {
      const secure = tls.connect({socket, servername: host}, () =>
        secure.write("GET /file HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"));
      secure.on("data", data => process.stdout.write(data));
    });
    request.end();
  });
});"""
    box.extra["NODE_EXTRA_CA_CERTS"] = str(TLS / "ca.pem")
    done = await box.run(
        "node", "-e", code, f"http://ok.test:{plain.server_port}/file", "ok.test", str(tls.server_port)
    )
    assert done.output.startswith(b"helloHTTP/1.1 200 ") and done.output.endswith(b"hello"), done


async def npm(box: Box, plain: Server, tls: Server) -> None:
    package = io.BytesIO()
    with tarfile.open(fileobj=package, mode="w:gz") as archive:
        text = json.dumps({"name": "thing", "version": "1.0.0"}).encode()
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    (box.directory / "thing.tgz").write_bytes(package.getvalue())
    registry = f"http://ok.test:{plain.server_port}"
    version = {"name": "thing", "version": "1.0.0", "dist": {"tarball": f"{registry}/thing.tgz"}}
    (box.directory / "thing").write_text(
        json.dumps({"name": "thing", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}})
    )
    (box.directory / "project").mkdir()
    done = await box.run(
        "npm", "install", "--prefix", box.directory / "project", "--registry", registry, "--no-audit", "--no-fund",
        "--no-update-notifier", "thing",
    )  # fmt: skip
    assert done.status == 0, done
    assert (box.directory / "project/node_modules/thing/package.json").exists()


async def java(box: Box, plain: Server, tls: Server) -> None:
    """HttpClient and HttpURLConnection, as they are; and what a refusal looks like there."""
    (box.directory / "Get.java").write_text("""
import java.net.*; import java.net.http.*;
public class Get { public static void main(String[] words) throws Exception {
  HttpClient client = HttpClient.newHttpClient();
  for (String word : words) {
    HttpRequest request = HttpRequest.newBuilder(URI.create(word)).build();
    try { System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).body().split("\\n")[0]); }
    catch (java.io.IOException error) { System.out.println(error.getMessage()); }
    try { System.out.println(new String(new URL(word).openStream().readAllBytes())); }
    catch (java.io.IOException error) { System.out.println(error.getMessage().split(":")[0]); }
  }
} }""")
    store = box.directory / "store.p12"
    password = ("-storepass", "changeit", "-keystore", store)
    made = await box.run("keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", TLS / "ca.pem", *password)
    assert made.status == 0, made
    box.extra["JAVA_TOOL_OPTIONS"] = f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword=changeit"
    urls = [f"http://ok.test:{plain.server_port}/file", f"https://ok.test:{tls.server_port}/file"]
    denied = [url.replace("ok.test", "no.test") for url in urls]
    done = await box.run("java", box.directory / "Get.java", *urls, *denied)
    lines = done.output.decode().splitlines()
    assert lines[:4] == ["hello"] * 4, done
    assert lines[4].startswith("Blocked by the sandbox") and lines[5].startswith("Server returned HTTP response code")
    assert lines[7].startswith("Unable to tunnel through proxy. Proxy returns") and len(lines) == 8, lines


async def node_fetch(box: Box, plain: Server, tls: Server) -> None:
    """fetch by itself, from the versions on that look at NODE_USE_ENV_PROXY."""
    version = (await box.run("node", "-p", "process.versions.node")).output.split(b".")
    if (int(version[0]), int(version[1])) < (22, 21) or int(version[0]) == 23:
        return
    box.extra["NODE_EXTRA_CA_CERTS"] = str(TLS / "ca.pem")
    code = "for (const url of process.argv.slice(1)) console.log(await (await fetch(url)).text())"
    urls = [f"http://ok.test:{plain.server_port}/file", f"https://ok.test:{tls.server_port}/file"]
    done = await box.run("node", "--input-type=module", "-e", code, *urls)
    assert done.output == b"hello\nhello\n", done


async def cargo(box: Box, plain: Server, tls: Server) -> None:
    """A registry of one crate, from which another is built."""
    served, crate = box.directory, io.BytesIO()
    manifest = '[package]\nname = "thing"\nversion = "1.0.0"\nedition = "2021"\n'
    with tarfile.open(fileobj=crate, mode="w:gz") as archive:
        for name, text in (("Cargo.toml", manifest), ("src/lib.rs", "pub const ONE: u8 = 1;\n")):
            entry = tarfile.TarInfo(f"thing-1.0.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    root = f"http://ok.test:{plain.server_port}"
    (served / "index/th/in").mkdir(parents=True)
    (served / "crates/thing/1.0.0").mkdir(parents=True)
    (served / "crates/thing/1.0.0/download").write_bytes(crate.getvalue())
    (served / "index/config.json").write_text(json.dumps({"dl": f"{root}/crates"}))
    entry_line = {"name": "thing", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False,
                  "cksum": hashlib.sha256(crate.getvalue()).hexdigest()}  # fmt: skip
    (served / "index/th/in/thing").write_text(json.dumps(entry_line) + "\n")
    project = box.directory / "project"
    (project / "src").mkdir(parents=True)
    home = box.directory / "cargo"
    home.mkdir()
    (home / "config.toml").write_text(f'[registries.own]\nindex = "sparse+{root}/index/"\n')
    dependency = '[dependencies]\nthing = { version = "1", registry = "own" }\n'
    (project / "Cargo.toml").write_text(manifest.replace("thing", "mine") + dependency)
    (project / "src/lib.rs").write_text("pub const TWO: u8 = thing::ONE + 1;\n")
    toolchains = os.environ.get("RUSTUP_HOME") or os.path.expanduser("~/.rustup")
    box.extra.update(CARGO_HOME=str(home), RUSTUP_HOME=toolchains)
    done = await box.run("cargo", "fetch", "--manifest-path", project / "Cargo.toml")
    assert done.status == 0, done
    assert list(home.glob("registry/cache/*/thing-1.0.0.crate"))
    assert box.proxies.blocked == []


CLIENTS = {"wget": wget, "node": node, "node_fetch": node_fetch, "npm": npm, "java": java, "cargo": cargo}


@pytest.mark.parametrize("name", [name for name in CLIENTS if shutil.which(name.partition("_")[0])])
async def test_clients_of_this_machine(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    with serving(tmp_path) as plain, serving(tmp_path, tls=True) as tls:
        async with running_proxies("ok.test") as proxies:
            await CLIENTS[name](Box(proxies, tmp_path), plain, tls)
