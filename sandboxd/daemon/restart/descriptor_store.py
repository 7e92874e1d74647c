"""Descriptor store of the service manager, for a restart by the manager.

See sd_pid_notify_with_fds(3), and FileDescriptorStoreMax= in systemd.service(5). Each descriptor is stored under its
own name, and the document in a memory file beside them. The next daemon gets them after the sockets of its units
(sd_listen_fds_with_names(3)), takes what it can, and empties the store: stored descriptors keep connections open that
both sides have closed. Crash entries (`crash_store`) are stored under other names while the daemon runs.

The manager sends the same signal for a stop and a restart. Its list of jobs tells them apart; only for a restart is
anything stored."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import re
import select
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from sandboxd.children import run_program
from sandboxd.errors import HostError
from sandboxd.handover.crash_documents import document_in, gathered, parse_name
from sandboxd.handover.document import Incoming, Outgoing, read_document
from sandboxd_client import programs
from sandboxd_client.records import dataclass

FIRST = 3
"""SD_LISTEN_FDS_START."""
STATE = "sandboxd-state"
TAKEN_WITHIN_S = 10.0
"""Seconds that the manager may take, before it would kill the daemon."""
ASKED_WITHIN_S = 5.0
MOST = 4096
"""Most descriptors that are stored. The names of all are one variable of the environment of the next daemon, for which
the kernel has 128 KiB (execve(2)): with longer ones no program can be started."""
MOST_BYTES = 64 << 20
"""Most bytes of a memory file. A thousand commands take less than one MiB."""
_NAME = re.compile(r"sandboxd-(?:state|[0-9]{1,9})")
"""Names of handed-over descriptors; `handover.crash_documents` has the others."""
_UNIT = re.compile(r"[^/]+\.service")


def keep(address: str, outgoing: Outgoing) -> None:
    """Pass everything to the service manager at `address` ($NOTIFY_SOCKET).

    Returns when the manager has it. Blocks, so it is the last act of a daemon. Raises OSError."""
    state = os.memfd_create(STATE, os.MFD_CLOEXEC)
    try:
        with open(state, "wb", closefd=False) as file:
            file.write(outgoing.text())
        with _connected(address) as manager:
            _store(manager, STATE, state)
            for part in sorted(outgoing.parts, key=lambda part: part.kind in ("session", "connection")):
                for number in part.descriptors:  # the last ones are dropped if there are too many
                    _store(manager, f"sandboxd-{number}", number)
            _await_taken(manager)
    finally:
        os.close(state)


def empty(address: str, names: tuple[str, ...]) -> None:
    """Remove these names from the store. The manager may be gone."""
    with contextlib.suppress(OSError), _connected(address) as manager:
        for name in names:
            manager.send(removal(name).text.encode())


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
    _send(manager, storing(name, descriptor).text, descriptor)


def _send(manager: socket.socket, text: str, descriptor: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    manager.sendmsg([text.encode()], rights)


def _await_taken(manager: socket.socket) -> None:
    """Wait until the manager closes the pipe, sd_notify_barrier(3)."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        _send(manager, "BARRIER=1", writer)
        os.close(writer)
        writer = -1
        poll = select.poll()
        poll.register(reader, 0)
        if not poll.poll(TAKEN_WITHIN_S * 1000):
            raise TimeoutError("the service manager does not accept descriptors")
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)


def take_stored(environment: MutableMapping[str, str]) -> tuple[Incoming | None, tuple[str, ...]]:
    """Take the state in the store, and the names to empty the store by.

    Afterwards the variables name only the other sockets. Unreadable descriptors are closed. Raises nothing: a daemon
    without the earlier state is better than none."""
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    count = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal() or len(names) != int(count):
        return None, ()
    stored = {FIRST + place: name for place, name in enumerate(names) if _is_own(name)}
    if not stored:
        return None, ()
    # The sockets of units come first. Other names in between were stored by another program.
    others = names[: min(stored) - FIRST]
    environment["LISTEN_FDS"], environment["LISTEN_FDNAMES"] = str(len(others)), ":".join(others)
    for descriptor in range(min(stored), FIRST + len(names)):
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, False)
            if descriptor not in stored:
                os.close(descriptor)
    return _read(stored), tuple(stored.values())


def _is_own(name: str) -> bool:
    return _NAME.fullmatch(name) is not None or parse_name(name) is not None


def _read(stored: Mapping[int, str]) -> Incoming | None:
    """Return the handed-over state, else the crash entries."""
    states = [descriptor for descriptor, name in stored.items() if name == STATE]
    incoming = None
    if len(states) == 1:
        handed = {d: name for d, name in stored.items() if name != STATE and parse_name(name) is None}
        here = {int(name.rpartition("-")[2]): descriptor for descriptor, name in handed.items()}
        with contextlib.suppress(OSError, HostError):
            incoming = read_document(_content(states[0]), here)
    elif not states:
        incoming = _read_kept(stored)
    used = set() if incoming is None else {number for part in incoming.all_parts for number in part.descriptors}
    for descriptor in stored:
        if descriptor not in used:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    return incoming


def _read_kept(stored: Mapping[int, str]) -> Incoming | None:
    memories: dict[str, int] = {}
    here: dict[str, dict[int, int]] = {}
    for descriptor, name in stored.items():
        if (parsed := parse_name(name)) is None:
            continue
        key, number = parsed
        if number is None:
            memories[key] = descriptor
        else:
            here.setdefault(key, {})[number] = descriptor
    documents = []
    for key, memory in memories.items():
        with contextlib.suppress(OSError, HostError):
            documents.append(read_document(document_in(_content(memory)), here.get(key, {})))
    return gathered(documents) if documents else None


def _content(memory: int) -> bytes:
    """Return the content of a memory file. Raises OSError, also for a large one."""
    size = os.fstat(memory).st_size
    if size > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return os.pread(memory, size, 0)


@dataclass(frozen=True, slots=True)
class ManagerMessage:
    """Message to the manager; sending closes its descriptor (-1: none)."""

    text: str
    descriptor: int = -1


def storing(name: str, descriptor: int) -> ManagerMessage:
    # FDPOLL=0 keeps descriptors whose peer has closed, or the document would name missing ones.
    return ManagerMessage(f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}", descriptor)


def removal(name: str) -> ManagerMessage:
    return ManagerMessage(f"FDSTOREREMOVE=1\nFDNAME={name}")


class Store:
    """Store of a running daemon.

    `address` is $NOTIFY_SOCKET. `size` is $FDSTORE, the capacity (systemd 254 and newer). `old` are the names of an
    earlier daemon that crashed."""

    def __init__(self, address: str, size: str = "", old: tuple[str, ...] = ()) -> None:
        self._address = address
        self._size = size
        self.old = old

    def take_old(self) -> tuple[str, ...]:
        """Return the old names once, memory files before their descriptors."""
        old, self.old = self.old, ()
        return tuple(sorted(old, key=lambda name: "." in name))

    async def capacity(self) -> int:
        """Return the capacity; 0 when there is no store or it is unknown."""
        size = self._size
        if not size.isdecimal():
            unit, _ = unit_of(_own_groups())
            size = await _ask("show", "--property=FileDescriptorStoreMax", "--value", unit) if unit else ""
        return min(int(size), MOST) if size.strip().isdecimal() else 0

    def send(self, messages: Sequence[ManagerMessage]) -> None:
        """Send messages in order; blocks on the manager. Raises OSError."""
        try:
            with _connected(self._address) as manager:
                for message in messages:
                    if message.descriptor < 0:
                        manager.send(message.text.encode())
                    else:
                        _send(manager, message.text, message.descriptor)
        finally:
            for message in messages:
                if message.descriptor >= 0:
                    os.close(message.descriptor)


async def restart_intended() -> bool:
    """Return whether the manager ends this service to restart it; False when unknown."""
    unit, _ = unit_of(_own_groups())
    return bool(unit) and names_restart(await _ask("list-jobs", "--plain", "--no-legend"), unit)


async def _ask(*what: str) -> str:
    """Return the output of systemctl(1) of the daemon's manager; empty on failure."""
    _, user = unit_of(_own_groups())
    program = programs.find("systemctl").path
    if program is None:
        return ""
    words = (program, *(("--user",) if user else ()), *what)
    try:
        done = await run_program(words, ASKED_WITHIN_S)
    except OSError:
        return ""
    return "" if done.status is None else done.output.decode(errors="replace")


def names_restart(jobs: str, unit: str) -> bool:
    """Return whether `systemctl list-jobs` (number, unit, kind, state) has a restart."""
    rows = (line.split() for line in jobs.splitlines())
    return any(row[1:3] in ([unit, "restart"], [unit, "try-restart"]) for row in rows)


def _own_groups() -> str:
    return Path("/proc/self/cgroup").read_text(errors="replace")


def unit_of(groups: str) -> tuple[str, bool]:
    """Return service and kind of manager from control groups, proc_pid_cgroup(5)."""
    path = groups.rpartition("::")[2].strip()
    name = path.rpartition("/")[2]
    return (name if _UNIT.fullmatch(name) else ""), "/user@" in path
