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
    line = '"$0" run -- /bin/true && "$0" restart && "$1" -I -c "$2" && { "$0" check; "$0" stop; }'
    client = "from sandboxd_client import Client\nwith Client() as box: box.run(['/bin/true'], check=True)"
    python = str(program.resolve().with_name("python"))
    calls = ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-e", "trace=execve,open,openat", "-o", str(trace)]
    done = identity.run([*calls, "/bin/sh", "-c", line, str(program), python, client], env=everywhere, timeout=100)
    assert done.returncode == 0, done
    seen = opened(trace.read_text(errors="surrogateescape"), work)
    for part in ("/bwrap", "/asyncio/", "/sandboxd/cli/", "/sandboxd_client/running/"):
        assert any(part in path for path in seen), part
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


# Variables that name a file or directory which Python, the dynamic linker, the C library, OpenSSL, a shell, git or
# systemd reads or executes; each names a place of its own.
NAMING = """
PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE PYTHONPYCACHEPREFIX PYTHONPLATLIBDIR PYTHONEXECUTABLE PYTHON_HISTORY
__PYVENV_LAUNCHER__ LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT LD_PROFILE LD_PROFILE_OUTPUT LD_DEBUG_OUTPUT LD_ORIGIN_PATH
GCONV_PATH GETCONF_DIR LOCPATH LOCALE_ARCHIVE GUIX_LOCPATH NLSPATH TZDIR HOSTALIASES RESOLV_HOST_CONF NIS_PATH
MALLOC_TRACE OPENSSL_CONF OPENSSL_CONF_INCLUDE OPENSSL_ENGINES OPENSSL_MODULES SSL_CERT_FILE SSL_CERT_DIR SSLKEYLOGFILE
CTLOG_FILE GIT_EXEC_PATH GIT_CONFIG GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_SSH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF
GIT_DIR GIT_TEMPLATE_DIR GIT_ASKPASS GIT_EDITOR GIT_PAGER PAGER MANPAGER EDITOR VISUAL BROWSER SHELL BASH_ENV ENV
INPUTRC TERMINFO TERMINFO_DIRS PERL5LIB NODE_PATH NODE_OPTIONS TMPDIR TEMP TMP XDG_CONFIG_HOME XDG_DATA_HOME
XDG_CACHE_HOME XDG_STATE_HOME XDG_CONFIG_DIRS XDG_DATA_DIRS SYSTEMD_PAGER SYSTEMD_EDITOR SYSTEMD_UNIT_PATH
CREDENTIALS_DIRECTORY VIRTUAL_ENV CONDA_PREFIX PYENV_ROOT PYENV_DIR UV_PYTHON PIPX_HOME NIX_PATH PATH CDPATH
""".split()  # fmt: skip
LOADING = r"/(LD_\w+|GCONV_PATH|LOCPATH|TZ)(/|$)"
"""Places that the linker and the C library search in each program that a person starts, before its first line."""
EVENT = re.compile(r"(?P<pid>\d+) +(?:<\.\.\. )?(?P<call>\w+)(?P<rest>.*)")


FORKS = ("clone", "clone3", "fork", "vfork")


def outside(trace: str, program: Path) -> list[tuple[str, str]]:
    """Who opens or executes what, of the processes outside: "client" for the command line, else the program."""
    events = [event for event in map(EVENT.match, trace.splitlines()) if event is not None]
    parents = {
        child: event["pid"]
        for event in events
        if event["call"] in FORKS
        for child in re.findall(r" = (?:\d+ /\* )?(\d+)(?: in strace's PID NS \*/)?$", event["rest"])
    }
    names: dict[str, str] = {}
    found = []
    for event in events:
        pid, rest = event["pid"], event["rest"]
        name = names.setdefault(pid, names.get(parents.get(pid, ""), ""))
        if name == "inside" or event["call"] in FORKS or '"' not in rest:
            continue
        found.append((name, rest.split('"')[1]))
        if event["call"] == "execve" and rest.endswith(" = 0"):
            words = re.findall(r'"([^"]*)"', rest)[1:]
            is_client = str(program) in words[:4]  # the shell of the test, the script and its interpreter
            names[pid] = "client" if is_client else "inside" if words[-1:] == ["init"] else " ".join(words[:4])
    return found


def test_no_variable_leads_a_process_outside_to_a_place(identity: Identity) -> None:
    planted, program = identity.home / "planted", virtual_environment(identity)
    planted.mkdir()
    belongs(identity)
    (identity.runtime / "systemd").mkdir()
    identity.own(identity.runtime / "systemd")
    hostile = {name: str(planted / name) for name in NAMING}
    hostile |= {"PATH": f"{planted / 'PATH'}:/usr/bin:/bin", "TZ": f":{planted / 'TZ'}", "LC_ALL": "xx_XX.PLANTED"}
    hostile |= {"PYTHONWARNINGS": "error::evil.Evil", "PYTHONBREAKPOINT": "evil.run", "PYTHONINSPECT": "1"}
    hostile |= {
        "SHELLOPTS": "xtrace",
        "PS4": f"$({planted}/PS4)",
        "DBUS_SESSION_BUS_ADDRESS": f"unixexec:path={planted}/D",
    }
    trace = identity.temporary / "trace"
    calls = ["strace", "-f", "-qq", "--seccomp-bpf", "--pidns-translation", "-s", "400", "-o", str(trace)]
    calls += ["-e", f"trace=execve,open,openat,connect,{','.join(FORKS)}"]
    words = ("check", "restart", "run --memory 900M -- true", "status", "prompts --help", "completion bash", "stop")
    line = "; ".join(f"$0 {one}" for one in (*words, "service status", "service install"))
    setting = ["/usr/bin/env", *(f"{name}={value}" for name, value in hostile.items())]
    identity.run([*calls, *setting, "/bin/sh", "-c", line, str(program)], timeout=200)
    seen = outside(trace.read_text(errors="surrogateescape"), program)
    assert any("-m sandboxd" in name for name, _ in seen), "a daemon was started"
    reached = {(name, path) for name, path in seen if path.startswith(f"{planted}/")}
    allowed = {one for one in reached if one[0] == "client" and re.search(LOADING, one[1])}
    assert {one for one in allowed if "LD_PRELOAD" in one[1]}, "the trace sees what is opened"
    assert sorted(reached - allowed) == []
