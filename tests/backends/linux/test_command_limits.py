"""Control groups for limits, with files and a busctl in place of those of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sandboxd.backends.linux import command_limits
from sandboxd.backends.linux.command_limits import (
    NO_GROUPS,
    CommandLimits,
    ControlGroups,
    LimitWatch,
    find_control_groups,
    mounted_groups,
)
from sandboxd.errors import LaunchError
from sandboxd.plan.plan import ProcessLimit
from sandboxd.policy.model import Limits
from sandboxd.policy.violation import DenialEvent
from sandboxd.processes import ProcessTable
from support.waiting import wait_until_async

WANTED = Limits(memory=1 << 30, cpu=1.5)
FEW = ProcessLimit(64, "user")


@pytest.fixture
def sandbox() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child, in place of bubblewrap and process 1."""
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        while len(ProcessTable().tree(process.pid)) < 2:
            pass
        yield process
        assert process.stdin is not None
        process.stdin.close()


def first_child(process: subprocess.Popen[bytes]) -> int:
    return ProcessTable().tree(process.pid)[1]


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of files; a process is in the group whose cgroup.procs was last written with its number."""
    members: dict[str, str] = {}
    write, read = Path.write_text, Path.read_text

    def write_text(self: Path, text: str, *more: str) -> int:
        if self.name == "cgroup.procs":
            members[text] = f"/{self.parent.relative_to(tmp_path)}"
        return write(self, text, *more)

    def read_text(self: Path, *more: str, **named: str) -> str:
        if self.name == "cgroup" and self.parts[1] == "proc":
            return f"0::{members.get(self.parts[2], '/elsewhere')}\n"
        return read(self, *more, **named)

    monkeypatch.setattr(Path, "write_text", write_text)
    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(command_limits, "mounted_groups", lambda: str(tmp_path))
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    return tmp_path


def told_by(limits: CommandLimits) -> list[str]:
    told: list[DenialEvent] = []
    limits.told = told.append
    limits.ending()
    return [one.target for one in told]


def test_the_mount_of_version_2_is_found(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("25 1 0:1 / /sys rw - tmpfs t rw\n29 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 c rw\n")
    assert mounted_groups(str(mounts)) == "/sys/fs/cgroup/unified"
    mounts.write_text("25 1 0:1 / /sys/fs/cgroup rw - cgroup t rw\n")
    assert mounted_groups(str(mounts)) == ""


def test_a_delegated_group_counts_a_whole_command(groups: Path, sandbox: subprocess.Popen[bytes]) -> None:
    found = find_control_groups(None, str(groups), booted=False, own=str(groups / "daemon"))
    assert found == ControlGroups(directory=str(groups))
    assert (groups / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    limits = CommandLimits("a" * 32, WANTED, FEW, found)
    assert limits.layers == ("memory-limit", "cpu-limit", "process-limit") and limits.warnings == ()
    limits.apply(first_child(sandbox), sandbox.pid)
    group = groups / f"sandboxd-{'a' * 16}"
    assert {path.name: path.read_text() for path in group.iterdir() if path.name != "cgroup.procs"} == {
        "memory.max": str(1 << 30), "memory.swap.max": "0", "cpu.max": "150000 100000", "pids.max": "64",
    }  # fmt: skip
    assert told_by(limits) == []
    (group / "memory.events").write_text("low 0\nmax 9\noom 2\noom_kill 1\n")
    (group / "pids.events").write_text("max 3\n")
    assert told_by(limits) == ["memory 1G", "processes 64"]
    assert told_by(limits) == [], "once"


def test_without_controllers_there_is_no_group(groups: Path) -> None:
    (groups / "cgroup.controllers").write_text("hugetlb\n")
    found = find_control_groups(None, str(groups), booted=False, own=str(groups))
    assert not found.found and "delegated" in found.missing
    limits = CommandLimits("a" * 32, WANTED, FEW, found)
    assert limits.layers == ("memory-limit-watched", "cpu-affinity")
    assert "which programs can undo: no control group with" in limits.warnings[0]


def test_a_group_that_takes_no_process_starts_nothing(
    groups: Path, sandbox: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_limits, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(command_limits, "group_of", lambda pid, mounted: "/elsewhere")
    limits = CommandLimits("a" * 32, WANTED, None, ControlGroups(directory=str(groups)))
    with pytest.raises(LaunchError, match="does not enter its control group"):
        limits.apply(first_child(sandbox), sandbox.pid)


BUSCTL = """#!/bin/sh
echo "$@" >>{log}
case "$*" in *StartTransientUnit*)
    mkdir -p {group}
    echo $((1 << 30)) >{group}/memory.max
    echo 0 >{group}/memory.swap.max
    echo {pids} >{group}/pids.max ;;
esac
"""


@pytest.mark.parametrize("pids", ["64", "max"])
def test_a_scope_of_systemd_is_made_and_checked(
    groups: Path, sandbox: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, pids: str
) -> None:
    log, busctl, scope = groups / "log", groups / "busctl", groups / f"sandboxd-{'b' * 16}.scope"
    busctl.write_text(BUSCTL.format(log=log, group=scope, pids=pids))
    busctl.chmod(0o755)
    found = find_control_groups(str(busctl), str(groups), booted=True)
    assert found.bus[0] == str(busctl) and ("--user" in found.bus) is (os.geteuid() != 0)
    monkeypatch.setattr(command_limits, "group_of", lambda pid, mounted: str(scope))
    limits = CommandLimits("b" * 32, WANTED, FEW, found)
    if pids == "max":
        with pytest.raises(LaunchError, match=r"pids\.max is not 64"):
            limits.apply(first_child(sandbox), sandbox.pid)
        return
    limits.apply(first_child(sandbox), sandbox.pid)
    words = next(line for line in log.read_text().splitlines() if "StartTransientUnit" in line)
    assert f"sandboxd-{'b' * 16}.scope fail 6 PIDs au 2 {sandbox.pid} " in words
    for one in ("MemoryMax t 1073741824", "MemorySwapMax t 0", "CPUQuotaPerSecUSec t 1500000", "TasksMax t 64"):
        assert one in words
    (scope / "memory.events").write_text("oom_kill 1\n")
    assert told_by(limits) == ["memory 1G"]


def test_a_systemd_that_does_not_answer_is_said(groups: Path) -> None:
    found = find_control_groups("/bin/false", str(groups), booted=True)
    assert not found.found and found.missing == "systemd does not answer: exit status 1"


async def test_all_commands_are_watched_by_one_look(
    sandbox: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at /proc costs as much as the machine has processes."""
    looks = 0

    class Counted(ProcessTable):
        def __init__(self) -> None:
            nonlocal looks
            looks += 1
            super().__init__()

    monkeypatch.setattr(command_limits, "ProcessTable", Counted)
    watch, killed = LimitWatch(), set[int]()
    limits = [CommandLimits(str(n), Limits(memory=4096), None, NO_GROUPS, watch) for n in range(20)]
    for number, one in enumerate(limits):
        one.kill = partial(killed.add, number)
        one.resume(None, sandbox.pid)
    await wait_until_async(lambda: len(killed) == len(limits), "all of them use too much")
    assert looks == 1


def test_some_processes_stand_for_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of them, ended ones hold no memory and stand for none."""
    pages = {2: 1000, 3: 5000} | dict.fromkeys(range(10, 500), 0)
    read: list[int] = []

    class Table(ProcessTable):
        def __init__(self) -> None:
            self._children = {1: list(pages)}
            self._fields = {pid: [b"0"] * 21 + [b"%d" % pages.get(pid, 0)] for pid in (1, *pages)}

    def tenth(pid: int) -> int:
        read.append(pid)
        return table.memory(pid) // 10

    table = Table()
    monkeypatch.setattr(command_limits, "SHARED_S", -1)
    monkeypatch.setattr(command_limits, "_proportional", tenth)
    assert command_limits._use_of(table, 1, 4096)[0] == table.usage(1, ports=False).memory // 10
    assert len(read) == 1
