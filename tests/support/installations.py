"""Installations of the built wheels as people make them, with pip, pipx and uv, and without a package index.

What an index would give (the libraries, the build back end) is packed again from the environment of the tests, so the
installers resolve and build as ever."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

from support.users import CHECKOUT, SYSTEM_PATH, Identity, libraries

INSTALLERS = ("pip", "pipx", "uv")
_WRITTEN_BY_INSTALLERS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
_PROJECT_FILES = ("sandboxd", "client", "scripts", "vendor", "systemd", "launchd", "share", "docs", "tests/first_day")


def build_wheel(project: Path, into: Path) -> Path:
    """Builds the wheel of a project, with the back end that the development extras bring."""
    before = set(into.glob("*.whl"))
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)],
        cwd=project,
        check=True,
        capture_output=True,
    )
    (wheel,) = set(into.glob("*.whl")) - before
    return wheel


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    """A directory of wheels in the place of an index, the installers, and a copy of the checkout for every account."""

    base: Path

    @classmethod
    def made(cls, base: Path) -> Wheelhouse:
        house = cls(base)
        house.wheels.mkdir(parents=True)
        house.tools.mkdir()
        house.checkout.mkdir()
        needed = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
        for library in libraries([*needed, "hatchling", "pip"]):
            _packed_again(library, house.wheels)
        for library in libraries(["pip", "pipx"]):
            with zipfile.ZipFile(_packed_again(library, house.tools)) as wheel:
                wheel.extractall(house.tools)
        shutil.copy(Path(sys.executable).with_name("uv"), house.tools)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore"):
            shutil.copy(CHECKOUT / name, house.checkout / name)
        for name in _PROJECT_FILES:
            if (CHECKOUT / name).exists():
                unwanted = shutil.ignore_patterns("__pycache__")
                shutil.copytree(CHECKOUT / name, house.checkout / name, ignore=unwanted)
        for project in (house.checkout, house.checkout / "client"):
            build_wheel(project, house.wheels)
        return house

    @property
    def wheels(self) -> Path:
        return self.base / "wheels"

    @property
    def tools(self) -> Path:
        return self.base / "tools"

    @property
    def checkout(self) -> Path:
        return self.base / "checkout"

    def wheel(self, name: str) -> Path:
        (found,) = self.wheels.glob(f"{name}-[0-9]*.whl")
        return found

    def environment(self, person: Identity) -> dict[str, str]:
        """A login of this person whose installers know these wheels only, and no sandboxd."""
        return person.environment(
            PATH=f"{person.home}/.local/bin:{SYSTEM_PATH}",
            PYTHONPATH="",
            PIP_NO_INDEX="1",
            PIP_FIND_LINKS=str(self.wheels),
            PIP_NO_COMPILE="1",
            PIP_NO_CACHE_DIR="1",
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            UV_OFFLINE="1",
            UV_FIND_LINKS=str(self.wheels),
            UV_PYTHON_DOWNLOADS="never",
            UV_LINK_MODE="copy",
        )

    def installer(self, person: Identity, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs an installer as this person, in a directory without anything."""
        environment = self.environment(person)
        argv = [str(self.tools / "uv"), *words]
        if name != "uv":
            argv = [interpreter(person), "-m", name, *words]
            environment["PYTHONPATH"] = str(self.tools)
        return person.run(argv, env=environment, cwd=person.temporary, check=False, timeout=300)

    def install(self, person: Identity, by: str, what: Path) -> Installation:
        """Installs a wheel or a checkout in the way that a user of this installer would."""
        if by == "pip":
            venv = person.home / "venv"
            person.run([interpreter(person), "-m", "venv", "--without-pip", str(venv)], check=True)
            done = self.installer(person, "pip", "--python", str(venv), "install", str(what))
            bin_directory = python_directory = venv / "bin"
        elif by == "pipx":
            done = self.installer(person, "pipx", "install", "--python", interpreter(person), str(what))
            bin_directory = person.home / ".local/bin"
            python_directory = person.home / ".local/share/pipx/venvs/sandboxd/bin"
        else:
            words = ("tool", "install", "--no-index", "--python", interpreter(person))
            done = self.installer(person, "uv", *words, str(what))
            bin_directory = person.home / ".local/bin"
            python_directory = person.home / ".local/share/uv/tools/sandboxd/bin"
        assert done.returncode == 0, f"{by} install {what}:\n{done.stdout}{done.stderr}"
        program, python = bin_directory / "sandboxd", python_directory / "python"
        return Installation(person, self.environment(person), program, python)


@dataclass(frozen=True, slots=True)
class Installation:
    """A person with sandboxd installed: `program` is what they type, `python` imports the client library."""

    person: Identity
    _environment: dict[str, str]
    program: Path
    python: Path

    def environment(self, **changes: str) -> dict[str, str]:
        without = {name for name in self._environment if name.startswith(("PIP_", "UV_", "PYTHON"))}
        kept = {name: value for name, value in self._environment.items() if name not in without}
        return {**kept, "PATH": f"{self.program.parent}:{kept['PATH']}", **changes}

    def run(self, *arguments: str, **keywords: object) -> subprocess.CompletedProcess[str]:
        return self.person.run([str(self.program), *arguments], env=self.environment(), **keywords)  # type: ignore[arg-type]

    def imports(self, code: str) -> subprocess.CompletedProcess[str]:
        return self.person.run([str(self.python), "-c", code], env=self.environment())


def interpreter(person: Identity) -> str:
    """The interpreter below all environments, which this person can run."""
    return os.path.realpath(person.code.python)


def _packed_again(library: Distribution, into: Path) -> Path:
    """Makes the wheel that an installed distribution came from, but for the scripts that its installer generated."""
    name = re.sub(r"[-_.]+", "_", library.metadata["Name"]).lower()
    tags = re.findall(r"^Tag: (\S+)$", library.read_text("WHEEL") or "", re.MULTILINE)
    parts = [sorted({one for tag in tags for one in tag.split("-")[at].split(".")}) for at in range(3)]
    tag = "-".join(map(".".join, parts))
    path = into / f"{name}-{library.version}-{tag}.whl"
    record = f"{name}-{library.version}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(path, "w") as wheel:
        for source, inside in _packed_files(library, name):
            data = source.read_bytes()
            wheel.writestr(inside, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{inside},sha256={digest},{len(data)}\n")
        wheel.writestr(record, "".join([*lines, f"{record},,\n"]))
    return path


def _packed_files(library: Distribution, name: str) -> Iterator[tuple[Path, str]]:
    for file in library.files or ():
        source = Path(str(library.locate_file(file)))
        if ".." in file.parts or "__pycache__" in file.parts or not source.exists():
            continue
        first, *rest = file.parts
        if first.endswith(".dist-info") and file.name in _WRITTEN_BY_INSTALLERS:
            continue
        inside = f"{name}-{library.version}.dist-info" if first.endswith(".dist-info") else first
        yield source, "/".join((inside, *rest))
