"""What holds for every profile, whatever the policy, and that the lint would see it if it did not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.policy.model import FilePolicy, NetworkPolicy, PlatformPolicy, PortRange
from support.dictionary_host import FILE
from support.sbpl import compile_profile
from support.sbpl_lint import lint
from support.seatbelt import (
    HOME,
    PROJECT,
    TAG,
    compiled,
    problems,
    rules,
    sockets,
)

# the lint


@given(
    files=st.builds(
        FilePolicy,
        allow_write=st.sampled_from([(), rules(HOME), rules("/"), rules(f"{HOME}/*/w")]),
        deny_write=st.sampled_from([(), rules(f"{PROJECT}/src"), rules(f"{PROJECT}/**/*.lock")]),
        deny_read=st.sampled_from([(), rules("/"), rules(HOME), rules(f"{HOME}/.ssh"), rules("/**/.env")]),
        allow_read=st.sampled_from([(), rules(PROJECT), rules("/usr", PROJECT)]),
        allow_git_config=st.booleans(),
    ),
    network=st.builds(
        NetworkPolicy,
        allow_local_binding=st.booleans(),
        allow_all_unix_sockets=st.booleans(),
        allow_unix_sockets=st.sampled_from([(), sockets("/run/x.sock")]),
        allow_mach_lookup=st.sampled_from([(), ("com.example.x.*",)]),
        allow_local_ports=st.sampled_from([(), (PortRange(1, 3),)]),
    ),
    platform=st.builds(PlatformPolicy, allow_pty=st.booleans(), weaker_network_isolation=st.booleans()),
)
@settings(max_examples=60)
def test_every_profile_passes_the_lint(files: FilePolicy, network: NetworkPolicy, platform: PlatformPolicy) -> None:
    if any(rule.path in ("/", HOME) for rule in files.deny_read) and not files.allow_read:
        files = replace(files, allow_read=rules(PROJECT))
    made = compiled(files, network, platform, host={f"{HOME}/.ssh/id": FILE, f"{PROJECT}/src/x": FILE})
    assert problems(made) == []


P0 = '(subpath (param "P0"))'
TAGGED = '(with message (param "TAG"))'


@pytest.mark.parametrize(
    ("rule_", "words"),
    [
        ("(allow default)", "allows default"),
        ("(allow file-mount)", "allows file-mount"),
        ("(allow appleevent-send)", "allows appleevent-send"),
        ("(allow job-creation)", "allows job-creation"),
        ("(allow mach-cross-domain-lookup)", "mach-cross-domain-lookup is used by no public profile"),
        ('(allow file-ioctl (device-conforms-to "x"))', "device-conforms-to is used by no public profile"),
        ("(allow mach-lookup)", "without a filter"),
        ("(allow file-write*)", "without a filter"),
        ('(allow network-outbound (local ip "*:*"))', "local filter"),
        ('(allow network-outbound (remote ip "*:443"))', "203.0.113.7 is allowed"),
        ('(allow file-write* (subpath "/Users/me/x"))', "text of a policy"),
        ('(deny file-write* (subpath (param "P0")))', "without a tag"),
        (f"(allow file-read-data {P0}) (deny file-read* {P0})", "after allow file-read-data"),
        (f"(deny file-write* {P0} {TAGGED}) (allow file-write* {P0})", "refused and allowed again"),
    ],
)
def test_the_lint_sees(rule_: str, words: str) -> None:
    text = f'(version 1)\n(deny default (with message (param "TAG")))\n{rule_}\n'
    assert any(words in problem for problem in lint(text, {"TAG": TAG, "P0": "/Users/me/p"}))
    assert "has letters outside ASCII" in lint(text + "; \u00fc", {"TAG": TAG, "P0": "/Users/me/p"})


def test_the_lint_sees_a_missing_beginning_and_bad_values() -> None:
    text = f'(version 1) (allow file-read*) (deny default {TAGGED}) (deny file-read* (regex (param "R0")) {TAGGED})'
    found = lint(text, {"TAG": TAG, "R0": "a.b", "P1": "relative", "P2": "/x/"})
    for words in ("not (deny default)", "not anchored", "dot that stands for", "P1: not a path", "P2: not a path"):
        assert any(words in problem for problem in found), words
    assert compile_profile(text, {"TAG": "", "R0": "x"})
