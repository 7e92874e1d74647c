"""What is written into the units of a person, and how they and the daemon are compared. Pure."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.cli.service.systemctl import UserManager
from sandboxd.cli.service.systemd_status import UnitFacts, agreement
from sandboxd.cli.service.systemd_units import (
    SERVICE,
    SOCKET,
    Service,
    listening_paths,
    properties,
    quoted,
    says_the_same,
    unit_texts,
    why_it_cannot_start,
    written_version,
)
from sandboxd_client import SandboxdError, programs
from support.users import CHECKOUT

ORIGINALS = {name: (CHECKOUT / "systemd" / name).read_text() for name in (SERVICE, SOCKET)}
PLAIN = Service(("/opt/venv/bin/python", "-I", "-m", "sandboxd"), "1.2.3", {"PATH": "/usr/bin:/bin", "SECRET": "s"})


def lines(text: str, key: str) -> list[str]:
    return [line.removeprefix(key) for line in text.splitlines() if line.startswith(key)]


def test_the_program_and_the_environment_stand_in_the_service() -> None:
    texts = unit_texts(PLAIN, ORIGINALS)
    assert lines(texts[SERVICE], "ExecStart=") == [":/opt/venv/bin/python -I -m sandboxd serve"]
    assert lines(texts[SERVICE], "Environment=") == ["PATH=/usr/bin:/bin"]
    assert lines(texts[SOCKET], "ListenStream=") == ["%t/sandboxd/sandboxd.sock"]
    assert "SECRET" not in str(texts)
    assert {written_version(text) for text in texts.values()} == {"1.2.3"}
    assert {written_version(text) for text in ORIGINALS.values()} == {None}
    # Nothing else differs from what we ship.
    for name, text in texts.items():
        kept = [line for line in text.splitlines() if not line.startswith(("ExecStart=", "Environment="))]
        assert kept[2:] == [line for line in ORIGINALS[name].splitlines() if not line.startswith("ExecStart=")]


def test_a_socket_in_another_place() -> None:
    texts = unit_texts(replace(PLAIN, socket="/home/a b/50%/s.sock"), ORIGINALS)
    assert lines(texts[SOCKET], "ListenStream=") == ["/home/a b/50%%/s.sock"]


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("/usr/bin/python3", "/usr/bin/python3"),
        ("/a b/c", '"/a b/c"'),
        ("100%", "100%%"),
        ("%h", "%%h"),
        ("$HOME", "$HOME"),  # behind the colon of ExecStart= it is a dollar sign
        ('say "x"', '"say \\"x\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("it's", '"it\'s"'),
        ("a\nb", '"a\\x0ab"'),
        (";", '";"'),
        ("", '""'),
    ],
)
def test_a_word_is_one_word(word: str, written: str) -> None:
    assert quoted(word) == written


@given(st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), max_size=30))
def test_no_word_becomes_two_or_none(word: str) -> None:
    written = quoted(word)
    assert "\n" not in written
    if written.startswith('"'):
        assert shlex.split(written.replace("$", "").replace("`", "")) == [
            word.replace("%", "%%").replace("$", "").replace("`", "")
        ]
    else:
        assert written.replace("%%", "%") == word


def test_the_environment_makes_no_difference() -> None:
    one, other = (unit_texts(replace(PLAIN, environment={"PATH": path}), ORIGINALS)[SERVICE] for path in "ab")
    assert one != other and says_the_same(one, other)
    assert not says_the_same(one, unit_texts(replace(PLAIN, program=("/x",)), ORIGINALS)[SERVICE])


def test_what_systemctl_shows() -> None:
    assert properties("A=1\nB=x=y\n\nC=\nno\n") == {"A": "1", "B": "x=y", "C": ""}
    assert listening_paths("/run/user/1/sandboxd/sandboxd.sock (Stream)") == ("/run/user/1/sandboxd/sandboxd.sock",)
    assert listening_paths("/a b (Stream) /c (Stream)") == ("/a b", "/c")
    assert listening_paths("") == ()
    assert why_it_cannot_start({"ExecMainStatus": "125", "StatusText": "no bubblewrap"}) == "no bubblewrap"
    assert why_it_cannot_start({"ExecMainStatus": "1", "StatusText": "listening"}) == ""


WELL = UnitFacts(
    service={"LoadState": "loaded", "ActiveState": "active", "MainPID": "7", "NeedDaemonReload": "no", "Result": ""},
    socket={
        "LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled", "Listen": "/s (Stream)",
    },
    clients="/s",
    files=unit_texts(PLAIN, ORIGINALS),
    expected=unit_texts(PLAIN, ORIGINALS),
    daemon=7,
    daemon_version="1.2.3",
)  # fmt: skip


def changed(service: dict[str, str] | None = None, socket: dict[str, str] | None = None, **facts: Any) -> UnitFacts:
    return replace(WELL, service={**WELL.service, **(service or {})}, socket={**WELL.socket, **(socket or {})}, **facts)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (WELL, []),
        (changed(files={}, expected={}), []),  # a distribution's
        (changed(service={"MainPID": "0", "ActiveState": "inactive"}, daemon=None, daemon_version=""), []),
        (
            changed({"LoadState": "not-found"}, {"LoadState": "not-found", "ActiveState": "inactive"}),
            ["it is not installed"],
        ),
        (changed({"LoadState": "masked"}), ["sandboxd.service is masked"]),
        (changed({"LoadState": "not-found"}), ["sandboxd.service is not-found"]),
        (changed(missing_program="/gone", expected={}), ["the unit starts /gone, which does not exist"]),
        (changed(expected=unit_texts(replace(PLAIN, version="2"), ORIGINALS)), ["not as this sandboxd writes them"]),
        (
            changed(files=unit_texts(replace(PLAIN, version="0.1"), ORIGINALS)),
            ["the units are of another version (0.1)"],
        ),
        (changed(files={**WELL.files, SERVICE: "[Service]\n"}), ["the units are of another version (another author)"]),
        (changed({"NeedDaemonReload": "yes"}), ["systemd has not loaded the current units"]),
        (changed(socket={"UnitFileState": "disabled"}), ["it does not start at login"]),
        (
            changed({"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "125", "StatusText": "bad key"}),
            ["the service failed (exit-code): bad key"],
        ),
        (changed(clients="/tmp/s"), ["the socket is /s, and clients of this shell use /tmp/s"]),
        (changed(daemon=8), ["a daemon that systemd did not start (pid 8) has the socket"]),
        (changed(socket={"ActiveState": "failed"}), ["the socket is failed: clients start other daemons"]),
        (changed(daemon_version="1.2.2"), ["the running daemon is version 1.2.2, and this is 1.2.3"]),
    ],
)
def test_what_does_not_agree(facts: UnitFacts, said: list[str]) -> None:
    problems = agreement(facts, "1.2.3")
    assert len(problems) == len(said), problems
    for problem, text in zip(problems, said, strict=True):
        assert text in problem.text
        assert problem.remedy


def test_without_systemd_no_service_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is missing or did not boot this machine; the hint's command starts a daemon by itself."""
    monkeypatch.setattr(os.path, "isdir", lambda path: path != "/run/systemd/system")
    for found, why in (("/usr/bin/systemctl", "was not booted with it"), (None, "is not installed")):
        monkeypatch.setattr(programs, "find", lambda name, found=found: programs.Search(found))
        with pytest.raises(SandboxdError) as refused:
            UserManager.reached()
        assert why in refused.value.message and refused.value.hint.endswith("for example: sandboxd run true")
