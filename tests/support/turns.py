"""Tests that compare the whole host before and after must not run beside tests that change it.

All workers of one run (pytest-xdist) share a readers-writer lock made of two locked files: every test holds it shared,
one that takes a snapshot of the host holds it alone. Who waits stands in the doorway meanwhile, so that a stream of
short tests cannot keep it waiting for ever. Without workers there is nothing to wait for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_DIRECTORY = "SANDBOXD_TEST_TURNS"
"""Variable in the environment of the workers: where the files of this run are."""


def open_turns() -> None:
    """For a run with workers, called before they are started."""
    os.environ[_DIRECTORY] = tempfile.mkdtemp(prefix="sdt-turns-")


def close_turns() -> None:
    if directory := os.environ.pop(_DIRECTORY, None):
        shutil.rmtree(directory)


@contextlib.contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Waits until this test may run; `alone` until no other does."""
    directory = os.environ.get(_DIRECTORY)
    if directory is None:
        yield
        return
    with Path(directory, "doorway").open("a") as doorway, Path(directory, "room").open("a") as room:
        fcntl.flock(doorway, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(doorway, fcntl.LOCK_UN)
        yield
