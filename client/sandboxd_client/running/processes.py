"""Signals to a sandboxed command from outside.

The spawned process is bubblewrap, which passes no signals on: a signal to it would end the sandbox before the command
gets it. The target is process 1 of the sandbox, a child of bubblewrap, which passes signals on to the command. It is
found through /proc and pinned with a descriptor before the signal, so that its pid cannot mean another process. Before
process 1 exists or handles the signal (the kernel drops those for a process 1, pid_namespaces(7)), no command runs, and
the spawned process gets the signal.

The caller must not have waited for the spawned process yet: its pid is then still valid."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Iterator
else:
    import _signal  # 4 ms cheaper than `signal`, which wraps it in enums

SIGSTOP = int(_signal.SIGSTOP)
SIGCONT = int(_signal.SIGCONT)
SIGKILL = int(_signal.SIGKILL)


def signal_command(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to the command below the spawned process `pid`.

    `group`: the process leads a process group, which gets the signal where there is no pid namespace. A process that is
    gone is no error."""
    init = _find_init(pid, number)
    if init is None:
        _kill(pid, number, group)
    elif number in (SIGSTOP, SIGCONT):  # a stop of process 1 would not reach its children
        for child in _children(init):
            _send(child, init, number)
    else:
        _send(init, pid, number)
        if number == SIGKILL:
            _kill(pid, SIGCONT, False)  # one that was stopped could not tell of the end


def kill_command(pid: int, *, group: bool = False) -> None:
    """Kill the whole tree: its pid namespace ends with process 1."""
    signal_command(pid, SIGKILL, group=group)


def kill_group(leader: int) -> None:
    """Kill the rest of the group of a child that may have ended; its id stays reserved while a member lives."""
    _kill(leader, SIGKILL, True)


def in_this_namespace(pid: int) -> bool | None:
    """Return whether `pid` is in this process's pid namespace, None if unknown."""
    status = _status(pid)
    current = _status(os.getpid())
    if status is None or current is None or "NSpid" not in status:
        return None
    return len(status["NSpid"]) == len(current["NSpid"])


def _kill(pid: int, number: int, group: bool) -> None:
    if _is_reused(pid):
        return
    try:
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
        pass


def _is_reused(pid: int) -> bool:
    """Return whether another process has the number by now: a thread of asyncio waits for children (Python 3.11)."""
    status, own = _status(pid), str(os.getpid())
    return status is not None and status.get("PPid") != [own] and os.readlink("/proc/self") == own


def _send(pid: int, parent: int, number: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return
    try:
        status = _status(pid)
        if status is not None and status.get("PPid") == [str(parent)]:
            _signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def _find_init(pid: int, number: int) -> int | None:
    for child in _children(pid):
        status = _status(child)
        if status is None:
            continue
        names = status.get("NSpid", [])
        if len(names) > 1 and names[-1] == "1":
            handled = _has(status, "SigCgt", number) or _has(status, "SigBlk", number)
            return child if handled or number in (SIGKILL, SIGSTOP, SIGCONT) else None
    return None


def _has(status: dict[str, list[str]], mask: str, number: int) -> bool:
    return bool(int(status[mask][0], 16) >> (number - 1) & 1)


def _status(pid: int) -> dict[str, list[str]] | None:
    """Return the fields of /proc/PID/status, see proc_pid_status(5)."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    return {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}


def _children(pid: int) -> Iterator[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            yield from map(int, file.read().split())
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN, or no such process, or no /proc
        yield from _children_by_scan(pid)
    except OSError:
        return


def _children_by_scan(pid: int) -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdigit():
            status = _status(int(name))
            if status is not None and status.get("PPid") == [str(pid)]:
                yield int(name)
