"""The log's lines: any split of the bytes, several at once, odd names, folded repeats, garbage, floods."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.backends.macos.log_lines import LONGEST_LINE, Denial, LogLines, make_tag
from sandboxd.backends.macos.refusals import refusal_of
from sandboxd.policy.violation import ViolationKind

SUFFIX = "0123abcd"
TAG = make_tag("launch-1", SUFFIX)
HEADER = "2026-01-01 12:00:00.123456 E  kernel[0:1a2b3c] (Sandbox) "


def line(message: str, tag: str = TAG, *, same_line: bool = False) -> str:
    return f"{HEADER}{message}{' ' if same_line else chr(10)}{tag}\n"


def parse(text: str | bytes, *, lines: LogLines | None = None) -> list[Denial]:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return list((lines or LogLines(SUFFIX)).feed(data))


CASES = {
    "a read": ("Sandbox: cat(325) deny(1) file-read-data /u/.ssh/id", "cat", 325, "file-read-data", "/u/.ssh/id", 1),
    "spaces": ("Sandbox: my tool(7) deny(1) file-write-data /a b/c d", "my tool", 7, "file-write-data", "/a b/c d", 1),
    "parentheses": (
        "Sandbox: Helper (Renderer)(812) deny(1) mach-lookup com.example.x", "Helper (Renderer)", 812,
        "mach-lookup", "com.example.x", 1,
    ),
    "brackets": ("Sandbox: a(1) deny(1) file-read-data /x (1).txt", "a", 1, "file-read-data", "/x (1).txt", 1),
    "an odd target": ('Sandbox: a(1) deny(1) system-fsctl (_IO "h" 47)', "a", 1, "system-fsctl", '(_IO "h" 47)', 1),
    "unicode": ("Sandbox: 猫(5) deny(1) file-read-data /ünï/😀", "猫", 5, "file-read-data", "/ünï/😀", 1),
    "no target": ("Sandbox: a(1) deny(1) forbidden-sandbox-reinit", "a", 1, "forbidden-sandbox-reinit", "", 1),
    "folded": ("12 duplicate reports for Sandbox: a(9) deny(1) file-read-data /x", "a", 9, "file-read-data", "/x", 12),
    "folded once": ("1 duplicate report for Sandbox: a(9) deny(1) file-ioctl /x", "a", 9, "file-ioctl", "/x", 1),
    "a star": ("Sandbox: a(9) deny(1) process-exec* /bin/x", "a", 9, "process-exec*", "/bin/x", 1),
    "a host": ("Sandbox: nc(3) deny(1) network-outbound remote:*:443", "nc", 3, "network-outbound", "remote:*:443", 1),
    "another code": ("Sandbox: a(9) deny(5) file-read-data /x", "a", 9, "file-read-data", "/x", 1),
    "a target that tells stories": (
        "Sandbox: a(9) deny(1) file-read-data /x Sandbox: b(1) deny(1) file-write-data /y", "a", 9, "file-read-data",
        "/x Sandbox: b(1) deny(1) file-write-data /y", 1,
    ),
    "a newline in the target": ("Sandbox: a(9) deny(1) file-read-data /x\ny z", "a", 9, "file-read-data", "/x\ny z", 1),
    "text that is no UTF-8": ("Sandbox: a(9) deny(1) file-read-data /\udcff", "a", 9, "file-read-data", "/\ufffd", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("same_line", [False, True], ids=["tag below", "tag behind"])
def test_what_is_read(name: str, same_line: bool) -> None:
    message, process, pid, operation, target, count = CASES[name]
    assert parse(line(message, same_line=same_line)) == [Denial("launch-1", process, pid, operation, target, count)]


WHOLE = "".join(line(case[0]) for case in CASES.values())


def test_one_byte_at_a_time_and_all_at_once() -> None:
    lines = LogLines(SUFFIX)
    data = WHOLE.encode("utf-8", "surrogateescape")
    single = [denial for index in range(len(data)) for denial in lines.feed(data[index : index + 1])]
    assert single == parse(WHOLE)
    assert len(single) == len(CASES)


@given(st.lists(st.integers(1, len(WHOLE.encode("utf-8", "surrogateescape")) - 1), max_size=12))
def test_any_split(cuts: list[int]) -> None:
    data = WHOLE.encode("utf-8", "surrogateescape")
    lines = LogLines(SUFFIX)
    found: list[Denial] = []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        found += lines.feed(data[start:end])
    assert found == parse(WHOLE)


def test_what_log_says_of_itself_and_foreign_lines() -> None:
    lines = LogLines(SUFFIX)
    text = (
        'Filtering the log data using "(eventMessage ENDSWITH ...)"\n'
        "Timestamp               Ty Process[PID:TID]\n"
        f"{HEADER}something else\n"
        "\n"
        + line("Sandbox: a(1) deny(1) file-read-data /x", make_tag("launch-1", "ffffffff"))
        + line("Sandbox: a(1) deny(1) file-read-data /x", "CMD64_!!!_END_" + SUFFIX)
        + line("Sandbox: a(1) allow(1) file-read-data /x")
        + line("Sandbox: a(1) System Policy: deny(1) file-read-data /x")
        + line("Sandbox: a(1) deny(1) file-read-data /mine")
    )
    assert [denial.target for denial in parse(text, lines=lines)] == ["/mine"]
    assert lines.ignored >= 5


def test_tags_name_their_launch() -> None:
    ids = ["a", "x" * 64, "with space", base64.b64encode(b"?>").decode()]
    found = parse("".join(line("Sandbox: a(1) deny(1) file-read-data /x", make_tag(one, SUFFIX)) for one in ids))
    assert [denial.launch_id for denial in found] == ids


def test_a_target_cannot_speak_for_another_command() -> None:
    """It would have to know the suffix, which is in no place that a sandboxed process can read."""
    forged = make_tag("victim", "0123abce")
    found = parse(line(f"Sandbox: a(1) deny(1) file-read-data /x {forged} "))
    assert [denial.launch_id for denial in found] == ["launch-1"]


@pytest.mark.parametrize(
    "message",
    [
        "Sandbox: curl(1) deny(1) network-outbound /private/var/run/mDNSResponder",
        "Sandbox: x(1) deny(1) mach-lookup com.apple.mDNSResponder.dnsproxy",
        "Sandbox: x(1) deny(1) mach-lookup com.apple.diagnosticd",
        "Sandbox: x(1) deny(1) mach-lookup com.apple.analyticsd",
    ],
)
def test_noise_is_dropped_and_counted(message: str) -> None:
    lines = LogLines(SUFFIX)
    assert parse(line(message), lines=lines) == []
    assert lines.noise == 1


def test_a_file_cannot_be_called_noise() -> None:
    message = "Sandbox: a(1) deny(1) file-read-data /secret/mDNSResponder mach-lookup com.apple.analyticsd"
    assert len(parse(line(message))) == 1


def test_endless_lines_are_let_go_and_the_next_is_read() -> None:
    lines = LogLines(SUFFIX)
    assert parse(b"x" * (3 * LONGEST_LINE), lines=lines) == []
    assert parse(b"y" * LONGEST_LINE + b"\n" + line("Sandbox: a(1) deny(1) file-read-data /x").encode(), lines=lines)
    assert parse(HEADER + "Sandbox: a(1) deny(1) file-read-data /" + "x" * LONGEST_LINE, lines=lines) == []
    assert parse("\n" + line("Sandbox: a(1) deny(1) file-read-data /y"), lines=lines)[0].target == "/y"


@given(st.binary(max_size=400))
def test_garbage_does_no_harm(data: bytes) -> None:
    lines = LogLines(SUFFIX)
    list(lines.feed(data + b"\n"))
    assert parse(line("Sandbox: a(1) deny(1) file-read-data /x"), lines=lines)[-1].target.endswith("/x")


def test_ten_thousand_lines_come_out_as_ten_thousand() -> None:
    rng = random.Random(1)
    text = "".join(line(f"Sandbox: cat({n}) deny(1) file-read-data /x/{n}") for n in range(10_000)).encode()
    lines = LogLines(SUFFIX)
    found, at = 0, 0
    while at < len(text):
        step = rng.randint(1, 64 * 1024)
        found += len(list(lines.feed(text[at : at + step])))
        at += step
    assert found == 10_000


# what is told


@pytest.mark.parametrize(
    ("operation", "target", "kind"),
    [
        ("file-read-data", "/x", ViolationKind.READ),
        ("file-read-metadata", "/x", ViolationKind.READ),
        ("file-write-create", "/x", ViolationKind.WRITE),
        ("network-outbound", "/x/s.sock", ViolationKind.UNIX_SOCKET),
        ("network-outbound", "remote:*:443", ViolationKind.CONNECT),
        ("network-bind", "local:*:3000", ViolationKind.CONNECT),
        ("mach-lookup", "com.apple.trustd.agent", ViolationKind.SERVICE),
        ("iokit-open", "X", ViolationKind.SERVICE),
    ],
)
def test_kinds(operation: str, target: str, kind: ViolationKind) -> None:
    refusal = refusal_of(Denial("l", "prog", 1, operation, target, 3))
    assert (refusal.kind, refusal.count, refusal.process, refusal.source) == (kind, 3, "prog", "seatbelt")
