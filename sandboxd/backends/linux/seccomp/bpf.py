"""Classic BPF for seccomp(2): instructions, and a builder for programs. Pure.

A seccomp program is a decision graph: it loads a word of `struct seccomp_data`, compares, and returns an action. Jumps
go forward only, so the target of a jump must be placed first. `ProgramBuilder` therefore prepends: each method returns
a label, which is where its code begins, and takes as arguments the labels of what may follow. Equal code with equal
continuations is written once."""

from __future__ import annotations

import struct
from enum import IntEnum

from sandboxd.errors import InternalError
from sandboxd_client.records import dataclass

MAX_INSTRUCTIONS = 4096
"""BPF_MAXINSNS: the kernel refuses longer programs."""

_INSTRUCTION = struct.Struct("<HBBI")
_FARTHEST = 255


class Opcode(IntEnum):
    """The instructions of linux/bpf_common.h that seccomp knows and programs use."""

    LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS: the word at offset k of struct seccomp_data
    AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
    JUMP = 0x05  # BPF_JMP | BPF_JA: k instructions are left out
    JUMP_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
    JUMP_IF_GREATER_OR_EQUAL = 0x35  # BPF_JMP | BPF_JGE | BPF_K
    RETURN = 0x06  # BPF_RET | BPF_K


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `yes` and `no` count the instructions that a jump skips."""

    opcode: Opcode
    operand: int
    yes: int = 0
    no: int = 0

    def encode(self) -> bytes:
        """Return a struct sock_filter, little-endian."""
        return _INSTRUCTION.pack(self.opcode, self.yes, self.no, self.operand)


Label = int
"""A place in a program, as the number of instructions from there to the end."""


class ProgramBuilder:
    """A builder that writes a program from its end; `finish` takes the entry."""

    def __init__(self) -> None:
        self._reversed: list[Instruction] = []
        self._known: dict[tuple[Opcode, int, Label, Label], Label] = {}

    def returning(self, action: int) -> Label:
        """Return `action`, a SECCOMP_RET_… value with its data."""
        key = (Opcode.RETURN, action, 0, 0)
        if key not in self._known:
            self._known[key] = self._prepend(Instruction(Opcode.RETURN, action))
        return self._known[key]

    def load(self, offset: int, then: Label) -> Label:
        """Load the word at `offset` of struct seccomp_data."""
        return self._step(Opcode.LOAD_WORD, offset, then)

    def mask(self, bits: int, then: Label) -> Label:
        """Clear all but `bits` in the loaded word."""
        return self._step(Opcode.AND, bits, then)

    def if_equal(self, value: int, yes: Label, no: Label) -> Label:
        return self._test(Opcode.JUMP_IF_EQUAL, value, yes, no)

    def if_at_least(self, value: int, yes: Label, no: Label) -> Label:
        """Compare as unsigned numbers."""
        return self._test(Opcode.JUMP_IF_GREATER_OR_EQUAL, value, yes, no)

    def finish(self, entry: Label) -> bytes:
        """Return the program. Raises InternalError when it is too long for the kernel."""
        self._reach(entry)
        if len(self._reversed) > MAX_INSTRUCTIONS:
            raise InternalError("filter_too_long", f"a filter of {len(self._reversed)} instructions")
        return b"".join(instruction.encode() for instruction in reversed(self._reversed))

    def _step(self, opcode: Opcode, operand: int, then: Label) -> Label:
        """Write an instruction that always continues with the next one."""
        key = (opcode, operand, then, then)
        if key not in self._known:
            self._reach(then)
            self._known[key] = self._prepend(Instruction(opcode, operand))
        return self._known[key]

    def _test(self, opcode: Opcode, operand: int, yes: Label, no: Label) -> Label:
        if yes == no:
            return yes
        key = (opcode, operand, yes, no)
        if key not in self._known:
            yes, no = self._near(yes, spare=1), self._near(no, spare=0)
            position = len(self._reversed)
            self._known[key] = self._prepend(Instruction(opcode, operand, position - yes, position - no))
        return self._known[key]

    def _near(self, target: Label, *, spare: int) -> Label:
        """Return `target`, or a jump to it where `spare` more steps are out of reach."""
        if len(self._reversed) + spare - target <= _FARTHEST:
            return target
        return self._prepend(Instruction(Opcode.JUMP, len(self._reversed) - target))

    def _reach(self, target: Label) -> None:
        """Make the next instruction fall through to `target`."""
        if target != len(self._reversed):
            self._prepend(Instruction(Opcode.JUMP, len(self._reversed) - target))

    def _prepend(self, instruction: Instruction) -> Label:
        self._reversed.append(instruction)
        return len(self._reversed)
