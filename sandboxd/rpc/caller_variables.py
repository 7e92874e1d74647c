"""Values of variables in the environment of a caller.

Rules mention them. A daemon that a service manager has
started lacks most of what a login session has; the person who runs a command means theirs.

A client sends a fixed few of its variables with each `wrap`. The others are read from the environment that its process
was started with (proc_pid_environ(5)), and only those that are asked for. macOS shows no process the environment of
another: there the daemon's own values count."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from sandboxd.processes import start_time
from sandboxd.rpc.call import MethodCall
from sandboxd.rpc.peer import Caller

MOST = 100
"""Variables that rules may mention. A project may have sent thousands of them."""
_LONGEST = 4096


async def caller_variables(
    call: MethodCall, names: Collection[str], given: Mapping[str, str] | None
) -> tuple[tuple[str, str], ...]:
    """Return the caller's variables that differ from the daemon's.

    `given` is what the call itself says of the environment. Empty for a restricted caller, which may not choose what
    a rule opens."""
    wanted = sorted(names)[:MOST]
    if not wanted or call.caller.restricted:
        return ()
    given = given or {}
    missing = [name for name in wanted if name not in given]
    started_with = await asyncio.to_thread(_read, call.caller, missing) if missing else {}
    of_daemon = call.around.places.environment
    found = ((name, given.get(name) or started_with.get(name, "")) for name in wanted)
    return tuple((name, value) for name, value in found if value and value != of_daemon.get(name) and _is_usable(value))


async def caller_search_path(call: MethodCall, given: Mapping[str, str] | None = None) -> str:
    """Return the PATH that was given, else that of the caller's process, else the daemon's own."""
    if path := (given or {}).get("PATH"):
        return path
    found = dict(await caller_variables(call, ("PATH",), None))
    return found.get("PATH") or call.around.places.environment.get("PATH", "")


async def caller_is_sandbox(call: MethodCall, given: bool | None) -> bool:
    """Return whether the caller's environment sets $IS_SANDBOX."""
    if given is not None:
        return given
    return bool((await asyncio.to_thread(_read, call.caller, ["IS_SANDBOX"])).get("IS_SANDBOX"))


def _is_usable(value: str) -> bool:
    return len(value) <= _LONGEST and "\0" not in value


def _read(caller: Caller, names: list[str]) -> dict[str, str]:
    """Return variables of the caller's process; none if it cannot be read."""
    try:
        content = Path(f"/proc/{caller.pid}/environ").read_bytes()
        if caller.started == 0 or start_time(caller.pid) != caller.started:
            return {}
    except OSError:
        return {}
    wanted = set(map(os.fsencode, names))
    pairs = (entry.partition(b"=") for entry in content.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name in wanted}
