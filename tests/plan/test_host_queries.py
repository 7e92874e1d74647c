"""Which questions a policy raises, and where its rules hold in a place."""

from __future__ import annotations

import pytest

from sandboxd.plan.host_queries import files_in, list_needs
from sandboxd.plan.request import Place
from sandboxd.policy.build import build_policy
from sandboxd.policy.paths.rule_paths import PathScope, quoted
from sandboxd.settings.layer import layer_from_values
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source


@pytest.mark.parametrize("opened", ["/w/a", "/w/[x]", "~"])
def test_a_denial_without_a_beginning_holds_in_presets_too(opened: str) -> None:
    files = {"allowWrite": [opened], "denyRead": ["**/.env", "/x/**/y"]}
    settings = merge([layer_from_values({"sandbox": {"filesystem": files, "presets": ["caches"]}}, Source.USER)])
    policy = build_policy(settings, PathScope("/home/u", "/home/u/p"))
    place = Place("/home/u/p", "/home/u/p", "/run/t/s", "/home/u", 1, "/run/d", "/run/d/mask")
    rule = policy.files.allow_write[0]
    below = rule.path if rule.glob else quoted(rule.path)
    denied = files_in(policy.files, place).deny_read
    assert [one.path for one in denied if not one.bounded] == [
        "/home/u/p/**/.env", f"{below}/**/.env", "/x/**/y"
    ]  # fmt: skip
    presets = [one.path for one in policy.files.allow_write[1:]]
    assert [one.path for one in denied if one.bounded] == [f"{preset}/**/.env" for preset in presets]
    needs = list_needs(policy, place)
    assert [(one.directory, one.patterns) for one in needs.bounded] == [(one, ("**/.env",)) for one in presets]
    assert not any(".cache/pip" in pattern for pattern in needs.globs)
