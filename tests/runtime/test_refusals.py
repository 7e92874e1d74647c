"""What the operating system refused: recorded for its command, neutralised, hidden where nobody wants to see it."""

from __future__ import annotations

from sandboxd.backends.base import Refusal
from sandboxd.policy.violation import ViolationKind, ViolationSource
from sandboxd.runtime.violations import ViolationStore

REFUSAL = Refusal(
    ViolationKind.READ, "file-read-data", "/x\x1b[2J\u202e", ViolationSource.SEATBELT, "evil\nname", 3, "a hint"
)


def test_a_refusal_becomes_a_violation() -> None:
    store = ViolationStore("s-1", clock=lambda: 1.5)
    violation = store.add_refusal("c-1", REFUSAL)
    assert violation is not None and store.list("c-1") == [violation]
    assert (violation.kind, violation.source, violation.outcome) == ("read", "seatbelt", "denied")
    assert violation.target == "/x\\x1b[2J\\u202e" and violation.process == "evil\\x0aname"
    assert (violation.count, store.total, violation.hint, violation.inferred) == (3, 3, "a hint", False)


def test_a_hidden_one_is_counted() -> None:
    store = ViolationStore("s-1")
    assert store.add_refusal("c-1", REFUSAL, hidden=True) is None
    assert store.list() == [] and (store.total, store.hidden) == (0, 3)
