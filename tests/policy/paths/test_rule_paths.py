"""Expansion of path rules."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.policy.paths.rule_paths import (
    PathScope,
    RulePath,
    RulePathError,
    expand_permission_path,
    expand_rule_path,
    unanchored_pattern,
)

SCOPE = PathScope(
    "/home/u", "/home/u/p", {"TMPDIR": "/home/u/.local/t/", "REL": "rel", "EMPTY": "", "A_1": "/x", "G": "/g[1]*"}
)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/etc/passwd", "/etc/passwd"),
        ("//etc/passwd", "/etc/passwd"),
        ("///etc///passwd//", "/etc/passwd"),
        ("/", "/"),
        ("//", "/"),
        ("/**", "/"),
        ("~", "/home/u"),
        ("~/", "/home/u"),
        ("~/**", "/home/u"),
        ("~//x/", "/home/u/x"),
        ("$TMPDIR", "/home/u/.local/t"),
        ("${TMPDIR}/a", "/home/u/.local/t/a"),
        ("$A_1/$A_1", "/x/x"),
        ("$REL/a", "/home/u/p/rel/a"),
        ("~/$REL", "/home/u/rel"),
        (".", "/home/u/p"),
        ("./", "/home/u/p"),
        ("./x", "/home/u/p/x"),
        ("x", "/home/u/p/x"),
        ("x/", "/home/u/p/x"),
        ("x/**", "/home/u/p/x"),
        ("x/**/", "/home/u/p/x"),
        ("x/**/**", "/home/u/p/x"),
        ("**", "/home/u/p"),
        ("./**", "/home/u/p"),
        ("..", "/home/u"),
        ("../m/.git", "/home/u/m/.git"),
        ("./../m", "/home/u/m"),
        ("../../..", "/"),
        ("../../../..", "/"),
        ("a//./b", "/home/u/p/a/b"),
        ("a b", "/home/u/p/a b"),
        ("a$", "/home/u/p/a$"),
        ("a$1", "/home/u/p/a$1"),
        (".env", "/home/u/p/.env"),
        ("..x", "/home/u/p/..x"),
        ("$G", "/g[1]*"),
    ],
)
def test_literal_paths(text: str, path: str) -> None:
    assert expand_rule_path(text, SCOPE) == RulePath(path, False)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("**/id_rsa", "/home/u/p/**/id_rsa"),
        ("./.env.*", "/home/u/p/.env.*"),
        ("~/.ssh/id_*", "/home/u/.ssh/id_*"),
        ("/a/*/b/**", "/a/*/b"),
        ("/a/*/**", "/a/*"),
        ("/a/*", "/a/*"),
        ("a?", "/home/u/p/a?"),
        ("[ab]/", "/home/u/p/[ab]"),
        ("[]a]", "/home/u/p/[]a]"),
        ("[!]a]", "/home/u/p/[!]a]"),
        ("../*", "/home/u/*"),
        ("$G/*", "/g[[]1][*]/*"),
    ],
)
def test_patterns(text: str, path: str) -> None:
    assert expand_rule_path(text, SCOPE) == RulePath(path, True)


def test_special_characters_of_a_directory_are_literal() -> None:
    scope = PathScope("/home/[u]", "/p/a*b")
    assert expand_rule_path("~/x?", scope).path == "/home/[[]u]/x?"
    assert expand_rule_path("*.c", scope).path == "/p/a[*]b/*.c"
    assert expand_rule_path("c", scope) == RulePath("/p/a*b/c", False)


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("", "path_empty"),
        ("  ", "path_empty"),
        ("~root", "path_other_home"),
        ("~root/x", "path_other_home"),
        ("~*", "path_other_home"),
        ("$NOPE", "path_variable_unset"),
        ("${NOPE}/x", "path_variable_unset"),
        ("$EMPTY/x", "path_variable_unset"),
        ("a/../b", "path_dotdot"),
        ("/a/..", "path_dotdot"),
        ("~/..", "path_dotdot"),
        ("$A_1/../b", "path_dotdot"),
        ("*/../b", "path_dotdot"),
        ("a/[b", "path_glob_invalid"),
        ("a/[]", "path_glob_invalid"),
        ("a\0b", "path_invalid"),
        ("a" * 5000, "path_too_long"),
    ],
)
def test_what_cannot_be_expanded_is_refused(text: str, slug: str) -> None:
    with pytest.raises(RulePathError) as caught:
        expand_rule_path(text, SCOPE)
    assert caught.value.slug == slug


@given(
    st.lists(st.sampled_from(["a", "b c", ".x", "..y"]), min_size=1),
    st.sampled_from(["", "/", "//", "/**", "/**/", "/."]),
)
def test_all_spellings_of_a_directory_are_equal(parts: list[str], tail: str) -> None:
    scope = PathScope("/home/u", "/home/u/p", {"HOME": "/home/u"})
    path = "/".join(parts)
    spelled = {
        expand_rule_path(base + path + tail, scope) for base in ("~/", "$HOME/", "${HOME}//", "/home/u/", "//home/u/")
    }
    assert spelled == {RulePath(f"/home/u/{path}", False)}


@given(st.text("ab/.*?[]$~{} \\-", max_size=20))
def test_any_text_gives_an_absolute_normal_path_or_a_refusal(text: str) -> None:
    try:
        found = expand_rule_path(text, SCOPE)
    except RulePathError as error:
        assert error.message
        return
    assert found.path.startswith("/") and (found.path == "/" or not found.path.endswith("/"))
    assert posixpath.normpath(found.path) == found.path


# --- permission rules ---

USER = "/home/u/.claude"


@pytest.mark.parametrize(
    ("text", "allowed", "denied"),
    [
        ("//etc/x", ["/etc/x"], ["/etc/x"]),
        ("//**/.env", ["/**/.env"], ["/**/.env"]),
        ("~/x", ["/home/u/x"], ["/home/u/x"]),
        ("/src/**", ["/home/u/p/src"], ["/home/u/p/src", "/home/u/.claude/src", "/src"]),
        ("/**", ["/home/u/p"], ["/home/u/p", "/home/u/.claude", "/"]),
        ("/", ["/home/u/p"], ["/home/u/p", "/home/u/.claude", "/"]),
        ("/a/*.c", ["/home/u/p/a/*.c"], ["/home/u/p/a/*.c", "/home/u/.claude/a/*.c", "/a/*.c"]),
        ("/**/.env", ["/home/u/p/**/.env"], ["/home/u/p/**/.env", "/home/u/.claude/**/.env"]),
        ("/$A_1", ["/home/u/p/x"], ["/home/u/p/x", "/home/u/.claude/x", "/x"]),
        ("./x", ["/home/u/p/x"], ["/home/u/p/x"]),
        ("a/b", ["/home/u/p/a/b"], ["/home/u/p/a/b"]),
        (".env", ["/home/u/p/.env"], ["/home/u/p/.env", "/home/u/p/**/.env"]),
        ("src/**", ["/home/u/p/src"], ["/home/u/p/src", "/home/u/p/**/src"]),
        ("*.pem", ["/home/u/p/*.pem"], ["/home/u/p/**/*.pem"]),
        ("**/.env", ["/home/u/p/**/.env"], ["/home/u/p/**/.env"]),
        ("*", ["/home/u/p/*"], ["/home/u/p/*"]),
        (".", ["/home/u/p"], ["/home/u/p"]),
        ("../m", ["/home/u/m"], ["/home/u/m"]),
        ("$A_1/y", ["/x/y"], ["/x/y"]),
    ],
)
def test_a_permission_rule_denies_every_reading(text: str, allowed: list[str], denied: list[str]) -> None:
    def read(denies: bool) -> list[str]:
        found = expand_permission_path(text, SCOPE, denies=denies, settings_directory=USER)
        assert not found[0].second
        return [reading.rule.path for reading in found]

    assert read(False) == allowed and read(True) == denied


@pytest.mark.parametrize("text", ["/../x", "/a/../b", "/..", "/./../x", "", "~root/x", "/a/[b", "/$NOPE"])
def test_no_spelling_of_a_permission_rule_leaves_the_project(text: str) -> None:
    for denies in (False, True):
        with pytest.raises(RulePathError):
            expand_permission_path(text, SCOPE, denies=denies)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [("**/.env", "**/.env"), ("*.pem", "**/*.pem"), ("**/a/*.c", "**/a/*.c"), ("**/x/**", "**/x"), (".env", ""),
     ("./*.pem", ""), ("a/*.c", ""), ("/*.c", ""), ("~/*.c", ""), ("$A_1/*", ""), ("**", ""), ("*", ""),
     ("**/*", "**/*")],
)  # fmt: skip
def test_a_pattern_that_begins_in_no_directory(text: str, pattern: str) -> None:
    assert unanchored_pattern(text, SCOPE) == pattern


@given(st.text(alphabet="/.*~$[]a b", max_size=12), st.booleans())
def test_an_allow_rule_has_one_reading(text: str, denies: bool) -> None:
    try:
        readings = expand_permission_path(text, SCOPE, denies=denies, settings_directory=USER)
    except RulePathError:
        return
    assert readings and all(reading.rule.path.startswith("/") for reading in readings)
    if text.startswith("/") and not text.startswith("//"):
        assert posixpath.commonpath([readings[0].rule.path, SCOPE.project]) == SCOPE.project
    if not denies:
        assert len(readings) == 1 and not readings[0].unanchored
