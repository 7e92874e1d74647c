"""Which mounts are left to the second step: never one that another mount stands in, or that has options of its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandboxd.backends.linux.bwrap.late_mounts import split
from sandboxd.backends.linux.network.namespace_program import LateMount, MountMethod
from sandboxd.paths import is_below
from sandboxd.plan.filesystem.mounts import FileView, Mark, Mount, Operation, PathEntry, arrange
from sandboxd.plan.host_facts import PathKind

MASK = "/run/mask"


def view_of(**marks: tuple[Mark, PathKind]) -> FileView:
    entries = {"/": PathEntry("/")}
    for name, (mark, kind) in marks.items():
        path = "/" + name.replace("_", "/")
        entries[path] = PathEntry(path, kind, mark, (path,) if kind is None else ())
    return arrange(entries, MASK)


def test_the_root_is_left_to_bubblewrap() -> None:
    view = FileView((Mount(Operation.READ_ONLY, "/", "/"),), open_links=("/w/link",))
    assert split(view).early == view.mounts
    assert split(view).late == (LateMount(MountMethod.ENTRY, "/w/link"),)


def test_the_first_of_each_mask_is_the_model_of_the_others() -> None:
    secret = (Mark.DENY_READ, PathKind.FILE)
    closed = (Mark.DENY_READ, PathKind.DIRECTORY)
    view = view_of(
        w=(Mark.ALLOW_WRITE, PathKind.DIRECTORY), w_a=secret, w_b=secret, w_c=closed, w_d=closed, w_x_y=secret
    )
    made = split(view)
    assert [mount.target for mount in made.early] == ["/", "/w", "/w/a", "/w/c", "/w/c"]
    assert made.late == (
        LateMount(MountMethod.COPY, "/w/b", "/w/a"),
        LateMount(MountMethod.COPY, "/w/d", "/w/c"),
        LateMount(MountMethod.SAME, "/w/x"),
        LateMount(MountMethod.COPY, "/w/x/y", "/w/a"),
    )


def test_what_stands_in_a_mask_is_left_to_bubblewrap() -> None:
    view = view_of(
        h=(Mark.DENY_READ, PathKind.DIRECTORY), h_p=(Mark.ALLOW_READ, PathKind.DIRECTORY),
        h_p_s=(Mark.DENY_WRITE, PathKind.FILE),
        w=(Mark.ALLOW_WRITE, PathKind.DIRECTORY), w_s=(Mark.DENY_WRITE, PathKind.FILE),
    )  # fmt: skip
    made = split(view)
    assert [mount.target for mount in made.early] == ["/", "/h", "/h/p", "/h", "/w"]
    assert made.late == (LateMount(MountMethod.READ_ONLY, "/w/s"),)


def test_masks_that_may_be_gone_are_copies_of_lasting_ones() -> None:
    mounts = (
        Mount(Operation.READ_ONLY, "/", "/"),
        Mount(Operation.MASK_DIRECTORY, "/gone", traverse_only=True),
        Mount(Operation.MASK_DIRECTORY, "/own", traverse_only=True),
        Mount(Operation.WRITABLE, "/w", "/w"),
        Mount(Operation.MASK_FILE, "/w/a", MASK),
        Mount(Operation.MASK_DIRECTORY, "/w/d"),
        Mount(Operation.REMOUNT_READ_ONLY, "/w/d"),
        Mount(Operation.REMOUNT_READ_ONLY, "/own"),
    )
    made = split(FileView(mounts, searched=frozenset({"/gone", "/w/a", "/w/d"})))
    assert [mount.target for mount in made.early] == [
        "/", "/gone", "/own", "/own/mask-file", "/own/mask-directory", "/own/mask-directory", "/w", "/own"
    ]  # fmt: skip
    assert made.late == (
        LateMount(MountMethod.COPY, "/w/a", "/own/mask-file", if_there=True),
        LateMount(MountMethod.COPY, "/w/d", "/own/mask-directory", if_there=True),
    )


NAMES = st.sampled_from("abc")
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))
MARKS = st.sampled_from([Mark.ALLOW_READ, Mark.ALLOW_WRITE, Mark.DENY_READ, Mark.DENY_WRITE])


@given(st.dictionaries(PATHS, st.tuples(MARKS, st.booleans()), max_size=12))
def test_every_mount_is_made_once_and_in_its_place(tree: dict[str, tuple[Mark, bool]]) -> None:
    entries = {"/": PathEntry("/")}
    for path, (mark, is_file) in tree.items():
        inner = any(other.startswith(path + "/") for other in tree)
        entries[path] = PathEntry(path, PathKind.FILE if is_file and not inner else PathKind.DIRECTORY, mark)
    view = arrange(entries, MASK)
    made = split(view)
    late = {mount.target for mount in made.late}
    early = {mount.target for mount in made.early}
    assert late | early == {mount.target for mount in view.mounts} and not late & early
    order = [mount.target for mount in view.mounts if mount.operation is not Operation.REMOUNT_READ_ONLY]
    assert [mount.target for mount in made.late] == [path for path in order if path in late]
    for mount in made.late:
        assert not any(is_below(path, mount.target) for path in early), "covered by what comes later"
        if mount.how is MountMethod.COPY:
            assert mount.source in early
