"""Ending by itself: only when nothing is and was in use."""

from __future__ import annotations

import asyncio

from sandboxd.daemon.lifecycle import StopRequest, stop_when_idle
from support.users import Identity


async def test_it_ends_once_nothing_was_in_use_for_so_long() -> None:
    stop, busy, uses = StopRequest(), [True, True], iter([1, 1, 1, 2, 2, 2, 3, 3])
    await asyncio.wait_for(stop_when_idle(0.01, lambda: bool(busy and busy.pop()), lambda: next(uses), stop), 30)
    assert stop.reason == "idle for 0.01 s"
    # Busy twice, then something had come and gone, then nothing.
    assert (busy, list(uses)) == ([], [])


def test_a_daemon_without_clients_ends_in_good_order(identity: Identity) -> None:
    """Run to its end: it may have ended before a client has seen that it listens."""
    address = identity.runtime / "sandboxd" / "sandboxd.sock"
    done = identity.run(identity.command("serve", "--socket", str(address), "--idle-exit", "0.2"))
    assert done.returncode == 0, done
    assert "ready" in done.stderr and "idle for 0.2 s" in done.stderr
    assert not address.exists()


def test_what_is_no_time_is_refused(identity: Identity) -> None:
    for value in ("0", "-1", "x", "inf", "nan", ""):
        done = identity.run(identity.command("serve", "--idle-exit", value))
        assert done.returncode == 2 and "--idle-exit" in done.stderr, value
