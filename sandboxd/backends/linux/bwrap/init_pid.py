"""The init pid, read from bubblewrap's `--info-fd` before the helper connects.

It is only a hint for an early start: it is checked against the claimed process, and a launch works without it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable

from sandboxd.backends.linux.helper.bridge_protocol import ProtocolError

MAX_INFO = 4096


class InitPidReader:
    """The reader of `--info-fd`; calls `on_pid` with the init pid, or `failed`, once."""

    def __init__(self, pipe: int, on_pid: Callable[[int], None], failed: Callable[[Exception], None]) -> None:
        self._pipe = pipe
        self._on_pid = on_pid
        self._failed = failed
        self._text = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pipe, self._readable)

    def _readable(self) -> None:
        try:
            text = os.read(self._pipe, MAX_INFO + 1)
            self._text += text
            pid = decode_init_pid(self._text)
        except (OSError, ProtocolError) as error:
            self.close()
            self._failed(error)
            return
        if pid is None and text:
            return
        self.close()
        if pid is not None:
            self._on_pid(pid)

    def pause(self) -> None:
        """Stop reading."""
        if self._pipe >= 0:
            self._loop.remove_reader(self._pipe)

    def close(self) -> None:
        if self._pipe >= 0:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1


def decode_init_pid(text: bytes) -> int | None:
    """Return the init pid, None for a partial object. Raises ProtocolError."""
    if len(text) > MAX_INFO:
        raise ProtocolError("the text of --info-fd is too long")
    if not text.endswith(b"}\n"):
        return None
    try:
        pid = json.loads(text)["child-pid"]
    except (ValueError, KeyError, TypeError, RecursionError):
        pid = None
    if type(pid) is not int or pid <= 0:
        raise ProtocolError("the text of --info-fd names no process")
    return pid
