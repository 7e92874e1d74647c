"""Kernels of Debian in QEMU, without KVM: the smoke set in a user land on a disk image.

The emulated machine boots with an initial file system of busybox and the drivers of the disk."""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from platforms.userlands import INSTALLED, NotAvailable, UserLand, run

BOOT_S = 3000
"""A software processor on a busy machine needs minutes for what takes seconds else."""
_FIRST = """#!/bin/busybox sh
for module in /modules/*; do /bin/busybox insmod $module; done
/bin/busybox mkdir -p /dev /disk
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t ext4 /dev/vda /disk
exec /bin/busybox switch_root /disk /opt/smoke-init
"""
_SECOND = f"""#!/bin/sh
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 bin={INSTALLED}/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup; mount -t securityfs securityfs /sys/kernel/security
chmod 1777 /tmp /dev/shm
/opt/busybox ip link set lo up
echo BOOTED $(uname -r) lsm=$(cat /sys/kernel/security/lsm)
for uid in 0 4321; do
  base=/var/tmp/smoke-$uid
  setpriv --reuid=$uid --regid=$uid --clear-groups $bin/python /opt/smoke.py $base $bin/sandboxd
done
echo FINISHED
/opt/busybox poweroff -f
"""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel package of a release of Debian, unpacked below `place`."""

    release: UserLand
    place: Path

    def fetch(self) -> str:
        """Return its version, after unpacking it once."""
        if not (self.place / "boot").exists():
            words = "apt-get update -qq; apt-cache depends linux-image-amd64"
            found = re.search(r"Depends: (linux-image-\S+)", run(self.release.command("sh", "-c", words)))
            if found is None:
                raise NotAvailable("the release has no package of a kernel")
            run(self.release.command("sh", "-c", f"cd /opt && apt-get download -qq {found[1]}"))
            (package,) = (self.release.root / "opt").glob("linux-image-*.deb")
            run(["dpkg-deb", "-x", str(package), str(self.place)])
            package.unlink()
            if not (self.place / "lib").exists():
                (self.place / "lib").symlink_to("usr/lib")
        (modules,) = self._modules()
        run(["depmod", "-b", str(self.place), modules.name])
        return modules.name

    def _modules(self) -> list[Path]:
        return [*(self.place / "lib/modules").glob("*")]

    def add_modules(self, root: Path) -> None:
        """Put its modules into a user land."""
        (modules,) = self._modules()
        place = root / "usr/lib/modules"
        place.mkdir(exist_ok=True)
        if not (place / modules.name).exists():
            run(["cp", "-a", str(modules), str(place / modules.name)])

    def image(self) -> Path:
        (image,) = (self.place / "boot").glob("vmlinuz-*")
        return image

    def initial(self, into: Path) -> None:
        """Write the initial file system."""
        with tempfile.TemporaryDirectory() as directory:
            top = Path(directory)
            (top / "bin").mkdir()
            (top / "modules").mkdir()
            shutil.copy("/bin/busybox", top / "bin/busybox")
            (top / "init").write_text(_FIRST)
            (top / "init").chmod(0o755)
            for number, module in enumerate(self._drivers()):
                unpack = lzma.open if module.suffix == ".xz" else open
                with unpack(module, "rb") as packed:
                    (top / "modules" / f"{number:02}.ko").write_bytes(packed.read())
            files = "\n".join(str(one.relative_to(top)) for one in sorted(top.rglob("*")))
            pack = ["cpio", "-o", "-H", "newc", "--quiet"]
            archive = subprocess.run(pack, input=files.encode(), cwd=top, check=True, capture_output=True)
        into.write_bytes(gzip.compress(archive.stdout, 1))

    def _drivers(self) -> list[Path]:
        version = self.fetch()
        found: dict[str, None] = {}
        for name in ("virtio_pci", "virtio_blk", "ext4"):
            said = run(["modprobe", "-d", str(self.place), "-S", version, "--show-depends", name])
            found |= dict.fromkeys(re.findall(r"^insmod (\S+)", said, re.MULTILINE))
        return [Path(name) for name in found]


def make_disk(land: UserLand, image: Path) -> None:
    """Write a disk image with a user land that runs the smoke set when it is booted."""
    for old in (land.root / "var/tmp").glob("smoke-*"):
        shutil.rmtree(old)
    shutil.copy("/bin/busybox", land.root / "opt/busybox")
    script = land.root / "opt/smoke-init"
    script.write_text(_SECOND)
    script.chmod(0o755)
    image.unlink(missing_ok=True)
    run(["mke2fs", "-q", "-t", "ext4", "-d", str(land.root), str(image), "3G"])


def boot(kernel: Path, initial: Path, disk: Path, log: Path) -> str:
    """Return what an emulated machine says on its serial line until it is switched off."""
    words = [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048", "-nographic",
        "-no-reboot", "-nic", "none", "-kernel", str(kernel), "-initrd", str(initial),
        "-append", "console=ttyS0 quiet panic=-1", "-drive", f"file={disk},if=virtio,format=raw,snapshot=on",
    ]  # fmt: skip
    with log.open("wb") as output:
        try:
            subprocess.run(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=BOOT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise NotAvailable(f"not finished after {BOOT_S} s") from error
    return log.read_text(errors="replace")
