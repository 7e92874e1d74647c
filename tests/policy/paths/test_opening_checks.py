"""Warnings about entries that open too much or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.build import build_policy, check_settings
from sandboxd.policy.paths.rule_paths import PathScope
from sandboxd.settings.layer import layer_from_values
from sandboxd.settings.merge import merge
from sandboxd.settings.origins import Source
from sandboxd.settings.problems import Severity

SCOPE = PathScope("/home/u", "/home/u/p", {"HOME": "/home/u", "ROOT": "/"})

WIDE = ("/", "/**", "//", "/*", "/*/**", "/etc", "/etc/", "/etc/**", "/etc/*", "/usr", "/e*c", "/[e]tc", "~",
        "~/", "~/**", "~/*", "/home", "/home/*", "/home/u", "/home/other", "/root", "$HOME", "$ROOT", "..", "../..",
        "/**/etc", "/?sr", "/Users/me", "/**/*")  # fmt: skip
NARROW = ("/etc/x", "~/x", "~/x/*", "./*", ".", "**", "*", "src/**", "/srv/data", "../other", "/home/u/p",
          "/usr/local/x")  # fmt: skip


def found(tree: Any, source: Source) -> list[tuple[str, Severity, bool]]:
    problems = check_settings(merge([layer_from_values(tree, source)]), SCOPE)
    return [(p.slug, p.severity, p.fatal) for p in problems if p.slug in ("path_too_wide", "path_covered")]


def forms(path: str) -> list[Any]:
    rule = path if not path.startswith("/") or path.startswith("//") else "/" + path
    return [
        {"sandbox": {"filesystem": {"allowWrite": [path]}}},
        {"permissions": {"allow": [f"Edit({rule})"]}},
        {"permissions": {"additionalDirectories": [path]}},
    ]


@pytest.mark.parametrize("path", WIDE)
def test_what_opens_a_system_directory_or_a_home_is_told(path: str) -> None:
    """An error in a project's file, where it has no effect; else a warning."""
    for tree in forms(path):
        assert found(tree, Source.PROJECT) == [("path_too_wide", Severity.ERROR, False)], tree
        for source in (Source.USER, Source.LOCAL, Source.MANAGED, Source.CLI):
            assert found(tree, source) == [("path_too_wide", Severity.WARNING, False)], tree


@pytest.mark.parametrize("path", NARROW)
def test_what_does_not_is_no_news(path: str) -> None:
    for tree in forms(path):
        assert found(tree, Source.PROJECT) == found(tree, Source.USER) == [], tree


def test_the_root_of_a_permission_rule_is_the_project() -> None:
    for rule in ("Edit(/)", "Edit(/**)", "Write(/etc/**)", "Read(//**)", "Bash(/:*)"):
        assert found({"permissions": {"allow": [rule]}}, Source.PROJECT) == []


@pytest.mark.parametrize(
    ("allowed", "denied", "covered"),
    [
        ("~/a", "~/a", True),
        ("~/a/b", "~/a", True),
        ("~/a/*", "~/a", True),
        ("~/a/*.c", "~/a/*.c", True),
        ("~/a/x.c", "~/a/*.c", True),
        ("~/a/x.c/d", "~/**/*.c", True),
        ("~/a", "~/a/b", False),
        ("~/a", "~/ab", False),
        ("~/a/x.h", "~/a/*.c", False),
        ("~/a/*", "~/a/*.c", False),
    ],
)
def test_an_opening_that_a_denial_takes_back_is_told(allowed: str, denied: str, covered: bool) -> None:
    files = {"allowWrite": [allowed], "denyWrite": [denied]}
    slugs = [slug for slug, _, _ in found({"sandbox": {"filesystem": files}}, Source.USER)]
    assert slugs == (["path_covered"] if covered else [])


def test_lint_names_rules_that_look_absolute() -> None:
    tree = {"permissions": {"allow": ["Edit(/src/**)"], "deny": ["Read(/.env)", "Read(//x)", "Read(./y)", "Bash(/z)"]}}
    settings = merge([layer_from_values(tree, Source.USER)])
    ambiguous = [problem for problem in check_settings(settings, SCOPE) if problem.slug == "path_ambiguous"]
    assert ["/home/u/p/src" in ambiguous[0].message, "/home/u/p/.env" in ambiguous[1].message] == [True, True]
    assert len(ambiguous) == 2 and "//src/**" in ambiguous[0].hint and "./src/**" in ambiguous[0].hint
    assert build_policy(settings, SCOPE).warnings == ()


_PATHS = st.text(alphabet="/*~.[]?ab", max_size=10)


@given(st.lists(_PATHS.filter(bool), max_size=4), st.lists(_PATHS.filter(bool), max_size=4))
def test_no_entries_keep_the_checks_from_an_answer(allowed: list[str], denied: list[str]) -> None:
    tree = {"sandbox": {"filesystem": {"allowWrite": allowed, "denyWrite": denied}}}
    for problem in check_settings(merge([layer_from_values(tree, Source.PROJECT)]), SCOPE):
        assert problem.message and problem.slug
