"""Landlock as the helper asks for it: exactly what the configuration says, and otherwise nothing runs."""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import replace

from sandboxd.backends.linux.helper.bridge_protocol import Descriptors, Failed
from sandboxd.backends.linux.helper.launch_configuration import Confinement, LaunchConfiguration
from sandboxd.backends.linux.helper.notifications import RefusedCall
from sandboxd.backends.linux.helper.supervision import flags_of
from sandboxd.backends.linux.landlock.confinement import TABLE, Access
from sandboxd.backends.linux.landlock.landlock_probe import find_landlock
from sandboxd.backends.linux.seccomp.filter import build_filter
from sandboxd.plan.plan import Supervision

from .conftest import MACHINE, Launcher, Sandbox

ALL = TABLE[0].confinement
TRY = """
import os
pipe = f"/proc/self/fd/{os.pipe()[1]}"
for path in ("/tmp/new", "/dev/full", "/proc/self/comm", "/dev/stdin", "/dev/stdout", pipe):
    try: os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)); print(path, flush=True)
    except PermissionError: pass
os.makedirs("/tmp/a/d"); os.mkdir("/tmp/b")
try: os.rename("/tmp/a/d", "/tmp/b/d"); print("renamed")
except OSError as error: print(error.strerror)
"""


def start(launch: Launcher, confinement: Confinement, **keywords: object) -> Sandbox:
    message = LaunchConfiguration(
        (b"python3", b"-I", b"-S", b"-c", TRY.encode()),
        build_filter(MACHINE),
        removals=(b"AWS_*",),
        confinement=confinement,
    ).encode()
    sandbox = launch.start(launch.words(), **keywords)
    sandbox.accept()
    sandbox.send(message)
    return sandbox


def tried(launch: Launcher, confinement: Confinement, **keywords: object) -> list[str]:
    status, out, err = start(launch, confinement, **keywords).finish()
    assert status == 0, err
    return out.splitlines()


def test_what_is_granted_where(launch: Launcher) -> None:
    """Pipes are free. A root that is missing, or behind a symbolic link, is left out and changes nothing else."""
    with (launch.identity.write(launch.identity.workspace / "file", "")).open("rb") as given:
        own, free = ["/tmp/new", "/dev/full", "/proc/self/comm"], "/proc/self/fd/4"
        roots = (b"/tmp", b"/dev", b"/proc")
        assert tried(launch, replace(ALL, roots=roots), stdin=given)[:3] == own
        some = (b"/tmp", b"/gone", b"/dev/null/x", b"/proc/self", b"/dev/full")
        assert remaining(tried(launch, replace(ALL, roots=some), stdin=given)) == [*own[:2], free, "renamed"]
        named = replace(ALL, granted=ALL.granted & ~Access.REFER, roots=(b"/tmp",))
        assert remaining(tried(launch, named, stdin=given)) == ["/tmp/new", free, "Invalid cross-device link"]


def remaining(said: list[str]) -> list[str]:
    """Without standard output: it does not matter here whether a pipe of another program can be opened again."""
    return [one for one in said if one != "/dev/stdout"]


def test_what_a_stream_has_open_for_writing_is_granted(launch: Launcher) -> None:
    path = launch.identity.write(launch.identity.workspace / "file", "")
    elsewhere = replace(ALL, roots=(b"/tmp",))
    for mode, is_granted in (("rb", False), ("r+b", True)):
        with path.open(mode) as stream:
            assert ("/dev/stdin" in tried(launch, elsewhere, stdin=stream)) is is_granted
    with path.open("ab") as stream:
        assert tried(launch, elsewhere, stdout=stream) == []
    assert "/dev/stdout" in path.read_text().split()


def test_a_kernel_that_refuses(launch: Launcher) -> None:
    for wrong in (replace(ALL, handled=1 << 31), replace(ALL, flags=1 << 31), replace(ALL, granted=Access(8))):
        sandbox = start(launch, replace(wrong, roots=(b"/tmp",)))
        assert [type(event).__name__ for event in sandbox.rest()] == ["Descriptors", "ExecFailed", "Exited"]
        status, out, err = sandbox.finish()
        assert (status, out) == (125, "") and err.startswith("sandboxd: cannot use Landlock: Invalid argument\nhint: ")


def test_roots_that_leave_no_command(launch: Launcher) -> None:
    plain = LaunchConfiguration((b"true",), build_filter(MACHINE), confinement=ALL).encode()
    place = plain.rindex(b"true\0") - 4
    for number in (1, 0xFFFFFFFF):
        sandbox = launch.connect()
        sandbox.send(plain[:place] + struct.pack("<I", number) + plain[place + 4 :])
        assert sandbox.next_event() == Failed("the configuration is malformed")
        assert sandbox.finish()[:2] == (125, "")
    sandbox = launch.connect()
    sandbox.send(plain)
    sandbox.expect(Descriptors(0))
    assert sandbox.finish() == (0, "", "")


def test_the_probe_agrees_with_the_kernel(launch: Launcher) -> None:
    found = find_landlock(launch.helper)
    assert found.version >= 6 and found.slug == "" and found.confinement is not None, found
    assert found.layers == ("landlock", "landlock-signals")


FIFOS = """
import os, sys
for path in sys.argv[1:]:
    try: os.close(os.open(path, os.O_RDWR)); print("written", os.path.basename(path))
    except PermissionError: print("refused", os.path.basename(path))
"""


def test_a_refused_fifo_is_reported(launch: Launcher) -> None:
    """And only one that Landlock refuses: not one below a root, nor one whose mode is in the way."""
    places = [launch.identity.workspace / name for name in ("outside", "inside/fifo", "closed")]
    places[1].parent.mkdir()
    for path in places:
        os.mkfifo(path, 0o600)
        launch.identity.own(path)
    places[2].chmod(0o400)
    confinement = replace(ALL, roots=(b"/dev", os.fsencode(places[1].parent)))
    watched = Supervision(writes=True)
    argv = (b"python3", b"-I", b"-S", b"-c", FIFOS.encode(), *map(os.fsencode, places))
    program = build_filter(MACHINE, watched)
    sandbox = launch.start(launch.words())
    sandbox.accept()
    sandbox.send(LaunchConfiguration(argv, program, flags=flags_of(watched), confinement=confinement).encode())
    refused = [event for event in sandbox.rest() if isinstance(event, RefusedCall)]
    assert [(event.path, event.errno) for event in refused] == [(str(places[0]), errno.EACCES)]
    assert sandbox.finish()[1].split() == ["refused", "outside", "written", "fifo", "refused", "closed"]
