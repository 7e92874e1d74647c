"""The output of `log stream`, as bytes in and records out. No I/O.

A refusal is a message of the kernel:

    2026-01-01 12:00:00.000 E  kernel[0:1a2b] (Sandbox) Sandbox: NAME(PID) deny(1) OPERATION TARGET
    CMD64_YWJj_END_suffix

The tag is what the profile gave as its message; it stands behind the target, on the same line or on the next one.
NAME and TARGET may hold spaces and parentheses. Repeated refusals are folded: `12 duplicate reports for Sandbox: …`.
Names and targets come from inside the sandbox and can look like anything: only a tag with this daemon's suffix counts,
which stands in no place that a sandboxed process can read."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from sandboxd_client.records import dataclass, field

LONGEST_LINE = 16 * 1024
LONGEST_TARGET = 4096
_PREFIX = "CMD64_"
_MIDDLE = "_END_"

NOISE = (
    re.compile(r"(network|mach)-[a-z]+ .*mDNSResponder"),
    re.compile(r"mach-lookup com\.apple\.diagnosticd(\.|$)"),
    re.compile(r"mach-lookup com\.apple\.analyticsd(\.|$)"),
)
"""Dropped `OPERATION TARGET`: refusals of every program without a consequence. No pattern fits a file's name."""

_MESSAGE = re.compile(
    # The first match: a target is longer than a program's name can be, and both come from inside.
    r"(?:(?P<count>[0-9]{1,9}) duplicate reports? for )?"
    r"Sandbox: (?P<process>.*?)\((?P<pid>[0-9]{1,10})\) deny\([0-9]+\) "
    r"(?P<operation>[a-z][a-z0-9*-]*)(?: (?P<target>.*))?\Z",
    re.DOTALL,
)
_START = re.compile(r"(?:[0-9]{1,9} duplicate reports? for )?Sandbox: ")
_HEADER = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}")


def make_tag(launch_id: str, suffix: str) -> str:
    """Return the end of a launch's log messages."""
    return _PREFIX + base64.b64encode(launch_id.encode()).decode("ascii") + _MIDDLE + suffix


@dataclass(frozen=True, slots=True)
class Denial:
    """A denial with the `launch_id` of its tag, `count` times."""

    launch_id: str
    process: str
    pid: int
    operation: str
    target: str
    count: int = 1


@dataclass(slots=True)
class LogLines:
    """Decoder of the log's bytes. `suffix` is the end of this daemon's tags.

    `ignored` counts foreign and malformed lines, `noise` dropped refusals."""

    suffix: str
    ignored: int = 0
    noise: int = 0
    _rest: bytes = field(default=b"", repr=False)
    _skipping: bool = False
    _pending: str | None = field(default=None, repr=False)

    def feed(self, data: bytes) -> Iterator[Denial]:
        """Return the denials that are complete now, in order."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._skipping or len(line) > LONGEST_LINE:
                self._skipping = False
                self.ignored += 1
                continue
            denial = self._line(line.decode("utf-8", "replace"))
            if denial is not None:
                yield denial
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
            self._skipping = True
            self._pending = None

    def _line(self, line: str) -> Denial | None:
        line = line.rstrip("\r")
        if _HEADER.match(line):
            self._drop_pending()
            start = _START.search(line)
            if start is None:
                self.ignored += 1
                return None
            text = line[start.start() :]
        elif self._pending is not None:
            # a target may hold newlines, and the tag is often on a separate line
            text = f"{self._pending}\n{line}"
        else:
            start = _START.match(line)
            if start is None:
                self.ignored += 1
                return None
            text = line
        body, launch_id = self._untagged(text)
        if launch_id is None:
            self._pending = text if len(text) <= LONGEST_LINE else None
            return None
        self._pending = None
        return self._denial(body, launch_id)

    def _drop_pending(self) -> None:
        if self._pending is not None:
            self._pending = None
            self.ignored += 1

    def _untagged(self, text: str) -> tuple[str, str | None]:
        """Return the text before the tag, and its launch."""
        ending = _MIDDLE + self.suffix
        stripped = text.rstrip()
        if not stripped.endswith(ending):
            return text, None
        stripped = stripped[: -len(ending)]
        body, prefix, encoded = stripped.rpartition(_PREFIX)
        if not prefix:
            return text, None
        try:
            launch_id = base64.b64decode(encoded, validate=True).decode("ascii")
        except (binascii.Error, ValueError):
            return text, None
        return body.rstrip("\n").removesuffix(" "), launch_id

    def _denial(self, body: str, launch_id: str) -> Denial | None:
        match = _MESSAGE.match(body)
        if match is None:
            self.ignored += 1
            return None
        operation, target = match["operation"], (match["target"] or "")[:LONGEST_TARGET]
        if any(pattern.match(f"{operation} {target}") for pattern in NOISE):
            self.noise += 1
            return None
        return Denial(launch_id, match["process"], int(match["pid"]), operation, target, int(match["count"] or 1))
