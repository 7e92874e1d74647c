"""What nobody goes on with after a restart: its descriptors are closed, or sockets would stay open for ever that nobody
serves, and ports taken."""

from __future__ import annotations

import contextlib
import os

from sandboxd.handover.record import write_record


def close_descriptors(record: object) -> None:
    """Those that a record of another daemon has."""
    _, descriptors = write_record(record)
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
