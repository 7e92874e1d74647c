"""`./dev demo` does what it says, and leaves the machine as it was."""

from __future__ import annotations

import signal
import subprocess

import pytest

from support.snapshot import HostWatch
from support.users import Identity, identity_names
from support.waiting import wait_until


def demo_of(identity: Identity) -> list[str]:
    return identity.python(str(identity.code.tree / "docs" / "demo.py"), *identity.command())


def test_every_step_does_what_it_says(identity: Identity, host_snapshot: HostWatch) -> None:
    with host_snapshot.assert_unchanged():
        done = identity.run(demo_of(identity), timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "NOT AS EXPECTED" not in done.stdout
    assert done.stdout.count("  as expected: ") == 8
    assert done.stdout.endswith("All steps did what they say.\n")


@pytest.mark.parametrize("identity", identity_names()[-1:], indirect=True)  # it waits for a daemon that does not end
def test_a_step_that_goes_wrong_is_said(identity: Identity, host_snapshot: HostWatch) -> None:
    """With a command line that answers everything with success, the demo must not be content."""
    script = f'#!/bin/sh\n[ "$1" != serve ] || exec {identity.command()[0]} "$@"\n'
    identity.write(identity.home / "fake", script, mode=0o755)
    with host_snapshot.assert_unchanged():
        done = identity.run([*demo_of(identity)[:-1], str(identity.home / "fake")], timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("NOT AS EXPECTED") == 7


def test_a_demo_that_is_ended_cleans_up(identity: Identity, host_snapshot: HostWatch) -> None:
    with host_snapshot.assert_unchanged():
        process = identity.popen(demo_of(identity), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("3."):
                break
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        process.stdout.close()
        assert wait_until(lambda: process.poll() is not None or None, "the demo ends")
        assert process.returncode == 143
