"""Who is in a sandbox, asked of a stand-in for the system library, and ending all of them."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sandboxd.backends.macos import members
from sandboxd.backends.macos.members import DECOY, PREFIX, SeatbeltMembers, end_members

NAME = PREFIX + "L1"


class Function:
    """What ctypes gives for a name: callable, with the types of its fixed arguments to be set."""

    def __init__(self, call: Any) -> None:
        self.argtypes: list[object] = []
        self.restype: object = None
        self._call = call

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)


@dataclass
class Library:
    """Processes of this user, and for each that is in a sandbox the names that it may look up."""

    pids: list[int]
    allowed: dict[int, set[bytes]] = field(default_factory=dict)
    listed: int | None = None
    reported: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.proc_listpids = Function(self._list)
        self.sandbox_check = Function(self._check)

    def _list(self, kind: int, uid: int, buffer: Any, size: int) -> int:
        assert (kind, uid) == (4, os.getuid())
        width = ctypes.sizeof(ctypes.c_int)
        if self.listed is not None:
            return self.listed
        if buffer is None:
            assert size == 0
            return len(self.pids) * width
        shown = self.pids[: size // width]
        for index, pid in enumerate(shown):
            buffer[index] = pid
        return len(shown) * width

    def _check(self, pid: int, operation: bytes | None, kind: int, name: Any = None) -> int:
        """0: allowed; 1: denied. Outside of a sandbox everything is allowed."""
        if operation is None:
            assert kind == 0 and name is None
            return int(pid in self.allowed)
        assert operation == b"mach-lookup" and kind & 0xFF == 2
        if not kind & 0x40000000:
            self.reported.append(pid)  # the question itself would stand in the log as a violation
        return int(pid in self.allowed and name.value not in self.allowed[pid])


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(library: Library) -> SeatbeltMembers:
        monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: library)
        return SeatbeltMembers()

    return use


def test_only_those_in_this_sandbox(given: Any) -> None:
    ours, everything = NAME.encode(), {NAME.encode(), DECOY.encode()}
    library = Library(
        [0, 1, os.getpid(), 20, 21, 22, 23],
        {
            20: {ours},
            21: {b"dev.sandboxd.member.L2"},  # in the sandbox of another command
            22: everything,  # in a sandbox that allows all look-ups: Chrome's, an app's
            os.getpid(): {ours},
        },
    )
    assert list(given(library).find(NAME)) == [20]
    assert library.reported == []


def test_the_fixed_arguments_have_their_types(given: Any) -> None:
    """The names are variadic arguments, which Apple's processors pass elsewhere when they are declared as fixed."""
    library = Library([20])
    given(library)
    assert library.sandbox_check.argtypes == [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]


@pytest.mark.parametrize("answer", [0, -1])
def test_no_list_is_an_error_and_not_nobody(given: Any, answer: int) -> None:
    with pytest.raises(OSError):
        given(Library([20], listed=answer)).find(NAME)


def test_more_processes_than_a_moment_ago(given: Any) -> None:
    """Those that fit are found; the rest are there in the next round."""
    library = Library(list(range(100, 110)), {pid: {NAME.encode()} for pid in range(100, 400)})
    asked = given(library)
    grown = list(range(100, 400))
    counted = library.proc_listpids

    def grow(*arguments: Any) -> object:
        answer = counted(*arguments)
        library.pids = grown
        return answer

    library.proc_listpids = Function(grow)
    assert len(list(asked.find(NAME))) == 10 + 64


class Rounds:
    """Answers one after the other; the last one again and again."""

    def __init__(self, *answers: Iterable[int] | OSError) -> None:
        self.answers = list(answers)
        self.asked = 0

    def find(self, name: str) -> Iterable[int]:
        assert name == NAME
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


def end(rounds: Rounds) -> tuple[bool, list[tuple[str, dict[str, object]]]]:
    said: list[tuple[str, dict[str, object]]] = []
    done = asyncio.run(end_members(rounds, NAME, lambda event, **fields: said.append((event, fields))))
    return done, said


def test_killed_until_nobody_is_left() -> None:
    """One that was born while the others were looked for ends too. One that went by itself is no error."""
    first, second = (subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2))
    gone = subprocess.Popen(["true"])
    gone.wait()
    rounds = Rounds([first.pid, gone.pid], [second.pid], [])
    assert end(rounds) == (True, [])
    assert [process.wait(10) for process in (first, second)] == [-9, -9]
    assert rounds.asked == 3


def test_it_gives_up_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in an uninterruptible wait: the launch ends, and the log names the remaining process."""
    monkeypatch.setattr(members, "PAUSE_S", 0.0)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    assert end(Rounds([77])) == (False, [("members_left", {"member": NAME})])
    assert killed == [77] * members.ROUNDS


def test_not_to_be_asked() -> None:
    done, said = end(Rounds(OSError(errno.EPERM, "no")))
    assert not done
    assert said[0][0] == "members_unknown"
