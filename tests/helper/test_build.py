"""The binaries in the repository are what the pinned compiler makes of the source in the repository."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import CHECKOUT

VENDOR = CHECKOUT / "vendor" / "seccomp"
LIMITS = {"apply-seccomp": 32_768, "launch": 6_656, "namespaces": 4_608, "front": 12_288}
PROGRAMS = [f"{processor}/{name}" for processor in ("x86_64", "aarch64") for name in LIMITS]


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy in another folder: neither that nor the user's home nor the time may show in the bytes."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for path in (*VENDOR.glob("*.[ch]"), VENDOR / "build.py"):
        shutil.copy(path, folder / path.name)
    subprocess.run([sys.executable, "build.py", "--into", "out"], cwd=folder, check=True, capture_output=True)
    return folder / "out"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_rebuild_gives_the_same_bytes(rebuilt: Path, program: str) -> None:
    assert (rebuilt / program).read_bytes() == (VENDOR / program).read_bytes(), (
        "the source has changed: run `python vendor/seccomp/build.py` and commit what it writes"
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_binary(program: str) -> None:
    path = VENDOR / program
    processor, name = program.split("/")
    data = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o755
    assert len(data) < LIMITS[name]
    assert data[:4] == b"\x7fELF" and data[4] == 2
    assert int.from_bytes(data[16:18], "little") == 2  # an executable at fixed addresses: nothing to load or relocate
    assert int.from_bytes(data[18:20], "little") == {"x86_64": 62, "aarch64": 183}[processor]
    assert b"/home/" not in data and b"/root/" not in data and str(CHECKOUT).encode() not in data
    segments = [data[64 + 56 * n :][:4] for n in range(int.from_bytes(data[56:58], "little"))]
    assert not [kind for kind in segments if int.from_bytes(kind, "little") in (2, 3)]  # PT_DYNAMIC, PT_INTERP


def test_the_sums() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    assert lines == [
        f"{hashlib.sha256((VENDOR / program).read_bytes()).hexdigest()}  {program}" for program in PROGRAMS
    ]


@pytest.mark.parametrize("path", sorted(VENDOR.glob("*.[ch]")), ids=lambda path: path.name)
def test_the_source_can_be_read_in_one_sitting(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 500  # one statement a line, and braces everywhere: .clang-format
    assert max(map(len, lines)) <= 120


def test_another_compiler_is_refused(tmp_path: Path) -> None:
    """Without the pinned package the build says so; it never takes what happens to be there."""
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "__init__.py").touch()
    metadata = tmp_path / "ziglang-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ziglang\nVersion: 0.1.0\n")
    result = subprocess.run(
        [sys.executable, str(VENDOR / "build.py"), "--into", str(tmp_path / "out")],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and "needs the package ziglang==" in result.stderr
