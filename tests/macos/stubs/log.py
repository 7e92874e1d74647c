"""A stand-in for /usr/bin/log(1): `log stream --style compact --predicate '(eventMessage ENDSWITH "SUFFIX")'`.

Says what it filters, then passes on the messages that come into the state directory from now on and end with the
suffix. The file `log-mode` makes it behave otherwise: `sandboxed` (refuses, status 64), `dies` (after its first
message), `silent` (says nothing at all), `garbage`, `odd predicate` is status 64.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

SEPARATOR = b"\0"
LOOKS_EVERY_S = 0.005


def main(state: Path, arguments: list[str]) -> int:
    mode = (state / "log-mode").read_text() if (state / "log-mode").exists() else ""
    with (state / "log-starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    if mode == "sandboxed":
        sys.stderr.write("log: Cannot run while sandboxed\n")
        return 64
    predicate = re.fullmatch(r'\(eventMessage ENDSWITH "([^"\\]+)"\)', arguments[-1])
    if arguments[:-1] != ["stream", "--style", "compact", "--predicate"] or predicate is None:
        sys.stderr.write("log: Unable to parse predicate\n")
        return 64
    source = state / "log"
    source.touch()
    with source.open("rb") as messages:
        messages.seek(0, os.SEEK_END)
        if mode == "silent":
            while True:
                time.sleep(60)
        if mode == "garbage":
            os.write(1, b"\xff\xfe\x00 garbage without end " * 200)
        os.write(1, f'Filtering the log data using "{arguments[-1]}"\n'.encode())
        os.write(1, b"Timestamp               Ty Process[PID:TID]\n")
        return follow(messages, predicate[1].encode(), mode)


def follow(messages, suffix: bytes, mode: str) -> int:  # type: ignore[no-untyped-def]
    rest = b""
    while True:
        data = messages.read()
        if not data:
            time.sleep(LOOKS_EVERY_S)
            continue
        *whole, rest = (rest + data).split(SEPARATOR)
        for message in whole:
            if message.endswith(suffix):
                stamp = time.strftime("%Y-%m-%d %H:%M:%S").encode()
                os.write(1, stamp + b".123456 E  kernel[0:1a2b3c] (Sandbox) " + message + b"\n")
                if mode == "dies":
                    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
