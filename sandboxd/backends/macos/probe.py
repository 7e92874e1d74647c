"""The proof that a sandbox can be started, by a refusal that happens.

The profile of the probe allows everything but writing into one directory, and a program writes there. A sandbox that
starts and refuses nothing would be worse than none."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence

from sandboxd.backends.macos.seatbelt.dialect import CONSTRUCTS, TIOCSTI, Construct, whole_probe
from sandboxd.backends.macos.seatbelt.path_spellings import real_spelling
from sandboxd.children import DEVNULL, run_program
from sandboxd.errors import HostError

SANDBOX_EXEC = "/usr/bin/sandbox-exec"
TIMEOUT_S = 20.0
_PROFILE = '(version 1) (allow default) (deny file-write* (subpath (param "D"))%s)'
_PATH = "/usr/bin:/bin"
_LAST_WORDS = 300


class SeatbeltProbe:
    """A probe that remembers success and repeats after a failure."""

    def __init__(self, sandbox_exec: str = SANDBOX_EXEC) -> None:
        self.sandbox_exec = sandbox_exec
        self._lock = asyncio.Lock()
        self._refused: frozenset[str] | None = None

    async def ready(self) -> frozenset[str]:
        """Return the constructs that are refused. Raises HostError when no sandbox can start.

        Slugs: `sandbox_exec_missing`, `seatbelt_nested`, `seatbelt_failed`, `seatbelt_open`."""
        async with self._lock:
            if self._refused is None:
                await try_sandbox(self.sandbox_exec)
                self._refused = await refused_constructs(self.sandbox_exec)
            return self._refused


async def refused_constructs(sandbox_exec: str) -> frozenset[str]:
    """Return the names of constructs that do not compile. Raises HostError.

    One run says so where all of them compile."""
    refused: set[str] = set()
    if not await _compiles(sandbox_exec, CONSTRUCTS):
        refused = {one.name for one in CONSTRUCTS if not await _compiles(sandbox_exec, [one])}
    if TIOCSTI not in refused and not await _refuses_typing(sandbox_exec):
        refused.add(TIOCSTI)
    return frozenset(refused)


async def _compiles(sandbox_exec: str, constructs: Sequence[Construct]) -> bool:
    text, parameters = whole_probe(constructs)
    words = [word for name, value in parameters.items() for word in ("-D", f"{name}={value}")]
    return (await _run([sandbox_exec, "-p", text, *words, "--", "true"]))[0] == 0


TYPES = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
try:
    fcntl.ioctl(0, termios.TIOCSTI, b"x")
except OSError:
    sys.exit(0)
sys.exit(1)
"""


async def _refuses_typing(sandbox_exec: str) -> bool:
    """Return whether the rule on TIOCSTI refuses that, and nothing else, on a terminal of the probe's own.

    It compiles on some versions of macOS where the kernel does not tell one ioctl from another."""
    probe, _ = whole_probe([one for one in CONSTRUCTS if one.name == TIOCSTI])
    master, slave = os.openpty()
    try:
        words = [sandbox_exec, "-p", probe, "--", sys.executable, "-I", "-S", "-c", TYPES]
        return (await _run(words, slave))[0] == 0
    finally:
        os.close(master)
        os.close(slave)


async def try_sandbox(sandbox_exec: str, tag: str = "") -> None:
    """Raise HostError when no sandbox can start, or when it does not hold.

    With `tag`, the refusal is logged with it."""
    profile = _PROFILE % (f' (with message "{tag}")' if tag else "")
    with tempfile.TemporaryDirectory(prefix="sandboxd-probe-") as made:
        directory = await asyncio.to_thread(os.path.realpath, made)
        target = os.path.join(directory, "written")
        closed = f"D={real_spelling(directory)}"
        status, complaint = await _run([sandbox_exec, "-p", profile, "-D", closed, "--", "mkdir", target])
        if await asyncio.to_thread(os.path.exists, target):
            raise HostError(
                "seatbelt_open",
                "a sandbox was started and did not refuse what its profile refuses",
                hint="report the version of macOS (sw_vers): its sandbox cannot be relied on",
            )
    if status == 1:  # that of mkdir, which was refused
        return
    if status == 71 and "not permitted" in complaint:
        raise HostError(
            "seatbelt_nested",
            "the daemon runs in a sandbox itself, and macOS nests none",
            hint="start it outside: sandboxd service install",
        )
    raise HostError(
        "seatbelt_failed", f"{sandbox_exec} ended with status {status}: {complaint}", hint="run: sandboxd check"
    )


async def _run(words: list[str], stdin: int = DEVNULL) -> tuple[int, str]:
    """Return exit status and last line of standard error. Raises HostError."""
    try:
        done = await run_program(words, TIMEOUT_S, env={"PATH": _PATH}, stdin=stdin, output=False, errors=True)
    except OSError as error:
        raise HostError(
            "sandbox_exec_missing",
            f"{words[0]} cannot be started: {error.strerror}",
            hint="it is part of macOS; restore it, or see whether the disk is damaged",
        ) from error
    if done.status is None:
        raise HostError("seatbelt_failed", f"{words[0]} did not come to an end", hint="run: sandboxd check")
    lines = done.errors.decode("utf-8", "replace").strip().splitlines()
    return done.status, lines[-1][:_LAST_WORDS] if lines else ""
