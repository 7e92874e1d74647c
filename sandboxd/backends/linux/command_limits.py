"""Limits of one command on memory, processors and processes, set from outside before it starts.

A control group (version 2) counts the whole command: a transient scope of systemd, or a child of a delegated group.
Without one the command is watched: it is killed when all its processes together have more memory. No process may
allocate more than twice the limit meanwhile (RLIMIT_DATA). Processors are then chosen, which programs can undo.

Until the start only bubblewrap and the helper run in the sandbox. The limits of process 1 are those of what it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from sandboxd.backends.base import Listeners
from sandboxd.backends.linux.helper.expected_launch import Preparation
from sandboxd.errors import LaunchError
from sandboxd.plan.plan import ProcessLimit
from sandboxd.policy.model import Limits
from sandboxd.policy.violation import DenialEvent, limit_met
from sandboxd.processes import ProcessTable, tree_of
from sandboxd.quantities import size_text
from sandboxd_client.records import dataclass

CONTROLLERS = frozenset({"cpu", "memory", "pids"})
LOOK_EVERY_S = 0.2
REST = 5
"""Pause after a look, as a multiple of its processor time."""
SHARED_S = 0.05
"""Seconds to read how one command's processes share pages; the rest is estimated."""
_PATIENCE_S = 5.0
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The way to a control group for each command.

    `bus` are the words of busctl for the manager that makes scopes, `directory` is a delegated group; neither where
    `missing` says why."""

    bus: tuple[str, ...] = ()
    directory: str = ""
    missing: str = ""

    @property
    def found(self) -> bool:
        return bool(self.bus or self.directory)

    @property
    def text(self) -> str:
        """Describe the way."""
        return "transient scopes of systemd" if self.bus else self.directory or self.missing


NO_GROUPS = ControlGroups()


def mounted_groups(mounts: str = "/proc/self/mountinfo") -> str:
    """Return where version 2 is mounted, or ""."""
    with contextlib.suppress(OSError):
        for line in Path(mounts).read_text(errors="replace").splitlines():
            fields, _, kind = line.partition(" - ")
            if kind.startswith("cgroup2 "):
                return fields.split()[4]
    return ""


def group_of(process: int | str, mounted: str) -> str:
    """Return the directory of the group of a process. Raises OSError."""
    for line in Path(f"/proc/{process}/cgroup").read_text(errors="replace").splitlines():
        if line.startswith("0::"):
            return os.path.normpath(mounted + line[3:])
    raise FileNotFoundError(f"process {process} has no control group of version 2")


def find_control_groups(busctl: str | None, mounted: str, *, booted: bool, own: str = "") -> ControlGroups:
    """Look for a way. `booted`: systemd manages the machine; `own` is the daemon's group."""
    if not mounted:
        return ControlGroups(missing="no control groups of version 2 are mounted")
    if booted and busctl is not None:
        bus = (busctl, "--timeout=5", *(() if os.geteuid() == 0 else ("--user",)))
        tried = _run((*bus, "get-property", *_MANAGER, "Version"))
        if tried is None:
            return ControlGroups(bus)
        return ControlGroups(missing=f"systemd does not answer: {tried}")
    for directory in () if booted else (own, os.path.dirname(own)):
        try:
            if not directory.startswith(mounted) or not _read(directory, "cgroup.controllers") >= CONTROLLERS:
                continue
            Path(directory, "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in sorted(CONTROLLERS)))
            return ControlGroups(directory=directory)
        except OSError:
            continue
    return ControlGroups(missing="no control group with memory, cpu and pids is delegated to the daemon")


def _read(directory: str, name: str) -> frozenset[str]:
    return frozenset(Path(directory, name).read_text().split())


def _run(words: Sequence[str]) -> str | None:
    """Run a program; return None, or why it failed."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=10, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None if done.returncode == 0 else " ".join(done.stderr.split()) or f"exit status {done.returncode}"


class CommandLimits:
    """The limits of one launch.

    `told` receives what the command has met, `kill` ends it."""

    def __init__(
        self,
        launch_id: str,
        limits: Limits,
        processes: ProcessLimit | None,
        groups: ControlGroups,
        watch: LimitWatch | None = None,
    ) -> None:
        self.limits = limits
        self.processes = processes
        self._name = f"sandboxd-{launch_id[:16]}"
        self._most = None if processes is None or not processes.wanted_by else processes.most
        self._groups = groups
        self._mounted = mounted_groups() if self.wanted else ""
        self._group = ""
        self._bubblewrap = 0
        self._watch = watch or LimitWatch()
        self._met: set[str] = set()
        self.told: Callable[[DenialEvent], None] = lambda event: None
        self.kill: Callable[[], None] = lambda: None

    @property
    def wanted(self) -> bool:
        """Return whether there is something to limit."""
        return self.limits.memory is not None or self.limits.cpu is not None or self._most is not None

    @property
    def layers(self) -> tuple[str, ...]:
        memory, cpu = ("memory-limit", "cpu-limit") if self._groups.found else ("memory-limit-watched", "cpu-affinity")
        found = ((memory, self.limits.memory), (cpu, self.limits.cpu))
        bounds = ("process-limit",) if self._most is not None and self._groups.found else ()
        if self._is_watched:
            bounds = ("process-limit-watched",)
        return (*(label for label, value in found if value is not None), *bounds)

    @property
    def _is_watched(self) -> bool:
        return self._most is not None and self.processes is not None and not self.processes.counted

    @property
    def warnings(self) -> tuple[str, ...]:
        if self._groups.found or self.limits.cpu is None:
            return ()
        return (f"sandbox.limits.cpu is a choice of processors, which programs can undo: {self._groups.missing}",)

    def apply(self, init: int, bubblewrap: int) -> None:
        """Set the limits. Blocking. Raises LaunchError `limit_failed`."""
        self._bubblewrap = bubblewrap
        try:
            if self._groups.found:
                self._enter(bubblewrap, init)
            else:
                for pid in tree_of(init):
                    self._limit_process(pid)
        except (OSError, ValueError) as error:
            raise LaunchError(
                "limit_failed",
                f"the limits of the command cannot be set: {error}",
                hint="run: sandboxd check; or remove sandbox.limits, --memory and --cpus",
            ) from error

    def _limit_process(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.limits.memory is not None:
                hard = resource.prlimit(pid, resource.RLIMIT_DATA)[1]
                most = 2 * self.limits.memory
                most = most if hard == resource.RLIM_INFINITY else min(hard, most)
                resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))
            if self.limits.cpu is not None:
                usable = sorted(os.sched_getaffinity(pid))
                first = pid % len(usable)
                count = max(1, -int(-self.limits.cpu // 1))
                os.sched_setaffinity(pid, (usable[first:] + usable[:first])[:count])

    # control groups

    def _enter(self, bubblewrap: int, init: int) -> None:
        """Put all processes of the sandbox into a group with the limits. Raises OSError."""
        deadline, missing = time.monotonic() + _PATIENCE_S, tree_of(bubblewrap)
        if self._groups.bus:
            self._call("StartTransientUnit", "ssa(sv)a(sa(sv))", f"{self._name}.scope", "fail", *self._scope(missing))
        else:
            self._group = os.path.join(self._groups.directory, self._name)
            os.mkdir(self._group)
            for name, text in self._files():
                Path(self._group, name).write_text(text)
        while missing:
            if not self._groups.bus:
                for pid in missing:
                    with contextlib.suppress(ProcessLookupError):
                        Path(self._group, "cgroup.procs").write_text(str(pid))
            elif os.path.basename(self._own(init)) == f"{self._name}.scope":
                self._group = self._own(init)
                self._call("AttachProcessesToUnit", "ssau", f"{self._name}.scope", "", *_counted(missing))
            tree = tree_of(bubblewrap)
            missing = [pid for pid in tree if not self._group or self._own(pid) != self._group]
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {missing[0] if missing else init} does not enter its control group")
        for name, text in self._files():
            if name != "cpu.max" and Path(self._group, name).read_text().strip() != text:
                raise ValueError(f"{self._group}/{name} is not {text}")

    def _own(self, pid: int) -> str:
        try:
            return group_of(pid, self._mounted)
        except FileNotFoundError:  # it has ended
            return self._group

    def _files(self) -> list[tuple[str, str]]:
        page = resource.getpagesize()
        found = []
        if self.limits.memory is not None:
            found = [("memory.max", str(self.limits.memory // page * page)), ("memory.swap.max", "0")]
        if self.limits.cpu is not None:
            found.append(("cpu.max", f"{int(self.limits.cpu * 100_000)} 100000"))
        if self._most is not None:
            found.append(("pids.max", str(self._most)))
        return found

    def _scope(self, pids: Sequence[int]) -> tuple[str, ...]:
        memory, cpu = self.limits.memory, self.limits.cpu
        properties = [("PIDs", "au", *_counted(pids)), ("CollectMode", "s", "inactive-or-failed")]
        if memory is not None:
            properties += [("MemoryMax", "t", str(memory)), ("MemorySwapMax", "t", "0")]
        if cpu is not None:
            properties.append(("CPUQuotaPerSecUSec", "t", str(int(cpu * 1_000_000))))
        if self._most is not None:
            properties.append(("TasksMax", "t", str(self._most)))
        return (str(len(properties)), *(word for one in properties for word in one), "0")

    def _call(self, method: str, *words: str) -> None:
        why = _run((*self._groups.bus, "call", *_MANAGER, method, *words))
        if why is not None:
            raise OSError(f"{method} of systemd: {why}")

    def resume(self, init: int | None, bubblewrap: int) -> None:
        """Go on after a restart: the kernel has kept the limits."""
        self._bubblewrap = bubblewrap
        with contextlib.suppress(OSError):
            if init is not None and self._name in (group := group_of(init, self._mounted)):
                self._group = group
        self.started()

    # what the command meets

    def started(self) -> None:
        """Watch the command where no group counts it as a whole."""
        if not self._groups.found and (self.limits.memory or self._most):
            self._watch.add(self)

    def looked_at(self) -> tuple[int, int | None]:
        """Return what to look at: the process that started the sandbox, and the limit of memory."""
        return self._bubblewrap, self.limits.memory

    def uses(self, memory: int, threads: int) -> None:
        """Compare what the command uses with its limits."""
        if self._most is not None and threads >= self._most:
            self._meet("processes")
        if self._most is not None and self._is_watched and threads > self._most:
            self.kill()
            self._watch.remove(self)
        if self.limits.memory is not None and memory > self.limits.memory:
            self._meet("memory")
            self.kill()
            self._watch.remove(self)

    def ending(self) -> None:
        """Report what the kernel has counted, while process 1 still holds the group."""
        self._watch.remove(self)
        if not self._group:
            return
        for name, key, limit in (("memory.events", "oom_kill", "memory"), ("pids.events", "max", "processes")):
            with contextlib.suppress(OSError, ValueError):
                counted = dict(line.split() for line in Path(self._group, name).read_text().splitlines())
                if int(counted.get(key, "0")):
                    self._meet(limit)

    def ended(self) -> None:
        """Remove a group of the daemon's own."""
        if self._group and self._groups.directory:
            with contextlib.suppress(OSError):
                os.rmdir(self._group)

    def _meet(self, limit: str) -> None:
        if limit in self._met:
            return
        self._met.add(limit)
        if limit == "memory" and self.limits.memory is not None:
            self.told(limit_met(limit, size_text(self.limits.memory), size_text(2 * self.limits.memory)))
        elif limit == "processes" and self._most is not None:
            self.told(limit_met(limit, str(self._most), str(2 * self._most)))


class LimitedSetup:
    """A set-up that ends with the limits of the command."""

    def __init__(self, setup: Preparation, limits: CommandLimits) -> None:
        self._setup = setup
        self._limits = limits
        self.born, self.abandon = setup.born, setup.abandon

    def complete(self, pid: int, bubblewrap: int, listeners: Listeners) -> Awaitable[None]:
        return self._complete(self._setup.complete(pid, bubblewrap, listeners), pid, bubblewrap)

    async def _complete(self, more: Awaitable[None] | None, pid: int, bubblewrap: int) -> None:
        if more is not None:
            await more
        await asyncio.to_thread(self._limits.apply, pid, bubblewrap)


def _counted(pids: Sequence[int]) -> tuple[str, ...]:
    return str(len(pids)), *map(str, pids)


class LimitWatch:
    """Looks at all commands without a group: one look for all of them, however many processes there are."""

    def __init__(self) -> None:
        self._watched: dict[CommandLimits, None] = {}
        self._looking: asyncio.Task[None] | None = None

    def add(self, limits: CommandLimits) -> None:
        self._watched[limits] = None
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="limits")

    def remove(self, limits: CommandLimits) -> None:
        self._watched.pop(limits, None)
        if not self._watched and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self) -> None:
        took = 0.0
        while True:
            await asyncio.sleep(max(LOOK_EVERY_S, REST * took))
            watched = list(self._watched)
            uses, took = await asyncio.to_thread(_uses_of, [one.looked_at() for one in watched])
            for one, used in zip(watched, uses, strict=True):
                if one in self._watched:
                    one.uses(*used)


def _uses_of(commands: Sequence[tuple[int, int | None]]) -> tuple[list[tuple[int, int]], float]:
    """Return the memory and the threads of each sandbox, and the processor time that it took."""
    begun, table = time.thread_time(), ProcessTable()
    return [_use_of(table, *one) for one in commands], time.thread_time() - begun


def _use_of(table: ProcessTable, bubblewrap: int, memory: int | None) -> tuple[int, int]:
    """Return the memory and the threads of a sandbox; shared pages count once where it matters."""
    usage = table.usage(bubblewrap, ports=False)
    if memory is None or usage.memory <= memory:
        return usage.memory, usage.threads
    tree = [pid for pid in table.tree(bubblewrap)[1:] if table.memory(pid)]  # one that has ended stands for none
    random.shuffle(tree)
    until, looked_at, own = time.monotonic() + SHARED_S, 0, 0
    for pid in tree:  # of too many, some stand for all
        looked_at += table.memory(pid)
        own += _proportional(pid)
        if time.monotonic() > until:
            break
    return int(usage.memory * own / max(looked_at, 1)), usage.threads


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
