"""The kinds of file systems, in a mount namespace of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import ctypes, os, sys
from sandboxd.host.watch.file_systems import is_in_memory, is_remote
libc, place = ctypes.CDLL(None, use_errno=True), sys.argv[1].encode()
seen = [is_in_memory(place.decode())]
assert libc.mount(b"t", place, b"tmpfs", 0, None) == 0, os.strerror(ctypes.get_errno())
seen.append(is_in_memory(place.decode()))
if os.fork() == 0:
    libc.umount2(place, 0)
    os._exit(is_in_memory(place.decode()))
seen.append(os.waitstatus_to_exitcode(os.wait()[1]) == 0)
seen.append(is_in_memory(place.decode()))
print(*seen, is_remote(place.decode()), is_in_memory("/nowhere"))
"""


def test_a_mount_that_comes_or_goes_is_noticed(tmp_path: Path) -> None:
    place = Path("/var/tmp") if tmp_path.is_relative_to("/dev/shm") else tmp_path
    words = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", SCRIPT, str(place)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "True", "True", "False", "False", "False"], done
