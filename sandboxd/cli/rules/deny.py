"""`sandboxd deny`: see `allow`, which has both."""

from __future__ import annotations

from sandboxd.cli.rules.allow import DENY_HELP as HELP
from sandboxd.cli.rules.allow import deny as main

__all__ = ["HELP", "main"]
