"""What the helper is told of a plan's supervision, and what remains where the kernel gives no listener."""

from __future__ import annotations

import itertools

import pytest

from sandboxd.backends.linux.helper.launch_configuration import Flags
from sandboxd.backends.linux.helper.supervision import NOTIFICATION, flags_of, layers_of, without_notification
from sandboxd.backends.linux.seccomp.filter import needs_listener
from sandboxd.plan.plan import Supervision, UnixSockets

LISTED = UnixSockets.LISTED
BOTH = (False, True)
EVERY = [Supervision(*chosen) for chosen in itertools.product(BOTH, BOTH, BOTH, UnixSockets, BOTH)]


@pytest.mark.parametrize(
    ("supervision", "flags"),
    [
        (Supervision(), Flags(0)),
        (Supervision(unix_sockets=UnixSockets.ALL), Flags(0)),
        (Supervision(writes=True), Flags.WATCHED),
        (Supervision(reads=True), Flags.WATCHED),
        (Supervision(connects=True), Flags.WATCHED | Flags.INTERNET | Flags.SERVERS | Flags.QUIET),
        (Supervision(unix_sockets=LISTED), Flags.WATCHED | Flags.UNIX | Flags.IDENTIFY | Flags.QUIET),
        (Supervision(removals=True), Flags.WATCHED | Flags.QUIET),
        (Supervision(writes=True, removals=True), Flags.WATCHED),
        (
            Supervision(True, True, True, LISTED),
            Flags.WATCHED | Flags.INTERNET | Flags.SERVERS | Flags.UNIX | Flags.IDENTIFY,
        ),
    ],
)
def test_what_the_helper_is_told(supervision: Supervision, flags: Flags) -> None:
    assert flags_of(supervision) == flags


@pytest.mark.parametrize("supervision", EVERY)
def test_the_layer_is_there_when_calls_are_looked_at(supervision: Supervision) -> None:
    assert layers_of(supervision) == ((NOTIFICATION,) if needs_listener(supervision) else ())


@pytest.mark.parametrize("supervision", EVERY)
def test_without_a_listener_losses_are_said(supervision: Supervision) -> None:
    remaining, missing = without_notification(supervision, "of a reason")
    assert not needs_listener(remaining)
    assert (remaining.unix_sockets is UnixSockets.ALL) == (supervision.unix_sockets is UnixSockets.ALL)
    assert len(missing) == (
        (supervision.writes or supervision.reads)
        + supervision.removals
        + supervision.connects
        + (supervision.unix_sockets is LISTED)
    )
    assert all("of a reason" in sentence for sentence in missing)
