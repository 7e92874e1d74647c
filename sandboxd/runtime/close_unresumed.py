"""Close the descriptors of state that could not be resumed after a restart."""

from __future__ import annotations

import contextlib
import os

from sandboxd.handover.record import write_record


def close_descriptors(record: object) -> None:
    """Close the descriptors in a record of another daemon."""
    _, descriptors = write_record(record)
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
