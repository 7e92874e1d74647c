"""The service manager's descriptor store: what is handed over when the manager restarts the daemon instead of the
daemon executing itself (sd_pid_notify_with_fds(3), systemd.service(5) FileDescriptorStoreMax=).

Each descriptor goes there under a name of its own, and the document in a memory file beside them. The next daemon finds
them behind the sockets of its units (sd_listen_fds_with_names(3)), takes what it can, and has the store emptied: what
lies there would otherwise keep connections open that both sides have closed.

The manager asks with the same signal whether the service is to end or to come again. Which of both is in its list of
jobs; only for a restart anything is kept.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import re
import select
import socket
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from sandboxd.errors import HostError
from sandboxd.handover.document import Incoming, Outgoing, read_document

FIRST = 3
"""SD_LISTEN_FDS_START."""
STATE = "sandboxd-state"
TAKEN_WITHIN_S = 10.0
"""How long the manager may take to take everything; it kills us later than that."""
ASKED_WITHIN_S = 5.0
_NAME = re.compile(r"sandboxd-(?:state|[0-9]{1,9})")
_UNIT = re.compile(r"[^/]+\.service")


def keep(address: str, outgoing: Outgoing) -> None:
    """Give everything to the service manager at `address` ($NOTIFY_SOCKET), and return when it has it. Raises OSError.
    Takes a while; to be called when nothing else is left to do."""
    state = os.memfd_create(STATE, os.MFD_CLOEXEC)
    try:
        with open(state, "wb", closefd=False) as file:
            file.write(outgoing.text())
        with _connected(address) as manager:
            _store(manager, STATE, state)
            for number in outgoing.descriptors:
                _store(manager, f"sandboxd-{number}", number)
            _await_taken(manager)
    finally:
        os.close(state)


def empty(address: str, names: tuple[str, ...]) -> None:
    """Have these names removed. The manager going away is no reason to stop serving."""
    with contextlib.suppress(OSError), _connected(address) as manager:
        for name in names:
            manager.send(f"FDSTOREREMOVE=1\nFDNAME={name}".encode())


def _connected(address: str) -> socket.socket:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        manager.settimeout(TAKEN_WITHIN_S)  # its queue is short
        manager.connect("\0" + address[1:] if address.startswith("@") else address)
    except OSError:
        manager.close()
        raise
    return manager


def _store(manager: socket.socket, name: str, descriptor: int) -> None:
    # FDPOLL=0: one whose other side has hung up stays too, or the document would name what is not there.
    _send(manager, f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}", descriptor)


def _send(manager: socket.socket, text: str, descriptor: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    manager.sendmsg([text.encode()], rights)


def _await_taken(manager: socket.socket) -> None:
    """sd_notify_barrier(3): the manager closes the pipe when it has seen all that was sent before."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        _send(manager, "BARRIER=1", writer)
        os.close(writer)
        writer = -1
        poll = select.poll()
        poll.register(reader, 0)
        if not poll.poll(TAKEN_WITHIN_S * 1000):
            raise TimeoutError("the service manager does not take what is to be kept")
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)


def take_stored(environment: MutableMapping[str, str]) -> tuple[Incoming | None, tuple[str, ...]]:
    """What the daemon before has put into the store, and the names to empty it by; None when there is nothing. The
    variables then speak of what else was passed only. What cannot be read is closed. Raises nothing: a daemon without
    its past is better than none."""
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    count = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal() or len(names) != int(count):
        return None, ()
    stored = {FIRST + place: name for place, name in enumerate(names) if _NAME.fullmatch(name)}
    if not stored:
        return None, ()
    for descriptor in stored:
        os.set_inheritable(descriptor, False)
    others = [name for name in names if not _NAME.fullmatch(name)]
    environment["LISTEN_FDS"], environment["LISTEN_FDNAMES"] = str(len(others)), ":".join(others)
    return _read(stored), tuple(stored.values())


def _read(stored: Mapping[int, str]) -> Incoming | None:
    states = [descriptor for descriptor, name in stored.items() if name == STATE]
    here = {int(name.rpartition("-")[2]): descriptor for descriptor, name in stored.items() if name != STATE}
    incoming = None
    if len(states) == 1:
        with contextlib.suppress(OSError, HostError):
            text = os.pread(states[0], os.fstat(states[0]).st_size, 0)
            incoming = read_document(text, here)
    used = set() if incoming is None else {number for part in incoming.all_parts for number in part.descriptors}
    for descriptor in stored:
        if descriptor not in used:
            os.close(descriptor)
    return incoming


async def restart_intended() -> bool:
    """Whether the manager has asked this service to end so that it starts it again. False when that cannot be known."""
    unit, user = unit_of(_own_groups())
    if not unit:
        return False
    words = ("systemctl", *(("--user",) if user else ()), "list-jobs", "--plain", "--no-legend")
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    try:
        async with asyncio.timeout(ASKED_WITHIN_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return False
    return names_restart(said.decode(errors="replace"), unit)


def names_restart(jobs: str, unit: str) -> bool:
    """Whether there is a job of this kind in what `systemctl list-jobs` prints: number, unit, kind, state."""
    rows = (line.split() for line in jobs.splitlines())
    return any(row[1:3] in ([unit, "restart"], [unit, "try-restart"]) for row in rows)


def _own_groups() -> str:
    return Path("/proc/self/cgroup").read_text(errors="replace")


def unit_of(groups: str) -> tuple[str, bool]:
    """The service that a process with these control groups belongs to (proc_pid_cgroup(5)), and whether it is that of a
    user's manager."""
    path = groups.rpartition("::")[2].strip()
    name = path.rpartition("/")[2]
    return (name if _UNIT.fullmatch(name) else ""), "/user@" in path
