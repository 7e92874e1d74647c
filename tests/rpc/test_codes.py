"""The one table of slugs: everything that can be raised to a caller is in it, with the number of whose fault it was."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd_client.wire import codes

SOURCE = Path(__file__).resolve().parents[2] / "sandboxd"
# Names of what is called with a slug first. `error` makes a problem of a settings file, which becomes a SettingsError.
CLASSES = {
    "CallerError": {codes.CALLER, codes.DENIED, codes.INVALID_PARAMS, codes.BUSY},
    "SettingsError": {codes.SETTINGS},
    "JsoncError": {codes.SETTINGS},
    "PolicyError": {codes.POLICY, codes.CALLER},  # a directory that was given may be gone when it is planned for
    "HostError": {codes.HOST},
    "LaunchError": {codes.LAUNCH},
    "InternalError": {codes.INTERNAL_ERROR},
}


RULE_ERRORS = {"RulePathError", "CommandPatternError", "HostPatternError", "RuleSyntaxError", "JsoncError", "_BadEntry"}
"""Become a SettingsError, or the CallerError of a change of settings, with the same slug."""


def raised() -> Iterator[tuple[str, str, str]]:
    """(slug, class, file) of every literal slug."""
    for path in sorted(SOURCE.rglob("*.py")):
        folder = path.relative_to(SOURCE).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name in RULE_ERRORS or (name == "error" and folder in ("settings", "policy", "sources")):
                name = "SettingsError"
            slug = node.args[0]
            if name in CLASSES and isinstance(slug, ast.Constant) and isinstance(slug.value, str):
                yield slug.value, name, str(path.relative_to(SOURCE))


def test_every_slug_is_in_the_table() -> None:
    missing = {(slug, name) for slug, name, _ in raised() if slug not in codes.NUMBERS}
    assert missing == set(), "add them to sandboxd_client/wire/codes.py, then renew docs/rpc.md"


def test_the_number_says_whose_fault_it_was() -> None:
    wrong = {
        (slug, name, codes.NUMBERS[slug])
        for slug, name, _ in raised()
        if slug in codes.NUMBERS and codes.NUMBERS[slug] not in CLASSES[name]
    }
    assert wrong == set()


def test_slugs_are_unique_words() -> None:
    slugs = [slug for slug, _, _ in codes.TABLE]
    assert len(slugs) == len(set(slugs))
    assert all(slug.isascii() and slug.replace("_", "").isalnum() and slug.islower() for slug in slugs)
    assert all(meaning and not meaning.endswith(".") for _, _, meaning in codes.TABLE)


@pytest.mark.parametrize("slug", ["parse_error", "invalid_request", "method_not_found", "invalid_params"])
def test_the_specification_s_own_numbers(slug: str) -> None:
    assert -32700 <= codes.NUMBERS[slug] <= -32600
