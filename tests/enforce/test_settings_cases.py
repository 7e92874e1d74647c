"""Field cases of settings, rules and excluded commands with a real daemon and real sandboxes, as root and as a user."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin
from support.users import Identity
from support.waiting import wait_until

RESOLVE = {"ok.test": "127.0.0.1", "no.test": "127.0.0.1", "a.no.test": "127.0.0.1"}


def sandbox(**keys: Any) -> dict[str, Any]:
    return {"sandbox": {"enabled": True, **keys}}


def write_user(identity: Identity, settings: Any) -> None:
    text = settings if isinstance(settings, str) else json.dumps(settings)
    new = identity.write(identity.home / ".claude" / "new.json", text)
    new.rename(identity.home / ".claude" / "settings.json")


def fetch(daemon: DaemonProcess, origin: Origin, host: str) -> str:
    """The status that a sandboxed program gets for a request to the origin by this name."""
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", origin.url(host)]
    return daemon.run("run", "--", *command).stdout


def decided(daemon: DaemonProcess, command: str, **options: Any) -> Any:
    """What becomes of a command that an agent's shell tool runs: it asks first, and follows the answer. Who is asked
    says yes."""
    code = """
import json, sys
from sandboxd_client import Client
command, options = sys.argv[1], json.loads(sys.argv[2])
with Client(autostart=False) as box:
    said = box.should_sandbox(command, **options)
    done = box.run(command, decide=True, approve=lambda decision: True, capture_output=True, text=True, **options) \\
        if said.behavior != "deny" else None
    out = None if done is None else [done.returncode, done.stdout, done.stderr]
    print(json.dumps([said.sandboxed, said.behavior, said.reason.type, out]))
"""
    done = daemon.python(code, command, json.dumps(options))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- rules ---


def test_a_web_rule_opens_one_host_and_denials_every_port(start_daemon: StartDaemon, origin: Origin) -> None:
    """A web rule opens its host only, and denies hold on every port."""
    permissions = {"allow": ["WebFetch(domain:ok.test)", "WebFetch(domain:*)"], "deny": ["WebFetch(domain:*.no.test)"]}
    daemon = start_daemon(resolve=RESOLVE, settings={"permissions": {"allow": permissions["allow"][:1]}})
    assert fetch(daemon, origin, "ok.test") == "200"
    assert fetch(daemon, origin, "no.test") == "403"
    write_user(daemon.identity, {"permissions": permissions})
    wait_until(lambda: fetch(daemon, origin, "no.test") == "200", "the new rules are in force")
    before = len(origin.connections)
    assert fetch(daemon, origin, "a.no.test") == "403"
    assert len(origin.connections) == before
    separated = {"permissions": permissions, **sandbox(network={"useWebFetchRules": False})}
    write_user(daemon.identity, separated)
    wait_until(lambda: fetch(daemon, origin, "ok.test") == "403", "the rules are separate")


def test_read_rules_are_enforced(start_daemon: StartDaemon, identity: Identity) -> None:
    """Read rules are enforced."""
    for name in (".idea/x", ".env", ".env.local", "secrets/a", "sub/id_rsa", "plain"):
        identity.write(identity.workspace / name, name)
    identity.write(identity.home / ".bashrc", "mine")
    identity.write(identity.home / ".gitconfig", "[user]\n")
    deny = ["Read(./.idea/**)", "Read(./.env)", "Read(./secrets/**)", "Read(./.env.*)", "Read(**/id_rsa)"]
    files = {"denyRead": ["~/"], "allowRead": [".", "~/.gitconfig"]}
    daemon = start_daemon(settings={"permissions": {"deny": deny}, **sandbox(filesystem=files)})
    for name in (".idea/x", ".env", ".env.local", "secrets/a", "sub/id_rsa", str(identity.home / ".bashrc")):
        done = daemon.run("run", "--", "cat", name)
        assert done.returncode != 0 and done.stdout == "", name
    assert daemon.run("run", "--", "cat", "plain").stdout == "plain"
    assert daemon.run("run", "--", "cat", str(identity.home / ".gitconfig")).stdout == "[user]\n"
    assert not [path for path in identity.base.rglob("*") if "*" in path.name]


def test_start_up_files_of_home_and_of_the_directory(start_daemon: StartDaemon, identity: Identity) -> None:
    """Start-up files of home and of the directory."""
    identity.write(identity.home / ".bashrc", "mine\n")
    project = identity.write(identity.home / "p" / "file", "").parent
    daemon = start_daemon(settings=sandbox(filesystem={"allowWrite": ["~"]}))
    assert daemon.run("run", "-c", "echo x > ~/other", cwd=project).returncode == 0
    for target in ("~/.bashrc", "~/.profile"):
        assert daemon.run("run", "-c", f"echo x >> {target}", cwd=project).returncode != 0, target
    assert (identity.home / ".bashrc").read_text() == "mine\n"
    assert daemon.run("run", "-c", "echo x >> .bashrc", cwd=identity.home).returncode != 0


# --- who may say what ---


def test_a_projects_file_does_not_switch_the_sandbox_off(start_daemon: StartDaemon, identity: Identity) -> None:
    """A projects file does not switch the sandbox off."""
    loosening = {"sandbox": {"enabled": False, "excludedCommands": ["touch"], "allowUnsandboxedCommands": True}}
    identity.write(identity.workspace / ".claude" / "settings.json", json.dumps(loosening))
    daemon = start_daemon(settings=sandbox())
    sandboxed, behavior, _, out = decided(daemon, "touch ~/x")
    assert (sandboxed, behavior) == (True, "allow") and out[0] != 0
    assert not (identity.home / "x").exists()
    shown = daemon.run("settings", "show", "enabled").stdout
    assert "may only tighten" in shown and str(identity.workspace) in shown


def test_off_is_off_and_status_says_so(start_daemon: StartDaemon, identity: Identity) -> None:
    """Off is off and status says so."""
    daemon = start_daemon(settings={"sandbox": {"enabled": False}})
    sandboxed, _, reason, _ = decided(daemon, "touch ~/x; cat /proc/self/status")
    assert (sandboxed, reason) == (False, "sandboxDisabled")
    assert (identity.home / "x").exists()
    first = daemon.run("status").stdout.splitlines()[0]
    assert first.startswith("OFF") and f"off in the settings, by {identity.home}/.claude/settings.json:1" in first
    assert str(identity.home / ".claude" / "settings.json") in daemon.run("settings", "show", "enabled").stdout


def test_the_wish_to_run_outside_is_asked_about_or_refused(start_daemon: StartDaemon, identity: Identity) -> None:
    """The wish to run outside is asked about or refused."""
    daemon = start_daemon(settings=sandbox())
    query = {"dangerously_disable_sandbox": True}
    assert decided(daemon, "true", **query)[:3] == [False, "ask", "sandboxOverride"]
    assert decided(daemon, "touch ~/x")[0] is True  # the next one is inside again
    write_user(identity, sandbox(allowUnsandboxedCommands=False))
    wait_until(lambda: decided(daemon, "true", **query)[1] != "ask", "the new settings are in force")
    sandboxed, behavior, reason, out = decided(daemon, "touch ~/x", **query)
    assert (sandboxed, behavior, reason) == (True, "allow", "overrideForbidden") and out[0] != 0
    assert not (identity.home / "x").exists()


def test_run_may_allow_more_for_one_command_unless_denied(start_daemon: StartDaemon, origin: Origin) -> None:
    daemon = start_daemon(resolve=RESOLVE)
    command = ["--", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", origin.url("ok.test")]
    assert daemon.run("run", "--allow-domain", "ok.test", *command).stdout == "200"
    assert daemon.run("run", *command).stdout == "403"
    write_user(daemon.identity, sandbox(allowOverrides=False))

    def refused() -> bool:
        return daemon.run("run", "--allow-domain", "ok.test", *command).stdout == "403"

    wait_until(refused, "overrides are refused")


# --- excluded commands ---


def test_an_excluded_command_has_the_callers_own_environment(start_daemon: StartDaemon, identity: Identity) -> None:
    """An excluded command has the callers own environment."""
    daemon = start_daemon(settings=sandbox(excludedCommands=["cat"]))
    code = """
import json, os, subprocess
from sandboxd_client import Client
os.environ["HTTPS_PROXY"] = "http://mine.test:1"
with Client(autostart=False) as box:
    for command in ("cat /proc/self/environ", "cat /proc/self/status"):
        done = box.run(command, decide=True, capture_output=True, text=True)
        print(json.dumps(done.stdout))
    bare = subprocess.run(["cat", "/proc/self/environ"], capture_output=True, text=True).stdout
    print(json.dumps(bare))
"""
    done = daemon.python(code)
    assert done.returncode == 0, done.stderr
    inside, status, bare = (json.loads(line) for line in done.stdout.splitlines())
    mine = dict(line.partition("=")[::2] for line in inside.split("\0") if line)
    theirs = dict(line.partition("=")[::2] for line in bare.split("\0") if line)
    for ours in ("_", "SHLVL", "PWD", "OLDPWD"):  # a shell's own
        mine.pop(ours, None)
        theirs.pop(ours, None)
    assert mine == theirs
    assert mine["HTTPS_PROXY"] == "http://mine.test:1" and "SANDBOX_RUNTIME" not in mine
    assert "Seccomp:\t0" in status
    (namespaces,) = [line.split()[1:] for line in status.splitlines() if line.startswith("NSpid")]
    assert len(namespaces) == 1


def test_one_excluded_word_does_not_lift_a_line(start_daemon: StartDaemon, identity: Identity) -> None:
    """One excluded word does not lift a line."""
    daemon = start_daemon(settings=sandbox(excludedCommands=["true", "git"]))
    for line in ("touch ~/probe; true", "true > ~/probe", "true && touch ~/probe", "git --version; touch ~/probe"):
        sandboxed, _, _, out = decided(daemon, line)
        assert sandboxed, (line, out)
        assert not (identity.home / "probe").exists(), line
    repository = identity.home / "other"
    assert decided(daemon, f"git init -q {repository}")[0] is False  # Outside, wherever it writes
    assert decided(daemon, f"git -C {repository} config user.name x")[3][0] == 0
    assert "name = x" in (repository / ".git" / "config").read_text()


def test_names_are_advice_and_limits_hold(start_daemon: StartDaemon, origin: Origin) -> None:
    """Names are advice and limits hold."""
    daemon = start_daemon(resolve=RESOLVE, settings={"permissions": {"deny": ["Bash(curl:*)"]}, **sandbox()})
    assert decided(daemon, f"curl -s {origin.url('no.test')}")[1] == "deny"
    url = origin.url("no.test")
    for line in (
        f"/proc/self/root/usr/bin/curl -s -o /dev/null -w '%{{http_code}}' {url}",
        f"cp $(command -v curl) ./c; ./c -s -o /dev/null -w '%{{http_code}}' {url}",
        f"/lib64/ld-linux-x86-64.so.2 /usr/bin/curl -s -o /dev/null -w '%{{http_code}}' {url}",
        f'python3 -c \'import subprocess; subprocess.run(["curl", "-s", "{url}"])\'',
    ):
        assert "hello" not in daemon.run("run", "-c", line).stdout, line
    assert not origin.connections


def test_every_way_of_running_is_inside(start_daemon: StartDaemon, identity: Identity) -> None:
    """Every way of running is inside."""
    daemon = start_daemon(settings=sandbox())
    code = """
import asyncio, os, pty, subprocess
from sandboxd_client import AsyncClient, Client
line = "touch ~/x"
with Client(autostart=False) as box:
    box.run(line, stderr=subprocess.DEVNULL)
    box.run(line + " & wait", stderr=subprocess.DEVNULL)
    box.run("sh", input=line, text=True, stderr=subprocess.DEVNULL)
    box.run(line, shell="/bin/bash", stderr=subprocess.DEVNULL)
    box.run(["touch", os.path.expanduser("~/x")], stderr=subprocess.DEVNULL)
    box.spawn(line, stderr=subprocess.DEVNULL).wait()
    mine, theirs = pty.openpty()
    box.spawn(line, stdin=theirs, stdout=theirs, stderr=theirs).wait()
    with box.session(".") as session:
        session.run(line, stderr=subprocess.DEVNULL)
    launch = box.wrap(line, cwd=".")
    subprocess.run(launch.argv, cwd=launch.cwd, stderr=subprocess.DEVNULL)
async def main():
    async with AsyncClient(autostart=False) as box:
        await box.run(line, stderr=subprocess.DEVNULL)
asyncio.run(main())
print("all")
"""
    done = daemon.python(code)
    assert done.stdout == "all\n", done.stderr
    daemon.run("run", "-c", "touch ~/x")
    assert not (identity.home / "x").exists()


# --- reload ---

FOLLOWER = """
import os, socket, sys, time
from urllib.parse import urlsplit
proxy = urlsplit(os.environ["HTTP_PROXY"])
def connect():
    wire = socket.create_connection((proxy.hostname, proxy.port))
    wire.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
    return wire, wire.recv(4096).split(b" ")[1]
print(connect()[1].decode(), flush=True)
while True:
    wire, status = connect()
    if status == b"200":
        break
    wire.close()
    time.sleep(0.02)
print("reached", flush=True)
try:
    while wire.recv(4096):
        pass
except ConnectionResetError:
    pass
print("cut", connect()[1].decode(), flush=True)
"""


def test_new_rules_reach_a_running_command_and_cut_its_tunnels(
    start_daemon: StartDaemon, identity: Identity, origin: Origin
) -> None:
    daemon = start_daemon(resolve=RESOLVE, settings=sandbox())
    running = daemon.popen(
        "run", "--", "python3", "-c", FOLLOWER, f"ok.test:{origin.port}", stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    with running:
        assert running.stdout.readline() == "403\n"
        daemon.run("allow", "domain", "ok.test")
        assert running.stdout.readline() == "reached\n"
        daemon.run("deny", "domain", "ok.test")
        assert running.stdout.readline() == "cut 403\n"
    assert running.returncode == 0


def test_a_broken_file_keeps_its_rules_and_stops_a_start(
    start_daemon: StartDaemon, identity: Identity, origin: Origin
) -> None:
    """A file that breaks keeps its rules and at start nothing runs."""
    secret = identity.write(identity.home / "secret", "s")
    rules = sandbox(filesystem={"denyRead": ["~/secret"]}, network={"deniedDomains": ["no.test"]})
    daemon = start_daemon(resolve=RESOLVE, settings=rules)
    assert daemon.run("run", "--", "cat", str(secret)).returncode != 0
    write_user(identity, json.dumps(rules)[:-1])
    file = identity.home / ".claude" / "settings.json"
    wait_until(lambda: "last good" in daemon.run("status").stdout, "the daemon has seen it")
    assert f"{file}:1:" in daemon.run("status").stdout
    assert daemon.run("run", "--", "cat", str(secret)).stdout == ""
    assert daemon.run("explain", "host", "no.test").stdout.startswith("denied: no.test\n")
    assert daemon.stop() == 0
    with pytest.raises(AssertionError, match="ended at once, status 125"):
        start_daemon(resolve=RESOLVE)
    linted = identity.run(identity.command("settings", "lint"), env=identity.environment())
    assert linted.returncode == 1 and linted.stdout.startswith(f"{file}:1:")


def test_violations_carry_the_generation_that_refused(start_daemon: StartDaemon, origin: Origin) -> None:
    daemon = start_daemon(resolve=RESOLVE, settings=sandbox())
    code = """
import json, sys
from sandboxd_client import Change, Client
with Client(autostart=False) as box, box.session(".") as session:
    for _ in range(2):
        done = session.run(["curl", "-s", "-o", "/dev/null", sys.argv[1]])
        generation = session.policy_effective().generation
        print(json.dumps([generation, [v.policy_generation for v in done.violations]]))
        box.settings_update([Change("add", "network.deniedDomains", "no.test")])
"""
    done = daemon.python(code, origin.url("no.test"))
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first[1] == [first[0]] and second[1] == [second[0]] and second[0] > first[0]


def test_files_follow_from_the_next_command_on(start_daemon: StartDaemon, identity: Identity) -> None:
    target = identity.home / "out"
    target.mkdir()
    identity.own(target)
    daemon = start_daemon(settings=sandbox())
    assert daemon.run("run", "--", "touch", str(target / "a")).returncode != 0
    assert daemon.run("allow", "path", str(target)).returncode == 0
    assert daemon.run("run", "--", "touch", str(target / "a")).returncode == 0
    assert daemon.run("deny", "path", str(target)).returncode == 0
    assert daemon.run("run", "--", "ls", str(target)).returncode != 0


# --- the commands of the issue ---


def test_the_acceptance_commands(start_daemon: StartDaemon, identity: Identity) -> None:
    daemon = start_daemon()
    bad = identity.write(identity.workspace / "bad.json", '{\n  "sandbox": { "network": { "allow": ["x.test"] } }\n}')
    linted = daemon.run("settings", "lint", bad.name)
    assert linted.returncode == 1
    assert linted.stdout.startswith("bad.json:2:29: warning: ") and "sandbox.network.allowedDomains" in linted.stdout
    host = daemon.run("explain", "host", "evil.test").stdout
    assert host.startswith("denied") and "not on the list of allowed hosts" in host
    assert "add it with: sandboxd allow domain evil.test" in host
    assert daemon.run("exclude", "add", "docker:*", "--yes").returncode == 0
    command = daemon.run("explain", "command", "docker ps && curl x").stdout
    assert command.startswith("allowed, in the sandbox") and "'curl x' is not an excluded command" in command
    assert daemon.run("explain", "command", "docker ps").stdout.startswith("allowed, without the sandbox")
    local = identity.home / ".claude" / "settings.local.json"
    assert json.loads(local.read_text()) == {"sandbox": {"excludedCommands": ["docker:*"]}}
    assert Path(local).stat().st_uid == identity.uid
