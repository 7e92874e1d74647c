"""What the filter does to every call of the table, by running its program in a simulator, for both machines."""

from __future__ import annotations

import errno
import os
import re
import socket
from dataclasses import dataclass
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.backends.linux.seccomp.filter import build_filter, needs_listener, rows_for
from sandboxd.backends.linux.seccomp.notified_calls import (
    CHANGES,
    CONNECTS,
    GUARD,
    NAMES,
    READS,
    REMOVALS,
    SET_USER_ID,
    SOCKETS_HANDED_IN,
    UNIX_SOCKETS_LISTED,
    call_name,
)
from sandboxd.backends.linux.seccomp.syscall_table import (
    ALLOW,
    LAST_REVIEWED,
    MACHINES,
    OPEN_ON_PURPOSE,
    ROWS,
    SYSCALLS,
    UNIX_SOCKETS_ALLOWED,
    UNIX_SOCKETS_REFUSED,
    Action,
    ReturnValue,
    SyscallRule,
)
from sandboxd.errors import HostError
from sandboxd.plan.plan import Supervision, UnixSockets
from support import bpf_simulator

STRICT, OPEN = Supervision(), Supervision(unix_sockets=UnixSockets.ALL)
BOTH_OPTIONS = (STRICT, OPEN)
WATCHED = Supervision(writes=True, reads=False, connects=True)
EVERYTHING = Supervision(writes=True, reads=True, connects=True, unix_sockets=UnixSockets.LISTED)
UNREPORTED = Supervision(removals=True)
GUARDED = Supervision(guard=True)
ALL_OPTIONS = (STRICT, OPEN, WATCHED, EVERYTHING, UNREPORTED, GUARDED)
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM = 0x40000003, 0x40000028

UNIX, INET, INET6, NETLINK = socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK
STREAM, DGRAM, RAW, SEQPACKET = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET
CLOEXEC, NONBLOCK = socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK
REMOVEDIR = 0x200  # AT_REMOVEDIR
GARBAGE = 0xDEADBEEF << 32

# From linux/sched.h and linux/personality.h.
NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET, NEWTIME = 0x10000000, 0x20000000, 0x40000000, 0x80
FORK = 0x11  # SIGCHLD
GLIBC_FORK = 0x01200011  # CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD
THREAD = 0x003D0F00  # what pthread_create passes
VFORK = 0x4111


ONLY_X86 = """chmod chown creat futimesat lchown link mkdir mknod open rename rmdir symlink unlink utime
    utimes""".split()
ALWAYS_LOOKED_AT = """connect truncate mkdirat mknodat linkat symlinkat renameat renameat2 unlinkat fchmodat
    fchmodat2 fchown fchownat utimensat setxattr lsetxattr setxattrat removexattr lremovexattr removexattrat
    file_setattr""".split()


ON_NAMES = """creat truncate mkdir mkdirat mknod mknodat link linkat symlink symlinkat rename renameat renameat2 unlink
    unlinkat""".split()


@dataclass(frozen=True)
class Case:
    call: str
    arguments: tuple[int, ...]
    strict: str
    allowing: str | None = None  # with all Unix sockets allowed; the same where nothing is said
    watched: str | None = None  # with writes and connects looked at
    everything: str | None = None  # with reads looked at too, and listed Unix sockets
    unreported: str | None = None  # with only removals looked at
    guarded: str | None = None  # with names made by the helper

    def __str__(self) -> str:
        return f"{self.call}({', '.join(map(hex, self.arguments))})"


def _cases() -> list[Case]:
    cases = [
        # Unix sockets, and what else makes sockets.
        Case("socket", (UNIX, STREAM, 0), "EPERM", "allow", everything="allow"),
        Case("socket", (UNIX, STREAM | CLOEXEC | NONBLOCK, 0), "EPERM", "allow", everything="allow"),
        Case("socket", (UNIX, DGRAM, 0), "EPERM", "allow", everything="allow"),
        Case("socket", (UNIX, DGRAM | CLOEXEC | NONBLOCK, 0), "EPERM", "allow", everything="allow"),
        Case("socket", (UNIX, RAW, 0), "EPERM", "allow", everything="allow"),
        Case("socket", (UNIX, SEQPACKET, 0), "EPERM", "allow", everything="allow"),
        Case("socket", (UNIX | GARBAGE, STREAM | GARBAGE, 0), "EPERM", "allow", everything="allow"),
        Case("socketpair", (UNIX, STREAM, 0), "allow"),
        Case("socketpair", (UNIX, STREAM | CLOEXEC | NONBLOCK, 0), "allow"),
        Case("socketpair", (UNIX, SEQPACKET | CLOEXEC, 0), "allow"),
        Case("socketpair", (UNIX, DGRAM, 0), "EPERM", "allow", everything="allow"),
        Case("socketpair", (UNIX, DGRAM | CLOEXEC, 0), "EPERM", "allow", everything="allow"),
        Case(
            "socketpair", (UNIX, RAW, 0), "EPERM", "allow", everything="allow"
        ),  # the kernel takes it for a datagram pair
        Case("socketpair", (UNIX | GARBAGE, DGRAM | GARBAGE, 0), "EPERM", "allow", everything="allow"),
        Case("socketpair", (socket.AF_TIPC, STREAM, 0), "EAFNOSUPPORT"),
        Case("socketpair", (INET, STREAM, 0), "EAFNOSUPPORT"),
        Case("socket", (NETLINK, RAW | CLOEXEC, 0), "allow"),
        Case("socket", (NETLINK | GARBAGE, DGRAM, GARBAGE), "allow"),
        *(Case("socket", (NETLINK, RAW, protocol), "EPROTONOSUPPORT") for protocol in (4, 9, 12, 15, 16, 21)),
        *(
            Case("socket", (family, kind | flags, protocol), "allow")
            for family in (INET, INET6)
            for kind, protocols in ((STREAM, (0, 6, 262)), (DGRAM, (0, 17, 1, 58)))
            for protocol in protocols
            for flags in (0, CLOEXEC, NONBLOCK | CLOEXEC)
        ),
        Case("socket", (INET | GARBAGE, STREAM | GARBAGE, 6 | GARBAGE), "allow"),
        *(Case("socket", (INET, STREAM, protocol), "EPROTONOSUPPORT") for protocol in (132, 256, 33, 255)),
        *(Case("socket", (INET6, DGRAM, protocol), "EPROTONOSUPPORT") for protocol in (136, 115)),
        *(Case("socket", (family, kind, 255), "EPERM") for family in (INET, INET6) for kind in (RAW, 10)),
        Case("socket", (INET, RAW | CLOEXEC, 1), "EPERM"),
        Case("socket", (INET, SEQPACKET, 132), "EPERM"),
        # Every other family: packet, Bluetooth, ALG, CAN, TIPC, VSOCK, RDS, SMC, XDP, and one of the future.
        *(Case("socket", (family, RAW, 0), "EAFNOSUPPORT") for family in (0, 17, 31, 38, 29, 30, 40, 21, 43, 44, 46)),
        Case("socket", (38, SEQPACKET | CLOEXEC, 0), "EAFNOSUPPORT"),
        *(Case(f"io_uring_{name}", (1,), "ENOSYS") for name in ("setup", "enter", "register")),
        # Namespaces.
        *(Case("clone", (flags,), "allow") for flags in (FORK, GLIBC_FORK, THREAD, VFORK, 0, FORK | GARBAGE)),
        *(
            Case("clone", (flag | FORK,), "EPERM")
            for flag in (NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWUSER | NEWNS | GARBAGE)
        ),
        Case("clone3", (0x7FFF0000, 88), "ENOSYS"),
        *(Case("unshare", (flags,), "allow") for flags in (0, 0x200, 0x400, 0x40000, 0x600, 0x10D00)),
        *(
            Case("unshare", (flag,), "EPERM")
            for flag in (NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME, NEWUSER | 0x400)
        ),
        Case("unshare", (NEWUSER | GARBAGE,), "EPERM"),
        Case("setns", (3, 0), "EPERM"),
        # The terminal: the three, and their neighbours in asm-generic/ioctls.h.
        *(Case("ioctl", (0, request), "EPERM") for request in (0x5412, 0x541C, 0x5423)),
        *(Case("ioctl", (0, request | 1 << 32), "EPERM") for request in (0x5412, 0x541C, 0x5423)),
        *(Case("ioctl", (0, request), "allow") for request in (0x5401, 0x5410, 0x5411, 0x5413, 0x541B, 0x541D)),
        # Leases, and their neighbours in linux/fcntl.h.
        *(Case("fcntl", (3, 1024 | high), "EPERM") for high in (0, 1 << 32)),
        *(Case("fcntl", (3, command), "allow") for command in (0, 1, 2, 3, 4, 6, 7, 38, 1023, 1025, 1026, 1030, 1033)),
        # Process 1, and all others.
        *(
            Case(call, (pid,), "EPERM" if pid & 0xFFFFFFFF == 1 else "allow")
            for call in "prlimit64 sched_setaffinity sched_setscheduler sched_setparam sched_setattr".split()
            for pid in (0, 1, 2, 1 | GARBAGE, 0xFFFFFFFF)
        ),
        *(Case("setpriority", (0, pid), result) for pid, result in ((0, "allow"), (1, "EPERM"), (2, "allow"))),
        *(Case("ioprio_set", (1, pid), result) for pid, result in ((0, "allow"), (1, "EPERM"), (2, "allow"))),
        Case("setpriority", (2, 1), "allow"),  # user 1
        Case("ioprio_set", (3, 1), "allow"),
        # Personality: Linux, the query, ADDR_NO_RANDOMIZE alone and with PER_LINUX32, UNAME26.
        *(Case("personality", (value,), "allow") for value in (0, 0xFFFFFFFF, 0x40000, 0x40008, 0x8, 0x20000)),
        Case("personality", (0xFFFFFFFF | GARBAGE,), "allow"),
        # READ_IMPLIES_EXEC, MMAP_PAGE_ZERO, ADDR_COMPAT_LAYOUT, PER_SVR4.
        *(Case("personality", (value,), "EPERM") for value in (0x400000, 0x100000, 0x200000, 0x4100001, 0x440000)),
    ]
    cases += [
        # What is looked at: by its flags where they can be seen.
        *(
            case
            for flags in (os.O_RDONLY, os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW, os.O_PATH, os.O_NONBLOCK)
            for case in (
                Case("open", (0, flags), "allow", everything="notify"),
                Case("openat", (0, 0, flags | GARBAGE), "allow", everything="notify"),
            )
        ),
        *(
            case
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_TMPFILE, os.O_WRONLY | os.O_APPEND, 3)
            for case in (
                Case("open", (0, flags | os.O_CLOEXEC), "allow", watched="notify", guarded="notify"),
                Case("openat", (0, 0, flags | GARBAGE), "allow", watched="notify", guarded="notify"),
            )
        ),
        *(
            Case(call, (0, 0, 0), "allow", watched="notify", guarded="notify" if call in ON_NAMES else None)
            for call in (*ALWAYS_LOOKED_AT, *ONLY_X86)
            if call not in ("open", "rmdir", "utimensat")
        ),
        # Without a path it is of a descriptor, as futimens(3) has it.
        Case("utimensat", (3, 0, 0), "allow"),
        *(Case("utimensat", (3, path, 0), "allow", watched="notify") for path in (1, 1 << 32, 0x7FFF00000000)),
        Case("rmdir", (0,), "allow", watched="notify", unreported="notify", guarded="notify"),
        *(
            Case("unlinkat", (0, 0, flags), "allow", watched="notify", unreported="notify", guarded="notify")
            for flags in (REMOVEDIR, REMOVEDIR | GARBAGE)
        ),
    ]
    cases += [
        # Set-user-ID, alone and with other bits, where a mode counts; other bits, and a mode that does not count.
        *(
            Case(call, (0,) * place + (mode | GARBAGE,), "EPERM", watched=watched)
            for call, place, watched in (
                ("chmod", 1, "notify"), ("fchmod", 1, "notify"), ("fchmodat", 2, "notify"), ("fchmodat2", 2, "notify"),
                ("creat", 1, None), ("mknod", 1, None), ("mknodat", 2, None)
            )
            for mode in (0o4000, 0o4755, 0o7777, 0o104755)
        ),
        *(Case("fchmod", (3, mode), "allow") for mode in (0o755, 0o2775, 0o3777, 0)),
        *(Case("chmod", (0, mode), "allow", watched="notify") for mode in (0o755, 0o2775, 0o1777)),
        *(
            Case(call, (*before, flags, 0o4755), "EPERM")
            for call, before in (("open", (0,)), ("openat", (0, 0)))
            for flags in (os.O_CREAT, os.O_TMPFILE | os.O_RDWR, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC)
        ),
        *(
            Case(call, (*before, os.O_RDONLY | os.O_DIRECTORY, 0o4755), "allow", everything="notify")
            for call, before in (("open", (0,)), ("openat", (0, 0)))
        ),
    ]  # fmt: skip
    cases += [
        # Where the helper looks at sockets: descriptors shared without a thread, and callers that hide.
        *(Case("clone", (flags,), "allow", everything="notify") for flags in (0x411, 0x511, 0x4711, 0x400 | GARBAGE)),
        Case("clone", (0x400 | NEWUSER,), "EPERM"),
        *(Case("prctl", (4, value), "allow", everything="success", guarded="success") for value in (0, GARBAGE)),
        *(Case("prctl", arguments, "allow") for arguments in ((4, 1), (3, 0), (15, 0), (38, 1))),
        *(Case(call, (3, 132, 110), "allow", everything="ENOTSUP") for call in ("setsockopt", "getsockopt")),
        *(Case(call, (3, level, 110), "allow") for call in ("setsockopt", "getsockopt") for level in (0, 1, 6, 41)),
        *(Case(call, (3, 0), "allow", everything="notify") for call in ("bind", "sendmsg", "sendmmsg")),
        Case("umask", (0o22,), "allow", guarded="notify"),
        *(Case("ioctl", (3, 0x50009400 | number), "allow", guarded="EPERM") for number in (1, 23, 24)),
        Case("ioctl", (3, 0x5000940E | GARBAGE), "allow", guarded="EPERM"),
        Case("listen", (3, 0), "allow", watched="notify", everything="notify"),
        Case("sendto", (3, 0, 0, 0, 0, 0), "allow"),
        Case("sendto", (3, 0, 0, 0, 0x100000000, GARBAGE), "allow"),
        Case("sendto", (3, 0, 0, 0, 0x100000000, 16), "allow", everything="notify"),
        # TCP fast open connects by sending.
        Case("sendto", (3, 0, 0, 0x20000000, 0, 16), "allow", everything="notify"),
        Case("sendto", (3, 0, 0, 0x20004000, 0, 0), "allow"),
        Case("sendmsg", (3, 0, GARBAGE | 0x20000000), "allow", everything="notify"),
        Case("sendmmsg", (3, 0, 1, 0x20000000), "allow", everything="notify"),
    ]
    unconditional = {
        "EPERM": """mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick
            mount_setattr open_by_handle_at vhangup add_key request_key keyctl bpf perf_event_open userfaultfd
            kexec_load kexec_file_load reboot init_module finit_module delete_module swapon swapoff quotactl
            quotactl_fd acct settimeofday clock_settime clock_adjtime adjtimex syslog iopl ioperm""",
        "ENOSYS": "openat2 modify_ldt memfd_secret lookup_dcookie nfsservctl",
        "allow": " ".join(names for names, _ in OPEN_ON_PURPOSE),
    }
    restricts = "landlock_restrict_self"
    unconditional["allow"] = unconditional["allow"].replace(restricts, "")
    cases.append(Case(restricts, (1, 2, 3), "allow", guarded="notify"))
    return cases + [Case(call, (1, 2, 3), result) for result, calls in unconditional.items() for call in calls.split()]


CASES = _cases()
ALL_ROWS = (
    *UNIX_SOCKETS_REFUSED, *UNIX_SOCKETS_LISTED, *UNIX_SOCKETS_ALLOWED, *ROWS, *READS, *NAMES, *CHANGES, *SET_USER_ID,
    *REMOVALS, *CONNECTS, *SOCKETS_HANDED_IN, *GUARD,
)  # fmt: skip


def outcome(machine: str, options: Supervision, number: int, arguments: tuple[int, ...] = ()) -> str:
    result = bpf_simulator.run(build_filter(machine, options), AUDIT[machine], number, arguments)
    if result.action == bpf_simulator.ERRNO:
        return errno.errorcode[result.data] if result.data else "success"
    return str(result)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_call(machine: str, case: Case) -> None:
    number = SYSCALLS[case.call][MACHINES[machine].column]
    if number is None:
        assert machine == "aarch64" and case.call in {"iopl", "ioperm", "modify_ldt", *ONLY_X86}
        return
    assert outcome(machine, STRICT, number, case.arguments) == case.strict
    assert outcome(machine, OPEN, number, case.arguments) == (case.allowing or case.strict)
    assert outcome(machine, WATCHED, number, case.arguments) == (case.watched or case.strict)
    assert outcome(machine, EVERYTHING, number, case.arguments) == (case.everything or case.watched or case.strict)
    assert outcome(machine, UNREPORTED, number, case.arguments) == (case.unreported or case.strict)
    assert outcome(machine, GUARDED, number, case.arguments) == (case.guarded or case.strict)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_descriptor_is_given_to_its_own_owner_without_a_look(machine: str) -> None:
    program = build_filter(machine, WATCHED, (1000, 100))
    unchanged = 0xFFFFFFFF
    seen = {
        (user, group): str(bpf_simulator.run(program, AUDIT[machine], number, (3, user, group)))
        for user in (1000, 1000 | GARBAGE, unchanged, -1 & (1 << 64) - 1, 0, 100, 1001)
        for group in (100, 100 | GARBAGE, unchanged, -1 & (1 << 64) - 1, 0, 1000, 101)
        for number in (SYSCALLS["fchown"][MACHINES[machine].column],)
        if number is not None
    }
    own = {pair: pair[0] & unchanged in (1000, unchanged) and pair[1] & unchanged in (100, unchanged) for pair in seen}
    assert seen == {pair: "allow" if is_own else "notify" for pair, is_own in own.items()}
    for call in ("chown", "lchown", "fchownat"):
        number = SYSCALLS[call][MACHINES[machine].column]
        if number is not None:
            assert str(bpf_simulator.run(program, AUDIT[machine], number, (3, 1000, 100))) == "notify"


def test_the_cases_reach_every_row_and_every_call() -> None:
    def reached(options: Supervision) -> set[int]:
        rows = rows_for("x86_64", options)
        return {
            id(row)
            for case in CASES
            if (row := first_row(rows.get(SYSCALLS[case.call][0] or 0, ()), case.arguments)) is not None
        }

    found = set().union(*map(reached, ALL_OPTIONS))
    missing = [row for row in ALL_ROWS if id(row) not in found]
    assert not missing
    assert {case.call for case in CASES} == set(SYSCALLS)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("options", ALL_OPTIONS)
class TestShape:
    def test_the_kernel_would_take_it_and_it_is_short(self, machine: str, options: Supervision) -> None:
        program = build_filter(machine, options)
        bpf_simulator.check(program)
        assert len(program) // 8 < 280

    def test_ordinary_calls_take_few_instructions(self, machine: str, options: Supervision) -> None:
        program = build_filter(machine, options)
        for number in range(LAST_REVIEWED + 1):
            if number not in rows_for(machine, options):
                assert bpf_simulator.run(program, AUDIT[machine], number).steps <= 12

    @pytest.mark.parametrize("architecture", [I386, ARM, 0xC0000015, 0, 0xC000003F])
    def test_another_architecture_is_killed(self, machine: str, options: Supervision, architecture: int) -> None:
        for number in (0, 1, 41, 102, 198, 359):
            result = bpf_simulator.run(build_filter(machine, options), architecture, number)
            assert result.action == bpf_simulator.KILL_PROCESS

    def test_the_other_machine_is_another_architecture(self, machine: str, options: Supervision) -> None:
        for other in AUDIT.values():
            result = bpf_simulator.run(build_filter(machine, options), other, 0)
            assert (result.action == bpf_simulator.ALLOW) == (other == AUDIT[machine])

    @pytest.mark.parametrize("number", [0, 1, 41, 53, 425, 512, 520, 546])
    def test_x32_calls_do_not_exist(self, machine: str, options: Supervision, number: int) -> None:
        """The numbers of x32."""
        assert outcome(machine, options, 0x40000000 | number) == "ENOSYS"

    @pytest.mark.parametrize("number", [LAST_REVIEWED + 1, 500, 1000, 0x3FFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE])
    def test_calls_nobody_has_looked_at_do_not_exist(self, machine: str, options: Supervision, number: int) -> None:
        assert outcome(machine, options, number) == "ENOSYS"

    def test_no_call_is_left_to_the_debugger(self, machine: str, options: Supervision) -> None:
        assert outcome(machine, options, -1) == "allow"


def first_row(rows: tuple[SyscallRule, ...], arguments: tuple[int, ...]) -> SyscallRule | None:
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    return next((row for row in rows if all(where.holds(padded) for where in row.where)), None)


def interpret(machine: str, options: Supervision, architecture: int, number: int, arguments: tuple[int, ...]) -> Action:
    """The table read directly, as its docstrings describe it."""
    if architecture != MACHINES[machine].audit:
        return Action(ReturnValue.KILL)
    if number == 0xFFFFFFFF:
        return ALLOW
    if number > LAST_REVIEWED:
        return Action(ReturnValue.REFUSE, errno.ENOSYS)
    row = first_row(rows_for(machine, options).get(number, ()), arguments)
    return row.action if row else ALLOW


_interesting_values = sorted(
    {value for row in ALL_ROWS for where in row.where for value in where.values}
    | {case_argument & 0xFFFFFFFF for case in CASES for case_argument in case.arguments}
)
_argument = st.builds(
    lambda low, high: low | high << 32,
    st.one_of(
        st.sampled_from(_interesting_values),
        st.builds(lambda a, b: a | b, st.sampled_from(_interesting_values), st.sampled_from(_interesting_values)),
        st.integers(0, 0xFFFFFFFF),
    ),
    st.sampled_from([0, 1, 0xFFFFFFFF]),
)


@given(
    machine=st.sampled_from(sorted(MACHINES)),
    options=st.sampled_from(ALL_OPTIONS),
    architecture=st.sampled_from([None, None, None, None, I386, ARM]),
    call=st.one_of(st.sampled_from(sorted(SYSCALLS)), st.integers(0, 480), st.integers(0, 0xFFFFFFFF)),
    arguments=st.tuples(*[_argument] * 6),
)
def test_the_program_does_what_the_table_says(
    machine: str, options: Supervision, architecture: int | None, call: str | int, arguments: tuple[int, ...]
) -> None:
    audit = AUDIT[machine] if architecture is None else architecture
    number = SYSCALLS[call][MACHINES[machine].column] if isinstance(call, str) else call
    if number is None:
        return
    result = bpf_simulator.run(build_filter(machine, options), audit, number, arguments)
    assert result.action | result.data == interpret(machine, options, audit, number, arguments).value


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_is_decided_as_the_table_says(machine: str) -> None:
    program = build_filter(machine)
    for number in range(1024):
        result = bpf_simulator.run(program, AUDIT[machine], number)
        assert result.action | result.data == interpret(machine, STRICT, AUDIT[machine], number, (0,) * 6).value


@pytest.mark.parametrize("machine", MACHINES)
def test_the_names_of_calls(machine: str) -> None:
    for name in ("openat", "connect", "renameat2"):
        number = SYSCALLS[name][MACHINES[machine].column]
        assert number is not None and call_name(number, machine) == name
    assert call_name(7777, machine) == "7777"


@pytest.mark.parametrize(
    ("supervision", "needed"),
    [
        (Supervision(), False),
        (Supervision(writes=True), True),
        (Supervision(reads=True), True),
        (Supervision(connects=True), True),
        (Supervision(removals=True), True),
        (Supervision(unix_sockets=UnixSockets.LISTED), True),
        (Supervision(unix_sockets=UnixSockets.ALL), False),
    ],
)
def test_a_listener_is_needed_where_something_is_looked_at(supervision: Supervision, needed: bool) -> None:
    assert needs_listener(supervision) is needed
    results = {
        str(bpf_simulator.run(build_filter("x86_64", supervision), AUDIT["x86_64"], n))
        for n in range(LAST_REVIEWED + 1)
    }
    assert ("notify" in results) is needed


def test_a_machine_without_a_table_is_an_error() -> None:
    with pytest.raises(HostError) as caught:
        build_filter("riscv64")
    assert caught.value.slug == "machine_unsupported" and "x86_64 and aarch64" in caught.value.hint


def test_every_row_has_its_reason() -> None:
    for row in ALL_ROWS:
        assert row.why and row.calls


# Newer than the list that the compiler brings along; include/uapi/asm-generic/unistd.h of Linux 6.17 has them.
NEWER = """statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat
    listxattrat removexattrat open_tree_attr file_getattr file_setattr""".split()
NEW_NUMBERS = {name: 457 + place for place, name in enumerate(NEWER)}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_the_last_years_has_been_decided(machine: str) -> None:
    """From 424 on all machines have the same numbers; none of them is open by oversight."""
    named = {call for row in ALL_ROWS for call in row.calls}
    named |= {call for calls, _ in OPEN_ON_PURPOSE for call in calls.split()}
    numbers = {SYSCALLS[call][MACHINES[machine].column] for call in named}
    assert set(range(424, LAST_REVIEWED + 1)) <= numbers


@pytest.mark.parametrize(("machine", "name"), [("x86_64", "X64"), ("aarch64", "Arm64")])
def test_the_numbers_are_those_of_an_independent_list(machine: str, name: str) -> None:
    text = (files("ziglang") / "lib/std/os/linux/syscalls.zig").read_text()
    body = re.search(rf"pub const {name} = enum\(usize\) \{{(.*?)\n\}};", text, re.DOTALL)
    assert body is not None
    listed = {word: int(number) for word, number in re.findall(r"^\s+(\w+) = (\d+),", body[1], re.MULTILINE)}
    ours = {call: numbers[MACHINES[machine].column] for call, numbers in SYSCALLS.items()}
    assert ours == {call: listed.get(call, NEW_NUMBERS.get(call)) for call in SYSCALLS}
