"""Guesses from what programs really print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.explain.inference import MOST_PATHS, paths_said_to_be_denied


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("cat: secret: Permission denied", "/w/secret"),
        ("cat: /home/me/.ssh/id_rsa: Permission denied", "/home/me/.ssh/id_rsa"),
        ("ls: cannot open directory 'my dir': Permission denied", "/w/my dir"),
        ("ls: cannot open directory '/srv/x': Permission denied", "/srv/x"),
        ("bash: line 1: ./secret: Permission denied", "/w/secret"),
        ("/bin/sh: 1: cannot open secret: Permission denied", "/w/secret"),
        ("PermissionError: [Errno 13] Permission denied: '/srv/secret'", "/srv/secret"),
        ("Error: EACCES: permission denied, open '/srv/secret'", "/srv/secret"),
        ("head: cannot open 'a' for reading: Permission denied", "/w/a"),
        ("grep: ../x: Permission denied", "/x"),
        ("Can't open '~/.netrc': Permission denied", "/home/me/.netrc"),
        ("rg: ./a: Permission denied (os error 13)", "/w/a"),
        ("failed to read `conf.toml`: Permission denied (os error 13)", "/w/conf.toml"),
    ],
)
def test_what_programs_print(line: str, path: str) -> None:
    assert path in paths_said_to_be_denied(f"before\n{line}\nafter\n", "/w", "/home/me")


@pytest.mark.parametrize("line", ["cat: x: No such file or directory", "", "x" * 5000 + ": Permission denied"])
def test_other_lines_say_nothing(line: str) -> None:
    assert paths_said_to_be_denied(line, "/w", "/home/me") == []


@given(st.text(), st.lists(st.sampled_from(["Permission denied", ": ", "'", "\n", "/a", "EACCES", " "])).map("".join))
def test_any_text_is_read_and_little_comes_of_it(text: str, pieces: str) -> None:
    for said in (text, pieces, text + "\n" + pieces):
        found = paths_said_to_be_denied(said, "/w", "/home/me")
        assert len(found) <= MOST_PATHS and all(path.startswith("/") for path in found)
