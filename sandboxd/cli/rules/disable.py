"""`sandboxd disable`: see `enable`, which has both."""

from __future__ import annotations

from sandboxd.cli.rules.enable import DISABLE_HELP as HELP
from sandboxd.cli.rules.enable import disable as main

__all__ = ["HELP", "main"]
