"""Changes of settings: refused where policy locks, made once, spelled as people spell them."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.errors import CallerError
from sandboxd.policy.edit_checks import check_rule_change
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.edits import Act, Change, apply_change, apply_changes, check_change, full_key, parse_value
from sandboxd.settings.jsonc import parse_jsonc
from sandboxd.settings.layer import layer_from_values, parse_layer
from sandboxd.settings.merge import Settings, merge
from sandboxd.settings.origins import Source

SCOPE = PathScope("/home/u", "/home/u/p")
HOSTS = "sandbox.network.allowedDomains"


def managed(tree: Any) -> Settings:
    return merge([layer_from_values(tree, Source.MANAGED)])


def refused(settings: Settings, change: Change) -> CallerError:
    with pytest.raises(CallerError) as caught:
        check_rule_change(settings, change, SCOPE)
    return caught.value


def test_keys_as_people_say_them() -> None:
    assert full_key("sandbox.enabled") == full_key("enabled") == "sandbox.enabled"
    assert full_key("network.allowedDomains") == HOSTS
    assert full_key("permissions.deny") == "permissions.deny"
    with pytest.raises(CallerError) as caught:
        full_key("network.allowed")
    assert caught.value.slug == "settings_unknown_key" and HOSTS in caught.value.hint
    with pytest.raises(CallerError):
        full_key("")


def test_values_as_people_type_them() -> None:
    assert parse_value("true") is True
    assert parse_value("3") == 3
    assert parse_value('["a"]') == ["a"]
    assert parse_value("docker ps") == "docker ps"
    assert parse_value("") == ""


def test_changes_of_a_text() -> None:
    text = apply_change("", Change(Act.ADD, HOSTS, "a.test"))
    text = apply_change(text, Change(Act.ADD, HOSTS, "b.test"))
    text = apply_change(text, Change(Act.SET, "sandbox.enabled", True))
    assert parse_jsonc(text).root.value == {
        "sandbox": {"network": {"allowedDomains": ["a.test", "b.test"]}, "enabled": True}
    }
    text = apply_changes(text, (Change(Act.REMOVE, HOSTS, "a.test"), Change(Act.UNSET, "sandbox.enabled")))
    assert parse_jsonc(text).root.value == {"sandbox": {"network": {"allowedDomains": ["b.test"]}}}


@pytest.mark.parametrize(
    ("tree", "change"),
    [
        ({"sandbox": {"enabled": True}}, Change(Act.SET, "sandbox.enabled", False)),
        ({"sandbox": {"enabled": True}}, Change(Act.UNSET, "sandbox.enabled")),
        ({"sandbox": {"network": {"allowManagedDomainsOnly": True}}}, Change(Act.ADD, HOSTS, "a.test")),
        ({"sandbox": {"network": {"allowManagedDomainsOnly": True}}}, Change(Act.REMOVE, HOSTS, "a.test")),
        (
            {"sandbox": {"filesystem": {"allowManagedReadPathsOnly": True}}},
            Change(Act.ADD, "sandbox.filesystem.allowRead", "/x"),
        ),
        ({}, Change(Act.SET, "sandbox.bwrapPath", "/x")),
        ({}, Change(Act.SET, "sandbox.network.allowManagedDomainsOnly", False)),
    ],
)
def test_what_policy_locks_is_refused_with_the_reason(tree: Any, change: Change) -> None:
    error = refused(managed(tree), change)
    assert error.slug == "settings_locked"
    assert change.key in error.message and "managed" in error.message


def test_what_policy_does_not_lock_is_free() -> None:
    settings = managed({"sandbox": {"enabled": True, "network": {"allowedDomains": ["a.test"]}}})
    for change in (Change(Act.ADD, HOSTS, "b.test"), Change(Act.SET, "sandbox.failIfUnavailable", False)):
        check_change(settings, change)


@pytest.mark.parametrize(
    ("change", "slug"),
    [
        (Change(Act.SET, "sandbox.nope", 1), "settings_unknown_key"),
        (Change(Act.SET, "sandbox.enabled", "yes"), "settings_wrong_type"),
        (Change(Act.ADD, "sandbox.enabled", True), "settings_wrong_type"),
        (Change(Act.ADD, HOSTS, 3), "settings_wrong_type"),
        (Change(Act.SET, HOSTS, "a.test"), "settings_wrong_type"),
        (Change(Act.ADD, HOSTS, "https://a.test/x"), "host_pattern_url"),
        (Change(Act.ADD, HOSTS, "*.com"), "host_pattern_public_suffix"),
        (Change(Act.ADD, "sandbox.excludedCommands", "*"), "command_pattern_matches_all"),
        (Change(Act.ADD, "sandbox.excludedCommands", ""), "settings_wrong_type"),
        (Change(Act.ADD, "sandbox.filesystem.allowWrite", "~root"), "path_other_home"),
        (Change(Act.ADD, "sandbox.filesystem.allowWrite", "$NOPE"), "path_variable_unset"),
        (Change(Act.ADD, "permissions.allow", "Bash("), "rule_syntax"),
        (Change(Act.ADD, "permissions.deny", "Bash("), "rule_syntax"),
    ],
)
def test_what_makes_no_sense_is_refused(change: Change, slug: str) -> None:
    assert refused(merge([]), change).slug == slug


def test_removing_what_makes_no_sense_is_fine() -> None:
    check_rule_change(merge([]), Change(Act.REMOVE, HOSTS, "https://a.test/x"), SCOPE)
    check_rule_change(merge([]), Change(Act.UNSET, HOSTS), SCOPE)


def test_what_a_person_should_know_is_returned() -> None:
    assert "allows every host" in check_rule_change(merge([]), Change(Act.ADD, HOSTS, "*"), SCOPE)[0]
    denied = merge([parse_layer('{"sandbox": {"network": {"deniedDomains": ["*.no.test"]}}}', Source.USER, "/u.json")])
    (pointless,) = check_rule_change(denied, Change(Act.ADD, HOSTS, "a.no.test"), SCOPE)
    assert "can never be reached" in pointless and "/u.json" in pointless
    assert check_rule_change(denied, Change(Act.ADD, HOSTS, "ok.test"), SCOPE) == ()
