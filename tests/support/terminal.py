"""A program on a terminal of its own, as a person sees it: what it writes can be waited for, keys can be pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.waiting import LIMIT_S

CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x04", b"\x1a", b"\x1c"


class Terminal:
    """Runs `argv` as the session leader of a new terminal. `text` is all it has written so far."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                if cwd is not None:
                    os.chdir(cwd)
                os.execvpe(argv[0], list(argv), dict(os.environ if env is None else env))
            finally:
                os._exit(127)
        self.text = ""
        self._read_to = 0

    def press(self, keys: str | bytes) -> None:
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def type(self, line: str) -> None:
        self.press(line + "\n")

    def expect(self, pattern: str) -> re.Match[str]:
        """Waits until `pattern` has been written after what was expected last."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := re.compile(pattern, re.MULTILINE).search(self.text, self._read_to)):
            if not self._read(deadline):
                raise AssertionError(f"{pattern!r} was not written; this was: {self.text[self._read_to :]!r}")
        self._read_to = found.end()
        return found

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def attributes(self) -> list[object]:
        """The terminal's settings, to compare."""
        return list(termios.tcgetattr(self._master))

    def foreground(self) -> int:
        """The foreground process group, as the program's own view has it."""
        return os.tcgetpgrp(self._master)

    def wait(self) -> int:
        """The program's exit status once it has ended, 128+N for a signal; the rest of its output is read before."""
        deadline = time.monotonic() + LIMIT_S
        while self._read(deadline):
            pass
        return _status(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        """Hangs up, which ends what is still there."""
        os.close(self._master)
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: no process has the terminal open
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
