"""Other names of files on file systems that are mounted in several places."""

from __future__ import annotations

import pytest

from sandboxd.plan.host_facts import MountAliases

MOUNTED = frozenset({"/", "/home", "/top", "/home/u/disk", "/top/home/x/own", "/again"})
TWINS = MountAliases.of((("/home", "/top/home"), ("/again", "/home/u/part"), ("/", "/whole")), MOUNTED | {"/whole"})


@pytest.mark.parametrize(
    ("path", "others"),
    [
        ("/home", ["/top/home"]),
        ("/home/v/.ssh", ["/top/home/v/.ssh"]),
        ("/top/home/v/.ssh", ["/home/v/.ssh"]),
        ("/homes", ["/whole/homes"]),
        ("/home/u/disk/key", []),  # on another disk
        ("/home/x/own/key", []),  # there another disk is mounted
        ("/home/u/part/key", ["/again/key", "/top/home/u/part/key"]),
        ("/again", ["/home/u/part"]),
        ("/", ["/whole"]),
        ("/whole", ["/"]),
        ("/etc/x", ["/whole/etc/x"]),
        ("/whole/etc/x", ["/etc/x"]),
    ],
)
def test_the_other_names(path: str, others: list[str]) -> None:
    assert list(TWINS.others(path)) == others
