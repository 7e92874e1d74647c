"""Symptoms in the text of `describe`: each is printed by a real program in a real sandbox."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

from sandboxd.policy.explain.guidance import SYMPTOMS
from support.daemons import DaemonProcess

RESOLVE = "python3 -c 'import socket; socket.getaddrinfo(\"no.test\", 443)'"
CONNECT = "python3 -c 'import socket; socket.socket().connect((\"192.0.2.1\", 443))'"
SOCKET = "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW)'"
PIP = "python3 -m pip download -q --disable-pip-version-check --retries 0 --index-url https://no.test/simple -d . some"
NPM = "npm view some --registry https://no.test/ --cache $TMPDIR/npm"
NOT_CAPTURED = {"sandbox": {"network": {"transparent": False}}}
MADE_BY = {
    "Temporary failure in name resolution": (RESOLVE, NOT_CAPTURED),
    "Name or service not known": (RESOLVE, None),
    "CONNECT tunnel failed, response 403": ("curl -sS https://no.test/", None),
    "Blocked by the sandbox": ("curl -sS http://no.test/", None),
    "npm error code E403": (NPM, None),
    "Could not find a version that satisfies the requirement": (PIP, None),
    "Permission denied": (CONNECT, None),
    "Operation not permitted": (SOCKET, None),
    "Read-only file system": ("touch ~/x", None),
    "No such file or directory": ("cat FILE", {"sandbox": {"filesystem": {"tmp": "private"}}}),
}


def test_each_symptom_is_what_a_program_prints(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    daemon, file = shared_daemon, Path("/tmp") / f"{tmp_path.parent.name}-{tmp_path.name}"
    assert list(MADE_BY) == [text for printed, _ in SYMPTOMS for text in printed]
    daemon.identity.write(file, "of the host")
    found = {}
    try:
        for symptom, (line, settings) in MADE_BY.items():
            program = line.split()[0]
            if shutil.which(program, path=daemon.identity.environment()["PATH"]) is None:
                assert program == "npm"  # not on every machine
                continue
            more = () if settings is None else ("--settings", json.dumps(settings))
            done = daemon.run("run", *more, "-c", line.replace("FILE", shlex.quote(str(file))))
            assert done.returncode != 0 or symptom == "Blocked by the sandbox"
            found[symptom] = symptom in done.stdout + done.stderr
    finally:
        file.unlink()
    assert all(found.values()), found
    allowed = daemon.run("run", "-c", "touch x && python3 -c 'import socket; socket.getaddrinfo(\"localhost\", 443)'")
    assert allowed.returncode == 0, allowed.stderr


EVERY_WAY = """
import asyncio, json
from sandboxd_client import AsyncClient, Client

async def described():
    async with AsyncClient(autostart=False) as box, box.session() as session:
        return [(await each.policy_describe(flag_name="outside", style=style, examples=False)).text
                for each in (box, session) for style in (None, "strict")]

with Client(autostart=False) as box, box.session() as session:
    blocking = [each.policy_describe(flag_name="outside", style=style, examples=False).text
                for each in (box, session) for style in (None, "strict")]
print(json.dumps([blocking, asyncio.run(described())]))
"""


def test_every_client_and_the_command_line_describe_alike(shared_daemon: DaemonProcess) -> None:
    done = shared_daemon.python(EVERY_WAY)
    assert done.returncode == 0, done.stderr
    blocking, asynchronous = json.loads(done.stdout)
    assert blocking == asynchronous and blocking[:2] == blocking[2:]
    shown = [
        shared_daemon.run("describe", "--flag-name", "outside", "--no-examples", *more).stdout
        for more in ((), ("--style", "strict"))
    ]
    assert shown == blocking[:2]
    assert "outside with outside: true" in shown[0] and "No command can be run outside" in shown[1]
    wrong = shared_daemon.run("describe", "--flag-name", "a b")
    assert wrong.returncode == 125 and "flag_name" in wrong.stderr
