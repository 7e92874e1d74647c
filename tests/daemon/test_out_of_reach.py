"""The daemon's own files and sockets are out of reach inside a sandbox.

Each refusal has a twin that shows the same thing works outside, or inside with something that is not the daemon's."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from support.daemon import RunningDaemon, running_daemon
from support.daemons import DaemonProcess
from support.fake_runtime import FakeMachine
from support.users import Identity

CONNECT = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print('reached')"


def open_to_the_full(identity: Identity) -> dict[str, Any]:
    """Settings that let a sandbox write wherever the daemon has something."""
    places = [identity.home, identity.runtime, identity.workspace, f"/var/tmp/sandboxd-{identity.uid}"]
    if identity.is_me:
        places.append(identity.code.tree)
    return {"sandbox": {"filesystem": {"allowWrite": [str(place) for place in places]}}}


def inside(daemon: DaemonProcess, *argv: str, **keywords: Any) -> str:
    """What a sandboxed command printed, on both streams."""
    done = daemon.run("run", "--", *argv, **keywords)
    assert done.returncode != 125, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sandbox": {"network": {"allowAllUnixSockets": True}}},
        {"sandbox": {"network": {"allowUnixSockets": ["{runtime}", "{runtime}/sandboxd/sandboxd.sock"]}}},
    ],
    ids=["default", "all sockets", "listed"],
)
def test_its_sockets_cannot_be_reached(start_daemon: Any, identity: Identity, settings: dict[str, Any]) -> None:
    daemon = start_daemon(settings=json.loads(json.dumps(settings).replace("{runtime}", str(identity.runtime))))
    for name in ("sandboxd.sock", "bridge.sock"):
        path = str(daemon.socket.with_name(name))
        assert "reached" in identity.run(["/usr/bin/python3", "-c", CONNECT, path]).stdout, name
        said = inside(daemon, "/usr/bin/python3", "-c", CONNECT, path)
        assert "reached" not in said and "Error" in said, name


def test_its_files_can_be_neither_seen_nor_written(start_daemon: Any, identity: Identity) -> None:
    """Also where the policy opens everything."""
    daemon = start_daemon(settings=open_to_the_full(identity))
    directory = daemon.socket.parent
    beside = identity.runtime / "mine"
    script = (
        f"touch {beside} && echo twin; "
        f"ls {directory} 2>/dev/null | sed 's/^/seen /'; "
        f"for f in lock sandboxd.sock bridge.sock new; do echo x > {directory}/$f && echo wrote $f; done; "
        f"mv {directory} {directory}.away && echo moved; rm -rf {directory}; rmdir {directory}"
    )
    before = {path.name: path.stat().st_ino for path in directory.iterdir()}
    said = inside(daemon, "sh", "-c", script)
    assert "twin" in said
    assert beside.exists()
    for word in ("seen", "wrote", "moved"):
        assert word not in said, said
    assert {path.name: path.stat().st_ino for path in directory.iterdir()} == before


def test_its_temporary_files_and_settings_cannot_be_written(start_daemon: Any, identity: Identity) -> None:
    daemon = start_daemon(settings=open_to_the_full(identity))
    base = Path(f"/var/tmp/sandboxd-{identity.uid}")
    settings = identity.home / ".claude" / "settings.json"
    before = settings.read_text()
    script = (
        f"touch {identity.home}/twin && echo twin; "
        f"touch {base}/new && echo wrote base; for d in {base}/*; do touch $d/new && echo wrote $d; done; "
        f"echo '{{}}' > {settings} && echo wrote settings; "
        f"mkdir -p {identity.workspace}/.claude && echo '{{}}' > {identity.workspace}/.claude/settings.json "
        "&& echo wrote project settings"
    )
    said = inside(daemon, "sh", "-c", script)
    assert "twin" in said
    assert "wrote" not in said, said
    assert settings.read_text() == before


def test_its_code_cannot_be_written(start_daemon: Any, identity: Identity) -> None:
    daemon = start_daemon(settings=open_to_the_full(identity))
    code = identity.code.tree / "sandboxd"
    said = inside(daemon, "sh", "-c", f"touch {code}/new && echo wrote; touch {code}/__init__.py && echo wrote")
    assert "wrote" not in said, said
    assert not (code / "new").exists()


def test_an_inherited_connection_is_no_way_in(daemon: DaemonProcess) -> None:
    """A command gets its three streams and nothing else, whatever its client holds open."""
    code = (
        "import os,socket,subprocess,sys\n"
        "from sandboxd_client import Client\n"
        "s=socket.socket(socket.AF_UNIX); s.connect(os.environ['SANDBOXD_SOCKET'])\n"
        "os.set_inheritable(s.fileno(), True)\n"
        "with Client() as box:\n"
        "    launch=box.wrap(argv=['ls','/proc/self/fd'], cwd=os.getcwd())\n"
        "    done=subprocess.run(launch.argv, close_fds=False, capture_output=True, text=True, env=dict(os.environ))\n"
        "    print(sorted(done.stdout.split()), done.stderr)\n"
    )
    done = daemon.python(code)
    assert done.stdout.startswith("['0', '1', '2', '3']"), done.stdout + done.stderr  # 3 is the directory being listed


async def test_a_rule_that_lists_its_socket_does_not_count(tmp_path: Path) -> None:
    machine = FakeMachine()
    async with running_daemon(assemble=machine.assemble) as running:
        assert await _allowed(running, str(running.around.socket)) == []
        assert await _allowed(running, str(running.around.directory)) == []
        other = tmp_path / "other.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(other))
            assert await _allowed(running, str(other)) == [str(other)]


async def _allowed(running: RunningDaemon, path: str) -> list[str]:
    running.around.write(running.around.user_settings, {"sandbox": {"network": {"allowUnixSockets": [path]}}})
    async with running.client() as client:
        await client.result("settings.reload")
        policy = (await client.result("policy.effective"))["policy"]
    return [os.path.realpath(rule["path"]) for rule in policy["network"]["allow_unix_sockets"]]
