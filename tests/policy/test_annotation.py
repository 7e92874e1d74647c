"""`strip` is the inverse of `annotate` for any text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.annotation import BEGIN, END, MOST_LINES, annotate, strip
from sandboxd.policy.violation import Violation, ViolationKind, ViolationSource

KEY, OTHER = b"k" * 32, b"o" * 32
PIECES = st.sampled_from([BEGIN, END, "\n", "seal ", "0" * 32, " ", "<", "x", "\ud800"])
TEXT = st.one_of(st.text(), st.lists(PIECES).map("".join))


def violation(target: str) -> Violation:
    return Violation(
        1, 0.0, "s", "c", ViolationKind.READ, "openat", target, "denied", ViolationSource.SECCOMP, hint="try <this>"
    )


@given(TEXT, st.lists(TEXT.map(violation), max_size=25))
def test_there_and_back(text: str, violations: list[Violation]) -> None:
    annotated = annotate(text, violations, KEY)
    assert strip(annotated, KEY) == text
    assert annotate(annotated, violations, KEY) == annotated
    assert (annotated == text) is (not violations)
    assert strip(annotated, OTHER) == annotated


def test_many_are_counted() -> None:
    text = annotate("", [violation(f"/{n}") for n in range(MOST_LINES + 5)], KEY)
    assert "and 5 more" in text and text.count("read openat") == MOST_LINES
