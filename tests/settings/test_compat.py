"""Settings files of earlier versions load, and mean what they meant. They are never edited."""

from __future__ import annotations

from pathlib import Path

from sandboxd.policy.build import build_policy, check_settings
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.layer import parse_layer
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source
from sandboxd.settings.schema import all_keys

COMPAT = Path(__file__).resolve().parents[1] / "compat"
SCOPE = PathScope("/home/u", "/home/u/p", {"HOME": "/home/u"})


def test_the_first_version() -> None:
    user = parse_layer((COMPAT / "settings-1.json").read_bytes(), Source.USER, "/u.json")
    managed = parse_layer((COMPAT / "settings-1-managed.json").read_bytes(), Source.MANAGED, "/m.json")
    found = (*user.problems, *managed.problems)
    assert {problem.slug for problem in found} == {"settings_unsupported_key"}
    assert {problem.message.split()[0] for problem in found} == {"sandbox.ripgrep", "sandbox.socatPath"}
    wide, *others = check_settings(merge([user]), SCOPE)
    assert (wide.slug, wide.fatal) == ("exclusion_runs_anything", False) and tuple(others) == user.problems
    policy = build_policy(merge([user]), SCOPE)
    assert policy.enabled and policy.network.strict_allowlist and not policy.commands.allow_unsandboxed
    assert [rule.pattern.text for rule in policy.network.allowed][-1] == "example.com"
    assert "/home/u/work" in {rule.path for rule in policy.files.allow_write}
    assert build_policy(merge([user, managed]), SCOPE).network.allowed == ()


def test_the_files_have_all_keys_of_their_version() -> None:
    """A new key is no reason to edit them: start a file for the next version."""
    keys: set[str] = set()
    for name in ("settings-1.json", "settings-1-managed.json"):
        keys |= parse_layer((COMPAT / name).read_bytes(), Source.MANAGED).values.keys()
    assert keys <= set(all_keys())
