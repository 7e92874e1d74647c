"""Clients and servers that people use, where TLS ends in the proxy: each gets what rules allow, and no more.

`./dev programs` installs what is missing and runs this."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.ports import free_port
from support.users import Identity
from support.waiting import wait_until

from .test_programs import PROGRAMS, is_there

TLS = Path(__file__).parents[1] / "proxy" / "tls"
RULES = [
    {"host": "ok.test", "action": "allow", "methods": ["read"], "paths": ["/me/**"]},
    {"host": "ok.test", "action": "allow", "methods": ["git-fetch"], "paths": ["/git/mine.git/**"]},
    {"host": "ok.test", "action": "allow", "methods": ["POST"], "paths": ["/me.Service/**"]},
]

CURL = "curl -sS -o /dev/null -w '%{http_code} '"
GO = """package main
import ("fmt"; "net/http"; "os")
func main() {
  for _, one := range [][2]string{{"GET", "/me/a"}, {"GET", "/you/a"}, {"DELETE", "/me/a"}} {
    request, _ := http.NewRequest(one[0], os.Args[1]+one[1], nil)
    answer, err := http.DefaultClient.Do(request)
    if err != nil { fmt.Print(err, " ") } else { fmt.Print(answer.StatusCode, " "); answer.Body.Close() }
  }
}"""
JAVA = """import java.net.*; import java.net.http.*;
public class J {
  public static void main(String[] args) throws Exception {
    var client = HttpClient.newHttpClient();
    for (var one : new String[] {"GET /me/a", "GET /you/a", "DELETE /me/a"}) {
      var words = one.split(" ");
      var request = HttpRequest.newBuilder(URI.create(args[0] + words[1]))
          .method(words[0], HttpRequest.BodyPublishers.noBody()).build();
      System.out.print(client.send(request, HttpResponse.BodyHandlers.ofString()).statusCode() + " ");
    }
    var old = (HttpURLConnection) new URL(args[0] + "/me/a").openConnection();
    if (old.getResponseCode() != 200) throw new Exception("the older client got " + old.getResponseCode());
  }
}"""
NODE = """for (const [method, path] of [["GET", "/me/a"], ["GET", "/you/a"], ["DELETE", "/me/a"]])
  process.stdout.write((await fetch(process.argv[2] + path, { method })).status + " ")"""
NODE_H2 = """import http2 from "node:http2"
const session = http2.connect(process.argv[2])
for (const [method, path] of [["GET", "/me/a"], ["GET", "/you/a"], ["DELETE", "/me/a"]])
  await new Promise((done, failed) => { const stream = session.request({ ":method": method, ":path": path })
    stream.on("response", (head) => process.stdout.write(head[":status"] + " ")).on("error", failed)
    stream.on("end", done).resume().end() })
session.close()"""
PYTHON = """
import asyncio, sys, urllib.error, urllib.request
base, name = sys.argv[1:]
asked = [("GET", "/me/a"), ("GET", "/you/a"), ("DELETE", "/me/a")]
def tell(*found): print(*found, end=" ")
if name == "urllib":
    for method, path in asked:
        try: tell(urllib.request.urlopen(urllib.request.Request(base + path, method=method)).status)
        except urllib.error.HTTPError as error: tell(error.code)
elif name == "requests":
    import requests
    tell(*(requests.request(method, base + path).status_code for method, path in asked))
elif name.startswith("httpx"):
    import httpx
    with httpx.Client(http2=name == "httpx2") as client:
        answers = [client.request(method, base + path) for method, path in asked]
    tell(*(one.status_code for one in answers))
    assert name != "httpx2" or all(one.http_version == "HTTP/2" for one in answers), answers
else:
    import aiohttp
    async def main():
        async with aiohttp.ClientSession(trust_env=True) as session:
            for method, path in asked:
                async with session.request(method, base + path) as answer: tell(answer.status)
    asyncio.run(main())
"""

GRPC = """
import sys, threading, grpc
base, proxied = sys.argv[1:]
channel = grpc.secure_channel(base[8:], grpc.ssl_channel_credentials(), [("grpc.enable_http_proxy", int(proxied))])
def tell(call, *rest, timeout=20):
    try: print(call(*rest, timeout=timeout))
    except grpc.RpcError as error: print(error.code().name)
tell(channel.unary_unary("/me.Service/Unary"), b"abc")
print(list(channel.unary_stream("/me.Service/Down")(b"3")))
tell(channel.stream_unary("/me.Service/Up"), (bytes(100_000) for _ in range(5)))
answered = threading.Semaphore(1)
def ask():
    for one in (b"ab", b"cd" * 40_000, b"ef"):
        assert answered.acquire(timeout=20)  # each is answered before the next
        yield one
for answer in channel.stream_stream("/me.Service/Both")(ask()):
    print(len(answer), answer[:2])
    answered.release()
tell(channel.unary_unary("/me.Service/Slow"), b"", timeout=0.5)
tell(channel.unary_unary("/me.Service/Fail"), b"")
tell(channel.unary_unary("/you.Service/Unary"), b"abc")
"""
GRPC_SAYS = """b'cba'
[b'0', b'1', b'2']
b'500000'
2 b'ba'
80000 b'dc'
2 b'fe'
DEADLINE_EXCEEDED
NOT_FOUND
PERMISSION_DENIED
"""

ATTACK = r"""
import os, socket, ssl, sys
host, port = "ok.test", int(sys.argv[1].rpartition(":")[2])
context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
ways = ["..", "%2e%2e", ".%2e", "%2E.", "..%2f", "..%5c", "..\\", "..;", "%252e%252e", "..%00", "...", "..%c0%af"]
paths = [f"/me/{way}{slash}you/secret" for way in ways for slash in ("/", "")]
paths += ["/you/secret", "//you/secret", "/./you/secret", "/%79ou/secret", "/me/a/../../you/secret",
    "/me/..//you/secret", "/me/a%0d%0a/you/secret", "/you/secret?/me/a", "/you/secret#/me/a",
    "/you/secret;/me/a", f"https://{host}:{port}/you/secret", "/YOU/secret",
    "/me/a /you/secret", "/me/a\t/you/secret", "\\you\\secret", "you/secret", "/%2e/you/secret"]
second = f"GET /you/secret HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
chunks = f"0\r\n\r\n{second}"
size = len(chunks)
heads = ["", f"Content-Length: {size}\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding : chunked\r\n", "Transfer-Encoding: x, chunked\r\n", "X: a\n\r\n", "X: a\r b\r\n",
    f"Content-Length: 0\r\nContent-Length: {size}\r\n", f"Content-Length: {size}, 0\r\n",
    f"Content-Length: +{size}\r\n",
    "X-HTTP-Method-Override: DELETE\r\n", "X-Original-URL: /you/secret\r\n", "X-Rewrite-URL: /you/secret\r\n",
    "Connection: Host\r\n", "Upgrade: h2c\r\nConnection: Upgrade\r\n"]
asked = [f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n" for path in paths]
begin = "GET /me/a HTTP/1.1\r\nHost: "
asked += [f"{begin}{host}:{port}\r\n{head}\r\n{body}" for head in heads for body in (chunks, second)]
asked += [f"{begin}{one}\r\n\r\n" for one in ("no.test", f"{host}:{port}\r\nHost: no.test", f"{host}:1")]
right = wrong = 0
for one in asked:
    with socket.create_connection((host, port)) as plain, context.wrap_socket(plain, server_hostname=host) as sock:
        answer = b""
        sock.settimeout(1)
        try:
            sock.sendall(one.encode())
            while data := sock.recv(65536): answer += data
        except OSError: pass
        if b"SECRET" in answer: print("seen by", repr(one))
        wrong += b"SECRET" in answer
        right += answer.startswith(b"HTTP/1.1 200 ")
print("attacks got", wrong, "and some were harmless" if right else "and no answer at all")
"""


@dataclass(frozen=True)
class Client:
    """A line of a shell with `$BASE` and `$FILES`, which says `says`."""

    name: str
    line: str
    says: str = "200 403 403 "
    takes: tuple[str, ...] = ()


def _python(library: str) -> Client:
    return Client(f"Python {library}", f"$PYTHON $FILES/c.py $BASE {library}")


ANY_SERVER = (
    Client("curl", f"{CURL} $BASE/me/a; {CURL} $BASE/you/a; {CURL} -X DELETE $BASE/me/a", takes=("curl",)),
    Client(
        "curl, HTTP/1.1",
        f"for path in /me/a /you/a; do {CURL} --http1.1 $BASE$path; done; {CURL} --http1.1 -X DELETE $BASE/me/a",
        takes=("curl",),
    ),
    Client(
        "curl, captured",
        f"for path in /me/a /you/a; do {CURL} --noproxy '*' $BASE$path; done; {CURL} --noproxy '*' -X PUT $BASE/me/a",
        takes=("curl",),
    ),
    Client(
        "wget",
        """for words in /me/a /you/a '/me/a --method=DELETE'; do set -- $words
        wget -q -S -O /dev/null $BASE$1 $2 2>&1 | sed -n 's/^ *HTTP[^ ]* \\([0-9]*\\).*/\\1/p' | tr '\\n' ' '; done""",
        takes=("wget",),
    ),
    Client(
        "openssl s_client",
        """for words in 'GET /me/a' 'GET /you/a' 'DELETE /me/a'; do
        printf '%s HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n' "$words" ${BASE#https://} |
        openssl s_client -quiet -verify_return_error -CAfile $SSL_CERT_FILE -servername ok.test \\
        -connect ${BASE#https://} 2>/dev/null | sed -n 's/^HTTP[^ ]* \\([0-9]*\\).*/\\1/p' | tr '\\n' ' '; done""",
        takes=("openssl",),
    ),
    Client("node fetch", "node $FILES/c.mjs $BASE", takes=("node",)),
    Client("node http2, captured", "NODE_EXTRA_CA_CERTS=$SSL_CERT_FILE node $FILES/h2.mjs $BASE", takes=("node",)),
    *map(_python, ("urllib", "requests", "httpx", "httpx2", "aiohttp")),
    Client("java", "java $FILES/J.java $BASE 2>/dev/null", takes=("java",)),
    Client("go", "GOCACHE=$TMPDIR/g GOPATH=$TMPDIR/p go run $FILES/c.go $BASE", takes=("go",)),
)
OF_GRPC = tuple(
    Client(f"gRPC, {how}", f"$PROGRAMS/jupyter/bin/python $FILES/g.py $BASE {proxied}", GRPC_SAYS)
    for how, proxied in (("by the proxy", 1), ("captured", 0))
)
ATTACKS = Client("attacks", "$PYTHON $FILES/attack.py $BASE", "attacks got 0 and some were harmless\n")
OF_PLACES = (
    Client(
        "git",
        """git clone -q $BASE/git/mine.git 2>&1 && cat mine/a
        git clone $BASE/git/other.git 2>&1 | grep -o 'error: 403'; cd mine; echo b > a; git commit -qam two
        git push 2>&1 | grep -o 'error: 403'""",
        "one\nerror: 403\nerror: 403\n",
        ("git", "nginx"),
    ),
    Client(
        "h2load",
        """h2load -n 2000 -c 4 -m 50 $BASE/me/a | grep -o '2000 succeeded'
        h2load -n 2000 -c 4 -m 50 $BASE/you/a | grep -o '2000 4xx'""",
        "2000 succeeded\n2000 4xx\n",
        ("h2load",),
    ),
    Client(
        "npm",
        """npm view one version --registry $BASE/me/npm/; npm view one version --registry $BASE/you/ 2>&1 | grep -o E403
        mkdir p; cd p; echo '{"name": "one", "version": "2.0.0"}' > package.json
        npm publish --registry $BASE/me/npm/ --//${BASE#https://}/me/npm/:_authToken=x 2>&1 | grep -om1 E403""",
        "1.0.0\nE403\nE403\n",
        ("npm",),
    ),
    Client(
        "pip",
        """$PYTHON -m pip download -q --no-deps --no-cache-dir -d d one --index-url $BASE/me/simple/ && ls d
        $PYTHON -m pip download --no-deps --no-cache-dir -d d one --index-url $BASE/you/simple/ 2>&1 |
        grep -o 'No matching distribution'""",
        "one-1-py3-none-any.whl\nNo matching distribution\n",
    ),
    Client(
        "cargo",
        """export CARGO_HOME=$TMPDIR/cargo; export CARGO_REGISTRIES_MINE_INDEX=sparse+$BASE/me/cargo/
        export CARGO_REGISTRIES_OTHER_INDEX=sparse+$BASE/you/cargo/
        cargo search one --registry mine; cargo search one --registry other 2>&1 | grep -om1 403""",
        'one = "1.0.0"    # first\n403\n',
        ("cargo",),
    ),
)


def _files(home: Path, base: str) -> None:
    """What the servers show."""
    (home / "www/me/simple/one").mkdir(parents=True)
    (home / "www/me/npm").mkdir()
    (home / "www/me/cargo/api/v1").mkdir(parents=True)
    (home / "www/me/a").write_text("ok")
    (home / "www/you").mkdir()
    (home / "www/you/secret").write_text("SECRET")
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("one-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: one\nVersion: 1\n")
        archive.writestr("one-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("one-1.dist-info/RECORD", "")
    (home / "www/me/simple/one/one-1-py3-none-any.whl").write_bytes(wheel.getvalue())
    (home / "www/me/simple/one/index.html").write_text('<a href="one-1-py3-none-any.whl">one</a>')
    tarball = f"{base}/me/npm/one.tgz"
    (home / "www/me/npm/one").write_text(
        '{"name": "one", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "one", "version": "1.0.0",'
        f' "dist": {{"tarball": "{tarball}", "shasum": "0"}}}}}}}}'
    )
    (home / "www/me/cargo/config.json").write_text(f'{{"dl": "{base}/me/cargo", "api": "{base}/me/cargo"}}')
    (home / "www/me/cargo/api/v1/crates").write_text(
        '{"crates": [{"name": "one", "max_version": "1.0.0", "description": "first"}], "meta": {"total": 1}}'
    )
    git = "git -c user.name=n -c user.email=n@x.test"
    script = f"""set -e; mkdir git work; cd work; git init -q -b main; echo one > a; git add a; {git} commit -qm one
    for name in mine other; do git clone -q --bare . ../git/$name.git; done"""
    subprocess.run(["sh", "-c", script], cwd=home, check=True)


NGINX = """daemon off; pid nginx.pid; error_log error.log; user {user}; events {{ }}
http {{ access_log access.log; default_type text/html;
  client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f;
  uwsgi_temp_path u; scgi_temp_path s;
  server {{ listen 127.0.0.1:{port} ssl http2; server_name ok.test; ssl_certificate server.pem;
    ssl_certificate_key server.pem; root www; location / {{ index index.html; }}
    location /git/ {{ fastcgi_pass unix:{home}/cgi; fastcgi_param HOME {home};
      fastcgi_param GIT_PROJECT_ROOT {home}/git;
      fastcgi_param SCRIPT_FILENAME /usr/lib/git-core/git-http-backend; fastcgi_param GIT_HTTP_EXPORT_ALL 1;
      fastcgi_param PATH_INFO $git; fastcgi_param QUERY_STRING $query_string; fastcgi_param REMOTE_USER n;
      fastcgi_param REQUEST_METHOD $request_method; fastcgi_param CONTENT_TYPE $content_type;
      fastcgi_param CONTENT_LENGTH $content_length; fastcgi_param HTTP_CONTENT_ENCODING $http_content_encoding;
      fastcgi_param GIT_PROTOCOL $http_git_protocol; }} }}
  map $uri $git {{ ~^/git(?<rest>/.*)$ $rest; }} }}"""
HAPROXY = """defaults
  mode http
  timeout client 20s
  timeout server 20s
  timeout connect 20s
frontend one
  bind 127.0.0.1:{port} ssl crt server.pem alpn h2,http/1.1
  http-request return status 200 content-type text/plain string ok
"""
CADDY = """{{
  auto_https off
  admin off
  skip_install_trust
}}
https://ok.test:{port} {{
  bind 127.0.0.1
  tls server.pem server.pem
  root * www
  file_server
}}
"""
GRPC_SERVER = """
import time, grpc
from concurrent.futures import ThreadPoolExecutor
methods = dict(
    Unary=grpc.unary_unary_rpc_method_handler(lambda data, call: data[::-1]),
    Down=grpc.unary_stream_rpc_method_handler(lambda data, call: (b"%d" % one for one in range(int(data)))),
    Up=grpc.stream_unary_rpc_method_handler(lambda all, call: b"%d" % sum(map(len, all))),
    Both=grpc.stream_stream_rpc_method_handler(lambda all, call: (one[::-1] for one in all)),
    Slow=grpc.unary_unary_rpc_method_handler(lambda data, call: time.sleep(5)),
    Fail=grpc.unary_unary_rpc_method_handler(lambda data, call: call.abort(grpc.StatusCode.NOT_FOUND, "none")),
)
class Handler(grpc.GenericRpcHandler):
    def service(self, call):
        return methods.get(call.method.rpartition("/")[2])
server = grpc.server(ThreadPoolExecutor(8), [Handler()])
pem = open("server.pem", "rb").read()
server.add_secure_port("127.0.0.1:{port}", grpc.ssl_server_credentials([(pem, pem)]))
server.start()
server.wait_for_termination()
"""
SERVERS = {
    "grpc": (GRPC_SERVER, (f"{PROGRAMS}/jupyter/bin/python", "config")),
    "nginx": (NGINX, ("nginx", "-p", "{home}", "-c", "config", "-e", "error.log")),
    "haproxy": (HAPROXY, ("haproxy", "-q", "-db", "-f", "config")),
    "caddy": (CADDY, ("caddy", "run", "--adapter", "caddyfile", "--config", "config")),
}


@pytest.fixture
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a server that runs outside."""
    config, argv = SERVERS[request.param]
    port = free_port()
    home = tmp_path / "server"
    home.mkdir()
    _files(home, f"https://ok.test:{port}")
    (home / "config").write_text(config.format(port=port, home=home, user="root" if os.geteuid() == 0 else "nobody"))
    (home / "server.pem").write_text((TLS / "server.pem").read_text())
    environment = {"PATH": f"{os.environ['PATH']}:/usr/sbin", "HOME": str(home)}
    begun = [subprocess.Popen([word.format(home=home) for word in argv], cwd=home, env=environment)]
    if request.param == "nginx":
        begun.append(subprocess.Popen(["fcgiwrap", "-s", f"unix:{home}/cgi"], cwd=home, env=environment))
    try:
        wait_until(lambda: _listens(port), "it listens")
        yield f"https://ok.test:{port}"
    finally:
        for process in begun:
            process.terminate()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def trusting(start_daemon: StartDaemon, identity: Identity) -> DaemonProcess:
    trusted = identity.write(identity.home / "ca.pem", (TLS / "ca.pem").read_text())
    for name, text in {
        "c.py": PYTHON,
        "c.go": GO,
        "J.java": JAVA,
        "attack.py": ATTACK,
        "c.mjs": NODE,
        "g.py": GRPC,
        "h2.mjs": NODE_H2,
    }.items():
        identity.write(identity.workspace / "clients" / name, text)
    network = {"requests": RULES, "tls": {"terminate": ["ok.test"]}, "strictAllowlist": True}
    return start_daemon(
        settings={"sandbox": {"network": network}},
        resolve={"ok.test": "127.0.0.1"},
        env={"SSL_CERT_FILE": str(trusted)},
    )


@pytest.mark.parametrize(
    ("base", "client"),
    [(server, one) for server in SERVERS if server != "grpc" for one in ANY_SERVER]
    + [("nginx", one) for one in OF_PLACES]
    + [("grpc", one) for one in OF_GRPC]
    + [(server, ATTACKS) for server in ("nginx", "caddy")],
    indirect=["base"],
    ids=lambda one: getattr(one, "name", one),
)
def test_a_client_gets_what_rules_allow(trusting: DaemonProcess, base: str, client: Client) -> None:
    if "cargo" in client.takes and trusting.identity.uid and str(shutil.which("cargo")).startswith(str(Path.home())):
        pytest.skip("it belongs to another user")
    missing = [what for what in client.takes if not is_there(what)]
    assert not missing, f"install {missing}: ./dev programs does"
    head = f"BASE={base} PYTHON={sys.executable} FILES=$PWD/clients PROGRAMS={PROGRAMS}\n"
    head += "mkdir -p $TMPDIR/w; cd $TMPDIR/w\n"
    if cargo := shutil.which("cargo"):  # rustup's finds its programs below a home
        head += f"export PATH=$PATH:{Path(cargo).parent} RUSTUP_HOME={Path(cargo).parents[2]}/.rustup\n"
    home = "export HOME=$TMPDIR/w; git config --global user.name n; git config --global user.email n@x.test\n"
    done = trusting.run("run", "--timeout", "120s", "--shell", "bash", "-c", head + home + client.line)
    assert done.stdout == client.says, (done.returncode, done.stdout[-500:], done.stderr[-1500:])
