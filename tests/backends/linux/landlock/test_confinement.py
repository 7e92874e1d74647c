"""What is asked of which kernel, where it grants what, and that a layer which does nothing is not promised."""

from __future__ import annotations

import errno
import posixpath
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.backends.linux.helper.launch_configuration import Confinement
from sandboxd.backends.linux.landlock.confinement import (
    NO_LANDLOCK,
    TABLE,
    Access,
    LandlockVersion,
    Scope,
    row_for,
    writable_roots,
)
from sandboxd.backends.linux.landlock.landlock_probe import Seen, find_landlock, judge, probe_landlock
from sandboxd.paths import is_below
from sandboxd.plan.filesystem.mounts import FileView, Mark, Mount, Operation, PathEntry, arrange, writable_in
from sandboxd.plan.host_facts import PathKind

GOOD = Seen(0, -errno.EACCES, -errno.EACCES, 3, -errno.EPERM, -errno.EACCES)


class TestTable:
    @pytest.mark.parametrize("row", TABLE, ids=lambda row: f"version {row.version}")
    def test_writing_and_names_are_limited_and_no_more(self, row: LandlockVersion) -> None:
        asked = row.confinement
        assert asked.handled == asked.granted
        assert asked.granted & Access.REFER, "else a rename between directories fails with EXDEV"
        assert asked.granted & 0x1FF0 == 0x1FF0, "REMOVE_DIR to MAKE_SYM: version 1 has them all"
        assert asked.granted & Access.WRITE_FILE and asked.roots == ()
        assert bool(asked.granted & Access.TRUNCATE) is (row.version >= 3)
        assert bool(asked.scoped & Scope.SIGNAL) is (row.version >= 6) is ("landlock-signals" in row.layers)
        assert bool(asked.flags) is (row.version >= 7)
        assert ("landlock" in row.layers) is (row.version >= 3) and bool(row.lacks) is (row.version < 6)

    def test_the_newest_that_the_kernel_has(self) -> None:
        chosen = [row_for(version) for version in (0, 1, 2, 3, 5, 6, 7, 99)]
        assert [row and row.version for row in chosen] == [None, None, 2, 3, 3, 6, 7, 7]


class TestRoots:
    def test_what_mounts_let_be_written_and_nothing_twice(self) -> None:
        directory, file = PathKind.DIRECTORY, PathKind.FILE
        entries = {
            path: PathEntry(path, kind, mark)
            for path, kind, mark in (
                ("/", directory, Mark.NONE), ("/r", directory, Mark.ALLOW_READ), ("/w2", file, Mark.ALLOW_WRITE),
                ("/w", directory, Mark.ALLOW_WRITE), ("/w/.git", directory, Mark.PROTECTED),
                ("/w/x", directory, Mark.DENY_READ), ("/w/x/y", directory, Mark.ALLOW_WRITE),
            )
        }  # fmt: skip
        entries["/dev"] = PathEntry("/dev", fixed=Mount(Operation.DEVICES, "/dev"))
        entries["/dev/kvm"] = PathEntry("/dev/kvm", file, Mark.ALLOW_WRITE)
        entries["/proc"] = PathEntry("/proc", fixed=Mount(Operation.PROCESSES, "/proc"))
        entries["/tmp"] = PathEntry("/tmp", fixed=Mount(Operation.WRITABLE, "/tmp", "/run/session"))
        assert writable_roots(arrange(entries, "/mask")) == (b"/dev", b"/proc", b"/tmp", b"/w", b"/w2")

    @pytest.mark.parametrize(
        ("opened", "zones", "roots"),
        [
            ("/", ("/",), (b"/dev", b"/proc", b"/tmp")),  # devices are written by the command itself
            ("/w", ("/w",), (b"/dev", b"/proc", b"/tmp")),
            ("/tmp/w", ("/tmp", "/tmp/w"), (b"/dev", b"/proc")),  # no grant above a zone, which would be one below
            ("/dev/shm", (), (b"/dev", b"/proc", b"/tmp")),
        ],
    )
    def test_none_is_at_or_above_a_zone(self, opened: str, zones: tuple[str, ...], roots: tuple[bytes, ...]) -> None:
        name = posixpath.join(opened, ".vscode")
        entries = {
            "/": PathEntry("/"),
            opened: PathEntry(opened, PathKind.DIRECTORY, Mark.ALLOW_WRITE),
            name: PathEntry(name, None, Mark.PROTECTED, (f"{name}/",), exact=True),
            "/dev": PathEntry("/dev", fixed=Mount(Operation.DEVICES, "/dev")),
            "/proc": PathEntry("/proc", fixed=Mount(Operation.PROCESSES, "/proc")),
            "/tmp": PathEntry("/tmp", fixed=Mount(Operation.WRITABLE, "/tmp", "/run/session")),
        }
        view = arrange(entries, "/mask")
        assert (view.zones, writable_roots(view)) == (zones, roots)
        assert bool(view.placeholders) is not bool(zones)

    @given(
        st.dictionaries(
            st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(lambda names: "/" + "/".join(names)),
            st.sampled_from([Mark.ALLOW_READ, Mark.ALLOW_WRITE, Mark.DENY_READ, Mark.DENY_WRITE]),
            max_size=12,
        )
    )
    def test_every_place_that_can_be_written_is_below_one(self, marks: dict[str, Mark]) -> None:
        entries = {path: PathEntry(path, PathKind.DIRECTORY, mark) for path, mark in marks.items()}
        view = arrange({"/": PathEntry("/"), **entries}, "/mask")
        is_writable = writable_in(view)
        roots = [root.decode() for root in writable_roots(view)]
        for path in entries:
            if is_writable(path):
                assert any(is_below(path, root) for root in roots), (path, roots)
        assert all(is_writable(root) for root in roots)
        assert not [one for one in roots for other in roots if one != other and is_below(one, other)]

    def test_nothing_is_asked_where_there_is_none(self) -> None:
        assert NO_LANDLOCK.confine((b"/w",)) is None and NO_LANDLOCK.layers == ()
        assert writable_roots(FileView((Mount(Operation.READ_ONLY, "/", "/"),))) == ()


class TestProbe:
    """A layer that the kernel promises is tried; one without effect is not used, and reported."""

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            ((0, 3, -13, 4, -1, -13), "opened for writing"),  # the calls succeed, and hold nothing back
            ((0, -13, 0, 4, -1, -13), "emptied"),
            ((0, -13, -13, 4, 0, -13), "sent a signal"),
            ((0, -13, -13, 4, -1, 0), "a directory could be made"),
            ((0, -13, -13, 4, -1, -1), "a directory could be made"),  # by something else
            ((0, -13, -13, -13, -1, -13), "refuses what it was told to grant"),
            ((-22, 3, 0, 4, 0, 0), "cannot be put in force: Invalid argument"),
            ((0, -30, -13, 4, -1, -13), "opened for writing"),  # refused, but by something else
        ],
    )
    def test_a_kernel_that_does_not_keep_its_promise(self, answer: tuple[int, ...], reason: str) -> None:
        found = probe_landlock(lambda confinement: answer if confinement else (7,))
        assert (found.confinement, found.layers, found.slug) == (None, (), "landlock_without_effect")
        assert reason in found.reason and found.confine((b"/w",)) is None

    @pytest.mark.parametrize(
        ("version", "reason"),
        [(-errno.ENOSYS, "no Landlock"), (-errno.EOPNOTSUPP, "lsm="), (-errno.EPERM, "seccomp profile"), (1, "rename"),
         (-errno.EIO, "Input/output error")],
    )  # fmt: skip
    def test_a_kernel_without_it(self, version: int, reason: str) -> None:
        found = probe_landlock(lambda confinement: () if confinement else (version,))
        assert (found.confinement, found.layers, found.slug) == (None, (), "") and reason in found.reason

    @pytest.mark.parametrize("row", TABLE, ids=lambda row: f"version {row.version}")
    def test_an_older_kernel_is_used_for_what_it_has(self, row: LandlockVersion) -> None:
        heard: list[bytes] = []
        seen = replace(GOOD, emptied=-errno.EACCES * (row.version >= 3), signalled=-errno.EPERM * (row.version >= 6))

        def run(confinement: bytes) -> tuple[int, ...]:
            heard.append(confinement)
            return tuple(getattr(seen, name) for name in Seen.__slots__) if confinement else (row.version,)

        found = probe_landlock(run)
        assert (found.confinement, found.layers, found.reason) == (row.confinement, row.layers, row.lacks)
        assert heard == [b"", row.confinement.encode()] and judge(row, seen) == ""

    @pytest.mark.parametrize(
        ("script", "reason"),
        [("exit 1", "status 1"), ("exit 0", "status 0"), ("echo abcd", "status 0"),
         ("printf '\\7\\0\\0\\0'", "wrong length")],
    )  # fmt: skip
    def test_a_helper_that_says_nothing_of_use(self, tmp_path: Path, script: str, reason: str) -> None:
        pretended = tmp_path / "helper"
        pretended.write_text(f"#!/bin/sh\n{script}\n")
        pretended.chmod(0o755)
        found = find_landlock(str(pretended))
        assert found.confinement is None and reason in found.reason
        assert "cannot probe it" in find_landlock(str(tmp_path / "missing")).reason


def test_a_confinement_is_said_with_its_roots() -> None:
    assert Confinement(1, 2, 3, 4, (b"/a", b"/b")).encode() == b"".join(
        number.to_bytes(4, "little") for number in (1, 2, 3, 4, 2)
    )
