"""Programs of the builder, run in the simulator."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.backends.linux.seccomp.bpf import ProgramBuilder
from sandboxd.errors import InternalError
from support import bpf_simulator


def run(program: bytes, number: int) -> int:
    bpf_simulator.check(program)
    result = bpf_simulator.run(program, 0, number)
    return result.action | result.data


def test_a_comparison() -> None:
    builder = ProgramBuilder()
    entry = builder.load(0, builder.if_equal(5, builder.returning(1), builder.returning(2)))
    program = builder.finish(entry)
    assert (run(program, 5), run(program, 4)) == (1, 2)


def test_comparisons_are_unsigned() -> None:
    builder = ProgramBuilder()
    entry = builder.load(0, builder.if_at_least(0x80000000, builder.returning(1), builder.returning(2)))
    program = builder.finish(entry)
    assert [run(program, n) for n in (0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)] == [2, 2, 1, 1]


def test_a_mask() -> None:
    builder = ProgramBuilder()
    entry = builder.load(0, builder.mask(0xF0, builder.if_equal(0x30, builder.returning(1), builder.returning(2))))
    program = builder.finish(entry)
    assert [run(program, n) for n in (0x30, 0x13F, 0x40)] == [1, 1, 2]


def test_the_bytes_are_those_of_sock_filter() -> None:
    builder = ProgramBuilder()
    program = builder.finish(builder.returning(0x7FFF0000))
    assert program == struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)


def test_equal_code_is_written_once() -> None:
    builder = ProgramBuilder()
    one = builder.returning(1)
    assert builder.returning(1) == one
    assert builder.if_equal(3, one, one) == one
    assert builder.load(0, one) == builder.load(0, one)


@pytest.mark.parametrize("size", [1, 2, 127, 128, 254, 255, 256, 257, 600])
def test_jumps_of_any_length(size: int) -> None:
    """A chain of comparisons whose every `yes` is at the very end of the program."""
    builder = ProgramBuilder()
    found, label = builder.returning(1), builder.returning(2)
    for value in range(size):
        label = builder.if_equal(value, found, label)
    program = builder.finish(builder.load(0, label))
    assert all(run(program, value) == 1 for value in range(size))
    assert run(program, size) == 2


@pytest.mark.parametrize("size", [200, 300, 900])
def test_both_ways_of_a_comparison_may_be_far(size: int) -> None:
    builder = ProgramBuilder()
    one, two = builder.returning(1), builder.returning(2)
    filler = builder.returning(3)
    for value in range(size):
        filler = builder.if_equal(value + 10, builder.returning(100 + value), filler)
    entry = builder.load(0, builder.if_equal(5, one, builder.if_equal(6, two, filler)))
    program = builder.finish(entry)
    assert [run(program, n) for n in (5, 6, 10, size + 9, size + 10)] == [1, 2, 100, 99 + size, 3]


@given(st.dictionaries(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFF), max_size=400), st.integers(0, 0xFFFFFFFF))
def test_a_table_of_any_size(table: dict[int, int], other: int) -> None:
    builder = ProgramBuilder()
    label = builder.returning(0x7FFF0000)
    for number, data in table.items():
        label = builder.if_equal(number, builder.returning(0x50000 | data), label)
    program = builder.finish(builder.load(0, label))
    for number in [*list(table)[:5], other]:
        assert run(program, number) == (0x50000 | table[number] if number in table else 0x7FFF0000)


def test_a_program_that_the_kernel_would_not_take_is_an_error() -> None:
    builder = ProgramBuilder()
    label = builder.returning(1)
    for value in range(4200):
        label = builder.if_equal(value, builder.returning(value + 2), label)
    with pytest.raises(InternalError) as caught:
        builder.finish(builder.load(0, label))
    assert caught.value.slug == "filter_too_long"
