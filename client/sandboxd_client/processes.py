"""Signals to a sandboxed command from outside.

The process that was spawned is bubblewrap, which passes no signals on; a signal to it takes the sandbox down without
the command having heard. The one to signal is the sandbox's process 1, a child of it: it hands signals from outside to
the command. It is found through /proc and pinned with a descriptor before it is signalled, so that its pid cannot mean
another process by then. While it does not exist, or does not listen to the signal yet (the kernel drops those for a
process 1, pid_namespaces(7)), nothing has been run, and the spawned process is signalled itself.

The spawned process must not have been waited for by the time of the call: its pid is then still its own.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Iterator
else:
    import _signal  # what `signal` wraps in enums, 4 ms cheaper to import

SIGSTOP = int(_signal.SIGSTOP)
SIGCONT = int(_signal.SIGCONT)
SIGKILL = int(_signal.SIGKILL)


def signal_command(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to the command that runs under the spawned process `pid`. `group`: the process leads a group of its
    own, which is signalled where there is no pid namespace. A process that is gone is no error."""
    init = _find_init(pid, number)
    if init is None:
        _kill(pid, number, group)
    elif number in (SIGSTOP, SIGCONT):  # stopping process 1 would stop nobody else
        for child in _children(init):
            _send(child, init, number)
    else:
        _send(init, pid, number)


def kill_command(pid: int, *, group: bool = False) -> None:
    """Kill the whole tree: with process 1 its pid namespace goes. The spawned process ends by itself after that."""
    signal_command(pid, SIGKILL, group=group)


def kill_group(leader: int) -> None:
    """Kill what is left of the group that `leader` led. Its id is not given to others while a member lives."""
    _kill(leader, SIGKILL, True)


def in_own_namespace(pid: int) -> bool | None:
    """Whether `pid` is in the pid namespace of this process; None when that cannot be told (it is gone)."""
    status = _status(pid)
    own = _status(os.getpid())
    if status is None or own is None or "NSpid" not in status:
        return None
    return len(status["NSpid"]) == len(own["NSpid"])


def _kill(pid: int, number: int, group: bool) -> None:
    try:
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS says EPERM of a group of zombies
        pass


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
            heeds = _has(status, "SigCgt", number) or _has(status, "SigBlk", number)
            return child if heeds or number in (SIGKILL, SIGSTOP, SIGCONT) else None
    return None


def _has(status: dict[str, list[str]], mask: str, number: int) -> bool:
    return bool(int(status[mask][0], 16) >> (number - 1) & 1)


def _status(pid: int) -> dict[str, list[str]] | None:
    """The fields of /proc/PID/status, see proc_pid_status(5)."""
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
