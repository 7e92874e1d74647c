"""What bubblewrap tells of process 1: which one it is, long before that speaks for itself. Only a hint, for an early
start: what it says is believed of nobody but the process that was claimed, and a launch does without it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable

from sandboxd.backends.linux.helper.bridge_protocol import ProtocolError

MAX_INFO = 4096


class InitPidReader:
    """The reading end of the pipe of `--info-fd`. Calls `told` once with the process number, or `failed` once with what
    was wrong; owns the descriptor."""

    def __init__(self, pipe: int, told: Callable[[int], None], failed: Callable[[Exception], None]) -> None:
        self._pipe = pipe
        self._told = told
        self._failed = failed
        self._text = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pipe, self._readable)

    def _readable(self) -> None:
        try:
            text = os.read(self._pipe, MAX_INFO + 1)
            self._text += text
            pid = decode_birth(self._text)
        except (OSError, ProtocolError) as error:
            self.close()
            self._failed(error)
            return
        if pid is None and text:
            return
        self.close()
        if pid is not None:
            self._told(pid)

    def pause(self) -> None:
        """Hear of nothing more."""
        if self._pipe >= 0:
            self._loop.remove_reader(self._pipe)

    def close(self) -> None:
        if self._pipe >= 0:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1


def decode_birth(text: bytes) -> int | None:
    """The process number of process 1 from what bubblewrap writes to its `--info-fd` (bwrap(1)): one JSON object; None
    while that is not whole. Raises ProtocolError for anything else."""
    if len(text) > MAX_INFO:
        raise ProtocolError("too much is said about process 1")
    if not text.endswith(b"}\n"):
        return None
    try:
        pid = json.loads(text)["child-pid"]
    except (ValueError, KeyError, TypeError, RecursionError):
        pid = None
    if type(pid) is not int or pid <= 0:
        raise ProtocolError("bubblewrap does not say which process is process 1")
    return pid
