"""What a real sandbox refuses, as people and programs hear of it: rule, hint, at once; sockets by path; learning."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.daemons import DaemonProcess, StartDaemon
from support.origin import Origin
from support.users import Identity
from support.waiting import wait_until


def blocked(daemon: DaemonProcess) -> list[dict[str, Any]]:
    """What was blocked since the last time this was asked."""
    found = json.loads(daemon.run("violations", "--json").stdout)["violations"]
    return [violation for violation in found if violation["kind"] != "network"]


@contextmanager
def server(identity: Identity, path: Path) -> Iterator[Path]:
    """A server on the host that says hello to each connection, and reads nothing."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        identity.own(path)
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"hello")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            path.unlink(missing_ok=True)


@contextmanager
def windows(identity: Identity) -> Iterator[str | None]:
    """The bridge to Windows programs as WSL has it; only root can make its directory."""
    if os.geteuid() != 0:
        yield None
        return
    directory = Path("/run/WSL")
    directory.mkdir(exist_ok=True)
    with server(identity, directory / f"{os.getpid()}_interop") as path:
        yield str(path)
    with suppress(OSError):  # real ones may be in there
        directory.rmdir()


def _allowing(identity: Identity, path: str) -> Path:
    settings = {"sandbox": {"network": {"allowUnixSockets": [path]}}}
    return identity.write(identity.base / "allowing.json", json.dumps(settings))


CONNECT = """
import socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(path.replace("@", "\\0"))
            print(one.recv(9).decode())
        except OSError as error:
            print(error.strerror)
"""
OWN_SERVER = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(sys.argv[1])
        listener.accept()[0].sendall(b"own")
        print(one.recv(9).decode())
"""


def test_refusals_have_their_rule_and_ordinary_failures_are_none(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(
        settings={
            "sandbox": {
                "reportViolations": "all",
                "filesystem": {"denyRead": ["~/.ssh"], "denyWrite": ["./fixed"]},
                "ignoreViolations": {"*": ["~/hidden"]},
            }
        }
    )
    identity = daemon.identity
    identity.write(identity.home / ".ssh" / "id", "key")
    identity.write(identity.workspace / "fixed" / "a", "")
    identity.write(identity.workspace / "readable", "")
    identity.write(identity.workspace / "closed", "").chmod(0)
    done = daemon.run(
        "run", "--show-violations", "-c",
        "touch ~/outside; cat ~/.ssh/id; echo > fixed/a; touch .bashrc .mcp.json ~/hidden;"
        "for i in 1 2 3 4 5; do echo > ~/outside; done; "
        # no violation: no such file, there already, a directory, what the mode forbids, what is permitted
        "cat absent readable; mkdir fixed; cat fixed; echo > closed; cat closed; echo > new; rm new; "
        "touch $(mktemp -u); cat /etc/passwd; echo > /dev/null; ls /absent/x; echo > /absent/x; rmdir ~/absent",
    )  # fmt: skip
    found = {(v["kind"], v["target"]): v for v in blocked(daemon)}
    home, work = str(identity.home), str(identity.workspace)
    assert {key: v["outcome"] for key, v in found.items()} == {
        ("write", f"{home}/outside"): "pathNotWritable",
        ("read", f"{home}/.ssh/id"): "pathDenied",
        ("write", f"{work}/fixed/a"): "pathDenied",
        ("write", f"{work}/.mcp.json"): "pathProtected",
    }
    assert (found["read", f"{home}/.ssh/id"]["rule"], found["read", f"{home}/.ssh/id"]["process"]) == ("~/.ssh", "cat")
    assert found["write", f"{home}/outside"]["count"] == 6 and found["write", f"{home}/outside"]["process"] == "touch"
    assert "sandboxd allow path ~/outside" in found["write", f"{home}/outside"]["hint"]
    assert "remove the rule ./fixed" in found["write", f"{work}/fixed/a"]["hint"]
    assert "1 more are hidden" in daemon.run("violations").stderr
    assert f"blocked read openat {home}/.ssh/id, by cat (rule ~/.ssh)" in done.stderr
    assert "hint: it holds secrets and is closed on purpose" in done.stderr


def test_they_are_told_while_the_command_still_runs(daemon: DaemonProcess) -> None:
    code = """
import subprocess, sys
from sandboxd_client import Client
with Client(autostart=False) as box, Client(autostart=False) as listener:
    listener.violation_subscribe()
    child = box.spawn("touch ~/x; read line; echo x > ~/y; exit 3", stdin=subprocess.PIPE)
    heard = next(iter(listener.notifications())).params.violation
    print(heard.target, heard.process, heard.outcome, child.poll())
    child.stdin.write(b"go\\n")
    child.stdin.close()
    done = child.wait()
    print(done, [v.target for v in child.violations])
    print(box.violation_annotate(child.wrap.wrap_id, "err\\n").stderr)
"""
    done = daemon.python(code)
    first, second, *block = done.stdout.splitlines()
    home = daemon.identity.home
    assert first == f"{home}/x touch pathNotWritable None", done.stderr
    assert second == f"3 ['{home}/x', '{home}/y']"
    assert block[:2] == ["err", "<sandbox_violations>"] and f"write openat {home}/y: pathNotWritable" in block[3]


def test_unix_sockets_by_path(start_daemon: StartDaemon, identity: Identity) -> None:
    directory = identity.own(_made(identity.base / "socks"))
    links = identity.own(_made(identity.base / "links"))
    agent = identity.home / "agent"
    at_tmp = Path(f"/tmp/sdt-{os.getpid()}-{identity.uid}.sock")
    listed = ["$AGENT", str(directory), str(at_tmp), str(links / "named"), "./planted", "./mine"]
    identity.own(_made(identity.workspace / "mine"))
    daemon = start_daemon(settings={"sandbox": {"network": {"allowUnixSockets": listed}}}, env={"AGENT": str(agent)})
    with (
        server(identity, at_tmp), server(identity, directory / "a"), server(identity, identity.base / "real"),
        server(identity, identity.base / "docker.sock"), server(identity, identity.workspace / "other"),
        windows(identity) as interop,
    ):  # fmt: skip
        (links / "named").symlink_to(identity.base / "real")
        (identity.workspace / "planted").symlink_to(identity.base / "docker.sock")
        yes = [str(at_tmp), str(directory / "a"), str(links / "named"), str(identity.base / "real")]
        no = [str(identity.base / "docker.sock"), str(identity.workspace / "other"), "./planted", str(daemon.socket)]
        done = daemon.run("run", "--", "/usr/bin/python3", "-c", CONNECT, *yes, *no, "@x")
        assert done.stdout.splitlines()[:8] == ["hello"] * 4 + ["Permission denied"] * 4, done.stderr
        assert done.stdout.splitlines()[8] == "Connection refused", "an abstract one, of this network"
        found = {violation["target"]: violation for violation in blocked(daemon)}
        assert {target: v["kind"] for target, v in found.items()} == dict.fromkeys(no[:2], "unix-socket")
        assert found[no[0]]["count"] == 2 and "gives control of this host" in found[no[0]]["hint"]
        assert f"sandboxd allow socket {no[1]}" in found[no[1]]["hint"]
        assert daemon.run("explain", "socket", no[1]).stdout.startswith("denied")
        # the next connect meets the settings as they are then
        assert daemon.run("allow", "socket", no[1]).returncode == 0
        done = daemon.run("run", "--", "/usr/bin/python3", "-c", CONNECT, no[1])
        assert done.stdout == "hello\n", done.stderr
        # servers of the command's own, wherever they are
        for mine in (f"/tmp/sdt-{secrets.token_hex(8)}", "mine/server", "elsewhere"):
            done = daemon.run("run", "--", "/usr/bin/python3", "-c", OWN_SERVER, mine)
            assert done.stdout == "own\n", done.stderr
        if interop is not None:
            assert daemon.run("run", "--", "/usr/bin/python3", "-c", CONNECT, interop).stdout == "Permission denied\n"
            (told,) = [violation["hint"] for violation in blocked(daemon) if violation["target"] == interop]
            assert "starts Windows programs" in told and told.endswith(f"sandboxd allow socket {interop}")
            with_it = ("run", "--settings", str(_allowing(identity, interop)), "--", "/usr/bin/python3", "-c", CONNECT)
            assert daemon.run(*with_it, interop).stdout == "hello\n"
    _agent(daemon, identity, agent)


def _agent(daemon: DaemonProcess, identity: Identity, agent: Path) -> None:
    """A real ssh-agent: the variable stays when its socket is listed."""
    process = identity.popen(["ssh-agent", "-D", "-a", str(agent)], stdout=subprocess.DEVNULL)
    try:
        variables = {"SSH_AUTH_SOCK": str(agent), "DISPLAY": ":0"}
        wait_until(agent.exists, "the agent listens")
        asked = "ssh-add -l; echo ${DISPLAY-none}"
        done = daemon.run("run", "-c", asked, env=variables)
        assert done.stdout == "The agent has no identities.\nnone\n", done.stderr
        done = daemon.run("run", "-c", "echo ${SSH_AUTH_SOCK-none}", env={"SSH_AUTH_SOCK": "/run/other"})
        assert done.stdout == "none\n"
    finally:
        process.terminate()
        process.wait()


def test_control_sockets_stay_closed_with_all_sockets_allowed(start_daemon: StartDaemon) -> None:
    """An agent that the environment names, one in a directory that cannot be listed, and the daemon
    itself."""
    agent = Path(f"/var/tmp/sdt-agent-{os.getpid()}")
    settings = {"sandbox": {"network": {"allowAllUnixSockets": True}}}
    daemon = start_daemon(settings=settings, env={"SSH_AUTH_SOCK": str(agent)})
    identity = daemon.identity
    hidden = identity.own(_made(identity.home / ".docker")) / "run"
    hidden.mkdir()
    docker = hidden / "docker.sock"
    with server(identity, agent), server(identity, identity.workspace / "other"), server(identity, docker):
        hidden.chmod(0o711)  # whose it is: root's, where root runs the tests
        paths = [str(identity.workspace / "other"), str(agent), str(docker), str(daemon.socket)]
        done = daemon.run("run", "--", "/usr/bin/python3", "-c", CONNECT, *paths)
        said = done.stdout.splitlines()
        assert said[0] == "hello" and "hello" not in said[1:] and len(said) == 4, done.stderr


def test_what_was_learned_lets_the_same_command_pass(start_daemon: StartDaemon, origin: Origin) -> None:
    daemon = start_daemon(resolve={"ok.test": "127.0.0.1"})
    identity = daemon.identity
    for name in ("cache/a", "cache/b", "cache/c", "notes.txt", ".ssh/config"):
        identity.write(identity.home / name, "")
    identity.write(identity.home / "data" / "old", "")
    command = (
        "for i in a b c; do echo x > ~/cache/$i || s=1; done; echo x > ~/data/new || s=1; "
        f"echo x >> ~/notes.txt || s=1; curl -sf -o /dev/null http://ok.test:{origin.port}/ || s=1; exit ${{s-0}}"
    )
    learned = identity.home / "learned.json"
    sneaky = f"echo x >> ~/.ssh/config; {command}"
    done = daemon.run("run", "--learn", str(learned), "-c", sneaky, input="")
    assert done.returncode == 1 and ".ssh/config: it is protected" in done.stderr
    assert json.loads(learned.read_text())["sandbox"] == {
        "filesystem": {"allowWrite": ["~/cache", "~/data", "~/notes.txt"]},
        "network": {"allowedDomains": [f"ok.test:{origin.port}"]},
    }
    done = daemon.run("run", "--settings", str(learned), "-c", command)
    assert (done.returncode, done.stderr) == (0, "")
    assert daemon.run("run", "-c", command).returncode == 1, "and only with them"
    assert (identity.home / ".ssh" / "config").read_text() == ""


def _made(path: Path) -> Path:
    path.mkdir()
    return path
