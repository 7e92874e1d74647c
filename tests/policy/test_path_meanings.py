"""One path has one meaning in every file and list: a table of all spellings."""

from __future__ import annotations

import json

import pytest

from sandboxd.policy.build import build_policy
from sandboxd.policy.model import Missing, PathRule, Policy
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.layer import Layer, layer_from_values, parse_layer
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source

HOME, PROJECT = "/home/u", "/srv/project"
SOURCES: dict[str, tuple[Source, str | None, bool]] = {
    "managed": (Source.MANAGED, "/etc/sandboxd/managed-settings.json", True),
    "user": (Source.USER, f"{HOME}/.claude/settings.json", True),
    "local": (Source.LOCAL, f"{HOME}/.claude/settings.local.json", True),
    "flag": (Source.FLAG, "/opt/flags/s.json", True),
    "named": (Source.CLI, "/opt/named/s.json", True),
    "call": (Source.CLI, None, True),  # a session's settings and options of one command
    "project": (Source.PROJECT, f"{PROJECT}/.claude/settings.json", False),
    "project local": (Source.LOCAL, f"{PROJECT}/.claude/settings.local.json", True),
}
BESIDE = {"user": f"{HOME}/.claude", "local": f"{HOME}/.claude", "flag": "/opt/flags", "named": "/opt/named"}
"""The directory where `/p` begins in the format's documentation; closed too."""
FORMS = ("/p/x", "//p/x", "~/p/x", "p/x", "./p/x", "x", "./x", "/x")
ABSOLUTE = {
    "/p/x": "/p/x", "//p/x": "/p/x", "~/p/x": f"{HOME}/p/x", "p/x": f"{PROJECT}/p/x", "./p/x": f"{PROJECT}/p/x",
    "x": f"{PROJECT}/x", "./x": f"{PROJECT}/x", "/x": "/x",
}  # fmt: skip
"""Spellings of `sandbox.filesystem`, and of rules except for `/p/x` and `/x`."""


def layer(who: str, tree: dict[str, object]) -> Layer:
    source, file, _ = SOURCES[who]
    return layer_from_values(tree, source) if file is None else parse_layer(json.dumps(tree), source, file)


def policy(who: str, tree: dict[str, object]) -> Policy:
    return build_policy(merge([layer(who, tree)]), PathScope(HOME, PROJECT))


def named(rules: tuple[PathRule, ...], *, second: bool = False) -> set[str]:
    return {rule.path for rule in rules if (rule.missing is Missing.UNMEANT) is second}


@pytest.mark.parametrize("who", SOURCES)
@pytest.mark.parametrize("form", FORMS)
def test_lists_of_the_sandbox(who: str, form: str) -> None:
    opens = SOURCES[who][2]
    for key, rules in (("allowWrite", "allow_write"), ("allowRead", "allow_read"), ("denyRead", "deny_read"),
                       ("denyWrite", "deny_write"), ("denyEdit", "deny_write")):  # fmt: skip
        files = policy(who, {"sandbox": {"filesystem": {key: [form]}}}).files
        expected = {ABSOLUTE[form]} if opens or key.startswith("deny") else set()
        assert named(getattr(files, rules)) == expected, key
    added = policy(who, {"permissions": {"additionalDirectories": [form]}}).files.allow_write
    assert named(added) == ({ABSOLUTE[form]} if opens else set())
    hidden = policy(who, {"sandbox": {"credentials": {"files": [{"path": form, "mode": "deny"}]}}}).files.deny_read
    assert named(hidden) == {ABSOLUTE[form]}


@pytest.mark.parametrize("who", SOURCES)
@pytest.mark.parametrize("form", FORMS)
def test_permission_rules(who: str, form: str) -> None:
    slash = form.startswith("/") and not form.startswith("//")
    first = f"{PROJECT}{form}" if slash else ABSOLUTE[form]
    allowed = policy(who, {"permissions": {"allow": [f"Edit({form})"]}}).files.allow_write
    assert named(allowed) == ({first} if SOURCES[who][2] else set())
    others = {f"{BESIDE[who]}{form}"} if slash and who in BESIDE else set()
    others |= {form} if slash else {f"{PROJECT}/**/x"} if form == "x" else set()
    for kind in ("deny", "ask"):
        for tool, rules in (("Read", "deny_read"), ("LS", "deny_read"), ("Edit", "deny_write"), ("W*e", "deny_write")):
            found = getattr(policy(who, {"permissions": {kind: [f"{tool}({form})"]}}).files, rules)
            assert named(found) == {first}, (kind, tool)
            assert named(found, second=True) == others, (kind, tool)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (r"./\[2024-06\] Reports/**", "[[]2024-06] Reports"),
        (r"./a\*b", "a[*]b"),
        (r"./a\ b\#c", "a b#c"),
        (r"./\!x", "!x"),
    ],
)
def test_escaped_characters_of_a_rule_are_themselves(text: str, first: str) -> None:
    """Rules as the owner of the format writes them."""
    denied = policy("user", {"permissions": {"deny": [f"Read({text})"]}}).files.deny_read
    assert f"{PROJECT}/{first}" in named(denied)
    (allowed,) = policy("user", {"permissions": {"allow": [f"Edit({text})"]}}).files.allow_write
    assert allowed.path == f"{PROJECT}/{first}"
