"""What runs outside a sandbox comes from places that no command can write, whatever the caller's environment says.

Each test plants through a sandboxed command, and what was planted leaves a mark when it is run outside. That it would
is tried as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.users import Identity, installed
from support.waiting import wait_until

PROGRAMS = "bwrap systemctl sandboxd python3 python readlink sh env git apply-seccomp".split()


def program(identity: Identity) -> str:
    """The command line as a package manager installs it."""
    return str(Path(identity.code.python).with_name("sandboxd"))


def inside(identity: Identity, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    done = identity.run([program(identity), "run", "-c", line], env=identity.environment(**more))
    assert "hint" not in done.stderr, done.stderr
    return done


def daemon_pid(identity: Identity) -> int:
    return int((identity.runtime / "sandboxd" / "lock").read_text())


def everything(identity: Identity, **environment: str) -> None:
    """What a person types in the project, with a daemon that runs, is restarted, is started anew."""
    for words in ("check", "restart", "run -- true", "service status", "stop", "run -- true"):
        identity.run([program(identity), *words.split()], env=identity.environment(**environment))


def mark_of(identity: Identity) -> Path:
    return identity.home / "ran-outside"


@pytest.mark.parametrize("place", [".venv/bin", "node_modules/.bin"])
def test_programs_of_a_project_are_not_run(identity: Identity, place: str) -> None:
    mark, directory = mark_of(identity), identity.workspace / place
    path = f"{directory}:{place}:{identity.environment()['PATH']}"
    assert inside(identity, "true", PATH=path).returncode == 0
    script = f'#!/bin/sh\\necho $0 >>{mark}\\nexec /usr/bin/${{0##*/}} "$@"\\n'
    planting = "; ".join(f"printf '{script}' >{place}/{name}; chmod +x {place}/{name}" for name in PROGRAMS)
    assert inside(identity, f"mkdir -p {place}; {planting}", PATH=path).returncode == 0
    everything(identity, PATH=path, VIRTUAL_ENV=str(directory.parent))
    assert not mark.exists(), mark.read_text()
    identity.run([f"{directory}/env"])
    assert mark.exists()
    identity.run([program(identity), "stop"], check=True)


PLANTED = "open({mark!r}, 'a').write(__name__ + chr(10))"


@pytest.mark.parametrize(
    "variables",
    [
        {
            "PYTHONPATH": ".",
            "PYTHONUSERBASE": "{work}/user",
            "PYTHONSTARTUP": "{work}/sitecustomize.py",
            "PYTHONINSPECT": "1",
        },
        {"PYTHONWARNINGS": "error::evil.Evil", "PYTHONPATH": "{work}", "PYTHONPYCACHEPREFIX": "{work}/cache"},
        {"PYTHONEXECUTABLE": "{work}/user/bin/python3"},  # the one that Python obeys with -I too
    ],
)
def test_python_of_a_project_is_not_imported(identity: Identity, variables: dict[str, str]) -> None:
    mark, work = mark_of(identity), identity.workspace
    environment = {name: value.format(work=work) for name, value in variables.items()}
    assert inside(identity, "true", **environment).returncode == 0  # the daemon is started like that
    code = PLANTED.format(mark=str(mark))
    user = f"user/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    names = "sitecustomize usercustomize evil json structlog sandboxd_client site signal asyncio os".split()
    planting = "; ".join(f'printf "%s\\n" "$CODE" >{name}.py' for name in names)
    copying = f"mkdir -p {user} sandboxd; cp *.py {user}; cp *.py {user}/.."
    line = f'{planting}; {copying}; printf "%s" "$CODE" >sandboxd/__init__.py'
    assert inside(identity, line, CODE=code, **environment).returncode == 0
    everything(identity, **environment)
    everything(identity)
    assert not mark.exists(), mark.read_text()
    identity.run([identity.code.python, "-c", "0"], env={"PYTHONPATH": str(work)})
    assert mark.exists()
    identity.run([program(identity), "stop"], check=True)


def test_a_daemon_does_not_keep_what_loads_code(identity: Identity) -> None:
    library = next(Path("/usr/lib").glob("*-linux-gnu/libz.so.1*"))
    planted = identity.workspace / "planted.so"
    shutil.copy(library, planted)
    loading = {"LD_PRELOAD": str(planted), "LD_LIBRARY_PATH": str(identity.workspace), "OPENSSL_CONF": "ssl.cnf"}
    python = {"PYTHONPATH": str(identity.workspace), "PYTHONHOME": ""}
    for start in ((program(identity), "run", "--", "true"), (program(identity), "serve")):
        process = identity.popen(start, env=identity.environment(**loading, **python), stdin=subprocess.DEVNULL)
        wait_until(lambda: (identity.runtime / "sandboxd" / "lock").exists(), "a daemon runs")
        wait_until(lambda: identity.run([program(identity), "status"]).returncode == 0, "it answers")
        for _ in range(2):
            pid = daemon_pid(identity)
            maps, environment = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("maps", "environ"))
            assert b"planted.so" not in maps
            assert not any(part.startswith((b"LD_", b"PYTHON", b"OPENSSL_")) for part in environment.split(b"\0"))
            assert identity.run([program(identity), "restart"]).returncode == 0
        assert identity.run([program(identity), "stop"]).returncode == 0
        process.wait(60)


def test_what_the_daemon_imports_cannot_be_written(identity: Identity) -> None:
    """A virtual environment and a source tree in the project itself, linked, as a developer of this daemon has them."""
    work = identity.workspace
    real = work / "src"
    for name in ("sandboxd", "sandboxd_client"):
        parent = identity.code.tree if name == "sandboxd" else identity.code.tree / "client"
        shutil.copytree(parent / name, real / name)
    shutil.copytree(identity.code.tree / "vendor", work / "src" / "vendor")
    (work / "linked").symlink_to(real)
    libraries = identity.code.search_path[2]
    code = installed(work / ".venv", identity.code.python, (str(work / "linked"), libraries), real)
    for folder, names, files in os.walk(work):
        for name in (".", *names, *files):
            os.chown(os.path.join(folder, name), identity.uid, identity.gid, follow_symlinks=False)
    own = str(Path(code.python).with_name("sandboxd"))
    packages = next((work / ".venv").glob("lib/*/site-packages"))
    attempts = [
        f"echo x >{packages}/evil.pth",
        f"echo x >>{packages}/a_code.pth",
        f"mv {packages} {packages}.old",
        "mv .venv x",
        "echo x >>.venv/bin/sandboxd",
        "ln -sf /bin/true .venv/bin/python3",
        "echo x >>.venv/pyvenv.cfg",
        "echo x >>src/sandboxd/cli/main.py",
        "echo x >>linked/sandboxd_client/programs.py",
        "touch src/sandboxd/new.py",
        "mv src other",
        "mv src/sandboxd src/other",
        "ln -sfn /tmp linked",
        "echo x >src/vendor/seccomp/new",
    ]
    for attempt in attempts:
        done = identity.run([own, "run", "-c", attempt])
        assert done.returncode not in (0, 125), (attempt, done)
    assert identity.run([own, "run", "-c", "echo x >src/free; echo x >free"]).returncode == 0
    assert "source_tree" in identity.run([own, "check", "--json"]).stdout
    os.link(real / "sandboxd" / "app/compose.py", identity.home / "another-name")  # as uv installs
    assert "code_linked" in identity.run([own, "check", "--json"]).stdout
    assert identity.run([own, "stop"]).returncode == 0


def test_programs_of_the_home_directory_are_protected(identity: Identity) -> None:
    """With the home as project, and with the preset that opens caches."""
    places = (".pyenv/versions/3.11/lib", ".local/share/uv/tools/x/bin", ".cache/uv/archive-v0/y")
    for place in places:
        identity.write(identity.home / place / "old", "old")
    identity.write(identity.home / ".claude" / "settings.json", '{"sandbox": {"presets": ["caches"]}}')
    for place in places:
        for attempt in (f"echo x >>~/{place}/old", f"echo x >~/{place}/new", f"mv ~/{place} ~/{place}.old"):
            for cwd in (identity.home, identity.workspace):
                done = identity.run([program(identity), "run", "-c", attempt], cwd=cwd)
                assert done.returncode not in (0, 125), (attempt, done)
        assert sorted(os.listdir(identity.home / place)) == ["old"]
    assert identity.run([program(identity), "run", "-c", "echo x >~/free"], cwd=identity.home).returncode == 0
    identity.run([program(identity), "stop"], check=True)


ANSWERING = """
import json, os, socket, sys
directory, mark = sys.argv[1:3]
os.makedirs(directory, 0o700)
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{directory}/sandboxd.sock")
listener.listen()
if sys.argv[3:] and os.fork():
    os._exit(0)
print("listening", flush=True)
argv = ["/usr/bin/touch", mark]
answer = dict(wrap_id="w", argv=argv, command="", env=dict(set={}, unset=[]), cwd="/", layers=[], warnings=[],
              expires_in_s=30, policy_generation=1, published=[], role="full")
while True:
    lines = listener.accept()[0].makefile("rwb")
    for line in lines:
        reply = dict(jsonrpc="2.0", id=json.loads(line)["id"], result=answer)
        lines.write(json.dumps(reply).encode() + b"\\n")
        lines.flush()
"""


@pytest.mark.parametrize("orphan", ["", "orphan"])
def test_no_daemon_of_a_command_is_obeyed(identity: Identity, orphan: str) -> None:
    settings = '{"sandbox": {"network": {"allowAllUnixSockets": true}}}'
    identity.write(identity.home / ".claude" / "settings.json", settings)
    identity.write(identity.workspace / "answering.py", ANSWERING)
    place, mark = identity.workspace / "run" / "sandboxd", mark_of(identity)
    line = f"/usr/bin/python3 answering.py {place} {mark} {orphan}; sleep 3600"
    there = identity.environment(XDG_RUNTIME_DIR=str(place.parent))
    planted = identity.popen([program(identity), "run", "-c", line], stdout=subprocess.PIPE)
    try:
        assert planted.stdout is not None and planted.stdout.readline() == b"listening\n"
        done = identity.run([program(identity), "run", "--", "true"], env=there)
        assert not mark.exists()
        assert done.returncode == 125 and "sandbox" in done.stderr, done
        assert identity.run([program(identity), "stop"]).returncode == 0
    finally:
        planted.kill()
        planted.communicate()
