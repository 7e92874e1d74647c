"""The sandboxes that are compared, each set up as its documentation recommends for the same wishes.

The wishes: the project may be written, all may be read but two secrets, one host may be reached, nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from matrix.place import HOSTS, Place
from support.daemons import start_daemon_process
from support.users import SYSTEM_PATH, Identity, account, code_for, installed, make_identity

DENIED_READS = ("home/.ssh", "home/private", "project/secret.env")
ALLOWED_HOSTS = ("allowed.test", "*.allowed.test")


@dataclass(frozen=True, slots=True)
class Runtime:
    """One sandbox as one account. `words` makes the argv for a line of shell."""

    name: str
    version: str
    words: Callable[[str], list[str]]
    lacks: frozenset[str] = frozenset()
    """Needs of cases that it cannot be told (`cases_of.NEEDS`)."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subject:
    """The account that runs, its directories, and where other runtimes are installed."""

    identity: Identity
    place: Place
    peers: Path | None
    hosts: tuple[str, ...] = ALLOWED_HOSTS
    victim: int = 0
    """A process of the account outside, with a secret in its environment."""

    def paths(self, *names: str) -> list[str]:
        return [str(self.place.path(name)) for name in names]

    def environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        """Variables of a command, of the system's programs alone."""
        return {**self.identity.environment(), "PATH": SYSTEM_PATH, **changes}


@contextmanager
def subject_of(kind: str, base: Path, peers: Path | None, hosts: tuple[str, ...] = ALLOWED_HOSTS) -> Iterator[Subject]:
    """Directories below `base` for an account."""
    code = code_for(kind, base / f"code-{kind}")
    person = account(kind)
    identity = make_identity(kind, base / kind, code)
    (base / kind / "work").rmdir()
    place = Place(base / kind, person.pw_uid, person.pw_gid)
    place.reset()
    secret = {**identity.environment(), "SANDBOXD_MATRIX_VICTIM": "x"}
    with identity.popen(["sleep", "infinity"], cwd="/", env=secret) as victim:
        try:
            yield Subject(identity, place, peers, hosts, victim.pid)
        finally:
            victim.kill()


def bare(subject: Subject) -> Runtime:
    """No sandbox, but a frame: only the directories of the case and /tmp can be written."""
    base = str(subject.place.base.parent)  # one mount, so that hard links within it are possible
    frame = ["bwrap", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev"]
    frame += [word for path in ("/proc", "/tmp", "/var/tmp") for word in ("--bind", path, path)]
    if subject.identity.uid == 0:  # what the attacks of root would change
        frame += [word for path in ("/sys", "/etc/hosts") for word in ("--bind", path, path)]
    return Runtime("bare", "", lambda line: [*frame, "--bind", base, base, "--", "bash", "-c", line])


@contextmanager
def sandboxd(subject: Subject) -> Iterator[Runtime]:
    settings = {
        "sandbox": {
            "network": {"allowedDomains": list(subject.hosts)},
            "filesystem": {"denyRead": subject.paths(*DENIED_READS)},
        }
    }
    daemon = start_daemon_process(subject.identity, settings=settings, resolve=HOSTS, executed=True)
    code, venv = subject.identity.code, subject.identity.base / "installed"
    if not venv.exists():
        installed(venv, code.python, code.search_path, code.tree)
    words = [str(venv / "bin" / "sandboxd"), "run", "--quiet", "-c"]
    try:
        changes = {**daemon.environment(), "SHELL": "/bin/bash"}
        yield Runtime("sandboxd", _version_of(words[:1]), lambda line: [*words, line], environment=changes)
    finally:
        daemon.stop()


@contextmanager
def srt(subject: Subject) -> Iterator[Runtime]:
    program = _installed(subject.peers, "node_modules/.bin/srt")
    settings = _settings_of_srt(subject)
    changes = {"CLAUDE_CODE_TMPDIR": str(subject.place.path("tmp"))}
    yield Runtime(
        "srt", _version_of([program]), lambda line: [program, "-s", settings, "-c", line], environment=changes
    )


def _settings_of_srt(subject: Subject) -> str:
    wishes = {
        "network": {"allowedDomains": list(subject.hosts), "deniedDomains": []},
        "filesystem": {
            "denyRead": subject.paths(*DENIED_READS),
            "allowWrite": [*subject.paths("project", "tmp"), "/tmp"],
            "denyWrite": [],
        },
    }
    path = subject.place.base / "srt.json"
    path.write_text(json.dumps(wishes))
    return str(path)


@contextmanager
def srt_py(subject: Subject) -> Iterator[Runtime]:
    program = _installed(subject.peers, "py/bin/srt-py")
    settings = _settings_of_srt(subject)
    yield Runtime("srt-py", _version_of([program]), lambda line: [program, "-s", settings, "-c", line])


@contextmanager
def codex(subject: Subject) -> Iterator[Runtime]:
    program = _installed(subject.peers, "node_modules/.bin/codex")
    denied = "".join(f'"{path}" = "deny"\n' for path in subject.paths(*DENIED_READS))
    allowed = "".join(f'"{host}" = "allow"\n' for host in subject.hosts)
    subject.identity.write(
        subject.place.path("home/.codex/config.toml"),
        'default_permissions = "matrix"\n[features]\nnetwork_proxy = true\n'
        f'[permissions.matrix.filesystem]\n":root" = "read"\n":project_roots" = {{ "." = "write" }}\n'
        f'":tmpdir" = "write"\n":slash_tmp" = "write"\n{denied}'
        f"[permissions.matrix.network]\nenabled = true\n[permissions.matrix.network.domains]\n{allowed}",
    )
    yield Runtime("codex", _version_of([program]), lambda line: [program, "sandbox", "--", "bash", "-c", line])


@contextmanager
def firejail(subject: Subject) -> Iterator[Runtime]:
    program = _found("firejail")
    home, project = subject.paths("home", "project")
    words = [
        program,
        "--quiet",
        "--noprofile",
        "--net=none",
        "--caps.drop=all",
        "--nonewprivs",
        "--seccomp",
        "--noroot",
    ]
    words += ["--read-only=/", f"--read-only={home}", f"--read-write={project}", "--private-tmp", "--keep-var-tmp"]
    words += [f"--blacklist={path}" for path in subject.paths(*DENIED_READS)]
    yield Runtime("firejail", _version_of([program]), lambda line: [*words, "bash", "-c", line], frozenset({"hosts"}))


@contextmanager
def bubblewrap(subject: Subject) -> Iterator[Runtime]:
    program = _found("bwrap")
    project, tmp = subject.paths("project", "tmp")
    words = [program, "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--dev", "/dev"]
    words += ["--proc", "/proc", "--tmpfs", "/tmp", "--bind", project, project, "--bind", tmp, tmp]
    for path in subject.paths(*DENIED_READS):
        words += ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]
    yield Runtime(
        "bubblewrap", _version_of([program]), lambda line: [*words, "--", "bash", "-c", line], frozenset({"hosts"})
    )


@contextmanager
def nsjail(subject: Subject) -> Iterator[Runtime]:
    """As in its documentation's jail of the own file system, with limits that let compilers and servers work."""
    status = _installed(subject.peers, "py/bin/nsjail-status")
    said = subprocess.run([status], capture_output=True, text=True, timeout=60).stdout
    program = next(line.split()[-1] for line in said.splitlines() if "Bundled:" in line)
    project, tmp = subject.paths("project", "tmp")
    words = [program, "-Mo", "--really_quiet", "--keep_env", "--disable_rlimits", "--time_limit", "0", "--cwd", project]
    words += ["--bindmount_ro", "/", "--mount", "none:/proc:proc", "--tmpfsmount", "/tmp"]
    words += ["--mount", "none:/dev:tmpfs:mode=755", "--tmpfsmount", "/dev/shm", "--symlink", "/proc/self/fd:/dev/fd"]
    for device in ("null", "zero", "full", "random", "urandom", "tty"):
        words += ["--bindmount", f"/dev/{device}"]
    words += ["--bindmount", project, "--bindmount", tmp]
    for path in subject.paths(*DENIED_READS):
        hiding = ["--tmpfsmount", path] if os.path.isdir(path) else ["--bindmount_ro", f"/dev/null:{path}"]
        words += hiding
    words += ["--", "/bin/bash", "-c"]
    yield Runtime("nsjail", said.split()[-1], lambda line: [*words, line], frozenset({"hosts"}))


@contextmanager
def zerobox(subject: Subject) -> Iterator[Runtime]:
    program = _installed(subject.peers, "py/bin/zerobox")
    project, tmp = subject.paths("project", "tmp")
    words = [program, "--strict-sandbox", "--cwd", project, "--allow-env", "--allow-read=/"]
    words += [f"--allow-write={project},{tmp},/tmp"]
    words += [f"--deny-read={','.join(subject.paths(*DENIED_READS))}", f"--allow-net={','.join(subject.hosts)}"]
    yield Runtime("zerobox", _version_of([program]), lambda line: [*words, "--", "bash", "-c", line])


_SANDLOCK = """
import os, sys, sandlock
wishes = dict(fs_readable=["/"], fs_denied=sys.argv[4:], cwd=sys.argv[1],
    fs_writable=[sys.argv[1], os.environ["TMPDIR"], "/tmp", "/dev"],
    net_allow=[f"{host}:80" for host in sys.argv[2].split(",")], net_allow_bind=["*"])
done = sandlock.Sandbox(**wishes).run(["bash", "-c", sys.argv[3]], timeout=60)
sys.stdout.buffer.write(done.stdout or b"")
sys.stderr.buffer.write(done.stderr or b"")
sys.exit(done.exit_code if done.exit_code is not None else 125)
"""


@contextmanager
def sandlock(subject: Subject) -> Iterator[Runtime]:
    python = _installed(subject.peers, "py/bin/python")
    version = _python_version(python, "sandlock")
    (project,) = subject.paths("project")
    names = ",".join(host.replace("*", "api") for host in subject.hosts)  # it knows no patterns
    words = [python, "-c", _SANDLOCK, project, names]
    yield Runtime("sandlock", version, lambda line: [*words, line, *subject.paths(*DENIED_READS)])


_NONO = """
import os, sys, nono_py as nono
wishes = nono.CapabilitySet()
wishes.allow_path("/", nono.AccessMode.READ)
for path in (sys.argv[1], os.environ["TMPDIR"], "/tmp", "/dev"):
    wishes.allow_path(path, nono.AccessMode.READ_WRITE)
proxy = nono.start_proxy(nono.ProxyConfig(allowed_hosts=sys.argv[3:]))
wishes.proxy_only(proxy)
done = nono.sandboxed_exec(wishes, ["bash", "-c", sys.argv[2]], cwd=sys.argv[1], env=proxy.sandbox_env(),
    inherit_env=True, enforcement_mode="seccomp")
sys.stdout.buffer.write(done.stdout)
sys.stderr.buffer.write(done.stderr)
sys.exit(done.exit_code)
"""


@contextmanager
def nono(subject: Subject) -> Iterator[Runtime]:
    python = _installed(subject.peers, "py/bin/python")
    version = _python_version(python, "nono-py")
    words = [python, "-c", _NONO, *subject.paths("project")]
    yield Runtime("nono-py", version, lambda line: [*words, line, *subject.hosts], frozenset({"deny_read"}))


RUNTIMES = {
    "sandboxd": sandboxd,
    "srt": srt,
    "srt-py": srt_py,
    "codex": codex,
    "sandlock": sandlock,
    "zerobox": zerobox,
    "nono-py": nono,
    "firejail": firejail,
    "nsjail": nsjail,
    "bubblewrap": bubblewrap,
}


class NotInstalled(Exception):
    """A runtime that is not on this machine; the text says what was looked for."""


def _installed(peers: Path | None, name: str) -> str:
    if peers is None or not (peers / name).exists():
        raise NotInstalled(f"{name} is not in {peers}" if peers else "no directory of peers was given")
    return str(peers / name)


def _found(name: str) -> str:
    if (path := shutil.which(name, path=SYSTEM_PATH)) is None:
        raise NotInstalled(f"{name} is not in {SYSTEM_PATH}")
    return path


def _version_of(program: list[str]) -> str:
    done = subprocess.run([*program, "--version"], capture_output=True, text=True, timeout=60, cwd="/")
    return next((word for word in done.stdout.split() if word[:1].isdigit()), "?")


def _python_version(python: str, package: str) -> str:
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(f"{package} is not installed for {python}")
    return done.stdout.strip()
