"""`max_output`: head and tail of what a command writes, without holding the rest in memory."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from sandboxd_client.running.completed import Completed
from sandboxd_client.running.launching import SpawnOptions


class CutOutput:
    """The captured streams of one `run`, in files without a name.

    The streams of `spawning` that are pipes become these files. Raises ValueError for a wrong limit."""

    def __init__(self, options: Mapping[str, Any], spawning: SpawnOptions) -> None:
        self._most = options.get("max_output")
        self._files: dict[str, IO[bytes]] = {}
        if self._most is None:
            return
        if self._most < 2:
            raise ValueError("max_output is a number of bytes, at least 2")
        for name in ("stdout", "stderr"):
            if spawning.get(name) == subprocess.PIPE:
                spawning[name] = self._files[name] = tempfile.TemporaryFile()  # noqa: SIM115
        text = any(options.get(name) for name in ("text", "universal_newlines", "encoding", "errors"))
        self._encoding = options.get("encoding") or "utf-8" if text else None
        self._errors = options.get("errors") or "replace"

    def restart(self) -> None:
        """Forget what an attempt has written that did not start."""
        for file in self._files.values():
            file.seek(0)
            file.truncate()

    def fill(self, done: Completed[Any] | subprocess.TimeoutExpired) -> None:
        """Put the kept parts into the result, and close the files."""
        for name, file in self._files.items():
            setattr(done, name, self._kept(file))
            file.close()

    def _kept(self, file: IO[bytes]) -> str | bytes:
        size, most = file.seek(0, 2), self._most or 0
        head = size if size <= most else most // 2
        file.seek(0)
        kept = file.read(head)
        if size > most:
            file.seek(size - (most - head))
            kept += b"\n[... %d bytes left out ...]\n" % (size - most) + file.read(most - head)
        return kept if self._encoding is None else kept.decode(self._encoding, self._errors)
