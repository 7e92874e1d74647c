"""What is kept for a crash: names in the store, and memory files whose writer may be killed at any moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.daemon.restart.descriptor_store import MOST
from sandboxd.errors import HostError
from sandboxd.handover.crash_documents import (
    DAEMON,
    LONGEST_KEY,
    Extent,
    document_in,
    gathered,
    name_of,
    parse_name,
)
from sandboxd.handover.document import Incoming, Part

KEYS = [DAEMON, "s-0123456789ab", "0123456789abcdef0123456789abcdef"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("number", [None, 0, 7, 999_999])
def test_a_name_says_what_it_was_made_from(key: str, number: int | None) -> None:
    name = name_of(key, number)
    assert parse_name(name) == (key[:LONGEST_KEY], number)
    earlier = f"sandboxd-kept-{key}" + ("" if number is None else f".{number}")
    assert parse_name(earlier) == (key, number)
    assert MOST * (len(name) + 1) < 127 << 10, "all are one variable of an environment"
    assert len(name) <= 255 and ":" not in name and name.isascii() and name.isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "", "sandboxd-state", "sandboxd-7", "sandboxd.socket", "sandboxd-kept-", "sandboxd-kept-x", "sandboxd-kept-s-",
        "sandboxd-kept-daemon.", "sandboxd-kept-daemon.x", "sandboxd-kept-daemon.1.2", "sandboxd-kept-daemon.-1",
        "sandboxd-kept-daemon\n", "sandboxd-kept-ABCDEF", "xsandboxd-kept-daemon", "sandboxd-kept-" + "a" * 65,
        "sandboxd-kept-daemon.1234567890", "sandboxd-kept-daemon.\N{ARABIC-INDIC DIGIT ONE}",
    ],
)  # fmt: skip
def test_other_names_are_none_of_these(name: str) -> None:
    assert parse_name(name) is None


def write(memory: bytearray, at: Extent, text: bytes, steps: int = 2) -> None:
    """As the daemon does it, killed after so many steps."""
    if steps > 0:
        memory.extend(bytes(max(at.offset + at.length - len(memory), 0)))
        memory[at.offset : at.offset + at.length] = text
    if steps > 1:
        memory[: len(at.header)] = at.header


@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=12), st.binary(min_size=1, max_size=200))
def test_a_writer_that_is_killed_leaves_what_was_there_before(texts: list[bytes], last: bytes) -> None:
    memory, extent = bytearray(), Extent()
    for text in texts:
        extent = extent.next(len(text))
        write(memory, extent, text)
        assert document_in(bytes(memory)) == text
    write(memory, extent.next(len(last)), last, steps=1)
    assert document_in(bytes(memory)) == texts[-1]
    assert len(memory) <= 3 * 200 + 16 + 200  # it does not grow with each writing


@pytest.mark.parametrize(
    "memory",
    [
        b"",
        b"\0" * 15,
        b"\0" * 16,
        b"\0" * 64,
        Extent(16, 0).header + b"x",
        Extent(16, 2).header + b"x",
        Extent(0, 4).header + b"x",
        Extent(17, 1).header + b"x",
        Extent(2**64 - 1, 1).header + b"x",
        Extent(16, 2**64 - 1).header + b"x",
    ],
)
def test_a_memory_file_that_holds_no_document_is_an_error(memory: bytes) -> None:
    with pytest.raises(HostError, match="before it wrote") as caught:
        document_in(memory)
    assert caught.value.slug == "handover_unreadable"


def test_all_documents_are_one_and_what_is_refused_stays_so() -> None:
    good, bad = Part("session", "a", 1, {}), Part("launch", "b", 1, {}, (3, -1))
    incoming = gathered([Incoming([good]), Incoming(refused=[(bad, "missing")])])
    assert (incoming.parts, incoming.refused, incoming.crashed) == ([good], [(bad, "missing")], True)
    assert not Incoming().crashed
