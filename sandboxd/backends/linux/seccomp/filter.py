"""The seccomp program for the table of system calls. Pure and deterministic.

The program checks the architecture, then finds the call by binary search over the numbers, so that an ordinary call
costs some seven comparisons (and none where the kernel caches calls that are always allowed, Linux 5.11). Then come the
conditions of that call's rows, in the order of the table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sandboxd.backends.linux.seccomp.bpf import Label, ProgramBuilder
from sandboxd.backends.linux.seccomp.notified_calls import (
    CHANGES,
    CONNECTS,
    GUARD,
    NAMES,
    READS,
    REMOVALS,
    SERVERS,
    SET_USER_ID,
    SOCKETS_HANDED_IN,
    UNIX_SOCKETS_LISTED,
    own_owner,
)
from sandboxd.backends.linux.seccomp.syscall_table import (
    ALLOW,
    BEYOND_LAST_REVIEWED,
    FOREIGN_ARCHITECTURE,
    LAST_REVIEWED,
    MACHINES,
    NO_CALL,
    ROWS,
    SYSCALLS,
    UNIX_SOCKETS_ALLOWED,
    UNIX_SOCKETS_REFUSED,
    Argument,
    SyscallRule,
)
from sandboxd.errors import HostError
from sandboxd.plan.plan import Supervision, UnixSockets

# Offsets in struct seccomp_data (linux/seccomp.h); the low half of an argument comes first.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


_STRICT = Supervision()


def rows_for(
    machine: str, supervision: Supervision = _STRICT, ids: tuple[int, int] | None = None
) -> dict[int, tuple[SyscallRule, ...]]:
    """Return the rows of each system call number of `machine` (as in `uname -m`).

    Rows are in the order of evaluation: refusals before notifications. `ids` are the user's and the group's that the
    command will have, where they are known. Raises HostError `machine_unsupported` for a machine without a table."""
    if machine not in MACHINES:
        known = " and ".join(MACHINES)
        raise HostError("machine_unsupported", f"no system call filter for {machine}", hint=f"sandboxd runs on {known}")
    rows: dict[int, tuple[SyscallRule, ...]] = {}
    first = SET_USER_ID if supervision.writes else ()
    owner = own_owner(*ids) if ids is not None and supervision.writes else ()
    for row in (*_UNIX[supervision.unix_sockets], *first, *ROWS, *owner, *_notified(supervision)):
        for call in row.calls:
            number = SYSCALLS[call][MACHINES[machine].column]
            if number is not None:
                rows[number] = (*rows.get(number, ()), row)
    return rows


_UNIX: dict[UnixSockets, tuple[SyscallRule, ...]] = {
    UnixSockets.NONE: UNIX_SOCKETS_REFUSED,
    UnixSockets.LISTED: UNIX_SOCKETS_LISTED,
    UnixSockets.ALL: UNIX_SOCKETS_ALLOWED,
}


def needs_listener(supervision: Supervision) -> bool:
    """Return whether a filter notifies; without a listener calls fail with ENOSYS."""
    return bool(_notified(supervision))


def _notified(supervision: Supervision) -> tuple[SyscallRule, ...]:
    listed = supervision.unix_sockets is UnixSockets.LISTED
    asks = supervision.connects or listed
    return (
        *(READS if supervision.reads else ()),
        *(NAMES if supervision.writes or supervision.guard else REMOVALS if supervision.removals else ()),
        *(CHANGES if supervision.writes else ()),
        *(GUARD if supervision.guard else ()),
        *(CONNECTS if asks else ()),
        *(SOCKETS_HANDED_IN if listed else ()),
        *(SERVERS if supervision.connects and not listed else ()),
    )


@lru_cache(maxsize=32)
def build_filter(machine: str, supervision: Supervision = _STRICT, ids: tuple[int, int] | None = None) -> bytes:
    """Return the BPF program for seccomp(2). Raises HostError as `rows_for` does."""
    rows = rows_for(machine, supervision, ids)
    builder = ProgramBuilder()
    allow, beyond = builder.returning(ALLOW.value), builder.returning(BEYOND_LAST_REVIEWED.value)

    # Where the answer changes as the number grows: (first number, what decides from there on).
    changes: list[tuple[int, Label]] = [(0, allow)]
    for number in sorted(rows):
        changes += [(number, _decide(builder, rows[number], allow)), (number + 1, allow)]
    changes += [(LAST_REVIEWED + 1, beyond), (NO_CALL, allow)]

    search = builder.load(_NUMBER, _search(builder, _without_repetition(changes)))
    foreign = builder.returning(FOREIGN_ARCHITECTURE.value)
    right_machine = builder.if_equal(MACHINES[machine].audit, search, foreign)
    return builder.finish(builder.load(_ARCHITECTURE, right_machine))


def _without_repetition(changes: Sequence[tuple[int, Label]]) -> list[tuple[int, Label]]:
    """Drop changes that a later one for the same number replaces, or without effect."""
    kept: list[tuple[int, Label]] = []
    for number, label in changes:
        if kept and kept[-1][0] == number:
            kept.pop()
        if not kept or kept[-1][1] != label:
            kept.append((number, label))
    return kept


def _search(builder: ProgramBuilder, changes: Sequence[tuple[int, Label]]) -> Label:
    if len(changes) == 1:
        return changes[0][1]
    middle = len(changes) // 2
    above = _search(builder, changes[middle:])
    below = _search(builder, changes[:middle])
    return builder.if_at_least(changes[middle][0], yes=above, no=below)


def _decide(builder: ProgramBuilder, rows: Sequence[SyscallRule], otherwise: Label) -> Label:
    """Evaluate the rows one after the other."""
    for row in reversed(rows):
        label = builder.returning(row.action.value)
        for where in reversed(row.where):
            label = _test(builder, where, yes=label, no=otherwise)
        otherwise = label
    return otherwise


def _test(builder: ProgramBuilder, where: Argument, yes: Label, no: Label) -> Label:
    for value in reversed(where.values):
        no = builder.if_equal(value, yes, no)
    if where.bits != 0xFFFFFFFF:
        no = builder.mask(where.bits, no)
    return builder.load(_ARGUMENTS + 8 * where.argument + 4 * where.high, no)
