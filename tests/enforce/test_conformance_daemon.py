"""Conformance of the daemon as a whole, with real sandboxes: sizes that are not ordinary, many at once, a sandbox in a
sandbox, and who a connection belongs to."""

from __future__ import annotations

import json
import os
from urllib.request import urlopen

import pytest

from support.daemons import StartDaemon
from support.origin import Origin
from support.ports import free_port
from support.users import Identity, identity_names
from support.waiting import wait_until

AS_A_USER = pytest.mark.parametrize("identity", identity_names()[-1:], indirect=True)


def test_pd_15_a_command_of_two_mebibytes_and_strange_arguments(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    code = """
import json, sys
from sandboxd_client import Client
with Client(autostart=False) as box:
    text = "true " + "x" * 1_500_000 + "; echo whole"
    print(box.run(text, capture_output=True, text=True).stdout.strip())
    odd = ["", " ", "\\n", "-n", "\\x1b[2J", "\\u202e", "\\ue000", "é", "'", '"', "$(exit 1)"]
    show = "import sys; print(ascii(sys.argv[1:]))"
    done = box.run([sys.executable, "-I", "-S", "-c", show, *odd], capture_output=True, text=True)
    print(done.stdout.strip() == ascii(odd))
    for argv in ("true " + "x" * 2_097_152, [], ["a\\0b"], [""], ["true", "\\udcff"], ["true", "\\0"]):
        try:
            done = box.run(argv, capture_output=True)
            print("status", done.returncode)
        except Exception as error:
            print(type(error).__name__, error)
"""
    done = daemon.python(code)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["whole", "True"], done.stderr
    assert [line.split()[0] for line in lines[2:]] == ["RpcError", *["InvalidCommand"] * 5], lines


@AS_A_USER
def test_pd_15_ten_thousand_rules(start_daemon: StartDaemon, origin: Origin) -> None:
    """The last of them counts like the first."""
    domains = [f"h{number}.ok.test" for number in range(10_000)]
    daemon = start_daemon(
        settings={"sandbox": {"network": {"allowedDomains": domains}}},
        resolve={"h9999.ok.test": "127.0.0.1", "h10000.ok.test": "127.0.0.1"},
    )
    line = "for n in 9999 10000; do curl -s -o /dev/null -w '%{http_code} ' http://h$n.ok.test:$0/; done"
    done = daemon.run("run", "--", "sh", "-c", line, str(origin.port))
    assert done.stdout == "200 403 ", done.stderr
    assert len(origin.connections) == 1


@AS_A_USER
def test_pd_16_two_hundred_at_once_each_with_its_own(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    code = """
import asyncio
from sandboxd_client import AsyncClient
async def one(box, number):
    done = await box.run(["sh", "-c", f"echo {number}; touch /usr/no-{number}"], capture_output=True, text=True)
    named = {v.target for v in done.violations}
    return done.stdout == f"{number}\\n" and done.returncode != 0 and named <= {f"/usr/no-{number}"}
async def main():
    async with AsyncClient(autostart=False) as box:
        print(sum(await asyncio.gather(*(one(box, number) for number in range(200)))))
asyncio.run(main())
"""

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{daemon.pid}/fd"))

    before = descriptors()
    done = daemon.python(code)
    assert done.stdout.strip() == "200", done.stderr
    wait_until(lambda: descriptors() <= before + 8, "the daemon holds no descriptors of commands that have ended")


def test_pd_21_a_sandbox_in_a_sandbox_is_refused(start_daemon: StartDaemon, identity: Identity) -> None:
    """With laxer settings and with what the outer client knows: a command line inside starts nothing, and says so."""
    daemon = start_daemon()
    lax = identity.base / "lax.json"
    identity.write(lax, json.dumps({"sandbox": {"filesystem": {"allowWrite": ["~"]},
                                                "network": {"allowedDomains": ["*"]}}}))  # fmt: skip
    target = identity.home / "written"
    words = identity.command("run", "--settings", str(lax), "--", "touch", str(target))
    without = identity.command("run", "--no-autostart", "--", "touch", str(target))
    for inner in (words, without):
        done = daemon.run("run", "--", *inner)
        assert done.returncode == 125 and "hint: run the command without sandboxd:" in done.stderr, done.stderr
        assert not target.exists()
    done = daemon.run("run", "--settings", str(lax), "--", "touch", str(target))
    assert done.returncode == 0, done.stderr
    assert target.exists(), "outside the same words do it"


FORKS = """
import os, sys, urllib.request
url = sys.argv[1]
children = []
for number in range(8):
    pid = os.fork()
    if pid == 0:
        opened = urllib.request.urlopen(f"{url}/{sys.argv[2]}-{number}")
        os._exit(0 if opened.status == 200 else 1)
    children.append(pid)
print(sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
try:
    urllib.request.urlopen(url.replace("ok.test", sys.argv[2] + ".no.test"))
except OSError as error:
    print(error)
"""


def test_pd_23_forks_belong_to_their_command(start_daemon: StartDaemon, origin: Origin) -> None:
    """Children need no password of their own, and what they are refused is their command's."""
    daemon = start_daemon(
        settings={"sandbox": {"network": {"allowedDomains": ["ok.test"], "strictAllowlist": True}}},
        resolve={"ok.test": "127.0.0.1"},
    )
    code = f"""
import asyncio, sys
from sandboxd_client import AsyncClient
async def one(box, name):
    argv = [sys.executable, "-I", "-c", {FORKS!r}, "http://ok.test:{origin.port}", name]
    done = await box.run(argv, capture_output=True, text=True)
    hosts = {{v.target.split(":")[0] for v in done.violations if v.kind == "network"}}
    return done.stdout.startswith("0\\n") and "407" not in done.stdout and hosts == {{name + ".no.test"}}
async def main():
    async with AsyncClient(autostart=False) as box:
        print(await asyncio.gather(*(one(box, name) for name in ("one", "two", "three", "four"))))
asyncio.run(main())
"""
    done = daemon.python(code)
    assert done.stdout.strip() == str([True] * 4), (done.stdout, done.stderr)
    assert 4 <= len(origin.connections) <= 32  # requests of one command may share some


SERVER = (
    "import http.server as h; h.ThreadingHTTPServer(('127.0.0.1', 3000), h.SimpleHTTPRequestHandler).serve_forever()"
)


def test_pd_27_one_command_reaches_the_server_of_another(start_daemon: StartDaemon) -> None:
    """Published by the one, listed for the other; gone with the command that serves."""
    port = free_port()
    network = {"allowLocalBinding": True, "allowLocalPorts": [port]}
    daemon = start_daemon(settings={"sandbox": {"network": network}})
    assert str(port) in daemon.run("settings", "show").stdout
    command = daemon.popen("run", "--publish", f"{port}:3000", "--", "python3", "-I", "-S", "-c", SERVER)
    ask = ("run", "--", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://localhost:{port}/")
    try:
        wait_until(lambda: daemon.run(*ask).stdout == "200", "the server of the first command answers the second")
        with urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
            assert answer.status == 200
        other = daemon.run("run", "--", "curl", "-sS", f"http://localhost:{port + 1}/")
        assert other.returncode != 0
    finally:
        command.terminate()
        command.wait()
    wait_until(lambda: daemon.run(*ask).stdout != "200", "with its command the port is closed")
