"""Both systems from one policy: what they decide about the same paths, and every difference with its reason.

`DIFFERENCES` is the table of docs/platforms.md that concerns files. Whatever is not in it is a fault.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandboxd.plan.filesystem.mounts import Visibility, settled_at
from sandboxd.plan.host_queries import list_needs
from sandboxd.plan.plan import Layout, make_layout
from sandboxd.policy.model import FilePolicy, Policy
from sandboxd.policy.paths.protected_names import PROTECTED, ProtectedIn
from support.dictionary_host import DIRECTORY, FILE, DictionaryHost
from support.seatbelt import BASE, DAEMON, HOME, PROJECT, RUNTIME, SESSION_TMP, SYSTEM, Compiled, compiled, place, rules

PLATFORMS = Path(__file__).resolve().parents[3] / "docs" / "platforms.md"

GIT = {f"{PROJECT}/.git/{name}": FILE for name in ("HEAD", "config", "hooks/pre-commit", "refs/heads/main")}


def linux(files: FilePolicy, host: DictionaryHost) -> Layout:
    policy = Policy(files=files)
    return make_layout(policy, place(), host.facts(list_needs(policy, place())))


def both(files: FilePolicy, host: dict[str, str]) -> tuple[Layout, Compiled]:
    mac = compiled(files, host=host, only_files=True)
    return linux(files, mac.host), mac


def linux_answer(layout: Layout, path: str) -> tuple[bool, bool]:
    node = settled_at(layout.entries.entries, path)[-1]
    if node.shows is Visibility.PRIVATE:
        return True, True
    return node.shows is not Visibility.NOTHING, node.shows is Visibility.HOST_WRITABLE


# what exists is decided alike

NAMES = st.sampled_from(
    [".git", "hooks", "config", "sub", ".vscode", ".claude", "settings.json", "commands", ".mcp.json", "node_modules",
     ".gitmodules", "HEAD", "refs", "objects", "modules", "x"]
)  # fmt: skip
INSIDE = (
    st.lists(NAMES, min_size=1, max_size=4)
    .filter(lambda names: names.count(".git") < 2)  # the scan does not look for repositories in repositories
    .map(lambda names: "/".join([PROJECT, *names]))
)
AT_HOME = st.sampled_from(
    [".bashrc", ".ssh/id", ".config/git/config", ".local/bin/x", "Library/LaunchAgents/x.plist", "other/x", ".cargo/x"]
).map(lambda name: f"{HOME}/{name}")
ANYWHERE = st.one_of(INSIDE, AT_HOME)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[FilePolicy, dict[str, str]]:
    host: dict[str, str] = {}
    for path in draw(st.lists(ANYWHERE, max_size=6)):
        above = {path[:end] for end in range(len(path)) if path[end] == "/"}
        if not any(host.get(one) == FILE for one in above) and not any(other.startswith(path + "/") for other in host):
            host[path] = FILE
    some = st.lists(st.sampled_from([*sorted(host), PROJECT, HOME, f"{HOME}/other"]), max_size=2)
    host.setdefault(f"{HOME}/other/x", FILE)
    opened = draw(st.sampled_from([(), (HOME,)]))
    return (
        FilePolicy(
            allow_write=rules(*opened, *draw(some)),
            deny_write=rules(*draw(some)),
            allow_git_config=draw(st.booleans()),
            settings_files=(f"{HOME}/.claude/settings.json",),
        ),
        host,
    )


@settings(max_examples=150)
@given(worlds())
@example((FilePolicy(allow_write=rules(f"{PROJECT}/HEAD")), {f"{PROJECT}/HEAD": FILE}))
def test_what_exists_is_decided_alike(world: tuple[FilePolicy, dict[str, str]]) -> None:
    """Existing paths are decided alike."""
    files, host = world
    layout, mac = both(files, host)
    for path in host:
        assert (mac.reads(path), mac.writes(path)) == linux_answer(layout, path), path


# what does not exist, and the sandbox's own places: the differences


def _absent_below_the_top() -> tuple[object, object]:
    layout, mac = both(FilePolicy(), {f"{PROJECT}/sub/x": FILE})
    path = f"{PROJECT}/sub/.vscode/tasks.json"
    assert not mac.reads(f"{PROJECT}/sub/.vscode") or mac.reads(path)
    return linux_answer(layout, path)[1], mac.writes(path)


def _future_hooks() -> tuple[object, object]:
    layout, mac = both(FilePolicy(), {})
    path = f"{PROJECT}/new/.git/hooks/post-checkout"
    assert mac.writes(f"{PROJECT}/new/.git/config") and linux_answer(layout, f"{PROJECT}/new/.git/config")[1]
    return linux_answer(layout, path)[1], mac.writes(path)


def _case() -> tuple[object, object]:
    layout, mac = both(FilePolicy(deny_write=rules(f"{PROJECT}/**/*.pem")), {})
    others = [f"{PROJECT}/{name}" for name in (".VSCODE/x", ".v\u017fcode/x", "a.PEM")]
    (on_linux,), (on_mac,) = {linux_answer(layout, one)[1] for one in others}, {mac.writes(one) for one in others}
    return on_linux, on_mac


def _future_matches() -> tuple[object, object]:
    layout, mac = both(FilePolicy(deny_read=rules(f"{PROJECT}/**/*.pem")), {f"{PROJECT}/a.pem": FILE})
    assert not mac.reads(f"{PROJECT}/a.pem") and not linux_answer(layout, f"{PROJECT}/a.pem")[0]
    return linux_answer(layout, f"{PROJECT}/new.pem")[0], mac.reads(f"{PROJECT}/new.pem")


def _meeting_patterns() -> tuple[object, object]:
    files = FilePolicy(deny_read=rules(f"{PROJECT}/**/s"), allow_read=rules(f"{PROJECT}/*/s/pub*"))
    layout, mac = both(files, {f"{PROJECT}/a/s/pub1/x": FILE})
    return linux_answer(layout, f"{PROJECT}/a/s/pub1/x")[0], mac.reads(f"{PROJECT}/a/s/pub1/x")


def _tmp() -> tuple[object, object]:
    layout, mac = both(FilePolicy(), {})
    return settled_at(layout.entries.entries, "/private/tmp")[-1].shows is Visibility.PRIVATE, mac.writes(
        "/private/tmp/x"
    )


def _links() -> tuple[object, object]:
    host = {f"{PROJECT}/.vscode": f"-> {HOME}/other", f"{HOME}/other/x": FILE}
    layout, mac = both(FilePolicy(), host)
    return f"{PROJECT}/.vscode" not in layout.view.open_links, not mac.moves(f"{PROJECT}/.vscode", "SYMLINK")


def _reading_absent() -> tuple[object, object]:
    layout, mac = both(FilePolicy(), {})
    return linux_answer(layout, f"{PROJECT}/.gitconfig")[0], mac.reads(f"{PROJECT}/.gitconfig")


def _metadata() -> tuple[object, object]:
    from support.sbpl import file

    mac = compiled(FilePolicy(deny_read=rules(f"{HOME}/.ssh")), host={f"{HOME}/.ssh/id": FILE})
    assert not mac.allows(file("file-read-metadata", f"{HOME}/.ssh/id"))
    assert not mac.allows(file("file-read-data", f"{HOME}/.ssh", "DIRECTORY"))
    return True, mac.allows(file("file-read-metadata", f"{HOME}/.ssh", "DIRECTORY"))


def _branches_called_hooks() -> tuple[object, object]:
    host = {f"{PROJECT}/.git/modules/lib/HEAD": FILE, **GIT}
    layout, mac = both(FilePolicy(), host)
    path = f"{PROJECT}/.git/modules/lib/refs/heads/hooks"
    return linux_answer(layout, path)[1], mac.writes(path)


def _bare_plants() -> tuple[object, object]:
    layout, mac = both(FilePolicy(), {})
    for name in ("refs", "objects", "config"):
        assert mac.makes(f"{PROJECT}/{name}")
    nested = compiled(host=GIT, only_files=True)
    assert nested.makes(f"{PROJECT}/HEAD") and not nested.makes(f"{PROJECT}/.git/commondir")
    taken = compiled(host={f"{PROJECT}/HEAD": FILE}, only_files=True)
    assert taken.writes(f"{PROJECT}/HEAD") and not taken.makes(f"{PROJECT}/objects")
    return linux_answer(layout, f"{PROJECT}/HEAD")[1], mac.makes(f"{PROJECT}/HEAD")


DIFFERENCES = {
    "A protected name that does not exist, below the top": (_absent_below_the_top, True, False),
    "Hooks of a repository that does not exist yet": (_future_hooks, True, False),
    "An absent name, or a pattern that denies, in other letters": (_case, True, False),
    "Pattern matches that are made while the command runs": (_future_matches, True, False),
    "Where two patterns meet": (_meeting_patterns, True, False),
    "A bare repository planted in a workspace": (_bare_plants, True, False),
    "`/tmp`": (_tmp, True, False),
    "A symlink at a protected name": (_links, False, True),
    "Reading a protected name that does not exist": (_reading_absent, False, True),
}
"""How a row of the table in docs/platforms.md begins: what shows it, and what that gives on Linux and on macOS."""


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_difference_is_as_described(name: str) -> None:
    """Each difference is as described; names in other letters are closed where volumes take them alike."""
    seen, on_linux, on_mac = DIFFERENCES[name]
    assert seen() == (on_linux, on_mac)


def test_each_difference_is_a_row_of_the_documentation() -> None:
    text = PLATFORMS.read_text()
    for row in DIFFERENCES:
        assert f"| {row}" in text, row


def test_what_is_alike_although_it_looks_different() -> None:
    assert _metadata() == (True, True)
    assert _branches_called_hooks() == (True, True)


# the sandbox's own places


def test_the_daemon_is_out_of_reach() -> None:
    mac = compiled(FilePolicy(allow_write=rules("/")), host={"/Users/me/x": FILE})
    for path in (f"{RUNTIME}/sandboxd.sock", f"{BASE}/denied", f"{BASE}/s-2/x"):
        assert not mac.reads(path) and not mac.writes(path)
    assert mac.reads(f"{DAEMON}/lib/x") and not mac.writes(f"{DAEMON}/lib/x")
    assert mac.writes(f"{SESSION_TMP}/x") and mac.makes(f"{SESSION_TMP}/d/y")
    assert not mac.moves(SESSION_TMP)
    assert mac.writes("/Users/me/x")


# the table of protected names


@pytest.mark.parametrize("row", [row for row in PROTECTED if row.where is ProtectedIn.HOME], ids=lambda row: row.name)
def test_every_home_row_holds_when_home_is_writable(row: object) -> None:
    name = row.name  # type: ignore[attr-defined]
    mac = compiled(FilePolicy(allow_write=rules(HOME)), only_files=True)
    assert not mac.writes(f"{HOME}/{name}") and not mac.makes(f"{HOME}/{name}")
    assert mac.writes(f"{HOME}/x{name.replace('/', '-')}")


@pytest.mark.parametrize(
    "row", [row for row in PROTECTED if row.where is ProtectedIn.WORKSPACE], ids=lambda row: row.name
)
@pytest.mark.parametrize("below", ["", "/a/b/c/d/e/f"])
def test_every_workspace_row_holds_at_any_depth(row: object, below: str) -> None:
    name = row.name.replace("*", ".other")  # type: ignore[attr-defined]
    mac = compiled(only_files=True)
    assert not mac.writes(f"{PROJECT}{below}/{name}") and not mac.makes(f"{PROJECT}{below}/{name}/x")
    assert mac.writes(f"{PROJECT}{below}/x{name.replace('/', '-')}")
    assert mac.writes(f"{PROJECT}{below}/node_modules/p/{name}")


@pytest.mark.parametrize(
    "row", [row for row in PROTECTED if row.where is ProtectedIn.GIT_DIR], ids=lambda row: row.name
)
@pytest.mark.parametrize("git_dir", [".git", ".git/modules/lib/sub", "deep/er/.git"])
def test_every_git_row_holds_where_the_repository_exists(row: object, git_dir: str) -> None:
    name = row.name  # type: ignore[attr-defined]
    host = {f"{PROJECT}/{git_dir}/{one}": FILE for one in ("HEAD", name)} | {f"{PROJECT}/.git/HEAD": FILE}
    mac = compiled(host=host, only_files=True)
    assert not mac.writes(f"{PROJECT}/{git_dir}/{name}")
    assert mac.writes(f"{PROJECT}/{git_dir}/index")
    assert not mac.moves(f"{PROJECT}/{git_dir}")
    assert not mac.moves(f"{PROJECT}/{git_dir.split('/')[0]}")


def test_project_rules_cannot_lift_and_user_rules_can() -> None:
    host = {**GIT, f"{PROJECT}/.vscode/settings.json": FILE}
    assert not compiled(host=host).writes(f"{PROJECT}/.vscode/settings.json")
    lifted = compiled(FilePolicy(allow_write=rules(f"{PROJECT}/.vscode", f"{PROJECT}/.git/hooks")), host=host)
    assert lifted.writes(f"{PROJECT}/.vscode/settings.json") and lifted.makes(f"{PROJECT}/.vscode/new.json")
    assert lifted.makes(f"{PROJECT}/.git/hooks/pre-push")
    assert not lifted.writes(f"{PROJECT}/.git/config")
    assert not lifted.writes(f"{PROJECT}/sub/.vscode/settings.json")


def test_existing_and_absent_directories_cannot_be_swapped() -> None:
    """`.claude` present without settings, moved away, missing, or a link."""
    path = f"{PROJECT}/.claude/settings.json"
    for host in (
        {f"{PROJECT}/.claude/other": FILE},
        {},
        {f"{PROJECT}/.claude": "-> other", f"{PROJECT}/other": DIRECTORY},
        {path: FILE},
    ):
        mac = compiled(host=host)
        assert not mac.writes(path) and not mac.makes(path)
        assert not mac.moves(f"{PROJECT}/.claude") and not mac.makes(f"{PROJECT}/.claude")
        assert not mac.writes(f"{PROJECT}/other/settings.json") or f"{PROJECT}/other" not in host


def test_scans_and_policies_of_other_depths() -> None:
    deep = f"{PROJECT}/1/2/3/4/5"
    host = {f"{deep}/.git/HEAD": FILE, f"{deep}/.git/config": FILE}
    files = FilePolicy(protected_search_depth=3)
    layout, mac = both(files, host)
    assert linux_answer(layout, f"{deep}/.git/config")[1] and mac.writes(f"{deep}/.git/config")
    files = replace(files, protected_search_depth=5)
    layout, mac = both(files, host)
    assert not linux_answer(layout, f"{deep}/.git/config")[1] and not mac.writes(f"{deep}/.git/config")


def test_links_of_the_documentation_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PLATFORMS.read_text()):
        assert (PLATFORMS.parent / target).exists(), target
    assert SYSTEM
