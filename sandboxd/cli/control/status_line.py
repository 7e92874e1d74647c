"""`sandboxd status --line`: one short line for tmux, a shell prompt or an agent's bar; empty where all is quiet."""

from __future__ import annotations

import sys
import time

from sandboxd_client import Client, DaemonNotRunning, SandboxdError
from sandboxd_client.badge import Badge
from sandboxd_client.transport.activation import only_a_connection_is_missing
from sandboxd_client.wire.messages.prompts import PermissionRequest, PermissionResolved
from sandboxd_client.wire.messages.violations import ViolationHappened

PAUSE_S = 1.0
TICK_S = 0.5
"""The interval at which a badge that is shown is looked at again."""


def line_of(blocked: int, questions: int, *, enabled: bool = True) -> str:
    parts = [] if enabled else ["sandbox OFF"]
    parts += [f"⛔ {blocked} blocked"] if blocked else []
    parts += [f"{questions} question{'' if questions == 1 else 's'}"] if questions else []
    return " · ".join(parts)


def print_line(shown_s: float) -> int:
    """Print the line once; return 1 where no daemon runs."""
    with Client(autostart=False) as box:
        try:
            if only_a_connection_is_missing(box.socket):
                raise DaemonNotRunning(box.socket)
            enabled, since = box.status().enabled, time.time() - shown_s
            recent = (one.count for one in box.violation_list().violations if (one.last_time or one.time) > since)
            line = line_of(sum(recent), len(box.permission_list().open), enabled=enabled)
        except DaemonNotRunning:
            sys.stdout.write("\n")
            return 1
    sys.stdout.write(line + "\n")
    return 0


def watch(shown_s: float) -> int:
    """Print the line at each change, also over restarts of the daemon; never start one."""
    shown = None
    while True:
        with Client(autostart=False) as box:
            try:
                if not only_a_connection_is_missing(box.socket):
                    shown = _follow(box, shown_s, shown)
            except SandboxdError:
                shown = _print("", shown)
        time.sleep(PAUSE_S)


def _follow(box: Client, shown_s: float, shown: str | None) -> str | None:
    """Print lines until the connection is lost. Raises SandboxdError."""
    badge, enabled = Badge(shown_s), box.status().enabled
    badge.know(box.violation_subscribe().violations)
    open_questions = {one.request_id for one in box.permission_subscribe(watch=True).open}
    while True:
        shown = _print(line_of(badge.count(time.monotonic()), len(open_questions), enabled=enabled), shown)
        falls_in = badge.changes_in(time.monotonic())
        for event in box.notifications(None if falls_in is None else min(falls_in + 0.01, TICK_S)):
            if isinstance(event.params, ViolationHappened):
                badge.take(event.params.violation, time.monotonic())
            elif isinstance(event.params, PermissionRequest):
                open_questions.add(event.params.request_id)
            elif isinstance(event.params, PermissionResolved):
                open_questions.discard(event.params.request_id)
            break


def _print(line: str, shown: str | None) -> str:
    if line != shown:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return line
