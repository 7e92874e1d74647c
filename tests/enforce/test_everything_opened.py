"""What the command line and the daemon execute and load, seen by strace(1), over the ways in which sandboxd and an
interpreter are installed: nothing of it could have been written by a command."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.users import Identity, installed

# One line of `strace -f -y`: a call that executes or opens and was granted.
CALL = re.compile(r'(?:execve|open|openat)\((?:(?:AT_FDCWD|\d+)(?:<(?P<base>[^>]*)>)?, )?"(?P<path>[^"]*)".*\) = \d')
LOADED = re.compile(r"\.(py|pyc|pth|so(\.[0-9.]+)?|zip|cfg|sh)$|/(bin|sbin)/|/apply-seccomp$|\._pth$")
HOSTILE = "PYTHONPATH={work} PYTHONSTARTUP={work}/s.py PYTHONUSERBASE={work}/user LD_LIBRARY_PATH={work}/lib "
Layout = Callable[[Identity], Path]


def virtual_environment(identity: Identity) -> Path:
    return copied(identity, identity.home / "venv")


def tool(identity: Identity) -> Path:
    """As uv tool and pipx have it: an environment below ~/.local/share, a link in ~/.local/bin."""
    real = copied(identity, identity.home / ".local/share/uv/tools/sandboxd")
    link = identity.home / ".local" / "bin" / "sandboxd"
    link.parent.mkdir()
    identity.own(link.parent)
    link.symlink_to(os.path.relpath(real, link.parent))
    return link


def own_interpreter(identity: Identity) -> Path:
    """As pyenv and `uv python` have it: a whole interpreter in the home directory, and an environment of it."""
    python = interpreter(identity, identity.home / ".pyenv" / "versions" / "3.x")
    return copied(identity, identity.home / "tools" / "venv", python)


def store(identity: Identity) -> Path:
    """As Nix has it: a program in a profile that is links to links."""
    real = copied(identity, identity.home / "store" / "hash-sandboxd")
    profile = identity.home / "store" / "hash-profile"
    profile.mkdir()
    (profile / "bin").symlink_to(real.parent)
    (identity.home / "profile").symlink_to(profile)
    return identity.home / "profile" / "bin" / "sandboxd"


def checkout(identity: Identity) -> Path:
    """A source tree in the project, reached by a link, with its environment in it."""
    shutil.copytree(identity.code.tree / "sandboxd", identity.workspace / "src" / "sandboxd")
    shutil.copytree(identity.code.tree / "client", identity.workspace / "src" / "client")
    shutil.copytree(identity.code.tree / "vendor", identity.workspace / "src" / "vendor")
    linked = identity.workspace / "linked"
    linked.symlink_to("src")
    code = installed(
        identity.workspace / ".venv", os.path.realpath(identity.code.python),
        (str(linked), str(linked / "client"), identity.code.search_path[2]), linked,
    )  # fmt: skip
    return Path(code.python).with_name("sandboxd")


def copied(identity: Identity, venv: Path, python: Path | None = None) -> Path:
    """An environment with copies of our code and links to the libraries. Returns its program."""
    python = python or Path(os.path.realpath(identity.code.python))
    code = installed(venv, str(python), (identity.code.search_path[2],), identity.code.tree)
    (packages,) = venv.glob("lib/*/site-packages")
    for place, name in ((identity.code.tree, "sandboxd"), (identity.code.tree / "client", "sandboxd_client")):
        shutil.copytree(place / name, packages / name)
    shutil.copytree(identity.code.tree / "vendor", packages / "sandboxd" / "vendor")
    return Path(code.python).with_name("sandboxd")


def interpreter(identity: Identity, prefix: Path) -> Path:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (prefix / "bin").mkdir(parents=True)
    shutil.copy(os.path.realpath(identity.code.python), prefix / "bin" / version)
    leave_out = shutil.ignore_patterns("test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "*.a", "config-*")
    shutil.copytree(os.path.dirname(os.__file__), prefix / "lib" / version, ignore=leave_out, symlinks=False)
    return prefix / "bin" / version


def belongs(identity: Identity) -> None:
    for top in (identity.home, identity.workspace):
        for folder, names, files in os.walk(top):
            for name in (*names, *files):
                os.chown(os.path.join(folder, name), identity.uid, identity.gid, follow_symlinks=False)


def opened(trace: str, cwd: Path) -> set[str]:
    found = set()
    for line in trace.splitlines():
        call = CALL.search(line)
        if call is not None and call["path"] and LOADED.search(call["path"]):
            found.add(os.path.join(call["base"] or str(cwd), call["path"]))
    return found


@pytest.mark.parametrize("layout", [virtual_environment, tool, own_interpreter, store, checkout])
def test_nothing_that_is_opened_outside_could_have_been_written(identity: Identity, layout: Layout) -> None:
    program = layout(identity)
    belongs(identity)
    work = identity.workspace
    environment = dict(word.split("=") for word in HOSTILE.format(work=work).split())
    path = f"{work}/node_modules/.bin:/usr/bin:/bin"
    everywhere = identity.environment(**environment, OPENSSL_CONF=f"{work}/o.cnf", PATH=path)
    trace = identity.temporary / "trace"
    line = '"$0" run -- /bin/true && "$0" restart && "$0" run -- /bin/true && { "$0" check; "$0" stop; }'
    calls = ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-e", "trace=execve,open,openat", "-o", str(trace)]
    done = identity.run([*calls, "/bin/sh", "-c", line, str(program)], env=everywhere, timeout=100)
    assert done.returncode == 0, done
    seen = opened(trace.read_text(errors="surrogateescape"), work)
    assert any(path.endswith("bwrap") for path in seen) and any("asyncio" in path for path in seen), seen
    candidates = sorted({os.path.realpath(path) for path in seen if os.path.exists(path)})
    ask = (
        "import json, os, sys\n"
        "print(json.dumps([p for p in json.load(sys.stdin) if os.access(p, os.W_OK)"
        " or os.access(os.path.dirname(p), os.W_OK)]))\n"
    )
    for session in (work, identity.home):
        argv = [str(program), "run", "--", "/usr/bin/python3", "-I", "-c", ask]
        said = identity.run(argv, cwd=session, input=json.dumps(candidates))
        assert said.returncode == 0, said
        assert json.loads(said.stdout) == []
        twin = identity.write(session / "writable.py", "")
        said = identity.run(argv, cwd=session, input=json.dumps([str(twin)]))
        assert json.loads(said.stdout) == [str(twin)]
    identity.run([str(program), "stop"], check=True)
