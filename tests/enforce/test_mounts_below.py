"""File systems that are mounted below the directories that rules name."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from support.lab import Done, Lab
from support.users import Identity

NEW_NAMESPACE, RECURSIVE_PRIVATE = 0x20000, 0x44000
SCRIPT = (
    "touch inner/x && mv inner/x inner/y && echo written; echo > inner/secret; cat inner/secret; "
    "touch closed/x; touch ~/other/x; touch inner/deep/x; ls hidden"
)


def mount(directory: Path) -> None:
    directory.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"none", os.fsencode(directory), b"tmpfs", 0, b"mode=777") == 0, os.strerror(ctypes.get_errno())


if os.geteuid() == 0:  # else there is nobody who could mount anything

    def test_what_is_mounted_below_is_treated_as_what_it_is_mounted_on(identity: Identity) -> None:
        """FS-30: writable below a writable directory, closed below a closed one, read-only elsewhere, and a rule about
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
