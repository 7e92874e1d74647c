"""The phases of a start."""

from __future__ import annotations

from sandboxd.daemon.startup import Phase, StartUp


def test_each_phase_ends_where_the_next_one_begins() -> None:
    times = iter([1.0, 1.5, 1.5, 4.0])
    startup = StartUp(clock=lambda: next(times))
    for name in ("one", "two", "three"):
        startup.reached(name)
    assert startup.phases == (Phase("one", 0.5), Phase("two", 0.0), Phase("three", 2.5))
    assert startup.seconds == 3.0


def test_a_clock_that_is_set_back_takes_nothing_away() -> None:
    startup = StartUp(begun=5.0, clock=lambda: 4.0)
    startup.reached("program")
    assert startup.phases == (Phase("program", 0.0),)


def test_the_program_itself_is_the_first_phase() -> None:
    (program,) = StartUp.of_this_process().phases
    assert program.name == "program"
    assert 0 < program.seconds < 36000
