"""As whom a test runs: root, or an ordinary user.

When the suite runs as root, everything about privilege is tried twice: as root, and as the unprivileged account
`sandboxd-test`, which is created on first use and kept (`userdel sandboxd-test` removes it; it owns no files). A
suite run by an ordinary user tries that user only. Homes are always temporary, below /var/tmp: /tmp is replaced
inside a sandbox, so a home there would hide what happens to real ones.
"""

from __future__ import annotations

import compileall
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ACCOUNT = "sandboxd-test"
CHECKOUT = Path(__file__).resolve().parents[2]
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""`SANDBOXD_TEST_PATH=/opt/bubblewrap/bin ./dev test` tries another bubblewrap with everything (`support.bubblewrap`
tries one with some tests)."""

_PROBE = """
import sys, sandboxd, sandboxd_client, sandboxd.errors, idna, pydantic, structlog, jsonrpcserver, tree_sitter_bash
for name in sys.argv[1:]:
    open(name, "rb").close()
"""


_PASSED_ON = ("SANDBOXD_TEST_PATH", "SANDBOXD_TEST_PLACEHOLDERS")


@dataclass(frozen=True, slots=True)
class Code:
    """The interpreter of a virtual environment that has our code, by the entries of a module search path, and the tree
    they come from."""

    python: str
    search_path: tuple[str, ...]
    tree: Path

    @property
    def script(self) -> str:
        """That of the command line."""
        return f"#!{self.python} -I\nimport sys\nfrom sandboxd.cli.main import main\nsys.exit(main())\n"


@dataclass(frozen=True, slots=True)
class Identity:
    """A person with an empty home, a runtime directory, a project (`workspace`) and a copy of our code to run.

    `command("run", "--", "true")` is the argv of our command line, `python(…)` that of an interpreter which can import
    the code; `run` and `popen` start any argv as this person. Everything lies below `base`, removed afterwards.
    """

    name: str
    uid: int
    gid: int
    base: Path
    code: Code
    project: str = "work"

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def workspace(self) -> Path:
        return self.base / self.project

    @property
    def runtime(self) -> Path:
        return self.base / "run"

    @property
    def temporary(self) -> Path:
        return self.base / "tmp"

    @property
    def is_me(self) -> bool:
        return self.uid == os.geteuid()

    def environment(self, **changes: str) -> dict[str, str]:
        """What a login gives, with our command line first on PATH, and nothing from the environment of the tests."""
        return {
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "PATH": f"{self.base / 'bin'}:{SYSTEM_PATH}",
            "XDG_RUNTIME_DIR": str(self.runtime),
            "TMPDIR": str(self.temporary),
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            **changes,
        }

    def python(self, *arguments: str) -> list[str]:
        return [self.code.python, "-P", *arguments]

    def command(self, *arguments: str) -> list[str]:
        return [str(self.base / "bin" / "sandboxd"), *arguments]

    def popen_keywords(self) -> dict[str, Any]:
        """The keywords with which subprocess starts something as this person. Sockets of the tests stay out."""
        return {} if self.is_me else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def popen(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        **keywords: Any,
    ) -> subprocess.Popen[Any]:
        return subprocess.Popen(
            list(argv),
            cwd=cwd or self.workspace,
            env=dict(env) if env is not None else self.environment(),
            umask=0o022,
            **self.popen_keywords(),
            **keywords,
        )

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        check: bool = False,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Runs `argv` to its end, output as text. Without `input`, standard input is empty."""
        return subprocess.run(
            list(argv),
            cwd=cwd or self.workspace,
            env=dict(env) if env is not None else self.environment(),
            umask=0o022,
            **({"input": input} if input is not None else {"stdin": subprocess.DEVNULL}),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=check,
            timeout=timeout,
            **self.popen_keywords(),
        )

    def own(self, path: Path) -> Path:
        """Gives a file that the test made to this person."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)
        return path

    def write(self, path: Path, text: str, *, mode: int = 0o644) -> Path:
        """Writes a file as this person would have, missing directories included."""
        missing = [folder for folder in path.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o755)
            self.own(folder)
        path.write_text(text)
        path.chmod(mode)
        return self.own(path)


def identity_names() -> list[str]:
    """The parameters of the fixture `identity`."""
    return ["root", "user"] if os.geteuid() == 0 else ["user"]


def account(kind: str) -> pwd.struct_passwd:
    """The account behind a parameter; the unprivileged one is created when it is missing."""
    if kind == "root" or os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    try:
        return pwd.getpwnam(ACCOUNT)
    except KeyError:
        # Two test workers may come here at once: the loser finds what the winner made.
        made = subprocess.run(
            ["useradd", "--user-group", "--no-create-home", "--home-dir=/nonexistent", "--shell=/bin/bash", ACCOUNT],
            capture_output=True,
            text=True,
        )
        try:
            return pwd.getpwnam(ACCOUNT)
        except KeyError:
            raise AssertionError(f"cannot create the account {ACCOUNT}: {made.stderr.strip()}") from None


def make_identity(kind: str, base: Path, code: Code) -> Identity:
    """Lays out the directories of an identity below `base`, which must not exist yet."""
    person = account(kind)
    identity = Identity(person.pw_name, person.pw_uid, person.pw_gid, base, code)
    base.mkdir(mode=0o755)
    for folder, mode in (("home", 0o755), ("work", 0o755), ("run", 0o700), ("tmp", 0o700), ("bin", 0o755)):
        (base / folder).mkdir(mode=mode)
        (base / folder).chmod(mode)
        identity.own(base / folder)
    identity.write(base / "bin" / "sandboxd", code.script, mode=0o755)
    return identity


def code_for(kind: str, scratch: Path) -> Code:
    """The code as `kind` can run it: straight from the checkout, else, when that lies where this person may not look
    (a clone below /root, a private umask), a copy of what is needed below `scratch`."""
    person = account(kind)
    scratch.mkdir()
    base = getattr(sys, "_base_executable", sys.executable)
    ours = (str(CHECKOUT), str(CHECKOUT / "client"), sysconfig.get_path("purelib"))
    checkout = installed(scratch / "checkout", base, ours, CHECKOUT)
    if person.pw_uid == os.geteuid() or _works(checkout, person):
        return checkout
    tree, libraries = scratch / "tree", scratch / "libraries"
    for name in ("sandboxd", "client", "vendor", "systemd", "docs", "bench"):
        shutil.copytree(CHECKOUT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for source, target in _library_files():
        (libraries / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, libraries / target)
    compile_code(tree)
    compileall.compile_dir(libraries, quiet=2)
    for folder, _, files in os.walk(scratch):
        os.chmod(folder, 0o755)
        for name in files:
            path = os.path.join(folder, name)
            os.chmod(path, 0o755 if os.stat(path).st_mode & 0o100 else 0o644)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    search_path = (str(tree), str(tree / "client"), str(libraries))
    for python in (os.path.realpath(sys.executable), f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        venv = scratch / f"venv{python.replace('/', '-')}"
        if os.path.exists(python) and _works(copy := installed(venv, python, search_path, tree), person):
            return copy
    raise AssertionError(
        f"{person.pw_name} can run no {version} here: {sys.executable} is out of its reach. "
        f"Run the tests with an interpreter that everybody may use: PYTHON=/usr/bin/python3 ./dev test"
    )


# In each interpreter of the tests, when one of these variables says so: SANDBOXD_TEST_PATH names directories in which
# programs are looked for first, SANDBOXD_TEST_SITE one with a sitecustomize.py. With
# SANDBOXD_TEST_NO_PROGRAMS none is found.
_HOOK = """
import os, sys
if place := os.environ.get("SANDBOXD_TEST_SITE"):
    sys.path.insert(0, place)
if os.environ.get("SANDBOXD_TEST_NO_PROGRAMS"):
    from sandboxd_client import programs
    programs.find = lambda name, *rest: programs.Search(None)
if directories := os.environ.get("SANDBOXD_TEST_PATH"):
    from sandboxd_client import programs
    usual = programs.find
    def find(name, *rest):
        for directory in filter(None, directories.split(":")):
            if os.access(path := os.path.join(directory, name), os.X_OK):
                return programs.Search(path)
        return usual(name, *rest)
    programs.find = find
"""


def installed(venv: Path, python: str, search_path: tuple[str, ...], tree: Path) -> Code:
    """A virtual environment of an interpreter, with our code as an editable installation has it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = venv / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (venv / "bin").mkdir()
    for name in ("python", "python3"):
        (venv / "bin" / name).symlink_to(os.path.realpath(python))
    home = os.path.dirname(os.path.realpath(python))
    (venv / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    (packages / "a_code.pth").write_text("".join(f"{entry}\n" for entry in search_path))
    (packages / "b_hook.pth").write_text("import sandboxd_test_hook\n")
    (packages / "sandboxd_test_hook.py").write_text(_HOOK)
    shutil.copyfile(CHECKOUT / "scripts" / "sandboxd", venv / "bin" / "sandboxd")
    for folder, _, files in os.walk(venv):
        os.chmod(folder, 0o755)
        for name in files:
            if not os.path.islink(os.path.join(folder, name)):
                os.chmod(os.path.join(folder, name), 0o644)
    (venv / "bin" / "sandboxd").chmod(0o755)
    machine = os.uname().machine
    front = venv / "lib" / "sandboxd" / machine / "sandboxd"
    front.parent.mkdir(parents=True)
    shutil.copy(CHECKOUT / "vendor" / "seccomp" / machine / "front", front)
    for above in (front.parent, front.parent.parent):
        above.chmod(0o755)
    return Code(str(venv / "bin" / "python"), search_path, tree)


def compile_code(tree: Path) -> None:
    """Leaves the bytecode of our code beside it, as an installation does. Whom a test starts may often not write there,
    and would compile all of it each time, which takes longer than everything else a daemon does when it starts. A tree
    that cannot be written is fine."""
    for package in ("sandboxd", "client/sandboxd_client", "tests/support"):
        compileall.compile_dir(tree / package, quiet=2)


def _works(code: Code, person: pwd.struct_passwd) -> bool:
    helper = code.tree / "vendor" / "seccomp" / os.uname().machine / "apply-seccomp"
    try:
        probe = subprocess.run(
            [code.python, "-P", "-c", _PROBE, *([str(helper)] if helper.exists() else [])],
            env={"PATH": SYSTEM_PATH, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            user=person.pw_uid,
            group=person.pw_gid,
            extra_groups=[],
            capture_output=True,
        )
    except PermissionError:
        return False
    return probe.returncode == 0


def _library_files() -> Iterator[tuple[Path, Path]]:
    """Every file of the libraries that the daemon needs, found through their own metadata: (where, relative name)."""
    for library in libraries(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]):
        for file in library.files or ():
            source = Path(str(library.locate_file(file)))
            # Scripts are outside ("..") and not needed; a file that two libraries brought may be gone with one of them.
            if ".." not in file.parts and "__pycache__" not in file.parts and source.exists():
                yield source, Path(*file.parts)


def libraries(requirements: Sequence[str]) -> Iterator[Distribution]:
    """The installed distributions of these requirements, with all that they require."""
    waiting, seen = [Requirement(name).name for name in requirements], set[str]()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            library = distribution(name)
        except PackageNotFoundError:
            raise AssertionError(f"{name} is not installed: ./dev venv") from None
        for line in library.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
        yield library
