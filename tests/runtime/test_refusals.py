"""What the operating system refused: recorded for its command, neutralised, and hidden where settings say so."""

from __future__ import annotations

from collections.abc import Callable

from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.violation import DenialEvent, ViolationKind, ViolationSource
from sandboxd.runtime.rate_bound import RateBound
from sandboxd.runtime.violations.violation_store import COLLAPSE_S, KEPT, ViolationStore
from sandboxd.settings.origins import BUILT_IN


def denial(target: str = "/x\x1b[2J\u202e", **more: object) -> DenialEvent:
    return DenialEvent(
        ViolationKind.READ,
        "file-read-data",
        target,
        ViolationSource.SEATBELT,
        **{"count": 3, **more},  # type: ignore[arg-type]
    )


class Clock:
    """Time that a test moves; `later` only remembers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[Callable[[], None]] = []

    def later(self, _: float, call: Callable[[], None]) -> Clock:
        self.due.append(call)
        return self

    def cancel(self) -> None:
        self.due.clear()


def store(clock: Clock) -> ViolationStore:
    return ViolationStore("s-1", lambda: clock.now, steady=lambda: clock.now, later=clock.later)


def test_a_refusal_becomes_a_violation() -> None:
    made = ViolationStore("s-1", clock=lambda: 1.5)
    violation = made.add("c-1", denial(process="evil\nname", hint="a hint"))
    assert violation is not None and made.list("c-1") == [violation]
    assert (violation.kind, violation.source, violation.outcome) == ("read", "seatbelt", "denied")
    assert violation.target == "/x\\x1b[2J\\u202e" and violation.process == "evil\\x0aname"
    assert (violation.count, made.total, violation.hint, violation.inferred) == (3, 3, "a hint", False)


def test_a_rule_of_a_project_is_text_from_inside_too() -> None:
    decision = Decision(Behavior.DENY, Reason.PATH_DENIED, "", "./a\u202e\x1b]", BUILT_IN)
    violation = ViolationStore("s-1").add("c", denial("/p/a", decision=decision, home="/h"))
    assert violation is not None and violation.rule == "./a\\u202e\\x1b]"
    write = DenialEvent(ViolationKind.WRITE, "openat", "/p/a", ViolationSource.SECCOMP, decision=decision)
    told = ViolationStore("s-1").add("c", write)
    assert told is not None and "./a\\u202e\\x1b]" in told.hint and told.hint.isprintable()


def test_a_hidden_one_is_counted() -> None:
    made = ViolationStore("s-1")
    assert made.add("c-1", denial(), is_hidden=lambda: True) is None
    assert made.list() == [] and (made.total, made.hidden) == (3, 3)


def test_the_same_again_is_one_record_for_a_while() -> None:
    clock = Clock()
    made = store(clock)
    for _ in range(4):
        made.add("c-1", denial())
        clock.now += COLLAPSE_S
    assert [v.count for v in made.list()] == [12] and made.list()[0].last_time == 3 * COLLAPSE_S
    clock.now += 0.1
    made.add("c-1", denial())
    made.add("c-2", denial())
    made.add("c-1", denial("/other"))
    assert [v.count for v in made.list()] == [12, 3, 3, 3] and made.total == 21


def test_new_ones_are_bounded_and_repeated_ones_are_not() -> None:
    clock = Clock()
    made, bound = store(clock), RateBound(2, 1.0, lambda: clock.now)
    for target in ("/a", "/b", "/c", "/a"):
        made.add("c", denial(target, count=1), bound)
    assert [v.count for v in made.list()] == [2, 1] and (made.lost, bound.lost, made.total) == (1, 1, 4)
    clock.now += 1.0
    made.add("c", denial("/d", count=1), bound)
    assert [v.target for v in made.list()] == ["/a", "/b", "/d"]


def test_the_loudest_command_makes_room() -> None:
    made = store(Clock())
    for number in range(10):
        made.add("quiet", denial(f"/{number}"))
    for number in range(3 * KEPT):
        made.add("loud", denial(f"/{number}"))
    assert len(made.list("quiet")) == 10 and len(made.list()) == KEPT
    assert made.list()[-1].target == f"/{3 * KEPT - 1}"
