"""Patterns as regular expressions: compared with what the pattern means on Linux, component by component."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandboxd.backends.macos.seatbelt.case_folding import fold, quote
from sandboxd.backends.macos.seatbelt.path_patterns import LONGEST, Glob, alternatives, parse_glob
from sandboxd.errors import PolicyError
from sandboxd.plan.host_queries import literal_name
from support.sbpl_regex import compile_regex


@lru_cache(maxsize=1000)
def name_matcher(part: str) -> re.Pattern[str]:
    return re.compile(translate(part))


def matches(pattern: str, path: str) -> bool:
    """The meaning: the pattern matches the path itself."""

    def walk(parts: tuple[str, ...], names: tuple[str, ...]) -> bool:
        if not parts:
            return not names
        if parts[0] == "**":
            return walk(parts[1:], names) or (bool(names) and walk(parts, names[1:]))
        return bool(names) and name_matcher(parts[0]).match(names[0]) is not None and walk(parts[1:], names[1:])

    return walk(tuple(filter(None, pattern.split("/"))), tuple(filter(None, path.split("/"))))


def covers(pattern: str, path: str) -> bool:
    """The pattern matches the path or a directory above it."""
    names = path.strip("/").split("/")
    return any(matches(pattern, "/" + "/".join(names[: end + 1])) for end in range(len(names)))


NAMES = st.text(alphabet="ab.-]^[*?$(|é\n\\", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=5).map(lambda names: "/" + "/".join(names))
PARTS = st.one_of(
    st.just("**"),
    st.just("*"),
    st.text(alphabet="ab.?*", min_size=1, max_size=4).filter(lambda part: part not in (".", "..")),
    st.sampled_from(["[ab]", "[!a]x", "[a-c]*", "[]a]", "[[]", "[*]", "[?]b", "[^a]", "[-a]", "[b-a]", "[!.-]", "$(|"]),
)
PATTERNS = (
    st.lists(PARTS, min_size=1, max_size=4)
    .filter(lambda parts: parts[-1] != "**")
    .map(lambda parts: "/" + "/".join(parts))
)


@given(PATTERNS, PATHS)
@example("/**/id_rsa", "/id_rsa")
@example("/a/**/b", "/a/b/c")
@example("/[[]", "/[")
@example("/[^a]", "/^")
def test_expressions_match_what_the_pattern_covers(pattern: str, path: str) -> None:
    expression = parse_glob(pattern).expression
    assert (compile_regex(expression).search(path) is not None) is covers(pattern, path)


@given(PATTERNS, PATHS, PATHS)
def test_a_pattern_meets_a_literal_path(pattern: str, path: str, rest: str) -> None:
    """What can match below a literal path is a pattern of its own, below that path."""
    meeting = parse_glob(pattern).meets(path)
    assert meeting.exact is matches(pattern, path)
    parent = path.rpartition("/")[0]
    assert meeting.above is (bool(parent) and covers(pattern, parent))
    names = rest.strip("/").split("/")
    inside = any(matches(pattern, path + "/" + "/".join(names[: end + 1])) for end in range(len(names)))
    found = any(compile_regex(glob.expression).search(path + rest) for glob in meeting.below)
    assert found is inside


@pytest.mark.parametrize(
    ("pattern", "expression"),
    [
        ("/home/u/.ssh/id_*", r"^/home/u/\.ssh/id_[^/]*(/|$)"),
        ("/**/.env", r"^(/[^/]+)*/\.env(/|$)"),
        ("/w/**/*.pem", r"^/w(/[^/]+)*/[^/]*\.pem(/|$)"),
        ("/w/?[0-9][!x]", r"^/w/[^/][0-9][^x/](/|$)"),
        ("/w/(a|b)+.{1}$", None),
        ("/w/*(a|b)+.{1}$^", r"^/w/[^/]*\(a\|b\)\+\.\{1\}\$\^(/|$)"),
        ("/w/*]\\", r"^/w/[^/]*\]\\(/|$)"),
        ("/[*]x/*", r"^/\*x/[^/]+(/|$)"),
    ],
)
def test_how_expressions_look(pattern: str, expression: str | None) -> None:
    glob = parse_glob(pattern)
    if expression is None:
        assert glob.parts == ()
    else:
        assert glob.expression == expression


@pytest.mark.parametrize("pattern", ["/a/[!^]", "/a/[!]]", "/a/[!\\]", "/a/[![]"])
def test_what_cannot_be_expressed_is_an_error(pattern: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_glob(pattern)
    assert caught.value.slug == "pattern_unsupported"


def test_a_pattern_that_is_too_long_is_an_error() -> None:
    with pytest.raises(PolicyError) as caught:
        _ = parse_glob("/" + "x" * LONGEST + "/*").expression
    assert caught.value.slug == "pattern_too_long"


def test_long_lists_are_cut() -> None:
    names = [f"name-{number}" for number in range(400)]
    expressions = list(alternatives("^/x/", map(quote, names), "$"))
    assert len(expressions) == 4
    assert all(len(expression) <= LONGEST for expression in expressions)
    for name in names:
        assert sum(compile_regex(expression).search(f"/x/{name}") is not None for expression in expressions) == 1


@given(st.text(alphabet=st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_quoted_text_means_itself(name: str) -> None:
    pattern = compile_regex("^" + quote(name) + "$")
    assert pattern.search(name)
    assert not pattern.search(name + "x")


def test_folded_text_means_both_cases() -> None:
    pattern = compile_regex("^" + fold(".Git-x1") + "$")
    assert pattern.search(".gIT-X1") and not pattern.search("xgit-x1")


def test_names_without_magic() -> None:
    assert literal_name("[*]a[[]") == "*a["
    assert literal_name("a*") is None
    assert Glob("/", (None, "x")).is_deep
    assert parse_glob("/a/b/*").depth == 3
    assert parse_glob("/*").depth == 1
