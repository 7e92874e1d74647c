"""`sandboxd web` beside real sandboxes: no command reaches the page or its secrets, and a program answers over it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from support.daemons import StartDaemon
from support.origin import Origin
from support.users import Identity
from support.waiting import wait_until

BOT = Path(__file__).parents[2] / "examples" / "bot.py"
ALL_PORTS = {"sandbox": {"network": {"allowLocalPorts": ["1-65535"], "allowedDomains": ["127.0.0.1", "here.test"]}}}
LISTED = """
import json
from sandboxd_client import Client
with Client() as box: print(json.dumps({"subscribers": box.permission_list().subscribers}))
"""
ASKING = """
import sys
from sandboxd_client import Client
with Client() as box:
    answer = box.permission_request("network", cwd=sys.argv[1], host="a.ask.test", port=443)
    print(answer.behavior, answer.scope)
"""
# Ways of a command to a port of this machine: by each of its names, with and without the proxy, and from namespaces.
TRIES = """
set -f
try() { curl -s -m 20 "$@" "http://$host:$port/"; }
port=$1
for host in localhost 127.0.0.1 127.0.0.2 [::1] 0.0.0.0 [::ffff:127.0.0.1] here.test $(hostname); do
  try; try --noproxy '*'
done
host=localhost; try --proxytunnel; try -x socks5h://127.0.0.1:1080
host=127.0.0.1; unshare -Urn curl -s -m 20 "http://$host:$port/"
true
"""


def test_no_command_reaches_the_page(start_daemon: StartDaemon, identity: Identity, origin: Origin) -> None:
    """By any address, with all local ports open, over a restart; nor its files. Another server is reached."""
    daemon = start_daemon(settings=ALL_PORTS, resolve={"here.test": "127.0.0.1"})
    page = daemon.popen("web", "--json", stdout=subprocess.PIPE, text=True)
    assert page.stdout is not None
    url = json.loads(page.stdout.readline())["url"]
    port = url.split(":")[2].partition("/")[0]
    for tries in (TRIES, "curl -s http://localhost:$1; curl -s http://here.test:$1 http://127.0.0.2:$1; true"):
        done = daemon.run("run", "--", "bash", "-c", tries, "tries", port)
        assert done.returncode == 0 and "<title>" not in done.stdout and done.stdout.count("page of sandboxd") >= 2, (
            done
        )
        assert daemon.run("restart").returncode == 0
    reached = daemon.run("run", "--", "bash", "-c", TRIES, "tries", str(origin.port))
    assert reached.stdout.count(origin.body.decode()) >= 4, reached
    token = daemon.run("web", "token", "bot", "--role", "answer").stdout.strip()
    saved, socket = identity.home / ".local/state/sandboxd/web-sessions.json", daemon.socket.parent / "web.sock"
    assert saved.exists() and socket.exists() and len(token) > 40 and token not in saved.read_text()
    looks = f"cat {saved}; cat {socket}; cd {saved.parent} && ls -A; cd {socket.parent} && ls -A"
    hidden = daemon.run("run", "-c", looks)
    assert hidden.stdout == "" and hidden.stderr.count("cat: ") == 2, hidden

    address = url.partition("#")[0].replace("http", "ws") + "rpc"
    bot = identity.popen(
        identity.python("-c", BOT.read_text(), address, "*.ask.test"),
        env=daemon.environment(SANDBOXD_TOKEN=token),
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: '"subscribers": 1' in daemon.python(LISTED).stdout, "the program hears of questions")
    asked = daemon.python(ASKING, str(identity.home))
    assert asked.stdout.split() == ["allow", "session"], asked
    assert bot.stdout is not None and bot.stdout.readline() == "a.ask.test: allowed for the session\n"
    again = daemon.run("web", "--json")
    assert json.loads(again.stdout)["url"].startswith(url.partition("#")[0]) and again.stdout.strip() not in url
    (session,) = json.loads(daemon.run("web", "sessions", "--json").stdout)["sessions"]
    assert (session["name"], session["role"], session["kind"]) == ("bot", "answer", "program")
    assert daemon.run("web", "pair").returncode == 0
    assert daemon.run("web", "revoke", session["id"]).returncode == 0
    assert bot.wait(30) is not None, "it ends at once"
    page.send_signal(signal.SIGTERM)
    with page, bot:
        assert page.wait(30) == 0 and not socket.exists()
    assert "portClosed" not in daemon.run("explain", "host", f"localhost:{port}", "--json").stdout
