"""Exclusions beyond the table of docs/commands.md, compared with bash."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxd.policy.commands.command_decisions import decide_command
from sandboxd.policy.commands.exclusion import decide_exclusion
from sandboxd.policy.decision import Behavior
from sandboxd.policy.model import CommandPolicy, CommandRule, Policy
from sandboxd.settings.origins import Origin, Source

ORIGIN = Origin(Source.LOCAL, "test")
RULES = tuple(CommandRule(text, ORIGIN) for text in ("docker", "gh *", "npm run build"))
LISTED = {"docker", "gh", "npm"}


def excluded(text: str) -> bool:
    return decide_exclusion(RULES, text).excluded


def test_one_excluded_word_does_not_lift_the_sandbox_for_a_line() -> None:
    for text in (
        "touch ~/probe; gh --version",
        "cat ~/.ssh/id; gh x",
        "gh x > ~/probe",
        "gh x; touch y",
        "gh $(touch y)",
    ):
        assert not excluded(text)
    assert excluded("gh --version")


def test_options_before_the_subcommand_do_not_matter() -> None:
    git = (CommandRule("git", Origin(Source.LOCAL, "test")),)
    assert decide_exclusion(git, "git -C /tmp/other add f").excluded


def test_the_answer_names_its_rule_and_its_reason() -> None:
    found = decide_exclusion(RULES, "docker ps && gh x")
    assert found.rule is RULES[0] and "'docker'" in found.why
    refused = decide_exclusion(RULES, "docker ps && curl x")
    assert refused.rule is None and "'curl x' is not an excluded command" in refused.why
    assert decide_exclusion((), "docker").why == "no command is excluded"


def test_shells_in_shells_are_read_to_a_depth_of_four() -> None:
    found, text = [], "docker ps"
    for _ in range(7):
        found.append(excluded(text))
        text = f"sh -c {shlex.quote(text)}"
    assert found == [True] * 5 + [False] * 2
    assert decide_exclusion(RULES, text).why == "shells are nested too deep"


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A PATH with excluded programs and wrappers only, and an empty directory."""
    base = tmp_path_factory.mktemp("stubs")
    programs = base / "bin"
    work = base / "work"
    programs.mkdir()
    work.mkdir()
    for name in (*LISTED, "curl"):
        (programs / name).write_text("#!/bin/sh\nwhile read -r _ <&0 && false; do :; done 2>/dev/null\nexit 0\n")
        (programs / name).chmod(0o755)
    for name in ("env", "timeout", "nice", "xargs", "nohup", "sh", "bash"):
        found = shutil.which(name)
        assert found
        (programs / name).symlink_to(found)
    yield programs, work


def traced(text: str, programs: Path, work: Path) -> set[str]:
    """Return the commands, builtins included, that bash runs for a line."""
    done = subprocess.run(
        ["/bin/bash", "--norc", "--noprofile", "-x", "-c", text],
        env={"PATH": str(programs), "ID": "7", "TASK": "curl"},
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
    )
    errors = done.stderr.decode("utf-8", "replace")
    names = set()
    for line in errors.splitlines():
        match = re.match(r"\++ (.*)", line)
        if match:
            words = [word for word in re.split(r"\s+", match[1]) if not re.match(r"[A-Za-z_]+=", word)]
            if words:
                names.add(words[0].strip("'\""))
    missing = re.findall(r"(?:line \d+: )?(\S+): command not found", errors)
    return names | set(missing)


_WORDS = ["docker", "gh", "npm run build", "curl", "ps", "-a", "'a b'", '"x; y"', "$ID", '"$ID"', "$(curl x)", "`curl`"]
_WORDS += ["a#b", "#", "\\docker", "d'ock'er", "doc*", "{docker,curl}", "env", "timeout 5", "nice", "xargs", "LANG=C"]
_WORDS += ["PATH=.", "sh -c 'docker ps'", "sh -c 'curl x'", "!", "time", "command", "eval", "exec", "~", "x=1", "a=b"]
_WORDS += ["$'x'", '$"x"', "${ID}", "${ID:-x}", "\\", "\\\n"]
_word = st.sampled_from(_WORDS)
_joint = st.sampled_from(
    [" ", "  ", " ", " ", "; ", " && ", " || ", " | ", "\n", " & ", " > f ", " < f ", ";", "\t", "", "\r"]
)
_group = st.sampled_from(
    ["{}", "{}", "{}", "({})", "{{ {}; }}", "{};", "! {}", "if {}; then docker; fi", "f() {{ {}; }}; f", "{} # c"]
)


@st.composite
def lines(draw: st.DrawFn) -> str:
    text = "docker ps"
    for _ in range(draw(st.integers(1, 5))):
        text += draw(_joint) + draw(_word)
    return draw(_group).format(text)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=lines() | st.text("docker gh;|&<>()'\"`$#!\\\n{}=*", max_size=40).map(lambda tail: "docker " + tail))
def test_bash_runs_nothing_else_for_an_excluded_line(text: str, stubs: tuple[Path, Path]) -> None:
    if not excluded(text):
        return
    programs, work = stubs
    looked_through = {"env", "timeout", "nice", "xargs", "nohup", "command", "sh", "bash", "time"}
    assert traced(text, programs, work) <= LISTED | looked_through
    assert not os.listdir(work)


DENYING = Policy(enabled=True, commands=CommandPolicy(deny=(CommandRule("curl:*", ORIGIN),)))
ALLOWING = Policy(enabled=True, commands=CommandPolicy(auto_allow=False, allow=RULES))
_MORE = ["curl", "c\\url", "$'curl'", "<<E", "\nE\n", "<<'E'", "| sh", "<<< curl", "2>f", "`curl`", "\\`curl\\`"]
_MORE += ["\n\\curl", '"${ID:-`curl`}"', "xargs", "nohup", "if", "then", "fi", "{", "}", "(", ")", "eval", "trap"]
_MORE += ["EXIT", "exec"]


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.sampled_from(_WORDS + _MORE), min_size=1, max_size=7), joint=st.sampled_from([" ", "", "; "]))
def test_rules_see_whatever_bash_runs(words: list[str], joint: str, stubs: tuple[Path, Path]) -> None:
    """No denied command runs without a prompt, and none is allowed without a rule."""
    text = "docker " + joint.join(words)
    denied = decide_command(DENYING, text).behavior is not Behavior.ALLOW
    allowed = decide_command(ALLOWING, text).behavior is Behavior.ALLOW
    if denied and not allowed:
        return
    names = traced(text, *stubs)
    for left in stubs[1].iterdir():
        left.unlink()
    assert denied or "curl" not in names, text
    assert not allowed or names <= LISTED | {"command"}, text


ODD = ["docker\u00a0ps", "docker\x0bps; curl", "docker ps\u2028curl x", "d\u043ecker ps", "docker ps\x0ccurl"]
ODD += ["docker ps;\u200bcurl", "\ufeffcurl", "docker ps\r\ncurl x", "docker ps \x1b[0m; curl"]


@pytest.mark.parametrize("text", ODD)
def test_odd_characters_hide_no_program(text: str, stubs: tuple[Path, Path]) -> None:
    assert not excluded(text) or traced(text, *stubs) <= LISTED


def test_the_tracing_itself_works(stubs: tuple[Path, Path]) -> None:
    programs, work = stubs
    assert traced("docker ps; eval curl x | gh y", programs, work) == {"docker", "eval", "curl", "gh"}
    assert "nope" in traced("nope", programs, work)
