"""A symlink in a sandbox that has been set up: pinned from outside, it can be read and not replaced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.backends.linux.pin_links import command_line


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "target").write_text("t")
    (tmp_path / "link").symlink_to("target")
    return tmp_path


@pytest.fixture
def sandbox(work: Path) -> Iterator[subprocess.Popen[str]]:
    """Waits for a line, then tries what the test asks for."""
    options = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(work), str(work)]
    options += ["--unshare-user", "--unshare-pid", "--cap-drop", "ALL", "--as-pid-1", "--chdir", str(work)]
    with subprocess.Popen(
        ["bwrap", *options, "--", "/bin/sh", "-c", 'echo ready; read line; eval "$line"'],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        yield process
        process.kill()


def inside(sandbox: subprocess.Popen[str]) -> int:
    assert sandbox.stdout is not None and sandbox.stdout.readline() == "ready\n"
    return int(Path(f"/proc/{sandbox.pid}/task/{sandbox.pid}/children").read_text().split()[0])


def test_a_pinned_link_stays(work: Path, sandbox: subprocess.Popen[str]) -> None:
    subprocess.run(command_line(sys.executable, inside(sandbox), [f"{work}/link"]), check=True)
    output, _ = sandbox.communicate("rm link; mv link x; ln -sfn /etc/passwd link; cat link; echo; readlink link\n")
    assert output.count("Device or resource busy") == 3 and output.endswith("t\ntarget\n")
    assert (work / "link").readlink() == Path("target")


def test_without_it_the_link_goes(work: Path, sandbox: subprocess.Popen[str]) -> None:
    inside(sandbox)
    sandbox.communicate("ln -sfn /etc/passwd link\n")
    assert (work / "link").readlink() == Path("/etc/passwd")


@pytest.mark.parametrize("name", ["none", "none/link"])
def test_what_cannot_be_pinned_is_said(work: Path, sandbox: subprocess.Popen[str], name: str) -> None:
    done = subprocess.run(
        command_line(sys.executable, inside(sandbox), [f"{work}/{name}"]), capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr == f"cannot open {work}/{name}: No such file or directory\n"


def test_a_process_that_is_gone() -> None:
    done = subprocess.run(command_line(sys.executable, 2**22 + 1, ["/x"]), capture_output=True, text=True)
    assert done.returncode == 1 and "No such file" in done.stderr
