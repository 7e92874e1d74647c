"""Mounts made from outside in a sandbox that has been set up: a symlink that is pinned can be read and not replaced."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.backends.linux.bwrap.sandbox_setup import programs_of
from sandboxd.backends.linux.network.namespace_program import MAX_PROGRAM, LateMount, MountMethod
from support.file_runner import LateMounts

TEXT = st.characters(exclude_characters="\0", exclude_categories=["Cs"])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "target").write_text("t")
    (tmp_path / "link").symlink_to("target")
    return tmp_path


@pytest.fixture
def sandbox(work: Path) -> Iterator[subprocess.Popen[str]]:
    """Waits for a line, then tries what the test asks for."""
    options = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(work), str(work)]
    options += [
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--cap-drop",
        "ALL",
        "--as-pid-1",
        "--chdir",
        str(work),
    ]
    with subprocess.Popen(
        ["bwrap", *options, "--", "/bin/sh", "-c", 'echo ready; read line; eval "$line"'],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        yield process
        process.kill()


def mount(pid: int, *mounts: LateMount) -> str:
    """What went wrong."""
    late = LateMounts()
    try:
        return late.mount(pid, mounts)
    finally:
        late.close()


def inside(sandbox: subprocess.Popen[str]) -> int:
    assert sandbox.stdout is not None and sandbox.stdout.readline() == "ready\n"
    return int(Path(f"/proc/{sandbox.pid}/task/{sandbox.pid}/children").read_text().split()[0])


def test_a_pinned_link_stays(work: Path, sandbox: subprocess.Popen[str]) -> None:
    assert mount(inside(sandbox), LateMount(MountMethod.ENTRY, f"{work}/link")) == ""
    output, _ = sandbox.communicate("rm link; mv link x; ln -sfn /etc/passwd link; cat link; echo; readlink link\n")
    assert output.count("Device or resource busy") == 3 and output.endswith("t\ntarget\n")
    assert (work / "link").readlink() == Path("target")


def test_without_it_the_link_goes(work: Path, sandbox: subprocess.Popen[str]) -> None:
    inside(sandbox)
    sandbox.communicate("ln -sfn /etc/passwd link\n")
    assert (work / "link").readlink() == Path("/etc/passwd")


@pytest.mark.parametrize("name", ["none", "none/link"])
def test_what_cannot_be_pinned_is_said(work: Path, sandbox: subprocess.Popen[str], name: str) -> None:
    said = mount(inside(sandbox), LateMount(MountMethod.ENTRY, f"{work}/{name}"))
    assert said == f"cannot pin {work}/{name}: No such file or directory"


def test_copies_and_what_is_there(work: Path, sandbox: subprocess.Popen[str]) -> None:
    (work / "d").mkdir()
    for name in ("a", "b", "d/c"):
        (work / name).write_text(name)
    mounts = [
        LateMount(MountMethod.COPY, f"{work}/a", "/proc"), LateMount(MountMethod.SAME, f"{work}/d"),
        LateMount(MountMethod.READ_ONLY, f"{work}/d/c"), LateMount(MountMethod.READ_ONLY, f"{work}/b"),
    ]  # fmt: skip
    pid = inside(sandbox)
    assert mount(pid, mounts[0]) == f"cannot mount {work}/a: Invalid argument"
    assert mount(pid, *mounts[1:]) == ""
    attempts = "mv d e; echo x > d/c; rm d/c; echo x > b; echo x > a; echo x > d/new; cat a b d/c\n"
    output, _ = sandbox.communicate(attempts)
    assert output.count("busy") == 2 and output.count("Read-only file system") == 2, output
    assert output.endswith("x\nbd/c") and (work / "d" / "new").exists()


def test_no_symlink_on_the_way_is_followed(work: Path, sandbox: subprocess.Popen[str]) -> None:
    (work / "d").mkdir()
    (work / "d" / "f").write_text("")
    (work / "way").symlink_to("d")
    pid = inside(sandbox)
    for how, verb in ((MountMethod.READ_ONLY, "mount"), (MountMethod.ENTRY, "pin")):
        said = mount(pid, LateMount(how, f"{work}/way/f"))
        assert said == f"cannot {verb} {work}/way/f: Too many levels of symbolic links"
    assert mount(pid, LateMount(MountMethod.READ_ONLY, f"{work}/d/f")) == ""


def test_a_file_or_directory_in_the_place_of_a_link(work: Path, sandbox: subprocess.Popen[str]) -> None:
    """It is read-only as well: the plan saw a link there."""
    (work / "d").mkdir()
    (work / "f").write_text("")
    assert mount(inside(sandbox), *(LateMount(MountMethod.ENTRY, f"{work}/{name}") for name in "df")) == ""
    output, _ = sandbox.communicate("touch d/x; echo x > f; rm f; rmdir d; touch g\n")
    assert output.count("Read-only file system") == 2 and output.count("busy") == 2, output
    assert (work / "g").exists()


def test_what_may_be_missing(work: Path, sandbox: subprocess.Popen[str]) -> None:
    (work / "here").write_text("")
    (work / "way").symlink_to(".")
    pid, missing = inside(sandbox), ("none", "none/none", "here/none", "way/here")
    there = [
        LateMount(how, f"{work}/{name}", "/usr" * (how is MountMethod.COPY), if_there=True)
        for how in (MountMethod.SAME, MountMethod.READ_ONLY, MountMethod.ENTRY, MountMethod.COPY)
        for name in missing
    ]
    assert mount(pid, *there, LateMount(MountMethod.READ_ONLY, f"{work}/here", if_there=True)) == ""
    model = LateMount(MountMethod.COPY, f"{work}/here", f"{work}/none", if_there=True)
    assert mount(pid, model) == f"cannot mount {work}/here: Stale file handle", "the model of a mask has to be there"
    output, _ = sandbox.communicate("echo x > here; echo x > none\n")
    assert output.count("Read-only file system") == 1 and (work / "none").exists()


@given(
    st.lists(
        st.builds(LateMount, st.sampled_from(MountMethod), st.text(TEXT, max_size=4000), st.text(TEXT)), max_size=60
    )
)
def test_programs_hold_every_mount_in_order(mounts: list[LateMount]) -> None:
    programs = list(programs_of(mounts))
    assert [step for program in programs for step in program.steps] == mounts
    assert all(len(program.encoded) <= MAX_PROGRAM and len(program.encoded) % 4 == 0 for program in programs)
