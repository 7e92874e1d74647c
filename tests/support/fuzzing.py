"""The number of examples of searching tests.

`SANDBOXD_FUZZ=20 ./dev test -o faulthandler_timeout=0 tests/…` tries twenty times as many, new ones each time."""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("SANDBOXD_FUZZ", "1"))


def examples(few: int) -> int:
    """Return how many examples to try of a test whose short form tries `few`."""
    return few * FACTOR
