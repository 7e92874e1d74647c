"""Runs a seccomp program as the kernel would, so that tests can ask what it does to any call on any machine.

`check` makes the checks of the kernel when a filter is installed (bpf_check_classic and seccomp_check_filter), `run`
executes one. Written from the documentation of the kernel (networking/filter.rst, userspace-api/seccomp_filter.rst),
and shares nothing with the code that writes programs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
USER_NOTIF = 0x7FC00000

_LD_W_ABS, _ALU_AND_K, _RET_K = 0x20, 0x54, 0x06
_JA, _JEQ, _JGT, _JGE, _JSET = 0x05, 0x15, 0x25, 0x35, 0x45
_CONDITIONS: dict[int, Callable[[int, int], bool]] = {
    _JEQ: lambda word, k: word == k,
    _JGT: lambda word, k: word > k,
    _JGE: lambda word, k: word >= k,
    _JSET: lambda word, k: bool(word & k),
}
_DATA = struct.Struct("<IIQ6Q")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`action` without its data, `data` (the error number of ERRNO), and how many instructions it took."""

    action: int
    data: int
    steps: int

    def __str__(self) -> str:
        names = {ALLOW: "allow", KILL_PROCESS: "kill", ERRNO: f"errno {self.data}", USER_NOTIF: "notify"}
        return names.get(self.action, hex(self.action))


def instructions(program: bytes) -> list[tuple[int, int, int, int]]:
    """(code, jt, jf, k) of each instruction."""
    assert len(program) % 8 == 0, "not a whole number of instructions"
    return list(struct.iter_unpack("<HBBI", program))


def check(program: bytes) -> None:
    """AssertionError for a program that the kernel would refuse."""
    code = instructions(program)
    assert 0 < len(code) <= 4096, f"{len(code)} instructions"
    for at, (opcode, yes, no, k) in enumerate(code):
        left = len(code) - at - 1
        if opcode == _JA:
            assert k < left, f"{at}: jumps out of the program"
        elif opcode in _CONDITIONS:
            assert yes < left and no < left, f"{at}: jumps out of the program"
        elif opcode == _LD_W_ABS:
            assert k % 4 == 0 and k < _DATA.size, f"{at}: loads outside struct seccomp_data"
        else:
            assert opcode in (_ALU_AND_K, _RET_K), f"{at}: opcode {opcode:#x}"
    assert code[-1][0] == _RET_K, "does not end with a return"


def run(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> Outcome:
    """What becomes of the call: arguments are 64 bits wide, the missing ones are 0."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = _DATA.pack(number & 0xFFFFFFFF, architecture, 0xDEAD_BEEF, *(value & (1 << 64) - 1 for value in padded))
    code = instructions(program)
    word, at, steps = 0, 0, 0
    while True:
        opcode, yes, no, k = code[at]
        at, steps = at + 1, steps + 1
        if opcode == _LD_W_ABS:
            (word,) = struct.unpack_from("<I", data, k)
        elif opcode == _ALU_AND_K:
            word &= k
        elif opcode == _JA:
            at += k
        elif opcode == _RET_K:
            return Outcome(k & 0xFFFF0000, k & 0xFFFF, steps)
        else:
            at += yes if _CONDITIONS[opcode](word, k) else no
