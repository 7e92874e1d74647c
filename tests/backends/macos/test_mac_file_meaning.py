"""What the file rules mean: a reference model decides, and the profile must agree with it.

The model is written from the words of the design (5.2), not from the code: it walks down to a path and asks at each
step which rules name exactly this place. Protected names are compared with Linux, in test_mac_and_linux.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.policy.model import FilePolicy, PathRule
from support.dictionary_host import DIRECTORY, glob_matches
from support.seatbelt import compiled, place, rules

TOP = "/Users/me/t"


@dataclass
class Model:
    files: FilePolicy
    project: str
    cwd: str

    def decide(self, path: str) -> tuple[bool, bool]:
        """(readable, writable)."""
        readable, writable, closed = True, False, False
        for place_ in prefixes(path):
            denied = names(self.files.deny_read, place_)
            opened = names(self.files.allow_read, place_)
            written = names(self.files.allow_write, place_) or place_ == self.project
            if denied:
                readable = writable = False
            elif opened or written:
                readable = True
                writable = writable or written
            if place_ == self.cwd and readable and self.project in prefixes(self.cwd):
                writable = True
            closed = closed or names(self.files.deny_write, place_)
        return readable, readable and writable and not closed


def prefixes(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/", *("/" + "/".join(parts[: end + 1]) for end in range(len(parts)))]


def names(listed: tuple[PathRule, ...], path: str) -> bool:
    """Whether one of the rules names exactly this path."""
    return any(glob_matches(parts(one.path), parts(path)) if one.glob else one.path == path for one in listed)


def parts(path: str) -> tuple[str, ...]:
    return tuple(filter(None, path.split("/")))


NAME = st.sampled_from(["a", "b", "ab", ".x"])
PATH = st.lists(NAME, max_size=4).map(lambda names_: "/".join([TOP, *names_]))
GLOB = (
    st.lists(st.one_of(NAME, st.sampled_from(["*", "?", "a*", "**", "[ab]", "[!a]"])), min_size=1, max_size=4)
    .filter(lambda given_: given_[-1] != "**" and any(set(part) & set("*?[") for part in given_))
    .map(lambda given_: "/".join([TOP, *given_]))
)
RULES = st.lists(PATH, max_size=3)
GLOBS = st.lists(GLOB, max_size=1)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[FilePolicy, dict[str, str], str, str]:
    """A policy, what exists, the project and the working directory. Every literal rule names something that exists:
    what happens otherwise is a table of its own."""
    lists = {key: draw(RULES) for key in ("allow_write", "deny_write", "deny_read", "allow_read")}
    cwd, project = draw(PATH), draw(PATH)
    files = draw(st.lists(PATH, max_size=4))
    present = {path: DIRECTORY for path in [*files, cwd, project, *(p for paths in lists.values() for p in paths)]}
    for key in lists:
        lists[key] += draw(GLOBS)
    policy = FilePolicy(
        allow_write=rules(*lists["allow_write"]),
        deny_write=rules(*lists["deny_write"]),
        deny_read=rules(*lists["deny_read"]),
        allow_read=rules(*lists["allow_read"]),
    )
    return policy, present, project, cwd


def opposite_patterns(files: FilePolicy) -> bool:
    return any(one.glob for one in files.deny_read) and any(one.glob for one in (*files.allow_read, *files.allow_write))


@settings(max_examples=200)
@given(worlds(), st.lists(st.one_of(PATH, PATH.map(lambda path: path + "/new")), min_size=3, max_size=12))
def test_profiles_agree_with_the_model(world: tuple[FilePolicy, dict[str, str], str, str], paths: list[str]) -> None:
    files, present, project, cwd = world
    model = Model(files, project, cwd)
    if not model.decide(cwd)[0]:
        return  # refused before anything is rendered
    profile = compiled(files, host=present, where=place(cwd=cwd, project_root=project), only_files=True)
    for path in {*paths, *present}:
        found = (profile.reads(path), profile.writes(path))
        expected = model.decide(path)
        if opposite_patterns(files):
            assert not (found[0] > expected[0] or found[1] > expected[1]), path
        else:
            assert found == expected, path
