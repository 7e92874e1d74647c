"""What the host answers, and that an answer is known to be old as soon as it is."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from sandboxd.errors import HostError, PolicyError
from sandboxd.host import globs, scan
from sandboxd.host.fact_source import HostFacts
from sandboxd.host.placeholders.placeholder_set import Placeholders
from sandboxd.host.resolve import resolve
from sandboxd.host.watch import directory_changes
from sandboxd.host.watch.name_watch import NameWatch
from sandboxd.plan.host_facts import Facts, PathKind
from sandboxd.plan.host_queries import HostQueries, ScanQuery
from sandboxd.settings.files import inotify


@pytest.fixture
def host() -> Iterator[HostFacts]:
    facts = HostFacts()
    yield facts
    facts.close()


def needs(root: Path, *, paths: tuple[str, ...] = (), patterns: tuple[str, ...] = (), depth: int = 3) -> HostQueries:
    return HostQueries(
        (str(root), *paths), patterns, (ScanQuery(str(root), depth, True),),
        (".vscode", ".mcp.json", ".claude/settings*.json"), ("hooks", "config", "config.worktree", "commondir"),
    )  # fmt: skip


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(facts: Facts, root: Path) -> list[str]:
    return sorted(os.path.relpath(found.path, root) for found in facts.scans[str(root)].names)


async def test_paths_are_followed_link_by_link(host: HostFacts, tmp_path: Path) -> None:
    write(tmp_path / "real" / "file")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("none/below")
    texts = {name: f"{tmp_path}/{name}" for name in ("link/file", "link/new/x", "loop", "dangling", "real/file/x")}
    paths = (await host.answer(HostQueries(tuple(texts.values())))).paths
    found = {name: paths[text] for name, text in texts.items()}
    assert (found["link/file"].real, found["link/file"].kind) == (f"{tmp_path}/real/file", PathKind.FILE)
    assert [link.path for link in found["link/file"].links] == [f"{tmp_path}/link"]
    assert (found["link/new/x"].real, found["link/new/x"].existing) == (f"{tmp_path}/real/new/x", f"{tmp_path}/real")
    assert "loop" in found["loop"].problem and found["loop"].kind is None
    assert (found["dangling"].real, found["dangling"].kind) == (f"{tmp_path}/none/below", None)
    assert "not a directory" in found["real/file/x"].problem


async def test_the_scan_finds_names_to_its_depth_and_no_further(host: HostFacts, tmp_path: Path) -> None:
    for name in (".vscode/x", "a/b/c/.vscode/x", "a/b/c/d/.vscode/x", "node_modules/p/.vscode/x"):
        write(tmp_path / name)
    write(tmp_path / "a" / ".claude" / "settings.x.json")
    (tmp_path / "empty" / ".vscode").mkdir(parents=True)
    write(tmp_path / ".gitignore", "*")
    (tmp_path / "link").symlink_to("a")
    facts = await host.answer(needs(tmp_path))
    assert names(facts, tmp_path) == [".vscode", "a/.claude/settings.x.json", "a/b/c/.vscode", "empty/.vscode"]
    assert "a/b/c/d/.vscode" in names(await host.answer(needs(tmp_path, depth=4)), tmp_path)


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "a protected name appears": (lambda top: (top / "a" / ".vscode").mkdir(), True),
    "one appears in a new directory": (lambda top: (top / "n" / "m" / ".vscode").mkdir(parents=True), True),
    "one is moved in": (lambda top: (top.parent / "outside").rename(top / "a" / "in"), True),
    "one is removed": (lambda top: (top / "old" / ".mcp.json").unlink(), True),
    "its directory is moved": (lambda top: (top / "old").rename(top / "other"), True),
    "a directory is replaced": (
        lambda top: ((top / "a").rename(top.parent / "a"), write(top / "a" / ".vscode" / "x")), True,
    ),
    "the root is replaced": (lambda top: (top.rename(top.parent / "gone"), write(top / ".mcp.json")), True),
    "hooks are pointed elsewhere": (
        lambda top: (write(top / "h" / "x"), write(top / ".git" / "config", "[core]\n hooksPath = h\n")), True,
    ),
    "the root is closed": (lambda top: top.chmod(0o555), True),
    "what is in the root is closed": (lambda top: (top / "a" / "file0").chmod(0o400), False),
    "an ordinary file appears": (lambda top: write(top / "a" / "file"), False),
    "git takes a lock": (lambda top: write(top / ".git" / "index.lock").unlink(), False),
}  # fmt: skip


@pytest.mark.parametrize("polling", [False, True], ids=["inotify", "times"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_makes_facts_old_and_the_next_ones_right(
    tmp_path: Path, change: str, polling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if polling:
        monkeypatch.setattr(directory_changes, "remote_devices", lambda _: frozenset({os.stat(tmp_path).st_dev}))
    top = tmp_path / "top"
    for name in ("a/file0", "old/.mcp.json", ".git/HEAD", ".git/hooks/x", ".git/config", "../outside/.vscode/x"):
        write(top / name) if not name.startswith("..") else write(tmp_path / name[3:])
    host, fresh = HostFacts(), HostFacts()
    try:
        asked = needs(top, paths=(f"{top}/.vscode",), patterns=(f"{top}/**/*.json",))
        before = await unchanging(host, asked)
        act, matters = CHANGES[change]
        act(top)
        assert host.unchanged(before) is (not matters and not polling)
        again, anew = await host.answer(asked), await fresh.answer(asked)
        # times may also see what does not matter
        assert (again is before) is not matters or (polling and not matters)
        assert replace(again, stamp=None).paths == anew.paths and again.globs == anew.globs
        for root, found in anew.scans.items():
            assert sorted(map(str, again.scans[root].names)) == sorted(map(str, found.names))
            assert sorted(map(str, again.scans[root].git_dirs)) == sorted(map(str, found.git_dirs))
        await unchanging(host, asked)
    finally:
        host.close()
        fresh.close()


async def unchanging(host: HostFacts, asked: HostQueries) -> Facts:
    """Facts that hold. By times, /tmp above is looked at too, in which any program of the machine may just make a file;
    so again, but not for ever."""
    for _ in range(1000):
        if (facts := await host.answer(asked)) is await host.answer(asked):
            return facts
    raise AssertionError("what nobody changes does not hold")


@pytest.mark.parametrize("why", ["a server", "no room", "no inotify"])
async def test_directories_that_are_compared_one_by_one_hold_nobody_up(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked at in a thread, and only for plans that depend on them."""
    local, remote = tmp_path / "local", Path("/dev/shm") / f"sandboxd-test-{os.getpid()}"
    compared: list[tuple[str, bool]] = []
    times_now, add = directory_changes._times_now, inotify.Inotify.add

    def times(directory: str) -> tuple[int, ...]:
        compared.append((directory, threading.current_thread() is threading.main_thread()))
        return times_now(directory)

    def full(self: inotify.Inotify, directory: str, mask: int) -> int:
        if directory.startswith(str(remote)):
            raise OSError(errno.ENOSPC, "no room")
        return add(self, directory, mask)

    monkeypatch.setattr(directory_changes, "_times_now", times)
    if why == "no room":
        monkeypatch.setattr(inotify.Inotify, "add", full)
    elif why == "no inotify":
        monkeypatch.setattr(inotify.Inotify, "__init__", Mock(side_effect=HostError("inotify_failed", "no")))
    else:
        monkeypatch.setattr(directory_changes, "remote_devices", lambda _: frozenset({os.stat("/dev/shm").st_dev}))
    host = HostFacts()
    try:
        write(local / "a" / ".vscode" / "x")
        write(remote / "a" / ".vscode" / "x")
        here, there = needs(local), needs(remote, patterns=(f"{remote}/*/*.json",))
        facts = {root: await host.answer(asked) for root, asked in ((local, here), (remote, there))}
        assert host.unchanged(facts[local]) is (why != "no inotify") and not host.unchanged(facts[remote])
        facts[local] = await unchanging(host, here)
        assert await host.answer(here) is facts[local]
        facts[remote] = await unchanging(host, there)
        compared.clear()
        assert await host.answer(there) is facts[remote]
        assert {f"{remote}", f"{remote}/a"} <= {directory for directory, _ in compared}
        assert not any(directory.startswith(str(remote)) and on_loop for directory, on_loop in compared)
        write(remote / "a" / "new.json")
        (found,) = (await host.answer(there)).globs.values()
        assert [one.path for one in found] == [f"{remote}/a/new.json"]
        (remote / "b").mkdir()
        write(remote / "b" / ".mcp.json")
        assert names(await host.answer(there), remote) == ["a/.vscode", "b/.mcp.json"]
        for root in (local, remote):
            host.forget(await host.answer({local: here, remote: there}[root]))
        assert not host._changes._by_times and not host._changes._by_watch
    finally:
        host.close()
        shutil.rmtree(remote)


async def test_a_change_in_the_tick_of_the_one_before_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of times stands still for some milliseconds: what changes in them leaves the times as they are."""
    monkeypatch.setattr(directory_changes, "remote_devices", lambda _: frozenset({os.stat(tmp_path).st_dev}))
    (tmp_path / "top").mkdir()
    with closing(HostFacts()) as host:
        assert names(await host.answer(needs(tmp_path / "top")), tmp_path / "top") == []
        stood_still = {interest.directory: interest.times for interest in host._changes._by_times}
        monkeypatch.setattr(directory_changes, "_times_now", lambda path: stood_still.get(path, ()))
        (tmp_path / "top" / ".vscode").mkdir()
        assert names(await host.answer(needs(tmp_path / "top")), tmp_path / "top") == [".vscode"]


async def test_a_placeholder_is_nothing_and_no_change(host: HostFacts, tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    asked = needs(top, paths=(f"{top}/.vscode", f"{top}/x/y"))
    facts = await host.answer(asked)
    placeholders = Placeholders(str(tmp_path / "journal"), linger=0)
    hold = placeholders.hold((f"{top}/.vscode/", f"{top}/x/", f"{top}/x/y/"))
    assert host.unchanged(facts)
    other = HostFacts()
    anew = await other.answer(asked)
    other.close()
    assert anew.paths == facts.paths and not anew.scans[str(top)].names
    hold.release()
    assert host.unchanged(facts)
    (top / ".vscode").mkdir()
    assert not host.unchanged(facts)


async def test_the_same_question_is_answered_once(
    host: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same question is answered once."""
    looks: list[HostQueries] = []
    look = host._look

    def counted(asked: HostQueries) -> Facts:
        looks.append(asked)
        return look(asked)

    monkeypatch.setattr(host, "_look", counted)
    answers = await asyncio.gather(*(host.answer(needs(tmp_path)) for _ in range(10)))
    assert len(looks) == 1 and len({id(answer) for answer in answers}) == 1


async def test_a_later_scan_lists_only_what_changed(
    host: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later scan lists only what changed."""
    for number in range(50):
        write(tmp_path / str(number) / "file")
    await host.answer(needs(tmp_path))
    listed: list[str] = []
    fill = scan.TreeScan._fill

    def counted(self: scan.TreeScan, record: scan.ScanRecord, path: str) -> None:
        listed.append(path)
        fill(self, record, path)

    monkeypatch.setattr(scan.TreeScan, "_fill", counted)
    write(tmp_path / "7" / ".mcp.json")
    assert names(await host.answer(needs(tmp_path)), tmp_path) == ["7/.mcp.json"]
    assert listed == [str(tmp_path / "7")]


async def test_what_cannot_be_complete_is_an_error(
    host: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be complete is an error."""
    for number in range(5):
        write(tmp_path / str(number) / "x.json")
    monkeypatch.setattr(scan, "MAX_DIRECTORIES", 3)
    with pytest.raises(PolicyError) as caught:
        await host.answer(needs(tmp_path))
    assert caught.value.slug == "scan_too_large"
    monkeypatch.setattr(scan, "MAX_DIRECTORIES", 100)
    for limit, slug in (("MAX_MATCHES", "glob_too_many"), ("MAX_DIRECTORIES", "glob_too_large")):
        with monkeypatch.context() as patch:
            patch.setattr(globs, limit, 3)
            with pytest.raises(PolicyError) as caught:
                await host.answer(needs(tmp_path, patterns=(f"{tmp_path}/*/*.json",)))
            assert caught.value.slug == slug and caught.value.hint
            # each of them alone would do
            patch.setattr(globs, limit, 6)
            patch.setattr(globs, "MAX_OF_ALL", 2)
            patterns = tuple(f"{tmp_path}/*/{letter}*.json" for letter in ("x", "?", "*"))
            for alone in patterns:
                assert await host.answer(needs(tmp_path, patterns=(alone,)))
            with pytest.raises(PolicyError, match="together") as caught:
                await host.answer(needs(tmp_path, patterns=patterns))
            assert caught.value.slug == slug
    assert await host.answer(needs(tmp_path))


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("*.json", ["a.json"]),
        ("**/*.json", ["a.json", "d/b.json", "d/e/c.json"]),
        ("d/**/c.json", ["d/e/c.json"]),
        ("*/e", ["d/e"]),
        ("?.json", ["a.json"]),
        ("[ab].json", ["a.json"]),
        ("[!a].json", []),
        (".h*", [".hidden"]),
        ("[*]", ["*"]),
        ("l/*.json", ["d/b.json"]),
        ("*/*.json", ["d/b.json"]),
        ("l*/*.json", ["d/b.json"]),
        ("**/l/b.json", ["d/b.json"]),
        ("*/e/c.json", ["d/e/c.json"]),
        ("[!d]/**/c.json", ["d/e/c.json"]),
        ("*/top/?.json", ["a.json"]),
        ("*/top/*/top/*/b.json", ["d/b.json"]),
        ("d/*/l", ["l"]),
        ("**/loop/*", []),
        ("**/none/*", []),
        ("d/b.json/*", []),
        ("none/*", []),
    ],
)
async def test_patterns(host: HostFacts, tmp_path: Path, pattern: str, matches: list[str]) -> None:
    for name in ("a.json", "d/b.json", "d/e/c.json", ".hidden", "*"):
        write(tmp_path / name)
    (tmp_path / "l").symlink_to("d")
    (tmp_path / "d" / "top").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "none").symlink_to("nowhere")
    found = (await host.answer(HostQueries(globs=(f"{tmp_path}/{pattern}",)))).globs[f"{tmp_path}/{pattern}"]
    assert sorted(os.path.relpath(one.path, tmp_path) for one in found) == sorted(matches)


async def test_a_pattern_match_is_reached_through_the_fewest_links(host: HostFacts, tmp_path: Path) -> None:
    """A rule that opens is not followed through a link that a command could have made, so another way must count."""
    for name in ("p/d/plain", "q/hidden", "r/x/far"):
        write(tmp_path / name)
    for link, target in (("p/a", "d"), ("p/z", "../q"), ("p/b", "c"), ("p/c", "../q"), ("r/y", "x")):
        (tmp_path / link).symlink_to(target)
    pattern = f"{tmp_path}/*/*/*"
    found = (await host.answer(HostQueries(globs=(pattern,)))).globs[pattern]
    ways = {
        os.path.relpath(one.path, tmp_path): [os.path.relpath(link.path, tmp_path) for link in one.links]
        for one in found
    }
    assert ways == {"p/d/plain": [], "q/hidden": ["p/c"], "r/x/far": []}


async def test_what_links_lead_to_is_watched(host: HostFacts, tmp_path: Path) -> None:
    for name in ("w/x", "one/in/a.pem", "two/in/b.pem"):
        write(tmp_path / name)
    (tmp_path / "w" / "link").symlink_to("../hop")
    (tmp_path / "hop").symlink_to("one")
    wanted = HostQueries(globs=(f"{tmp_path}/w/l*k/in/*.pem",))

    async def matches() -> list[str]:
        (found,) = (await host.answer(wanted)).globs.values()
        return [os.path.relpath(one.path, tmp_path) for one in found]

    assert await matches() == ["one/in/a.pem"]
    facts = await host.answer(wanted)
    assert host.unchanged(facts)
    write(tmp_path / "one" / "in" / "c.pem")
    assert await matches() == ["one/in/a.pem", "one/in/c.pem"]
    (tmp_path / "hop").unlink()
    (tmp_path / "hop").symlink_to("two")
    assert await matches() == ["two/in/b.pem"]
    (tmp_path / "w" / "look").symlink_to("../one")
    assert await matches() == ["one/in/a.pem", "one/in/c.pem", "two/in/b.pem"]


async def test_links_that_are_not_gone_through_are_told(host: HostFacts, tmp_path: Path) -> None:
    """Only those that lead to something else than the tree itself."""
    for name in ("w/d/f", "out/f", "w/d/file"):
        write(tmp_path / name)
    for link, target in (("self", "."), ("d/up", ".."), ("other", "d"), ("to-file", "d/file"), ("none", "nowhere")):
        (tmp_path / "w" / link).symlink_to(target)
    (tmp_path / "w" / "proc").symlink_to("/proc/self")
    pattern = f"{tmp_path}/w/**/f"
    assert (await host.answer(HostQueries(globs=(pattern,)))).unfollowed == {}
    for number in range(5):
        (tmp_path / "w" / "d" / f"leads-out-{number}").symlink_to("../../out")
    write(tmp_path / "w" / "new" / "f")
    facts = await host.answer(HostQueries(globs=(pattern, f"{tmp_path}/w/*/f")))
    (links,) = facts.unfollowed.values()
    assert sorted(os.path.relpath(link.path, tmp_path) for link in links) == [
        f"w/d/leads-out-{number}" for number in range(5)
    ]
    assert {link.target for link in links} == {f"{tmp_path}/out"}


async def test_a_link_to_too_much_is_named(host: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        write(tmp_path / "big" / str(number) / "f")
    write(tmp_path / "w" / "f")
    (tmp_path / "w" / "link").symlink_to("../big")
    monkeypatch.setattr(globs, "MAX_DIRECTORIES", 3)
    with pytest.raises(PolicyError) as caught:
        await host.answer(HostQueries(globs=(f"{tmp_path}/w/*/**/f",)))
    assert caught.value.slug == "glob_too_large" and f"{tmp_path}/w/link" in caught.value.hint


async def test_nothing_is_left_registered(host: HostFacts, tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "file.json")
    for number in range(3):
        write(tmp_path / "a" / str(number) / ".mcp.json")
        facts = await host.answer(needs(tmp_path, patterns=(f"{tmp_path}/**/*.json",)))
    host.forget(facts)
    assert not host._changes._by_watch and not host._changes._by_times and not host._scans


async def test_a_scan_that_others_share_is_up_to_date_for_the_next(host: HostFacts, tmp_path: Path) -> None:
    """Another session, or other rules, in the same directory: what has changed since the scan is seen by both."""
    write(tmp_path / "a" / ".vscode" / "x")
    first = await host.answer(needs(tmp_path))
    write(tmp_path / "b" / ".vscode" / "x")
    (tmp_path / "a" / ".vscode").rename(tmp_path / "a" / "gone")
    second = await host.answer(needs(tmp_path, paths=("/etc",)))
    assert (names(first, tmp_path), names(second, tmp_path)) == (["a/.vscode"], ["b/.vscode"])


async def test_a_look_for_others_makes_nobody_elses_facts_new(host: HostFacts, tmp_path: Path) -> None:
    """Two sessions with different rules share the scan of a directory."""
    mine, other = needs(tmp_path), needs(tmp_path, paths=("/etc",))
    facts = await host.answer(mine)
    await host.answer(other)
    write(tmp_path / "sub" / ".mcp.json")
    await host.answer(other)
    assert not host.unchanged(facts)
    assert names(await host.answer(mine), tmp_path) == ["sub/.mcp.json"]


async def test_a_look_that_fails_makes_no_facts_new(
    host: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = await host.answer(needs(tmp_path))
    write(tmp_path / ".mcp.json")

    def fail(*_: object) -> None:
        raise PolicyError("scan_failed", "no")

    with monkeypatch.context() as patched:
        patched.setattr("sandboxd.host.fact_source.found_at", fail)
        with pytest.raises(PolicyError):
            await host.answer(needs(tmp_path))
    assert not host.unchanged(facts)
    assert names(await host.answer(needs(tmp_path)), tmp_path) == [".mcp.json"]


async def test_a_name_that_goes_while_it_is_looked_at(
    host: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / ".mcp.json")
    found_at = scan.found_at

    def and_gone(path: str, seen: object) -> object:
        os.unlink(path)
        monkeypatch.setattr("sandboxd.host.fact_source.found_at", found_at)
        return found_at(path, seen)  # type: ignore[arg-type]

    monkeypatch.setattr("sandboxd.host.fact_source.found_at", and_gone)
    assert names(await host.answer(needs(tmp_path)), tmp_path) == []


@pytest.mark.parametrize("watches", [0, 1, 100])
def test_a_directory_made_anew_is_searched_again(tmp_path: Path, watches: int) -> None:
    """Whether it, only its parent, or neither is watched."""
    with closing(directory_changes.Changes(Mock(most=watches))) as changes:
        tree = scan.TreeScan(str(tmp_path), 3, scan.ScanTarget.of((".mcp.json",), frozenset(), ()), changes)

        def found() -> list[str]:
            changes.poll()
            changes.compare(tree.slow)
            tree.refresh()
            return [os.path.basename(path) for path in tree.notable()]

        write(tmp_path / "a" / "b")
        assert found() == []
        shutil.rmtree(tmp_path / "a")
        write(tmp_path / "a" / "b")
        assert found() == []
        write(tmp_path / "a" / ".mcp.json")
        assert found() == ["a"]
        (tmp_path / "a" / ".mcp.json").unlink()
        assert found() == []


async def test_a_name_that_goes_while_it_is_listed_is_gone(
    host: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command is prepared meanwhile, and reads the event of it."""
    fill, path = scan.TreeScan._fill, tmp_path / ".mcp.json"

    def and_gone(tree: scan.TreeScan, record: scan.ScanRecord, directory: str) -> None:
        fill(tree, record, directory)
        path.unlink()
        host._changes.poll()
        monkeypatch.setattr(scan.TreeScan, "_fill", fill)

    await host.answer(needs(tmp_path))
    write(path)
    monkeypatch.setattr(scan.TreeScan, "_fill", and_gone)
    assert names(await host.answer(needs(tmp_path)), tmp_path) == []
    write(path)
    assert names(await host.answer(needs(tmp_path)), tmp_path) == [".mcp.json"]


def test_a_name_that_goes_between_two_looks_is_reported(tmp_path: Path) -> None:
    """Absent for the first look and there for the second one."""
    told: list[bool] = []
    with closing(directory_changes.Changes()) as changes:
        watch = NameWatch(changes, lambda: told.append(True))
        for _ in range(2):
            resolve(str(tmp_path / "a"), watch)
            write(tmp_path / "a")
        (tmp_path / "a").unlink()
        changes.poll()
    assert told


async def test_dangling_links_in_a_git_directory_count_as_absent(host: HostFacts, tmp_path: Path) -> None:
    """A project that was unpacked may hold anything; and what comes in their place is noticed."""
    for name in ("HEAD", "config"):
        write(tmp_path / ".git" / name)
    for name in ("modules", "worktrees", "hooks"):
        (tmp_path / ".git" / name).symlink_to(name)
    facts = await host.answer(needs(tmp_path))
    assert [one.path for one in facts.scans[str(tmp_path)].git_dirs] == [f"{tmp_path}/.git"]
    (tmp_path / ".git" / "modules").unlink()
    write(tmp_path / ".git" / "modules" / "sub" / "HEAD")
    assert not host.unchanged(facts)
    facts = await host.answer(needs(tmp_path))
    found = [one.path for one in facts.scans[str(tmp_path)].git_dirs]
    assert found == [f"{tmp_path}/.git", f"{tmp_path}/.git/modules/sub"]


async def test_patterns_name_what_bash_names(host: HostFacts, tmp_path: Path) -> None:
    """Random patterns in a tree with links. A match is where it really stands; `**` at the end is no search here."""
    for name in ("a/b/c/f", "a/b/.h/f", "a/f", "b/a/f", "b/c/a/b", "c/[a]/f", "c/a*/f", "c/d e/f"):
        write(tmp_path / name)
    for link, target in (("l", "a"), ("a/b/up", "../../b"), ("b/self", "."), ("b/none", "x"), ("a/file", "f")):
        (tmp_path / link).symlink_to(target)
    chance = random.Random(0)
    parts = "a b c l up self f * ** ? a* [ab] [!a] .h .* [*] [[]a] *e".split()
    patterns = {"/".join(chance.choices(parts, k=chance.randint(1, 4))) for _ in range(400)}
    texts = sorted(f"{tmp_path}/{one}" for one in patterns if set(one) & set("*?[") and not one.endswith("**"))
    script = 'IFS=; while read -r one; do printf "%s\\0" "$one" $one; printf "\\0"; done'
    done = subprocess.run(
        ["bash", "-O", "globstar", "-O", "nullglob", "-O", "dotglob", "-c", script],
        input="\n".join(texts) + "\n", stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    named = [row.split("\0") for row in done.stdout.removesuffix("\0\0").split("\0\0")]
    facts = await host.answer(HostQueries(globs=tuple(texts)))
    wrong = []
    for text, *found in named:
        wanted = {os.path.join(os.path.realpath(os.path.dirname(one)), os.path.basename(one)) for one in found}
        got = {one.path for one in facts.globs[text]}
        if got != wanted:
            wrong.append((text.removeprefix(str(tmp_path)), sorted(got - wanted), sorted(wanted - got)))
    assert not wrong, "\n".join(map(str, wrong[:10])) + f"\n{len(wrong)} of {len(named)}"
