"""The probe of Landlock: the helper confines itself and tries refused accesses.

That the kernel knows the calls proves nothing: a layer without effect would be promised to every command. So a file
that is open for reading must neither be opened for writing nor emptied through /proc/self/fd. A file that is open for
writing must be opened again, and no directory can be made."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Callable

from sandboxd.backends.linux.landlock.confinement import Access, Landlock, LandlockVersion, Scope, row_for
from sandboxd_client.records import dataclass

_TIMEOUT_S = 20.0

_MISSING = {
    errno.ENOSYS: "the kernel has no Landlock (Linux 5.19)",
    errno.EOPNOTSUPP: "Landlock is switched off: it is not in the kernel's list of security modules (lsm=)",
    errno.EPERM: "a container's seccomp profile refuses Landlock",
    errno.EACCES: "a container's seccomp profile refuses Landlock",
}
REMEDY = "use Linux 6.12 or newer, with landlock in lsm= on its command line, and restart sandboxd"


@dataclass(frozen=True, slots=True)
class Seen:
    """Results of the confinement and each access: negative error numbers, or success."""

    confined: int
    opened: int
    emptied: int
    granted: int
    signalled: int
    made: int


Run = Callable[[bytes], tuple[int, ...]]
"""Returns the helper's answer to a confinement, or its version. Raises OSError."""


def find_landlock(helper: str) -> Landlock:
    """Return the Landlock of this machine. Blocks: for a worker thread."""

    def run(confinement: bytes) -> tuple[int, ...]:
        with (
            tempfile.TemporaryDirectory(prefix="sandboxd-check-", dir="/var/tmp") as place,
            tempfile.TemporaryFile(dir=place) as given,
            tempfile.TemporaryFile(dir=place) as answer,
        ):
            given.write(confinement)
            given.flush()
            read_only = os.open(f"/proc/self/fd/{given.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                words = [helper, "probe-landlock"]
                done = subprocess.run(words, stdin=read_only, stdout=answer, timeout=_TIMEOUT_S, check=False, cwd=place)
            except subprocess.TimeoutExpired as error:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from error
            finally:
                os.close(read_only)
            answer.seek(0)
            text = answer.read()
            if done.returncode or len(text) % 4 or not text:
                raise OSError(errno.EPROTO, f"the probe ended with status {done.returncode}")
            return tuple(memoryview(text).cast("i"))

    try:
        return probe_landlock(run)
    except OSError as error:
        return Landlock(reason=f"the helper cannot probe it: {error.strerror}")


def probe_landlock(run: Run) -> Landlock:
    """Ask for the version, try its rights, and judge. Raises OSError."""
    (version,) = run(b"")
    if version < 0:
        return Landlock(reason=_MISSING.get(-version, f"Landlock says {os.strerror(-version)}"))
    row = row_for(version)
    if row is None:
        reason = f"version {version} of Landlock refuses every rename between directories"
        return Landlock(reason=reason, version=version)
    answer = run(row.confinement.encode())
    if len(answer) != len(Seen.__slots__):
        raise OSError(errno.EPROTO, "the answer of the probe has a wrong length")
    wrong = judge(row, Seen(*answer))
    if wrong:
        return Landlock(reason=wrong, version=version, slug="landlock_without_effect")
    return Landlock(row.confinement, row.layers, row.lacks, version)


def judge(row: LandlockVersion, seen: Seen) -> str:
    """Return which promise the kernel did not keep, else empty."""
    if seen.confined < 0:
        return f"Landlock cannot be put in force: {os.strerror(-seen.confined)}"
    if seen.opened != -errno.EACCES:
        return "Landlock has no effect: a file could be opened for writing that must not be"
    if row.confinement.handled & Access.TRUNCATE and seen.emptied != -errno.EACCES:
        return "Landlock has no effect: a file could be emptied that must not be"
    if row.confinement.scoped & Scope.SIGNAL and seen.signalled != -errno.EPERM:
        return "Landlock has no effect: a program outside could be sent a signal"
    if row.confinement.handled & Access.MAKE_DIR and seen.made != -errno.EACCES:
        return "Landlock has no effect: a directory could be made where none may be"
    if seen.granted < 0:
        return f"Landlock refuses what it was told to grant: {os.strerror(-seen.granted)}"
    return ""
