"""What keeps a name absent is removed by doing nothing, since outside it is absent. What is there outside is not."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.backends.linux.helper.bridge_protocol import Exited, Started
from sandboxd.backends.linux.helper.notifications import RefusedCall
from sandboxd.backends.linux.seccomp.notified_calls import call_name
from sandboxd.plan.plan import Supervision
from support.users import Identity

from .conftest import MACHINE, OPTIONS, Launcher

DIRECTORIES = {
    "absent": 0o1755, "outer": 0o1755, "outer/absent": 0o1755, "outer/deeper": 0o1755, "outer/deeper/absent": 0o1755,
    "real": 0o755, "sticky": 0o1755, "shared": 0o1777, "group": 0o1775, "cover": 0o555, "real-with-absent": 0o755,
    "real-with-absent/absent": 0o1755, "used": 0o1755, "used/absent": 0o1755, "own": 0o1755, "own/below": 0o1755,
}  # fmt: skip
"""Below a writable directory, with their modes outside."""
FILES = {"rc": ("", 0o1644), "written": ("x", 0o1644), "plain": ("", 0o644), "open-rc": ("", 0o1644),
         "used/file": ("x", 0o644), "sticky/file": ("x", 0o644)}  # fmt: skip
EMPTY = ("--size", "4096", "--tmpfs")
MOUNTS = {
    ("--bind",): ("outer", "outer/deeper", "real-with-absent", "used", "open-rc"),
    ("--ro-bind",): ("rc", "real", "sticky", "shared", "group", "written", "plain"),
    ("--perms", "1555", *EMPTY): (
        "absent", "outer/absent", "outer/deeper/absent", "real-with-absent/absent", "used/absent",
    ),
    ("--perms", "0555", *EMPTY): ("cover",),
}  # fmt: skip

# What is tried, in one sandbox and in this order; the error number, 0 for success, and whether it is reported.
TRIED = {
    "os.rmdir('absent')": (0, False),
    "os.rmdir('absent') ": (0, False),  # and again
    "os.rmdir('absent//')": (0, False),
    "os.rmdir('real/../absent')": (0, False),
    "os.rmdir(os.getcwd() + '/absent')": (0, False),
    "os.rmdir('absent', dir_fd=os.open('.', 0))": (0, False),
    "os.unlink('rc')": (0, False),
    "os.unlink('rc', dir_fd=os.open('.', 0))": (0, False),
    "shutil.rmtree('outer')": (0, False),
    "os.rmdir('outer')": (0, False),
    # what is changed of it is not changed
    "os.chmod('absent', 0o777)": (0, False),
    "os.chown('absent', -1, -1)": (0, False),
    "os.utime('absent')": (0, False),
    "os.chmod('absent', 0o755); os.mkdir('absent/chmod')": (errno.EACCES, True),
    "os.chmod('rc', 0o600)": (0, False),
    "os.utime('rc')": (0, False),
    "os.chmod('plain', 0o600)": (errno.EROFS, True),
    "os.chmod('written', 0o600)": (errno.EROFS, True),
    "os.chmod('sticky', 0o700)": (errno.EROFS, True),
    "os.rmdir('sticky')": (errno.EBUSY, False),  # there is something in it
    "os.chmod('own', 0o1700); os.rmdir('own')": (errno.ENOTEMPTY, False),
    "os.chmod('real', 0o700)": (errno.EROFS, True),
    # as the kernel has it
    "os.rmdir('absent/.')": (errno.EINVAL, False),
    "os.rmdir('absent/..')": (errno.ENOTEMPTY, False),
    "os.rmdir('rc')": (errno.ENOTDIR, False),
    "os.unlink('rc/')": (errno.ENOTDIR, False),
    "os.unlink('absent')": (errno.EISDIR, False),
    "libc.unlinkat(-100, b'absent', 0x201) and refuse()": (errno.EINVAL, False),
    # nothing has been done
    "os.mkdir('absent')": (errno.EEXIST, True),
    "os.mkdir('absent/x')": (errno.EACCES, True),
    "os.rename('outer', 'moved')": (errno.EBUSY, True),
    "os.rename('own', 'absent')": (errno.EBUSY, True),
    "os.rename('own', 'outer/absent')": (errno.EXDEV, True),
    "open('rc', 'w')": (errno.EROFS, True),
    "os.rename('written-anew', 'rc')": (errno.EBUSY, True),
    # what is there
    "os.rmdir('real')": (errno.EBUSY, True),
    "os.rmdir('shared')": (errno.EBUSY, True),
    "os.rmdir('group')": (errno.EBUSY, True),
    "os.rmdir('cover')": (errno.EBUSY, True),
    "os.rmdir('real-with-absent/absent')": (0, False),
    "os.rmdir('real-with-absent')": (errno.EBUSY, True),
    "os.rmdir('used')": (errno.EBUSY, False),  # there is something in it
    "os.unlink('used/file')": (0, False),
    "os.unlink('written')": (errno.EBUSY, True),
    "os.unlink('plain')": (errno.EBUSY, True),
    "os.unlink('open-rc')": (errno.EBUSY, True),
    # nothing of the sandbox
    "os.rmdir('own/below')": (0, False),
    "os.rmdir('own')": (0, False),
    "os.rmdir('own') ": (errno.ENOENT, False),
}
SCRIPT = """
import ctypes, os, shutil
os.chdir({base!r})
libc = ctypes.CDLL(None, use_errno=True)
def refuse(): raise OSError(ctypes.get_errno(), "")
open("written-anew", "w").close()
for n, statement in enumerate({tried!r}):
    try: os.mkdir(f"{base}/../begin-{{n}}")  # which is reported: between two of them stands what is reported of one
    except OSError: pass
    if not os.fork():  # equal ones of one thread are counted
        try: exec(statement.strip())
        except OSError as error: os.write(1, b"%d " % error.errno)
        else: os.write(1, b"0 ")
        os._exit(0)
    os.wait()
"""


@pytest.fixture
def base(identity: Identity) -> Iterator[Path]:
    base = identity.runtime / "work"
    base.mkdir()
    for name in DIRECTORIES:
        (base / name).mkdir(parents=True, exist_ok=True)
    for name, (text, _) in FILES.items():
        (base / name).write_text(text)
    for name, mode in {**DIRECTORIES, **{name: mode for name, (_, mode) in FILES.items()}}.items():
        identity.own(base / name).chmod(mode)
    yield identity.own(base)


def test_only_what_keeps_a_name_absent(launch: Launcher, base: Path) -> None:
    there = sorted(base.rglob("*"))
    mounts = sorted((str(base / name), words) for words, names in MOUNTS.items() for name in names)
    words = [
        word for path, how in mounts for word in (*how, *((path, path) if how[0].endswith("bind") else (path,)))
    ]  # fmt: skip
    sandbox = launch.python(
        SCRIPT.format(base=str(base), tried=list(TRIED)), watched=Supervision(writes=True),
        options=(*OPTIONS[:9], "--bind", str(base), str(base), *words, *OPTIONS[9:]),
    )  # fmt: skip
    sandbox.expect(Started())
    *events, last = sandbox.rest()
    status, out, err = sandbox.finish()
    assert (status, last) == (0, Exited(0, 0)), err
    found: list[list[tuple[str, str]]] = []
    for report in events:
        assert isinstance(report, RefusedCall)
        if "/begin-" in report.path:
            found.append([])
        else:
            found[-1].append((call_name(report.call, MACHINE), report.path))
    numbers = [int(line) for line in out.split()]
    got = {tried: (number, bool(report)) for tried, number, report in zip(TRIED, numbers, found, strict=True)}
    assert got == TRIED
    gone = {base / "own/below", base / "own", base / "used/file"}
    assert sorted(base.rglob("*")) == sorted({*there, base / "written-anew"} - gone)
