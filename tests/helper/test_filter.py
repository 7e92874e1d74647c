"""The filter in force. Every call is made with arguments that do no harm: where it is permitted, the kernel finds
fault with them; where it is refused, the answer is another one. Each refusal has its twin without the filter."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from sandboxd.backends.linux.helper.launch_configuration import Flags
from sandboxd.backends.linux.seccomp.filter import build_filter, rows_for
from sandboxd.backends.linux.seccomp.syscall_table import MACHINES, OPEN_ON_PURPOSE, SYSCALLS
from sandboxd.plan.plan import Supervision, UnixSockets

from .conftest import MACHINE, Launcher

PROBE = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
answers = []
for number, *arguments in json.loads(sys.argv[1]):
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(word) for word in arguments))
    answers.append(ctypes.get_errno() if result == -1 else 0)
print(json.dumps(answers))
"""


def number_of(call: str) -> int:
    number = SYSCALLS[call][MACHINES[MACHINE].column]
    assert number is not None
    return number


def probe(launch: Launcher, calls: Sequence[tuple[int, ...]], *, filtered: bool = True) -> list[str]:
    """The name of the error of each call ("0": none), made inside."""
    keywords = {} if filtered else {"program": b"", "flags": Flags.UNFILTERED}
    status, out, err = launch.python(PROBE, json.dumps(calls), **keywords).finish()
    assert status == 0, err
    return [errno.errorcode.get(code, str(code)) for code in json.loads(out)]


# Calls that are refused whatever their arguments, and what the table says of them.
REFUSED = {
    call: str(rows[0].action)
    for call, numbers in SYSCALLS.items()
    if (number := numbers[MACHINES[MACHINE].column]) is not None
    and len(rows := rows_for(MACHINE).get(number, ())) == 1
    and not rows[0].where
}

# Of those, the ones that look at their arguments before they look at privilege, on every kernel.
ANSWERS_OTHERWISE_WITHOUT = """clone3 io_uring_enter mount umount2 chroot setns open_by_handle_at open_tree
    mount_setattr settimeofday clock_settime clock_adjtime adjtimex bpf perf_event_open request_key swapon""".split()


def test_every_refused_call(launch: Launcher) -> None:
    calls = [(number_of(call), -1, -1, -1, -1, -1) for call in REFUSED]
    assert dict(zip(REFUSED, probe(launch, calls), strict=True)) == REFUSED


def test_the_same_calls_without_the_filter(launch: Launcher) -> None:
    calls = [(number_of(call), -1, -1, -1, -1, -1) for call in ANSWERS_OTHERWISE_WITHOUT]
    answers = dict(zip(ANSWERS_OTHERWISE_WITHOUT, probe(launch, calls, filtered=False), strict=True))
    assert not [call for call, answer in answers.items() if answer == REFUSED[call]]


def test_open_calls_answer_as_without_the_filter(launch: Launcher) -> None:
    names = [call for calls, _ in OPEN_ON_PURPOSE for call in calls.split() if call not in {"mmap", "mprotect"}]
    calls = [(number_of(call), -1, -1, -1, -1, -1) for call in names]
    assert probe(launch, calls) == probe(launch, calls, filtered=False)


UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
STREAM, DGRAM, RAW = 1, 2, 3


@pytest.mark.parametrize("garbage", [0, 0x5A5A5A5A << 32])
def test_sockets(launch: Launcher, garbage: int) -> None:
    expected = {
        (UNIX, STREAM, 0): "EPERM",
        (UNIX, DGRAM, 0): "EPERM",
        (INET, STREAM, 0): "0",
        (INET6, STREAM, 6): "0",
        (INET, DGRAM, 17): "0",
        (INET, RAW, 1): "EPERM",
        (INET, STREAM, 132): "EPROTONOSUPPORT",
        (NETLINK, RAW, 0): "0",
        (NETLINK, RAW, 15): "EPROTONOSUPPORT",
        **{(family, DGRAM, 0): "EAFNOSUPPORT" for family in (17, 21, 29, 30, 31, 38, 40, 43, 44, 45)},
    }
    calls = [(number_of("socket"), family | garbage, kind, protocol) for family, kind, protocol in expected]
    assert dict(zip(expected, probe(launch, calls), strict=True)) == expected


def test_unix_sockets_without_filter_and_where_allowed(launch: Launcher) -> None:
    """Io_uring, which could make and connect them, does not exist either way."""
    calls = [(number_of("socket"), UNIX, kind, 0) for kind in (STREAM, DGRAM)]
    assert probe(launch, calls, filtered=False) == ["0", "0"]
    allowing = build_filter(MACHINE, Supervision(unix_sockets=UnixSockets.ALL))
    sandbox = launch.python(PROBE, json.dumps([*calls, (number_of("io_uring_setup"), 0, 0)]), program=allowing)
    assert json.loads(sandbox.finish()[1]) == [0, 0, errno.ENOSYS]


def test_pairs_of_sockets(launch: Launcher) -> None:
    script = """
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
    try:
        a, b = socket.socketpair(type=kind)
        a.send(b"x"); assert b.recv(1) == b"x"
        print("works")
    except PermissionError:
        print("refused")
"""
    assert launch.python(script).finish() == (0, "works\nworks\nrefused\n", "")


def test_namespaces(launch: Launcher) -> None:
    new_user, new_net, signal_child = 0x10000000, 0x40000000, 17
    calls = [
        (number_of("unshare"), new_user),
        (number_of("unshare"), new_user | 0xFF << 32),
        (number_of("unshare"), new_net),
        (number_of("unshare"), 0x400),
        (number_of("clone"), new_user | signal_child, 0, 0, 0, 0),
        (number_of("clone"), new_user | signal_child | 1 << 32, 0, 0, 0, 0),
    ]
    assert probe(launch, calls) == ["EPERM", "EPERM", "EPERM", "0", "EPERM", "EPERM"]


def test_the_terminal(launch: Launcher) -> None:
    requests = [0x5412, 0x541C, 0x5423, 0x5412 | 1 << 32, 0x5413, 0x5401]
    calls = [(number_of("ioctl"), -1, request, 0) for request in requests]
    assert probe(launch, calls) == ["EPERM"] * 4 + ["EBADF"] * 2
    assert probe(launch, calls, filtered=False) == ["EBADF"] * 6


def test_personality(launch: Launcher) -> None:
    calls = [(number_of("personality"), value) for value in (0xFFFFFFFF, 0x40000, 0x400000, 0x40000 | 1 << 40, 0)]
    assert probe(launch, calls) == ["0", "0", "EPERM", "0", "0"]
    assert probe(launch, calls, filtered=False) == ["0"] * 5


def test_numbers_beyond_the_table(launch: Launcher) -> None:
    calls = [(number,) for number in (470, 1000, 0x40000000 | 41, 0x40000000 | 39)]
    assert probe(launch, calls) == ["ENOSYS"] * 4


def elf(bits: int, code: bytes) -> bytes:
    """A static program that consists of `code` (x86)."""
    if bits == 64:
        head = struct.pack(
            "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0
        )
        size = 0x78 + len(code)
        segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, size, size, 0x1000)
    else:
        head = struct.pack("<16sHHIIIIIHHHHHH", b"\x7fELF\x01\x01\x01", 2, 3, 1, 0x400054, 52, 0, 0, 52, 32, 1, 0, 0, 0)
        size = 0x54 + len(code)
        segment = struct.pack("<IIIIIIII", 1, 0, 0x400000, 0x400000, size, size, 5, 0x1000)
    return head + segment + code


# mov eax, NUMBER; [mov ebx, ARGUMENT;] int 0x80: the 32-bit calls getpid, socketcall, and exit(0).
GETPID = b"\xb8\x14\0\0\0\xcd\x80"
SOCKETCALL = b"\xb8\x66\0\0\0\xbb\x01\0\0\0\x31\xc9\xcd\x80"
EXIT_32 = b"\xb8\x01\0\0\0\x31\xdb\xcd\x80"
# mov eax, 60; xor edi, edi; syscall: the 64-bit call exit(0).
EXIT_64 = b"\xb8\x3c\0\0\0\x31\xff\x0f\x05"
PROGRAMS = {
    "64-bit program, its own exit": (elf(64, EXIT_64), 0),
    "64-bit program, 32-bit getpid": (elf(64, GETPID + EXIT_64), 159),
    "64-bit program, 32-bit socketcall": (elf(64, SOCKETCALL + EXIT_64), 159),
    "32-bit program": (elf(32, EXIT_32), 159),
}

if MACHINE == "x86_64":

    @pytest.mark.parametrize("name", PROGRAMS)
    def test_the_32_bit_entry_kills(launch: Launcher, name: str) -> None:
        """The 32-bit way to the system calls."""
        program, expected = PROGRAMS[name]
        path: Path = launch.identity.workspace / "program"
        path.write_bytes(program)
        path.chmod(0o755)
        without = launch.run([str(path)], program=b"", flags=Flags.UNFILTERED)[0]
        # A kernel built without 32-bit support does not even start the program, or its trap.
        assert launch.run([str(path)])[0] == (expected if without == 0 else without)
