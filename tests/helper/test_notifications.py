"""What the helper says of file calls that the mounts refuse, and that it says nothing of all the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sandboxd.backends.linux.bridge_protocol import Exited, Started
from sandboxd.backends.linux.notifications import RefusedCall
from sandboxd.backends.linux.seccomp_notified import call_name
from sandboxd.plan.plan import Supervision
from support.users import Identity

from .conftest import MACHINE, OPTIONS, Launcher, Sandbox

WRITES = Supervision(writes=True)
READS = Supervision(writes=True, reads=True)


class Places:
    """A directory that is read-only in the sandbox, with a writable one in it, and things that are masked."""

    def __init__(self, base: Path, identity: Identity) -> None:
        self.base = base
        self.mask = base / "mask"
        for name in ("open", "closed", "secret", "shelf/below", "cover", "open/inner"):
            (base / name).mkdir(parents=True)
        for name in (
            "file",
            "second",
            "third",
            "fourth",
            "open/file",
            "closed/file",
            "secret/file",
            "hidden",
            "open/guarded",
            "mask",
        ):
            (base / name).write_text("x")
        (base / "link").symlink_to("third")
        (base / "open/link").symlink_to("../fourth")
        self.mask.chmod(0)
        for path in (base, *base.rglob("*")):
            if not path.is_symlink():
                identity.own(path)

    @property
    def options(self) -> tuple[str, ...]:
        base = str(self.base)
        mounts = (
            *("--bind", f"{base}/open", f"{base}/open"),
            *("--ro-bind", f"{base}/open/guarded", f"{base}/open/guarded"),
            *("--perms", "0000", "--size", "4096", "--tmpfs", f"{base}/secret", "--remount-ro", f"{base}/secret"),
            *("--ro-bind", str(self.mask), f"{base}/hidden"),
            *("--perms", "0555", "--size", "4096", "--tmpfs", f"{base}/open/inner"),
        )
        return (*OPTIONS[:9], *mounts, *OPTIONS[9:])


@pytest.fixture
def places(identity: Identity, tmp_path: Path) -> Iterator[Places]:
    base = identity.runtime / "places"
    base.mkdir()
    yield Places(base, identity)


def reports(sandbox: Sandbox) -> list[RefusedCall]:
    sandbox.expect(Started())
    events = sandbox.rest()
    status, _, err = sandbox.finish()
    assert isinstance(events[-1], Exited) and status == 0, err
    assert all(isinstance(event, RefusedCall) for event in events[:-1]), events
    return [event for event in events if isinstance(event, RefusedCall)]


def told(launch: Launcher, places: Places, script: str, watched: Supervision = WRITES) -> list[tuple[str, str]]:
    """Runs Python statements in the base directory; the names of the calls and the paths of what was reported."""
    text = f"import os, sys; os.chdir({str(places.base)!r})\n{script}"
    found = reports(launch.python(text, watched=watched, options=places.options))
    base = str(places.base) + "/"
    assert {report.process for report in found} <= {"python3"}
    return [(call_name(report.call, MACHINE), report.path.removeprefix(base)) for report in found]


# Each of them alone: a statement that fails, and what is reported. (As the kernel has it: O_CREAT 64, O_EXCL 128.)
REFUSED = {
    "open('new', 'w')": ("openat", "new"),
    "open('file', 'a')": ("openat", "file"),
    "open('second', 'r+')": ("openat", "second"),
    "open('link', 'w')": ("openat", "third"),
    "open('open/link', 'w')": ("openat", "fourth"),
    "open('open/../closed//file/../new', 'w')": None,  # file is no directory: that is why it fails
    "open('open/../closed//new', 'w')": ("openat", "closed/new"),
    "open(os.getcwd() + '/absolute', 'w')": ("openat", "absolute"),
    "open('open/guarded', 'w')": ("openat", "open/guarded"),
    "open('hidden', 'w')": ("openat", "hidden"),
    "open('secret/new', 'w')": ("openat", "secret/new"),
    "open('secret/a/b/c', 'w')": ("openat", "secret/a/b/c"),
    "open('open/inner/new', 'w')": ("openat", "open/inner/new"),
    "open('open/inner', 'w')": ("openat", "open/inner"),
    "os.open('closed', os.O_TMPFILE | os.O_RDWR)": ("openat", "closed"),
    "os.open('empty', os.O_CREAT | os.O_RDONLY)": ("openat", "empty"),
    "os.truncate('file', 0)": ("truncate", "file"),
    "os.mkdir('new')": ("mkdir", "new"),
    "os.mkdir('slashes///')": ("mkdir", "slashes"),
    "os.mkdir('open/inner')": ("mkdir", "open/inner"),
    "os.mkdir('new', dir_fd=os.open('closed', 0))": ("mkdirat", "closed/new"),
    "os.mknod('new')": ("mknodat", "new"),
    "os.mkfifo('pipe')": ("mknodat", "pipe"),
    "os.symlink('x', 'new')": ("symlink", "new"),
    "os.link('open/file', 'new')": ("link", "new"),
    "os.link('file', 'new', src_dir_fd=os.open('closed', 0))": ("linkat", "new"),
    "os.rename('file', 'other')": ("rename", "file"),
    "os.rename('open/guarded', 'x', src_dir_fd=os.open('.', 0))": ("renameat", "open/guarded"),
    "os.rename('open/file', 'open/guarded')": ("rename", "open/guarded"),
    "os.rename('file', 'other', src_dir_fd=os.open('closed', 0))": ("renameat", "closed/file"),
    "os.unlink('file')": ("unlink", "file"),
    "os.unlink('link')": ("unlink", "link"),
    "os.unlink('open/guarded')": ("unlink", "open/guarded"),
    "os.unlink('file', dir_fd=os.open('closed', 0))": ("unlinkat", "closed/file"),
    "os.rmdir('closed')": ("rmdir", "closed"),
    "os.rmdir('open')": ("rmdir", "open"),
    "os.chmod('file', 0)": ("chmod", "file"),
    "os.chown('file', -1, -1)": ("chown", "file"),
    "os.lchown('link', -1, -1)": ("lchown", "link"),
    "os.utime('file')": ("utimensat", "file"),
    "os.utime('link', follow_symlinks=False)": ("utimensat", "link"),
    "os.setxattr('file', 'user.x', b'')": ("setxattr", "file"),
    "os.removexattr('file', 'user.x')": ("removexattr", "file"),
    "os.setxattr('link', 'user.x', b'', follow_symlinks=False)": ("lsetxattr", "link"),
}

# Fails for a reason that is not the sandbox's, or does not fail.
NOT_REPORTED = [
    "open('file')",
    "open('open/new', 'w')",
    "open('open/file', 'w')",
    "open('open/file', 'w').truncate(0)",
    "open('/dev/null', 'w')",
    "open('/dev/null', 'r+')",
    "open('/tmp/new', 'w')",
    "open('missing/new', 'w')",
    "open('file/new', 'w')",
    "open('missing', 'r+')",
    "open('closed', 'w')",
    "os.open('file', os.O_CREAT | os.O_EXCL | os.O_WRONLY)",
    "os.open('file', os.O_CREAT | os.O_RDONLY)",
    "os.open('file', os.O_PATH | os.O_CREAT)",
    "os.open('secret', os.O_PATH)",
    "open('hidden')",
    "os.listdir('secret')",
    "open('secret/file')",
    "os.mkdir('closed')",
    "os.makedirs('closed', exist_ok=True)",
    "os.mkdir('open/d')",
    "os.mkdir('')",
    "os.unlink('missing')",
    "os.unlink('open/file')",
    "os.rmdir('open')" and "os.rmdir('missing')",
    "os.rename('missing', 'x')",
    "os.rename('open/file', 'open/other')",
    "os.rename('open/file', 'other')",  # another mount: EXDEV
    "os.rename('file', 'open/other')",
    "os.link('missing', 'x')",
    "os.link('open/file', 'open/second')",
    "os.symlink('x', 'open/second')",
    "os.symlink('x', 'link')",
    "os.chmod('missing', 0)",
    "os.chmod('open/file', 0o600)",
    "os.utime('open/file')",
    "os.utime(os.open('open/file', 1))",
    "os.truncate('open/file', 0)",
    "os.truncate('closed', 0)",
    "os.chmod('open/file', 0); open('open/file', 'a')",
    "os.chmod('open', 0o555); open('open/new', 'w')",
    "import ctypes; ctypes.CDLL(None).mkdir(8, 0)",  # not an address
    "open('x' * 5000, 'w')",
    "open('/proc/self/comm', 'w').write('x')",
    "open('/dev/stdout', 'w')",
]


def run_each(
    launch: Launcher, places: Places, statements: Sequence[str], watched: Supervision = WRITES
) -> list[list[tuple[str, str]]]:
    """Each statement in a child of its own, one after the other; a mkdir in the base directory, which is always
    reported, says where the next one begins."""
    script = f"""
for n, statement in enumerate({list(statements)!r}):
    try: os.mkdir(f"begin-{{n}}")
    except OSError: pass
    if not os.fork():
        try: exec(statement)
        except OSError as error: pass
        os._exit(0)
    os.wait()
"""
    found: list[list[tuple[str, str]]] = []
    for call, path in told(launch, places, script, watched):
        if path == f"begin-{len(found)}":
            found.append([])
        else:
            found[-1].append((call, path))
    return found


def test_what_the_mounts_refuse_is_reported_once(launch: Launcher, places: Places) -> None:
    got = run_each(launch, places, list(REFUSED))
    wanted = [[expected] if expected else [] for expected in REFUSED.values()]
    assert dict(zip(REFUSED, got, strict=True)) == dict(zip(REFUSED, wanted, strict=True))


def test_what_does_not_fail_or_fails_by_itself_is_not_reported(launch: Launcher, places: Places) -> None:
    got = run_each(launch, places, NOT_REPORTED)
    assert dict(zip(NOT_REPORTED, got, strict=True)) == {statement: [] for statement in NOT_REPORTED}
