"""The hosts of package managers, as their own configuration on this machine names them.

Read are files of the user and the system, variables, what `config` commands print, and the default that the program
itself carries. No file of a project is read, and no program is run that a command could have written; the remotes of
git stand in its protected configuration."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sandboxd_client.errors import SandboxdError
from sandboxd_client.programs import find, without_code
from sandboxd_client.records import dataclass

_TIMEOUT_S: Final = 30.0
_LARGEST: Final = 1 << 20
_SSH: Final = re.compile(r"(?:[\w.+-]+@)?([\w.-]+\.[\w-]+):(?!//)\S+")
_SCHEMES: Final = ("http", "https", "ssh", "git", "sparse+https", "git+https")


@dataclass(frozen=True, slots=True)
class ToolHost:
    """A host as a rule, the place that names it, and whether it is the default: a registry that is public."""

    rule: str
    where: str
    is_default: bool = False


def tool_hosts(tool: str, cwd: str) -> list[ToolHost]:
    """Return the hosts that the configuration of a tool names, each once. Raises SandboxdError when there are none."""
    found: dict[str, ToolHost] = {}
    for url, where, is_default in _READERS[tool](_Machine(dict(os.environ), cwd)):
        rule = _rule(url)
        if rule:
            found.setdefault(rule, ToolHost(rule, where, is_default))
    if not found:
        hint = "let commands ask about each host: sandboxd run --ask -- COMMAND"
        raise SandboxdError("tool_hosts_unknown", f"no configuration of {tool} on this machine names a host", hint)
    return list(found.values())


def _rule(url: str) -> str:
    """Return the host rule for an address, "" for one that is no host's."""
    if "://" not in url and (ssh := _SSH.fullmatch(url)):
        return f"{ssh[1]}:22"
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        host, port = parts.hostname or "", parts.port or (22 if parts.scheme == "ssh" else None)
    except ValueError:
        return ""
    if parts.scheme not in _SCHEMES or not re.fullmatch(r"[\w.:-]+", host):
        return ""
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


Address = tuple[str, str, bool]
"""A URL or host, the place that names it, and whether it is a default."""


@dataclass(frozen=True, slots=True)
class _Machine:
    """The files, variables and programs of the user."""

    variables: Mapping[str, str]
    cwd: str

    @property
    def home(self) -> Path:
        return Path(self.variables.get("HOME") or os.path.expanduser("~"))

    @property
    def config(self) -> Path:
        return Path(self.variables.get("XDG_CONFIG_HOME") or self.home / ".config")

    def text(self, path: Path | str) -> str:
        """Return the text of a file, "" for none."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read(_LARGEST)
        except OSError:
            return ""

    def program(self, name: str) -> str:
        return find(name, self.variables.get("PATH", ""), (self.cwd,)).path or ""

    def run(self, name: str, *arguments: str, cwd: str | None = None, **changes: str) -> str:
        """Return what a program prints, "" where there is none that commands cannot write."""
        program = self.program(name)
        if not program:
            return ""
        environment = {**without_code(self.variables), **changes}
        try:
            done = subprocess.run(
                [program, *arguments], cwd=cwd or self.home, env=environment, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=_TIMEOUT_S, text=True, errors="replace", check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout if done.returncode == 0 else ""

    def of_variables(self, *names: str) -> Iterator[Address]:
        for name in names:
            for url in self.variables.get(name, "").split():
                yield url, f"${name}", False


def _pip(machine: _Machine) -> Iterator[Address]:
    named = [*machine.of_variables("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")]
    more = [*machine.of_variables("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX", "PIP_FIND_LINKS")]
    own = machine.variables.get("PIP_CONFIG_FILE", os.devnull)
    users = f"{machine.home}/.pip/pip.conf", f"{machine.config}/pip/pip.conf"
    for path in ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", *users, own):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(machine.text(path))
        except configparser.Error:
            continue
        for section in parser.sections():
            for key, value in parser.items(section):
                index = named if key == "index-url" else more if key in ("extra-index-url", "find-links") else []
                index += [(url, path, False) for url in value.split()]
    for url in re.findall(r'(?m)^\s*(?:index-url|url)\s*=\s*"([^"]+)"', machine.text(machine.config / "uv/uv.toml")):
        more.append((url, str(machine.config / "uv/uv.toml"), False))
    yield from (*named, *more)
    if named:
        return
    for words in (("pip",), ("pip3",), ("python3", "-m", "pip")):
        place = re.search(r"from (/\S.*?)(?: \(|$)", machine.run(*words, "--version"))
        if place is None:
            continue
        path = f"{place[1]}/_internal/models/index.py"
        default = re.search(r'PackageIndex\(\s*"([^"]+)"(?:,\s*file_storage_domain="([^"]+)")?', machine.text(path))
        if default is not None:
            yield from ((url, "the default of pip", True) for url in default.groups() if url)
            return


def _npm(machine: _Machine) -> Iterator[Address]:
    listed = machine.run("npm", "config", "ls", "-l")
    defaults = re.split(r'(?m)^; "(?!default")', listed)[0]
    for key, url in re.findall(r'(?m)^((?:@[\w.-]+:)?registry) = "?([^"\s]+)"?$', listed):
        yield url, f"npm config get {key}", f"\n{key} = " in defaults
    yield from machine.of_variables("npm_config_registry", "YARN_NPM_REGISTRY_SERVER", "YARN_REGISTRY")


def _cargo(machine: _Machine) -> Iterator[Address]:
    import tomllib

    home = Path(machine.variables.get("CARGO_HOME") or machine.home / ".cargo")
    replaced = False
    for path in (home / "config.toml", home / "config"):
        try:
            written: Any = tomllib.loads(machine.text(path))
        except tomllib.TOMLDecodeError:
            continue
        for name, source in written.get("source", {}).items():
            replaced = replaced or (name == "crates-io" and "replace-with" in source)
            yield str(source.get("registry", "")), str(path), False
        for registry in written.get("registries", {}).values():
            yield str(registry.get("index", "")), str(path), False
    for name, value in machine.variables.items():
        if re.fullmatch(r"CARGO_REGISTRIES_\w+_INDEX", name):
            yield value, f"${name}", False
    program = machine.run("rustup", "which", "cargo").strip() or machine.program("cargo")
    if not replaced and program:
        try:
            index = re.search(rb"sparse\+(https://[a-z0-9.-]+)/", Path(program).read_bytes())
        except OSError:
            return
        if index is not None:
            yield index[1].decode(), "the default of cargo", True


def _go(machine: _Machine) -> Iterator[Address]:
    defaults = machine.run("go", "env", "GOPROXY", "GOSUMDB", GOENV="off", GOPROXY="", GOSUMDB="").split()
    for line in machine.run("go", "env", "GOPROXY", "GOSUMDB").splitlines():
        for word in re.split(r"[,|\s]", line):
            if word not in ("", "direct", "off"):
                yield word.partition("+")[0], "go env", line.strip() in defaults


def _maven(machine: _Machine) -> Iterator[Address]:
    program = os.path.realpath(machine.program("mvn") or os.devnull)
    installed = Path(program).parent.parent
    mirrored = False
    for path in (machine.home / ".m2/settings.xml", installed / "conf/settings.xml"):
        written = re.sub(r"(?s)<!--.*?-->", "", machine.text(path))
        written = re.sub(r"(?s)<mirror>(?:(?!</mirror>).)*<blocked>true</blocked>.*?</mirror>", "", written)
        mirrored = mirrored or re.search(r"<mirrorOf>\s*(\*|central|external:\*)", written) is not None
        yield from ((url.strip(), str(path), False) for url in re.findall(r"<url>([^<]+)</url>", written))
    for archive in sorted((installed / "lib").glob("maven-model-builder*.jar")):
        if mirrored:
            return
        with zipfile.ZipFile(archive) as jar:
            pom = jar.read("org/apache/maven/model/pom-4.0.0.xml").decode("utf-8", "replace")
        yield from ((url.strip(), "the default of maven", True) for url in re.findall(r"<url>([^<]+)</url>", pom))


def _apt(machine: _Machine) -> Iterator[Address]:
    for site in machine.run("apt-get", "indextargets", "--format", "$(SITE)").split():
        yield site, "apt-get indextargets", False


def _git(machine: _Machine) -> Iterator[Address]:
    keys = r"^(remote\..*\.(url|pushurl)|submodule\..*\.url|url\..*\.(insteadof|pushinsteadof))$"
    for line in machine.run("git", "config", "--get-regexp", keys, cwd=machine.cwd).splitlines():
        key, _, value = line.partition(" ")
        url = key[4:].rpartition(".")[0] if key.startswith("url.") else value
        yield url, f"git config {key}", False


_READERS: Final[Mapping[str, Callable[[_Machine], Iterator[Address]]]] = {
    "pip": _pip, "npm": _npm, "cargo": _cargo, "go": _go, "maven": _maven, "apt": _apt, "git": _git,
}  # fmt: skip
