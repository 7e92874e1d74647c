"""File systems that are mounted below the directories that rules name, and those that are mounted in several places."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from support.lab import Done, Lab, Rules
from support.users import Identity

NEW_NAMESPACE, RECURSIVE_PRIVATE, BIND = 0x20000, 0x44000, 0x1000
SCRIPT = (
    "touch inner/x && mv inner/x inner/y && echo written; echo > inner/secret; cat inner/secret; "
    "touch closed/x; touch ~/other/x; touch inner/deep/x; ls hidden"
)


def bind(directory: Path, at: Path) -> None:
    at.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(os.fsencode(directory), os.fsencode(at), None, BIND, None) == 0, os.strerror(ctypes.get_errno())


def mount(directory: Path) -> None:
    directory.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"none", os.fsencode(directory), b"tmpfs", 0, b"mode=777") == 0, os.strerror(ctypes.get_errno())


if os.geteuid() == 0:  # other users cannot mount anything

    def test_a_mount_below_has_the_rules_of_its_mount_point(identity: Identity) -> None:
        """Writable below a writable directory, closed below a closed one, read-only elsewhere, and a rule about
        a file in it holds. The mounts are made in a namespace of this thread, out of which everything is started."""
        work, other = identity.workspace, identity.home / "other"
        found: list[tuple[Done, list[list[str]], str]] = []

        def in_a_namespace() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.unshare(NEW_NAMESPACE) == 0
            assert libc.mount(b"none", b"/", None, RECURSIVE_PRIVATE, None) == 0
            for directory in (work / "inner", work / "inner" / "deep", work / "closed", work / "hidden", other):
                mount(directory)
            identity.write(work / "inner" / "secret", "s")
            identity.write(work / "hidden" / "file", "s")
            rules = {"deny_read": ["./inner/secret", "./hidden"], "deny_write": ["./closed", "./inner/deep"]}
            with Lab(identity, here=True) as lab:
                done = lab.run(SCRIPT, **rules)  # type: ignore[arg-type]
            places = (work / "inner", work / "inner" / "deep", work / "closed", other)
            secret = (work / "inner" / "secret").read_text()
            found.append((done, [sorted(os.listdir(place)) for place in places], secret))

        thread = threading.Thread(target=in_a_namespace)
        thread.start()
        thread.join()
        [(done, places, secret)] = found
        assert done.stdout == "written\n"
        assert places == [["deep", "secret", "y"], [], [], []] and secret == "s"

    def test_what_is_mounted_in_two_places_is_closed_in_both(identity: Identity) -> None:
        """By whichever of its names a rule has it, and by whichever a command comes; a bind mount is no way around."""
        work, twin, home = identity.workspace, identity.base / "twin", identity.base / "twin home"
        outside = identity.base / "outside"
        other = {work: twin, twin: work}
        script = f"""
            for at in {work} {twin}; do cat $at/secret; echo x >> $at/kept; mkdir -p $at/no/x; mkdir $at/.vscode/x; done
            cat free; echo y >> free && cat free; echo x > '{home}/.bashrc'; cat '{home}/key'; touch {work}/link/x"""
        found: dict[str, Done] = {}

        def in_a_namespace() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.unshare(NEW_NAMESPACE) == 0
            assert libc.mount(b"none", b"/", None, RECURSIVE_PRIVATE, None) == 0
            bind(work, twin)
            bind(identity.home, home)
            for name in ("secret", "kept", "free"):
                identity.write(work / name, name)
            identity.write(identity.home / "key", "secret")
            identity.write(outside / "file", "f")
            (work / "link").symlink_to(outside)
            with Lab(identity, here=True) as lab:
                for cwd, both in ((work, False), (twin, False), (work, True), (twin, True)):
                    named = cwd if both else other[cwd]
                    rules: Rules = {
                        "cwd": cwd,
                        "deny_read": [f"/{named}/secret", "~/key"],
                        "deny_write": [f"/{named}/kept", f"/{named}/no"],
                        "allow_write": [f"/{home}", f"/{other[cwd]}" if both else f"/{named}/link"],
                    }
                    identity.write(work / "free", "free")
                    found[f"{cwd.name} {both}"] = lab.run(script, **rules)

        thread = threading.Thread(target=in_a_namespace)
        thread.start()
        thread.join()
        assert sorted(os.listdir(work)) == ["free", "kept", "link", "secret"]
        assert os.listdir(outside) == ["file"]
        assert (work / "kept").read_text() == "kept"
        assert not (identity.home / ".bashrc").exists()
        assert {which: done.stdout for which, done in found.items()} == dict.fromkeys(found, "freefreey\n"), found

    def test_a_linked_working_tree_by_another_of_its_names(identity: Identity) -> None:
        """It commits, as it does where git knows it; what only claims to belong to a repository gets nothing."""
        work, twin, claims = identity.workspace, identity.base / "twin", identity.home / "claims"
        found: list[Done] = []

        def in_a_namespace() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.unshare(NEW_NAMESPACE) == 0
            assert libc.mount(b"none", b"/", None, RECURSIVE_PRIVATE, None) == 0
            with Lab(identity, here=True) as lab:
                lab.host("git init -q main; cd main; git commit -q --allow-empty -m 1; git worktree add -q ../tree")
                bind(work / "tree", twin)
                lab.host(f"mkdir {claims}; cp tree/.git {claims}")
                for cwd in (twin, claims):
                    found.append(lab.run("git commit -q --allow-empty -m 2 && echo made", cwd=cwd))
                    found.append(lab.run(f"echo x > {work}/main/.git/hooks/post-commit", cwd=cwd))

        thread = threading.Thread(target=in_a_namespace)
        thread.start()
        thread.join()
        assert [done.stdout for done in found] == ["made\n", "", "", ""], found
        assert not (work / "main" / ".git" / "hooks" / "post-commit").exists()
