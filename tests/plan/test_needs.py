"""Which questions a policy raises, and where its rules hold in a place."""

from __future__ import annotations

import pytest

from sandboxd.plan.needs import files_in
from sandboxd.plan.request import Place
from sandboxd.policy.build import build_policy
from sandboxd.policy.rule_paths import Scope, quoted
from sandboxd.settings.layer import layer_from_values
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source


@pytest.mark.parametrize("opened", ["/w/a", "/w/[x]", "~"])
def test_a_denial_that_begins_nowhere_holds_below_what_is_opened_and_below_no_preset(opened: str) -> None:
    files = {"allowWrite": [opened], "denyRead": ["**/.env", "/x/**/y"]}
    settings = merge([layer_from_values({"sandbox": {"filesystem": files, "presets": ["caches"]}}, Source.USER)])
    policy = build_policy(settings, Scope("/home/u", "/home/u/p"))
    place = Place("/home/u/p", "/home/u/p", "/run/t/s", "/home/u", 1, "/run/d", "/run/d/mask")
    rule = policy.files.allow_write[0]
    below = rule.path if rule.glob else quoted(rule.path)
    assert [denied.path for denied in files_in(policy.files, place).deny_read] == [
        "/home/u/p/**/.env", f"{below}/**/.env", "/x/**/y"
    ]  # fmt: skip
