"""Ten typical policies and the profiles they become, for reading: what changes in a profile shows in a review.

A case is a folder in `golden/`: `settings.json` (a user's settings), `host.json` (what exists beside the usual things)
and `profile.txt` (the rules behind the fixed ones, each parameter replaced by its value in braces). Write the profiles
anew with `SANDBOXD_WRITE_GOLDEN=1 ./dev test tests/backends/macos/test_mac_golden.py`, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from sandboxd.backends.macos.seatbelt.profile import Profile
from sandboxd.backends.macos.seatbelt.rule_files import read_rule_file
from sandboxd.policy.build import build_policy
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.layer import parse_layer
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source
from support.dictionary_host import DIRECTORY
from support.sbpl_lint import RULE_FILES
from support.seatbelt import HOME, PROJECT, compiled, problems

GOLDEN = Path(__file__).with_name("golden")
CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


def shown(profile: Profile) -> str:
    """The rules, with values in place of parameters; fixed rule files by their name only."""
    text = profile.text
    for name in sorted(file.stem for file in RULE_FILES.glob("*.sbpl")):
        text = text.replace(read_rule_file(name), f"; <{name}.sbpl>\n")
    values = dict(profile.parameters)
    text = re.sub(r'\(param "([PRNL][0-9]+)"\)', lambda match: "{" + values[match[1]] + "}", text)
    text = text.replace('\n  (with message (param "TAG"))', "")
    return re.sub(r"\n{3,}", "\n\n", text)


@pytest.mark.parametrize("name", CASES)
def test_profile_is_the_one_that_was_reviewed(name: str) -> None:
    case = GOLDEN / name
    host = {**json.loads((case / "host.json").read_text()), f"{HOME}/.zshrc": ""}
    scope = PathScope(HOME, PROJECT, {"SSH_AUTH_SOCK": "/private/tmp/com.apple.launchd.x/Listeners"}, "macos")
    layer = parse_layer((case / "settings.json").read_text(), Source.USER, f"{HOME}/.claude/settings.json")
    policy = build_policy(merge([layer]), scope)
    made = compiled(
        policy.files, policy.network, policy.platform,
        host={path: DIRECTORY if content == "/" else content for path, content in host.items()},
    )  # fmt: skip
    assert problems(made, apple_events=policy.platform.allow_apple_events) == []
    found = shown(made.source)
    file = case / "profile.txt"
    if os.environ.get("SANDBOXD_WRITE_GOLDEN"):
        file.write_text(found)
    assert found == file.read_text()


def test_there_are_ten_cases() -> None:
    assert len(CASES) == 10
