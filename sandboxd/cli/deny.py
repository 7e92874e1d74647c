"""`sandboxd deny`: see `allow`, which has both."""

from __future__ import annotations

from sandboxd.cli.allow import deny as main

__all__ = ["main"]
