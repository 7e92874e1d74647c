"""`sandboxd service` with a real systemd: installed, started, killed, reloaded, stopped, removed.

Booting a systemd takes root (`support.systemd`), so an ordinary user has one test here, that of the units as they are
shipped. That is no layer that is missing: a machine has one process 1, and only root can make another.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from sandboxd.cli.service.systemd_units import SERVICE, SOCKET
from support.origin import Origin
from support.systemd import UserManager, boot
from support.users import CHECKOUT, SYSTEM_PATH, Identity
from support.waiting import wait_until


def test_the_units_are_in_order(identity: Identity) -> None:
    """As systemd itself reads them; only the program is one that is there."""
    units = identity.base / "units"
    for name in (SERVICE, SOCKET):
        text = (CHECKOUT / "systemd" / name).read_text()
        identity.write(units / name, text.replace("/usr/bin/sandboxd", "/bin/true"))
    (identity.runtime / "systemd").mkdir()
    identity.own(identity.runtime / "systemd")
    done = identity.run(["systemd-analyze", "--user", "verify", *(str(units / name) for name in (SERVICE, SOCKET))])
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), done


def test_every_command_on_the_page_about_operations_exists(identity: Identity) -> None:
    """Those that are told of in passing too. The ones in its blocks are run, below."""
    page = (CHECKOUT / "docs" / "operations.md").read_text()
    usage = identity.run(identity.command("--help")).stdout
    names = set(re.findall(r"`sandboxd ([a-z]+)", page))
    assert {"service", "status", "check", "violations"} <= names
    for name in names:
        assert re.search(rf"^  {name} ", usage, re.MULTILINE), name


def virtual_environment(identity: Identity) -> Path:
    """One that has our code, as `python -m venv` makes it. Returns its `sandboxd`."""
    base = identity.base / "venv dir%h"
    version = subprocess.run(
        [identity.code.python, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys._base_executable)"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    interpreter = Path(os.path.realpath(version[1]))
    identity.write(base / "pyvenv.cfg", f"home = {interpreter.parent}\nversion = {version[0]}\n")
    packages = base / "lib" / f"python{version[0]}" / "site-packages"
    libraries = subprocess.run(
        [identity.code.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    identity.write(packages / "sandboxd.pth", "\n".join([*identity.code.search_path, libraries]) + "\n")
    identity.write(base / "bin" / "activate", "")
    (base / "bin" / "python").symlink_to(interpreter)
    script = f'#!/bin/sh\nexec "{base}/bin/python" -P -m sandboxd "$@"\n'
    return identity.write(base / "bin" / "sandboxd", script, mode=0o755)


# Runs argv[1] and asks another connection afterwards what became of it.
OUTCOME = """
import os, subprocess, sys
from sandboxd_client import Client
with Client(autostart=False) as box:
    launch = box.wrap(command=sys.argv[1], cwd=sys.argv[2])
    process = subprocess.Popen(launch.argv, env={**os.environ, **launch.env.set}, cwd=launch.cwd)
    status = process.wait()
with Client(autostart=False) as box:
    outcome = box.wrap_outcome(launch.wrap_id)
print(status, outcome)
sys.exit(status if (outcome.started, outcome.exited, outcome.status) == (True, True, status) else 99)
"""

DETACHED = """
import sys
from sandboxd_client import Client
with Client(autostart=False) as box: print(box.session_open(cwd=sys.argv[1], detach=True).session_id)
"""
CLOSED = """
import sys
from sandboxd_client import Client
with Client(autostart=False) as box: box.session_close(sys.argv[1])
"""

# Listens at argv[1] until its standard input ends.
LISTEN = """
import os, socket, sys
os.makedirs(os.path.dirname(sys.argv[1]))
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
sys.stdin.read()
"""

# Puts descriptors of every kind into the store of the service that it precedes, under names of all sorts.
STORING = """
import array, os, socket
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
address = os.environ["NOTIFY_SOCKET"]
manager.connect(chr(0) + address[1:] if address.startswith("@") else address)
def store(name, descriptor):
    message = f"FDSTORE=1\\nFDPOLL=0\\nFDNAME={name}".encode()
    manager.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
def memory(content):
    descriptor = os.memfd_create("foreign")
    os.write(descriptor, content)
    return descriptor
listener = socket.create_server(("127.0.0.1", 0))
names = ["stored", "foreign", "sandboxd", "sandboxd-kept", "sandboxd-99999999999", "a" * 200, "%n", "x y"]
for name in names:
    store(name, os.open("/dev/null", os.O_RDONLY))
    store(name, os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    store(name, os.pipe()[1])
    store(name, listener.fileno())
    for content in (b"", b"{}", b"[" * 100000, b"\\xff" * 4096, b'{"format": 1e999}'):
        store(name, memory(content))
for number in range(1000):
    store("foreign", os.eventfd(number))
"""


def differs(now: Callable[[], object], *before: object) -> Callable[[], bool]:
    return lambda: now() not in before


if os.geteuid() == 0:

    @contextlib.contextmanager
    def listening_elsewhere(path: str) -> Iterator[None]:
        """A process listens at this path of another mount namespace, and of the same network: a container can."""
        inside = 'mount -t tmpfs none /run && exec "$@"'
        with subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", inside, "listen", sys.executable, "-I", "-c", LISTEN, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as listener:
            assert listener.stdin is not None and listener.stdout is not None
            assert listener.stdout.readline() == b"listening\n"
            yield
            listener.stdin.close()

    class Installation:
        """sandboxd in a virtual environment of a person who is logged in on a machine with systemd."""

        def __init__(self, manager: UserManager) -> None:
            self.manager = manager
            self.identity = manager.identity
            self.program = str(virtual_environment(self.identity))
            self.units = self.identity.home / ".config" / "systemd" / "user"
            self.socket = f"{manager.runtime}/sandboxd/sandboxd.sock"

        def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
            return self.manager.run(self.program, *arguments, PYTHONPATH="", **variables)

        def done(self, *arguments: str) -> str:
            done = self.run(*arguments)
            assert done.returncode == 0, f"{done}\n{self.manager.journal()}"
            return done.stdout

        def state(self) -> str:
            return self.manager.show(SERVICE, "ActiveState")

        def pid(self) -> int:
            return int(self.manager.show(SERVICE, "MainPID"))

    @pytest.fixture
    def installation(identity: Identity) -> Iterator[Installation]:
        with boot(identity, identity.base) as machine:
            yield Installation(machine.manager(identity))

    as_a_user = pytest.mark.parametrize("identity", ["user"], indirect=True)

    @as_a_user
    def test_installed_used_and_removed(installation: Installation) -> None:
        manager = installation.manager
        assert "it is not installed" in installation.run("service", "status").stdout
        for written in ("written", "present"):  # again is the same as once
            assert written in installation.done("service", "install", "--now")
        assert (installation.state(), manager.show(SOCKET, "ActiveState")) == ("active", "active")
        first = installation.pid()
        assert installation.done("run", "--", "echo", "hello") == "hello\n"
        assert json.loads(installation.done("status", "--json"))["pid"] == first
        assert "listening at" in manager.show(SERVICE, "StatusText")
        assert f"pid {first}" in installation.done("service", "status")
        assert list(installation.identity.home.glob("**/sockets.target.wants/*"))

        # killed: systemd starts it again, and the socket never went away
        manager.run("kill", "-9", str(first))
        wait_until(lambda: installation.pid() not in (0, first), "it was started again")
        assert installation.done("run", "--", "echo", "again") == "again\n"
        assert installation.pid() != first

        # stopped: the next connection starts it
        manager.systemctl("stop", SERVICE)
        assert installation.state() == "inactive"
        status = installation.run("status")
        assert (status.returncode, installation.state()) == (1, "inactive"), status  # asking starts nothing
        assert installation.run("stop").returncode == 0
        assert installation.state() == "inactive"
        assert installation.done("run", "--", "echo", "woken") == "woken\n"
        assert installation.state() == "active"

        installation.done("service", "uninstall")
        assert not list(installation.identity.home.glob(".config/**/sandboxd*"))
        assert manager.show(SERVICE, "LoadState") == "not-found"
        assert not Path(f"/proc/{manager.machine.pid}/root{installation.socket}").exists()
        assert "no units were installed" in installation.done("service", "uninstall")

    @as_a_user
    def test_what_runs_goes_on_when_the_manager_restarts_the_daemon(installation: Installation) -> None:
        manager, workspace = installation.manager, installation.identity.workspace
        installation.done("service", "install", "--now")
        first = installation.pid()
        line = "echo $$ >started; until test -e go; do sleep 0.05; done; curl -sS http://no.test/ >answer; exit 7"
        with manager.running(installation.program, "run", "--cwd", str(workspace), "-c", line, PYTHONPATH="") as client:
            wait_until(lambda: (workspace / "started").exists(), "the command runs")
            manager.systemctl("restart", SERVICE)
            assert installation.pid() not in (0, first)
            status = json.loads(installation.done("status", "--json"))
            assert (status["restarts"], status["commands"], status["restarted"]["lost"]) == (1, 1, []), (
                manager.journal()
            )
            installation.identity.write(workspace / "go", "")
            assert client.wait(60) == 7
            assert "Blocked by the sandbox" in (workspace / "answer").read_text()  # the proxy has answered
        wait_until(lambda: manager.show(SERVICE, "NFileDescriptorStore") == "0", "nothing is kept any more")
        # a stop is one: everything ends, and nothing is kept
        with manager.running(
            installation.program, "run", "--cwd", str(workspace), "-c", "touch second; sleep 987", PYTHONPATH=""
        ) as client:
            wait_until(lambda: (workspace / "second").exists(), "the command runs")
            manager.systemctl("stop", SERVICE)
            assert client.wait(60) != 0
            assert manager.show(SERVICE, "NFileDescriptorStore") == "0"

    @as_a_user
    def test_what_runs_goes_on_when_the_daemon_is_killed(installation: Installation, origin: Origin) -> None:
        manager, identity = installation.manager, installation.identity
        workspace = identity.workspace
        settings = {"sandbox": {"network": {"allowedDomains": ["ok.test"], "allowLocalBinding": True}}}
        identity.write(identity.home / ".claude" / "settings.json", json.dumps(settings))
        pins = "[Service]\nEnvironment=SANDBOXD_RESOLVE=ok.test=127.0.0.1,no.test=127.0.0.1\n"
        identity.write(installation.units / f"{SERVICE}.d" / "names.conf", pins)
        installation.done("service", "install", "--now")

        def kept() -> int:
            return int(manager.show(SERVICE, "NFileDescriptorStore"))

        def killed() -> None:
            """And there again, as soon as it serves."""
            before = installation.pid()
            manager.run("kill", "-9", str(before))
            wait_until(lambda: installation.pid() not in (0, before) and is_up(), "it was started again")

        def is_up() -> bool:
            return installation.state() == "active"

        looks: list[int] = []

        def is_kept() -> bool:
            """The command with its sockets, its session and the daemon, and nothing more is on its way: the store gets
            one descriptor after the other, 0.2 s after a change, and is the same for ten looks then."""
            looks.append(kept() if (workspace / "started").exists() else 0)
            return looks[-1] >= 8 and looks[-10:] == looks[-1:] * 10

        def directory() -> Path:
            """The temporary one of the session, which has the same name inside and outside."""
            return Path(f"/proc/{manager.machine.pid}/root{(workspace / 'directory').read_text().strip()}")

        def status() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(installation.done("status", "--json"))
            return found

        # Once through the proxy that it is told of, once past it, before and after; a file in its own directory stays.
        reach = (
            f"curl -sS http://ok.test:{origin.port}/ >>answer; "
            f"curl -sS --noproxy '*' http://ok.test:{origin.port}/ >>answer; curl -sS http://no.test/ >/dev/null; "
        )
        line = (
            f"python3 -m http.server 8123 >/dev/null 2>&1 & {reach} echo mine >$TMPDIR/mine; touch started; "
            f"until test -e go; do sleep 0.05; done; mkdir .idea && echo made >>answer; "
            f"until grep -q /.vscode /proc/self/mountinfo; do sleep 0.05; done; "
            f"echo more >>.vscode/settings.json; cat .vscode/settings.json >>answer; "
            f"{reach} cat $TMPDIR/mine >>answer; kill $!; exit 7"
        )
        command = [installation.program, "run", "--publish", "0:8123", "--cwd", str(workspace), "-c", line]
        with manager.running(*command, PYTHONPATH="") as client:
            wait_until(is_kept, "the command is kept")
            wait_until(lambda: status()["sessions"][0]["violations"], "what was blocked is known")
            looks.clear()
            wait_until(is_kept, "what was blocked is kept")
            python = str(Path(installation.program).parent / "python")
            so_far = kept()
            detached = manager.run(python, "-c", DETACHED, str(workspace), PYTHONPATH="").stdout.strip()
            wait_until(lambda: kept() > so_far, "the session is kept, and what was blocked before it")
            killed()
            found = status()
            assert (found["restarts"], found["commands"], found["restarted"]["lost"]) == (1, 1, []), manager.journal()
            assert found["restarted"]["crashed"] is True
            sessions = {one["session_id"]: (one["violations"] > 0, one["detached"]) for one in found["sessions"]}
            assert sessions.pop(detached) == (False, True)
            assert list(sessions.values()) == [(True, False)]
            assert manager.run(python, "-c", CLOSED, detached, PYTHONPATH="").returncode == 0
            killed()  # and once more: what was taken over is kept again
            assert status()["restarts"] == 2, manager.journal()
            host, port, _ = status()["sessions"][0]["published"][0].split(":")
            with urlopen(f"http://{host}:{port}/started", timeout=30) as published:
                assert published.status == 200
            assert not (workspace / ".vscode").exists()  # nothing stands where no name can be made inside
            identity.write(workspace / ".vscode" / "settings.json", "{}\n")  # and one made outside is read-only there
            identity.write(workspace / "go", "")
            assert client.wait(60) == 7
        answer = origin.body * 2 + b"{}\n" + origin.body * 2 + b"mine\n"
        assert (workspace / "answer").read_bytes() == answer, manager.journal()
        assert (workspace / ".vscode" / "settings.json").read_text() == "{}\n"
        wait_until(lambda: (kept(), status()["sessions"]) == (0, []), "nothing is left of it")
        wait_until(lambda: set(os.listdir(workspace)) == {"started", "go", "answer", ".vscode"}, "nor in the workspace")

        # killed, and the command ends before the next daemon starts
        (workspace / "started").unlink()
        (workspace / "go").unlink()
        held = "[Service]\nExecStartPre=/bin/sh -c 'until test -e %h/next; do sleep 0.05; done'\n"
        identity.write(installation.units / f"{SERVICE}.d" / "later.conf", held)
        manager.systemctl("daemon-reload")
        wait = "until test -e go; do sleep 0.05; done"
        line = f"echo $TMPDIR >directory; touch started; {wait}; touch ended; exit 7"
        command = [python, "-c", OUTCOME, line, str(workspace)]
        with manager.running(*command, PYTHONPATH="") as client:
            wait_until(is_kept, "the command is kept")
            before = installation.pid()
            manager.run("kill", "-9", str(before))
            wait_until(lambda: installation.pid() == 0, "it is gone")
            identity.write(workspace / "go", "")
            wait_until(lambda: (workspace / "ended").exists(), "the command has come to its end")
            assert installation.pid() == 0 and directory().is_dir() and kept() >= 8
            identity.write(identity.home / "next", "")
            assert client.wait(60) == 7
        wait_until(lambda: installation.pid() not in (0, before) and is_up(), "it was started again")
        wait_until(lambda: (kept(), status()["sessions"]) == (0, []), "nothing is left of it")
        assert status()["commands"] == 0
        assert not directory().exists(), manager.journal()

    @as_a_user
    def test_reloaded_watched_and_restarted(installation: Installation) -> None:
        manager, identity = installation.manager, installation.identity
        installation.done("service", "install", "--now")
        first = installation.pid()
        settings = identity.home / ".claude" / "settings.json"
        manager.run("kill", "-STOP", str(first))  # so that it has to be told
        identity.write(settings, json.dumps({"sandbox": {"enabled": True}}))
        manager.run("kill", "-CONT", str(first))
        manager.systemctl("reload", SERVICE)
        assert json.loads(installation.done("status", "--json"))["enabled"] is True
        assert (installation.pid(), installation.state()) == (first, "active")

        # its log is in the journal, with the priority of each entry and no envelope of our own
        entries = [json.loads(line) for line in manager.machine.run(
            "journalctl", f"_PID={first}", "-o", "json").stdout.splitlines()]  # fmt: skip
        ready = next(entry for entry in entries if str(entry["MESSAGE"]).startswith("ready "))
        assert (ready["PRIORITY"], ready["_SYSTEMD_USER_UNIT"]) == ("6", SERVICE)

        # in place: for systemd the same process, which says again that it is ready
        with manager.running(installation.program, "run", "--", "sleep", "1000", PYTHONPATH="") as command:
            wait_until(lambda: json.loads(installation.done("status", "--json"))["commands"] == 1, "a command runs")
            assert "1 running commands taken over" in installation.done("restart")
            assert (installation.pid(), installation.state(), command.poll()) == (first, "active", None)
            assert json.loads(installation.done("status", "--json"))["commands"] == 1
            environment = Path(f"/proc/{manager.machine.pid}/root/proc/{first}/environ").read_bytes().split(b"\0")
            assert {b"WATCHDOG_USEC=180000000", b"WATCHDOG_PID=%d" % first} <= set(environment)  # still looked after
            # by systemd: another process, with what the first one left in the descriptor store
            manager.systemctl("restart", SERVICE)
            assert installation.pid() not in (0, first) and command.poll() is None
            assert json.loads(installation.done("status", "--json"))["commands"] == 1
        assert "listening at" in manager.show(SERVICE, "StatusText")

        # hung: the watchdog ends it, and the next one is there
        identity.write(installation.units / f"{SERVICE}.d" / "watchdog.conf", "[Service]\nWatchdogSec=6s\n")
        manager.systemctl("daemon-reload")
        manager.systemctl("restart", SERVICE)
        second = installation.pid()
        entered = int(manager.show(SERVICE, "WatchdogTimestampMonotonic"))
        wait_until(lambda: int(manager.show(SERVICE, "WatchdogTimestampMonotonic")) > entered, "the loop feeds it")
        assert installation.pid() == second
        manager.run("kill", "-STOP", str(second))
        wait_until(lambda: installation.pid() not in (0, second), "it was started again")
        assert installation.done("run", "--", "echo", "after") == "after\n"
        assert f"{SERVICE}.d/watchdog.conf (of the user)" in installation.done("service", "status")

    FLOODS = [
        ("interim_answers", "requests"),
        ("chunks_down", "wraps_over_new_connections"),
        ("connection_churn", "invalid_lines"),
    ]

    @as_a_user
    @pytest.mark.parametrize(("attack", "client"), FLOODS)
    def test_a_flood_stops_no_watchdog_and_no_restart(installation: Installation, attack: str, client: str) -> None:
        """Of a command through its proxy and of a client at the same time."""
        manager, identity = installation.manager, installation.identity
        workspace, python = identity.workspace, str(Path(installation.program).with_name("python"))
        identity.run(["mkdir", str(identity.home / "flood")], check=True)
        shutil.copytree(CHECKOUT / "bench" / "flooding", identity.home / "flood" / "flooding")
        identity.write(installation.units / f"{SERVICE}.d" / "watchdog.conf", "[Service]\nWatchdogSec=4s\n")
        installation.done("service", "install", "--now")

        def flooding(*before: str, what: str) -> subprocess.Popen[bytes]:
            code = (
                f"import runpy, sys; open('begun-{what}', 'w').close(); sys.argv[1:] = ['{what}']; "
                "runpy.run_module('flooding', run_name='__main__')"
            )
            argv = [
                "env",
                f"--chdir={identity.home / 'flood'}",
                f"SANDBOXD_SOCKET={installation.socket}",
                *before,
                "nice",
            ]
            there = {"PYTHONPATH": str(identity.home / "flood"), "PYTHONDONTWRITEBYTECODE": "1"}
            return stack.enter_context(manager.running(*argv, python, "-c", code, **there))

        watchdog = partial(manager.show, SERVICE, "WatchdogTimestampMonotonic")
        line = "touch started; until test -e go; do sleep 0.05; done; exit 7"
        with contextlib.ExitStack() as stack:
            other = stack.enter_context(
                manager.running(installation.program, "run", "--cwd", str(workspace), "-c", line, PYTHONPATH="")
            )
            wait_until((workspace / "started").exists, "the other command runs")
            flooding(installation.program, "run", "--", what=attack)
            flooding(what=client)
            begun = [identity.home / "flood" / f"begun-{what}" for what in (attack, client)]
            wait_until(lambda: all(file.exists() for file in begun), "the floods run")
            for _ in range(2):
                pid = installation.pid()
                for _ in range(3):
                    fed = watchdog()
                    wait_until(differs(watchdog, fed), "it is fed")
                assert installation.done("run", "--", "echo", "beside") == "beside\n"
                assert (installation.pid(), manager.show(SERVICE, "NRestarts")) == (pid, "0"), manager.journal()
                manager.systemctl("restart", SERVICE)
                assert installation.pid() not in (0, pid)
                found = json.loads(installation.done("status", "--json"))
                assert (found["restarted"]["lost"], found["commands"] >= 2) == ([], True), manager.journal()
            identity.write(workspace / "go", "")
            assert other.wait(60) == 7
            manager.systemctl("stop", SOCKET, SERVICE)
            assert manager.show(SERVICE, "Result") == "success", manager.journal()

    TUNNELS = """
import os, socket, threading, time
from urllib.parse import urlsplit
listener = socket.create_server(("127.0.0.1", 0))
port, proxy, kept = listener.getsockname()[1], urlsplit(os.environ["HTTP_PROXY"]), []
for _ in range(60):
    kept.append(socket.create_connection((proxy.hostname, proxy.port)))
    kept[-1].sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n".encode())
    kept[-1].recv(1000)
    kept.append(listener.accept()[0])
open("begun", "w").close()
time.sleep(1000)
"""

    @as_a_user
    def test_tunnels_take_no_room_of_others_in_the_store(installation: Installation) -> None:
        manager, identity = installation.manager, installation.identity
        workspace = identity.workspace
        identity.write(installation.units / f"{SERVICE}.d" / "small.conf", "[Service]\nFileDescriptorStoreMax=100\n")
        installation.done("service", "install", "--now")
        line = "touch started; until test -e go; do sleep 0.05; done; curl -sS http://no.test/ >answer; exit 7"
        run = (installation.program, "run", "--cwd", str(workspace))
        with (
            manager.running(*run, "/usr/bin/python3", "-c", TUNNELS, PYTHONPATH="") as tunnels,
            manager.running(*run, "-c", line, PYTHONPATH="") as other,
        ):
            wait_until(lambda: all((workspace / name).exists() for name in ("begun", "started")), "both run")
            manager.systemctl("restart", SERVICE)
            restarted = json.loads(installation.done("status", "--json"))["restarted"]
            assert restarted["lost"] == [] and restarted["cut"] > 20, (restarted, manager.journal())
            identity.write(workspace / "go", "")
            assert other.wait(60) == 7 and tunnels.poll() is None
            assert "Blocked by the sandbox" in (workspace / "answer").read_text()

    @as_a_user
    def test_foreign_descriptors_in_the_store_stop_no_start(installation: Installation) -> None:
        """More than the 1,024 that systemd lets a service open unless the unit says otherwise."""
        manager, identity = installation.manager, installation.identity
        storing = identity.write(identity.home / "storing.py", STORING)
        before = f"[Service]\nNotifyAccess=all\nExecStartPre={sys.executable} -I {storing}\n"
        identity.write(installation.units / f"{SERVICE}.d" / "foreign.conf", before)
        installation.done("service", "install", "--now")
        with manager.running(installation.program, "run", "--", "sleep", "1000", PYTHONPATH="") as command:
            wait_until(lambda: json.loads(installation.done("status", "--json"))["commands"] == 1, "a command runs")
            for act in ("restart", "kill"):
                pid = installation.pid()
                if act == "restart":
                    manager.systemctl("restart", SERVICE)
                else:
                    manager.run("kill", "-9", str(pid))
                wait_until(differs(installation.pid, pid, 0), "it was started again")
                assert installation.done("run", "--", "echo", "on") == "on\n"
                found = json.loads(installation.done("status", "--json"))
                assert (found["commands"], found["restarted"]["lost"], command.poll()) == (1, [], None), (
                    manager.journal()
                )
        assert "Traceback" not in manager.journal()

    @as_a_user
    def test_what_does_not_agree_is_said(installation: Installation) -> None:
        manager, identity = installation.manager, installation.identity
        # a daemon started by hand is in the way of the socket, and is not pushed aside
        installation.done("service", "install")
        with manager.running(installation.program, "serve", PYTHONPATH="") as by_hand:
            root = Path(f"/proc/{manager.machine.pid}/root")
            wait_until((root / installation.socket.lstrip("/")).exists, "it listens")
            refused = installation.run("service", "install", "--now")
            assert refused.returncode == 125
            assert "a daemon that systemd did not start" in refused.stderr and "hint: " in refused.stderr
            said = installation.run("service", "status")
            assert said.returncode == 1 and "systemd did not start" in said.stdout
            assert installation.done("run", "--", "echo", "served") == "served\n"
            installation.done("stop")
            assert by_hand.wait(30) == 0

        # a client that finds no daemon has the installed unit start it
        assert manager.show(SOCKET, "ActiveState") == "inactive"
        assert installation.done("run", "--", "echo", "started") == "started\n"
        assert installation.state() == "active"
        assert installation.done("service", "status")

        # a unit of another version, and one of another author
        unit = installation.units / SERVICE
        unit.write_text(unit.read_text().replace("# Written by sandboxd ", "# Written by sandboxd 0.0.1 was ", 1))
        assert "of another version (0.0.1)" in installation.run("service", "status").stdout
        until = f"until [ -e {identity.home}/gone ]; do sleep 0.1; done"
        with manager.running(installation.program, "run", "-c", until, PYTHONPATH="") as command:
            wait_until(lambda: json.loads(installation.done("status", "--json"))["commands"] == 1, "a command runs")
            before = installation.pid()
            assert "written: " in installation.done("service", "install", "--now")
            assert installation.pid() != before and command.poll() is None
            identity.write(identity.home / "gone", "")
            assert command.wait(30) == 0
        wait_until(lambda: json.loads(installation.done("status", "--json"))["commands"] == 0, "it has ended")
        installation.done("service", "status")

        # another socket: systemd moves there
        elsewhere = {"SANDBOXD_SOCKET": f"{manager.runtime}/elsewhere/s.sock"}
        assert "clients of this shell use" in installation.run("service", "status", **elsewhere).stdout
        assert installation.run("service", "install", "--now", **elsewhere).returncode == 0
        assert installation.run("run", "--", "echo", "moved", **elsewhere).stdout == "moved\n"
        assert installation.run("service", "status", **elsewhere).returncode == 0
        assert installation.done("service", "install", "--now")
        unit.write_text("[Service]\nExecStart=/bin/true\n")
        assert "sandboxd did not write it" in installation.run("service", "install").stderr
        unit.unlink()

        # settings that keep it from starting: the reason is the answer
        settings = identity.write(identity.home / ".claude" / "settings.json", "{")
        manager.systemctl("stop", SOCKET, SERVICE)
        failed = installation.run("service", "install", "--now")
        assert failed.returncode == 125 and "settings.json" in failed.stderr, failed
        said = installation.run("service", "status")
        assert "the service failed" in said.stdout and "settings.json" in said.stdout, said

        identity.write(installation.units / f"{SERVICE}.d" / "limit.conf", "[Unit]\nStartLimitBurst=2\n")
        manager.systemctl("daemon-reload")
        # systemd gives up after some tries; then a client hears the reason from a daemon that it starts itself
        manager.systemctl("start", SOCKET)
        while manager.show(SOCKET, "ActiveState") == "active":
            assert installation.run("run", "--", "true").returncode == 125
        with listening_elsewhere(installation.socket):
            refused = installation.run("run", "--", "true")
        assert refused.returncode == 125 and "settings.json" in refused.stderr, refused
        settings.unlink()
        assert installation.done("run", "--", "echo", "mended") == "mended\n"
        installation.done("stop")
        assert installation.done("service", "install", "--now")
        assert installation.done("service", "status")

    @as_a_user
    def test_the_page_about_operations_is_true(installation: Installation) -> None:
        """Its commands, in their order."""
        page = (CHECKOUT / "docs" / "operations.md").read_text()
        path = f"{os.path.dirname(installation.program)}:{SYSTEM_PATH}"
        blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        assert len(blocks) == 3
        for block in blocks:
            done = installation.manager.run("sh", "-exc", block, PATH=path, PYTHONPATH="")
            assert done.returncode == 0, done
            if "echo it works" in block:
                assert done.stdout.endswith("it works\n"), done
        assert installation.manager.show(SERVICE, "LoadState") == "not-found"

    @as_a_user
    def test_without_a_manager_there_is_advice(installation: Installation) -> None:
        astray = installation.run("service", "status", XDG_RUNTIME_DIR="/nowhere")
        assert astray.returncode == 125
        assert f"export XDG_RUNTIME_DIR=/run/user/{installation.identity.uid}" in astray.stderr, astray
        sudo = subprocess.run(
            installation.manager.machine.enter(installation.program, "service", "install"),
            env={"PATH": "/usr/bin:/bin", "SUDO_USER": "somebody", "HOME": "/root"},
            capture_output=True, text=True,
        )  # fmt: skip
        assert sudo.returncode == 125 and "not of somebody" in sudo.stderr, sudo
